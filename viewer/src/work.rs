//! How long the work on a request may take, and whether anyone still waits for it. It is told to the thread that works,
//! so that a loop deep inside of a query or of SQLite can ask.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed; // a flag that orders nothing
use std::time::{Duration, Instant};

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// The request that a thread works on.
#[derive(Debug)]
struct Current {
    until: Instant,
    haste: Haste,
    gone: Gone,
}

/// Whether others make room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// It takes little, and is the first to be let to the store.
    Urgent,
    /// It waits for those, and gives the store up for them where it takes long.
    Patient,
}

/// Whether the one who asked has hung up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone(Arc<AtomicBool>);

/// Says so when it is dropped before its work is done.
#[derive(Debug)]
pub(crate) struct Waiting(Gone);

impl Gone {
    /// Belongs to whoever waits.
    pub(crate) fn waiting(&self) -> Waiting {
        Waiting(self.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Relaxed);
    }
}

/// Runs `work`, within which [`is_over`] tells.
pub(crate) fn within<T>(limit: Duration, haste: Haste, gone: Gone, work: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            CURRENT.with_borrow_mut(|current| *current = None);
        }
    }
    let _end = End;
    CURRENT.with_borrow_mut(|current| *current = Some(Current { until: Instant::now() + limit, haste, gone }));
    work()
}

/// Runs `work` that must be done whoever waits for it, such as making room.
pub(crate) fn to_the_end<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Current>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.with_borrow_mut(|current| *current = self.0.take());
        }
    }
    let _restore = Restore(CURRENT.with_borrow_mut(Option::take));
    work()
}

/// Whether the time of the request that this thread works on is over, or nobody waits for it any more.
pub(crate) fn is_over() -> bool {
    CURRENT.with_borrow(|current| {
        current.as_ref().is_some_and(|current| current.gone.0.load(Relaxed) || Instant::now() >= current.until)
    })
}

/// How much haste there is with the request that this thread works on; none if it works on no request.
pub(crate) fn haste() -> Option<Haste> {
    CURRENT.with_borrow(|current| current.as_ref().map(|current| current.haste))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_over_when_its_time_is_or_nobody_waits() {
        assert!(!is_over());
        let (gone, hour) = (Gone::default(), Duration::from_secs(3600));
        let waiting = gone.waiting();
        assert!(!within(hour, Haste::Patient, gone.clone(), is_over));
        assert!(within(Duration::ZERO, Haste::Patient, gone.clone(), is_over));
        assert_eq!(
            within(Duration::ZERO, Haste::Patient, gone.clone(), || (to_the_end(is_over), is_over())),
            (false, true)
        );
        drop(waiting);
        assert!(within(hour, Haste::Patient, gone, is_over));
        assert!(!is_over());
        let haste = within(hour, Haste::Urgent, Gone::default(), || (haste(), to_the_end(haste)));
        assert_eq!(haste, (Some(Haste::Urgent), None));
    }
}
