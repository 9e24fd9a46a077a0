//! Return addresses within methods that have no frame: where the walk finds the caller that the rbp chain leaves out.
//!
//! A table of fixed size: the profiler's thread adds the call sites of a method when it first meets it and takes them back
//! when the code is gone, the handler looks up.

use std::sync::atomic::{AtomicU64, Ordering};

const PLACES: usize = 1 << 16;
/// Places looked at for one address.
const PROBES: usize = 8;
const GONE: u64 = u64::MAX;

/// Return address << 16 | bytes from rsp, after the callee returned, to the method's own return address. 0 = free.
static SITES: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

fn places(address: u64) -> impl Iterator<Item = &'static AtomicU64> {
    let first = (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize;
    (0..PROBES).map(move |probe| &SITES[(first + probe) % PLACES])
}

/// Bytes to the return address of the method that `return_address` is in, if that has no frame. Async-signal-safe.
#[inline]
pub(crate) fn find(return_address: u64) -> Option<u64> {
    for place in places(return_address) {
        match place.load(Ordering::Relaxed) {
            0 => return None,
            site if site >> 16 == return_address => return Some(site & 0xffff),
            _ => {}
        }
    }
    None
}

/// Notes a call site. One that finds no place is left out: its caller will be, too. One caller at a time.
pub(crate) fn add(return_address: u64, bytes: u32) {
    if bytes > 0xffff || return_address >> 47 != 0 {
        return;
    }
    forget(return_address);
    if let Some(place) = places(return_address).find(|place| matches!(place.load(Ordering::Relaxed), 0 | GONE)) {
        place.store(return_address << 16 | u64::from(bytes), Ordering::Relaxed);
    }
}

/// Takes a call site back. One caller at a time.
pub(crate) fn forget(return_address: u64) {
    for place in places(return_address) {
        let site = place.load(Ordering::Relaxed);
        if site != GONE && site >> 16 == return_address && site != 0 {
            place.store(GONE, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_found_until_it_is_forgotten() {
        for address in 0x7f00_0000..0x7f00_1000_u64 {
            add(address, 40);
        }
        add(0x7f00_0007, 48);
        assert_eq!(find(0x7f00_0007), Some(48), "newest");
        assert_eq!(find(0x7f00_0fff), Some(40));
        forget(0x7f00_0007);
        assert_eq!((find(0x7f00_0007), find(0x7f00_0008)), (None, Some(40)));
        add(0x7f00_0007, 56);
        assert_eq!(find(0x7f00_0007), Some(56));
        add(0x7f00_0009, 70_000);
        assert_eq!(find(0x7f00_0009), Some(40), "a frame that large is not noted");
        assert_eq!(find(0), None);
    }
}
