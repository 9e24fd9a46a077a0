//! What all stores of the process may hold together: beyond it the oldest of the largest one goes.

use std::cmp::Reverse;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::connection::StoreError;
use crate::work::{self, Haste};

/// Urgent requests leave it to another thread to forget, as long as what is too much is at most one part in this many.
const SLACK: u64 = 32;

/// One of those that share the limits.
pub(super) trait Member: Send + Sync {
    /// The bytes of its rows.
    fn used(&self) -> u64;

    /// Forgets the oldest part of what it holds. False if there is nothing.
    fn forget_a_step(&self) -> Result<bool, StoreError>;
}

/// How much all stores may hold, and the stores that it is for.
pub(crate) struct StorageLimits {
    most_bytes: u64,
    /// What all stores may remember of their tables, for whoever inserts and again for whoever asks.
    remembered: usize,
    /// What one answer may take.
    answer: usize,
    stores: Mutex<Vec<Weak<dyn Member>>>,
    /// Held by who forgets, so that two do not forget twice as much as they must.
    forgets: Mutex<()>,
    /// Whether there is too much.
    exceeded: Notify,
}

impl StorageLimits {
    /// So many bytes of rows.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn new(most_bytes: u64) -> Arc<Self> {
        Self::with(most_bytes, 16 << 20, 64 << 20)
    }

    /// So many bytes of rows, of what is remembered of them, and of one answer.
    pub(crate) fn with(most_bytes: u64, remembered: usize, answer: usize) -> Arc<Self> {
        let (stores, forgets, exceeded) = (Mutex::default(), Mutex::default(), Notify::new());
        Arc::new(Self { most_bytes, remembered, answer, stores, forgets, exceeded })
    }

    /// Has one more share them.
    pub(super) fn add(&self, store: Weak<dyn Member>) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(store);
    }

    fn stores(&self) -> Vec<Arc<dyn Member>> {
        let mut known = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|store| store.strong_count() > 0);
        known.iter().filter_map(Weak::upgrade).collect()
    }

    /// The bytes that one store may remember.
    pub(super) fn remembered(&self) -> usize {
        self.remembered / self.stores.lock().unwrap_or_else(PoisonError::into_inner).len().max(1)
    }

    /// The bytes that one answer may take.
    pub(crate) fn answer(&self) -> usize {
        self.answer
    }

    /// The same for the store of nobody, which never holds a row.
    pub(crate) fn for_no_store(&self) -> Arc<Self> {
        Self::with(self.most_bytes, self.remembered, self.answer)
    }

    /// What all stores hold.
    pub(crate) fn used(&self) -> u64 {
        self.stores().iter().map(|store| store.used()).sum()
    }

    /// How much there may be.
    pub(crate) fn most(&self) -> u64 {
        self.most_bytes
    }

    /// Waits until someone must forget who is in no hurry.
    pub(crate) async fn exceeded(&self) {
        self.exceeded.notified().await;
    }

    /// Lets one thread forget at a time. No store may be locked by the caller.
    pub(super) fn forgets(&self) -> MutexGuard<'_, ()> {
        self.forgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets until all is within the limits, or has another do so. No store may be locked by the caller.
    pub(crate) fn enforce(&self) -> Result<(), StoreError> {
        let used = self.used();
        if used <= self.most_bytes {
            return Ok(());
        }
        if work::haste() == Some(Haste::Urgent) && used <= self.most_bytes + self.most_bytes / SLACK {
            self.exceeded.notify_one();
            return Ok(());
        }
        work::to_the_end(|| self.enforce_now())
    }

    fn enforce_now(&self) -> Result<(), StoreError> {
        let _alone = self.forgets();
        while self.used() > self.most_bytes {
            let mut stores = self.stores();
            stores.sort_by_key(|store| Reverse(store.used()));
            let mut any = false;
            for store in stores {
                // One that has nothing to forget is its tables alone.
                any = store.forget_a_step()?;
                if any {
                    break;
                }
            }
            if !any {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for StorageLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageLimits").finish_non_exhaustive()
    }
}
