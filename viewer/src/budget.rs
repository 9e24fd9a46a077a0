//! What requests may take in memory, all of them together: a part of --memory that each takes its bytes from before it
//! has them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed; // numbers that order nothing
use std::time::{Duration, Instant};

/// How long a request waits for others to give bytes back.
const PATIENCE: Duration = Duration::from_secs(2);
/// And how long one that keeps a thread busy.
const PATIENCE_AT_WORK: Duration = Duration::from_millis(500);
/// A small request holds at most one part in this many.
const SMALL: usize = 16;
/// How often it looks.
const TICK: Duration = Duration::from_millis(5);

/// Bytes that requests share.
#[derive(Debug)]
pub(crate) struct Budget {
    /// What all may take together.
    most: usize,
    /// What one may.
    each: usize,
    held: AtomicUsize,
    /// Requests that wait for bytes right now.
    waiting: AtomicUsize,
}

/// Why there are no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// One request alone would take more than it may, which is this many bytes.
    TooLarge(usize),
    /// Others have them now.
    Busy,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(most) => write!(f, "takes more than the {most} bytes of memory that one may"),
            Self::Busy => f.write_str("has no room in memory beside the others right now; try again in a second"),
        }
    }
}

impl Budget {
    /// `most` bytes for all, `each` for one.
    pub(crate) fn new(most: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { most, each: each.min(most), held: AtomicUsize::new(0), waiting: AtomicUsize::new(0) })
    }

    /// A request that holds nothing yet.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        Held { budget: Arc::clone(self), bytes: 0 }
    }

    /// Whether most of it is held.
    pub(crate) fn is_short(&self) -> bool {
        self.held.load(Relaxed) > self.most / 2
    }

    /// `all` is what the request will hold then. A quarter is left for small ones, so that large ones do not keep them out;
    /// one that is alone may have all of it.
    fn take(&self, bytes: usize, all: usize) -> bool {
        let most = if all <= self.most / SMALL { self.most } else { self.most / 4 * 3 };
        let is_alone = |held: usize| held == all - bytes;
        let mut held = self.held.load(Relaxed);
        // `try_update` does the same from Rust 1.95 on.
        while let Some(sum) = held.checked_add(bytes).filter(|sum| *sum <= most || is_alone(held)) {
            match self.held.compare_exchange_weak(held, sum, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => held = now,
            }
        }
        false
    }
}

/// One more request waits for bytes as long as this is kept.
struct Waiting(Arc<Budget>);

impl Waiting {
    fn new(budget: &Arc<Budget>) -> Self {
        budget.waiting.fetch_add(1, Relaxed);
        Self(Arc::clone(budget))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// The bytes of one request, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Held {
    /// The most that one request may hold.
    pub(crate) fn most_of_one(&self) -> usize {
        self.budget.each
    }

    /// Whether others may soon have to wait for bytes.
    pub(crate) fn is_short(&self) -> bool {
        self.budget.is_short()
    }

    /// Whether others do wait for bytes.
    pub(crate) fn is_wanted(&self) -> bool {
        self.budget.waiting.load(Relaxed) > 0
    }

    /// What it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more bytes, for which the thread waits a moment where others have them.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let (start, mut waits) = (Instant::now(), None);
        while !self.try_grow(bytes)? {
            waits.get_or_insert_with(|| Waiting::new(&self.budget));
            if start.elapsed() >= PATIENCE_AT_WORK {
                return Err(NoRoom::Busy);
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Takes more bytes where they are free right now.
    pub(crate) fn grow_now(&mut self, bytes: usize) -> bool {
        self.try_grow(bytes).unwrap_or(false)
    }

    /// The same for what runs on no thread of its own.
    pub(crate) async fn grow_later(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let (start, mut waits) = (tokio::time::Instant::now(), None);
        while !self.try_grow(bytes)? {
            waits.get_or_insert_with(|| Waiting::new(&self.budget));
            if start.elapsed() >= PATIENCE {
                return Err(NoRoom::Busy);
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    fn try_grow(&mut self, bytes: usize) -> Result<bool, NoRoom> {
        let all = self.bytes.checked_add(bytes).filter(|all| *all <= self.budget.each);
        let all = all.ok_or(NoRoom::TooLarge(self.budget.each))?;
        let taken = self.budget.take(bytes, all);
        if taken {
            self.bytes = all;
        }
        Ok(taken)
    }

    /// Gives bytes back.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.held.fetch_sub(bytes, Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_once_and_given_back() {
        let budget = Budget::new(160, 80);
        let (mut a, mut b) = (budget.hold(), budget.hold());
        assert_eq!(a.grow(80), Ok(()));
        assert_eq!(a.grow(1), Err(NoRoom::TooLarge(80)));
        assert_eq!(a.grow(usize::MAX), Err(NoRoom::TooLarge(80)));
        assert_eq!(b.grow(41), Err(NoRoom::Busy), "a quarter is for small ones");
        assert_eq!(b.grow(10), Ok(()));
        assert!(budget.is_short());
        a.shrink(30);
        assert_eq!(b.grow(41), Ok(()));
        drop((a, b));
        let whole = Budget::new(160, 160);
        assert_eq!(whole.hold().grow(160), Ok(()), "who is alone may have all that one may");
        assert_eq!(budget.held.load(Relaxed), 0);
    }
}
