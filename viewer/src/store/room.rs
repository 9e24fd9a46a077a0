//! What all stores of the process may hold together: beyond it the oldest of the largest one goes.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed; // a number that orders nothing
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::retention::forget_a_step;
use super::{Store, StoreError};

/// A bound, and the stores that it holds for.
#[derive(Debug)]
pub(crate) struct Room {
    most_bytes: u64,
    /// What all stores may remember of their tables, for whoever inserts and again for whoever asks.
    remembered: usize,
    /// What one answer may take.
    answer: usize,
    stores: Mutex<Vec<Weak<Store>>>,
}

impl Room {
    /// Room for so many bytes of rows.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn new(most_bytes: u64) -> Arc<Self> {
        Self::with(most_bytes, 16 << 20, 64 << 20)
    }

    /// Room for so many bytes of rows, of what is remembered of them, and of one answer.
    pub(crate) fn with(most_bytes: u64, remembered: usize, answer: usize) -> Arc<Self> {
        Arc::new(Self { most_bytes, remembered, answer, stores: Mutex::default() })
    }

    pub(super) fn add(&self, store: &Arc<Store>) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(store));
    }

    fn stores(&self) -> Vec<Arc<Store>> {
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

    /// The same room for the stores of nobody, whose rows are none.
    pub(crate) fn empty(&self) -> Arc<Self> {
        Self::with(self.most_bytes, self.remembered, self.answer)
    }

    /// What all stores hold.
    pub(crate) fn used(&self) -> u64 {
        self.stores().iter().map(|store| store.used.load(Relaxed)).sum()
    }

    /// How much there may be.
    pub(crate) fn most(&self) -> u64 {
        self.most_bytes
    }

    /// Forgets until all is within the bound. No store may be locked by the caller.
    pub(super) fn make(&self) -> Result<(), StoreError> {
        while self.used() > self.most_bytes {
            let mut stores = self.stores();
            stores.sort_by_key(|store| Reverse(store.used.load(Relaxed)));
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

impl Store {
    fn forget_a_step(&self) -> Result<bool, StoreError> {
        let mut inner = self.lock();
        let (profiles, spans) = forget_a_step(&mut inner)?;
        inner.forgotten.profiles_by_size += profiles;
        inner.forgotten.spans_by_size += spans;
        self.measure(&inner)?;
        Ok(profiles + spans > 0)
    }
}
