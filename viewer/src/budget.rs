//! What requests may take in memory, all of them together: a part of --memory that each takes its bytes from before it
//! has them.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed; // numbers that order nothing
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a request waits for others to give bytes back.
const PATIENCE: Duration = Duration::from_secs(2);
/// And how long one that keeps a thread busy.
pub(crate) const PATIENCE_AT_WORK: Duration = Duration::from_millis(500);
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
    /// What small requests hold that are still arriving, by who sends them.
    arriving: Mutex<HashMap<IpAddr, usize>>,
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
        let none = || AtomicUsize::new(0);
        Arc::new(Self { most, each: each.min(most), held: none(), waiting: none(), arriving: Mutex::default() })
    }

    /// A request that holds nothing yet.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        Held { budget: Arc::clone(self), bytes: 0, arrives_from: None }
    }

    /// The same of one that is still arriving: the last quarter is not for such, as who sends it may take any time, and half of what is
    /// left is for others' small ones.
    pub(crate) fn hold_arriving(self: &Arc<Self>, from: IpAddr) -> Held {
        Held { budget: Arc::clone(self), bytes: 0, arrives_from: Some(from) }
    }

    /// Whether most of it is held.
    pub(crate) fn is_short(&self) -> bool {
        self.held.load(Relaxed) > self.most / 2
    }

    /// `all` is what the request will hold then. A quarter is left for small ones that have arrived, so that large and slow ones do not
    /// keep them out; one that is alone may have all of it.
    fn take(&self, bytes: usize, all: usize, is_arriving: bool) -> bool {
        let most = if self.is_small(all) && !is_arriving { self.most } else { self.most / 4 * 3 };
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

    fn is_small(&self, all: usize) -> bool {
        all <= self.most / SMALL
    }

    /// The same for a request that arrives from `from`.
    fn take_arriving(&self, bytes: usize, all: usize, from: IpAddr) -> bool {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        let of_sender = arriving.get(&from).copied().unwrap_or(0) + bytes;
        let has_share = !self.is_small(all) || of_sender == all || of_sender <= self.most / 8 * 3;
        let taken = has_share && self.take(bytes, all, true);
        if taken {
            arriving.insert(from, of_sender);
        }
        taken
    }

    /// So much of what arrives from `from` is given back, or has arrived.
    fn arrived(&self, bytes: usize, from: IpAddr) {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_sender) = arriving.get_mut(&from) {
            *of_sender = of_sender.saturating_sub(bytes);
            if *of_sender == 0 {
                arriving.remove(&from);
            }
        }
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
    /// Who sends it, until it is there.
    arrives_from: Option<IpAddr>,
}

impl Held {
    /// The request is there.
    pub(crate) fn arrived(&mut self) {
        if let Some(from) = self.arrives_from.take() {
            self.budget.arrived(self.bytes, from);
        }
    }

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
        self.grow_within(bytes, PATIENCE_AT_WORK)
    }

    /// The same, where it waits for so long.
    pub(crate) fn grow_within(&mut self, bytes: usize, patience: Duration) -> Result<(), NoRoom> {
        let (start, mut waits) = (Instant::now(), None);
        while !self.try_grow(bytes)? {
            waits.get_or_insert_with(|| Waiting::new(&self.budget));
            if start.elapsed() >= patience {
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
        let taken = match self.arrives_from {
            Some(from) => self.budget.take_arriving(bytes, all, from),
            None => self.budget.take(bytes, all, false),
        };
        if taken {
            self.bytes = all;
        }
        Ok(taken)
    }

    /// Gives bytes back.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(from) = self.arrives_from {
            self.budget.arrived(bytes, from);
        }
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

    #[test]
    fn what_arrives_slowly_leaves_room_for_what_is_there_and_for_others() {
        let budget = Budget::new(1_600, 1_600);
        let [slow, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let hold_all = |from| {
            let each = || {
                let mut held = budget.hold_arriving(from);
                held.grow_now(100).then_some(held)
            };
            std::iter::from_fn(each).collect::<Vec<_>>()
        };
        let of_slow = hold_all(slow);
        assert_eq!(of_slow.len(), 6, "half of three quarters");
        let of_other = hold_all(other);
        assert_eq!(of_other.len(), 6);
        let mut third = budget.hold_arriving(IpAddr::from([10, 0, 0, 3]));
        assert!(!third.grow_now(1));
        // The last quarter is for what has arrived.
        third.arrived();
        assert!(third.grow_now(100) && budget.hold().grow_now(100));
        drop(of_slow);
        assert_eq!(hold_all(slow).len(), 5, "beside those that are held");
        drop((of_other, third));
        assert_eq!((budget.held.load(Relaxed), budget.arriving.lock().unwrap().len()), (0, 0));
    }
}
