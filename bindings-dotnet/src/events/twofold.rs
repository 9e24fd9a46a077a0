//! What is rarely changed and can be read at any time: who reads must not wait for long, as a garbage collection may wait for it.

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};

/// How often it is tried to read one of the two.
const PATIENCE: u32 = 1_000;

/// The same twice, changed one after the other: while who changes one waits for its readers, or loses its processor, the other can be read.
#[derive(Debug)]
pub(super) struct Twofold<T> {
    values: [RwLock<T>; 2],
    changes: Mutex<()>,
}

impl<T> Twofold<T> {
    /// Both are to be alike.
    pub(super) const fn new(one: T, other: T) -> Self {
        Self { values: [RwLock::new(one), RwLock::new(other)], changes: Mutex::new(()) }
    }

    /// Changes it, twice: each time alike.
    pub(super) fn change(&self, mut change: impl FnMut(&mut T)) {
        let _one_at_a_time = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for value in &self.values {
            change(&mut value.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// To read it, of late or as it was before a change that is under way. `None`: who changes it was faster each time.
    pub(super) fn read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let mut tries = self.values.iter().cycle().take(2 * PATIENCE as usize);
        tries.find_map(|value| match value.try_read() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(value)) => Some(value.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn it_can_be_read_while_who_changes_it_waits_for_another_reader() {
        let shared = Twofold::new(1, 1);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = shared.read().unwrap();
            let changes = scope.spawn(|| {
                shared.change(|value| *value = 2);
                is_done.store(true, Ordering::SeqCst);
            });
            // It is there once nobody gets what is read here.
            while shared.values[0].try_read().is_ok() {
                std::thread::yield_now();
            }
            assert_eq!(shared.read().map(|value| *value), Some(1));
            assert!(!is_done.load(Ordering::SeqCst));
            drop(reader);
            changes.join().unwrap();
            assert_eq!(shared.values.each_ref().map(|value| *value.read().unwrap()), [2, 2]);
        });
    }

    #[test]
    fn it_can_be_read_at_any_time() {
        let shared = Twofold::new((0, 0), (0, 0));
        std::thread::scope(|scope| {
            let changes =
                scope.spawn(|| (1..100_000).for_each(|number| shared.change(|value| *value = (number, number))));
            while !changes.is_finished() {
                let value = *shared.read().unwrap();
                assert_eq!(value.0, value.1);
            }
        });
    }
}
