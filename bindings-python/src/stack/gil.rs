//! Which waits are for the GIL: those for what lies in the interpreter's own static data.
//!
//! Since 3.10 the lock's condition and mutex are in `_PyRuntime`, from 3.12 on in the main interpreter in it. Other interpreters'
//! locks lie elsewhere, but are waited for at the same places of the interpreter's code, which are learnt from the main one's.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the interpreter waits for a lock of its own: some functions do, of which each has one or two such places.
static CALLERS: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Whether a wait for what lies at `lock`, called from `caller`, was for a GIL. `runtime`: the interpreter's static data.
#[inline]
pub(crate) fn is_gil(runtime: &Range<u64>, lock: u64, caller: usize) -> bool {
    if !runtime.contains(&lock) {
        return !runtime.is_empty() && CALLERS.iter().any(|known| known.load(Ordering::Relaxed) == caller);
    }
    for known in &CALLERS {
        match known.compare_exchange(0, caller, Ordering::Relaxed, Ordering::Relaxed) {
            Err(other) if other != caller => {}
            _ => break,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_interpreters_lock_is_known_by_where_it_is_waited_for() {
        let runtime = 0x1000..0x2000;
        assert!(!is_gil(&runtime, 0x5000, 0x77));
        assert!(is_gil(&runtime, 0x1800, 0x77));
        assert!(is_gil(&runtime, 0x5000, 0x77));
        assert!(!is_gil(&runtime, 0x5000, 0x78));
        assert!(!is_gil(&(0..0), 0x5000, 0x77));
    }
}
