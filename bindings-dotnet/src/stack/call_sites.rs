//! Return addresses within methods that have no frame: where the walk finds the caller that the rbp chain leaves out.
//!
//! A table of fixed size. The call sites of a method are added when it was compiled, and taken back when other code takes its place. Of
//! methods that were compiled ahead of time the handler remembers those that it met, also that they have a frame.

use std::sync::atomic::{AtomicU64, Ordering};

const PLACES: usize = 1 << 16;
/// Places looked at for one address.
const PROBES: usize = 8;
const GONE: u64 = u64::MAX;

const HAS_FRAME: u64 = 0xffff;

/// Return address << 16 | bytes from rsp, after the callee returned, to the method's own return address. 0 = free.
static SITES: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

fn places(address: u64) -> impl Iterator<Item = &'static AtomicU64> {
    let first = (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize;
    (0..PROBES).map(move |probe| &SITES[(first + probe) % PLACES])
}

/// Where the caller is of the method that a return address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Where rbp says.
    ByFrame,
    /// Its return address is so many bytes above rsp.
    After(u64),
}

/// What is known of a return address. Async-signal-safe.
#[inline]
pub(crate) fn find(return_address: u64) -> Option<Caller> {
    for place in places(return_address) {
        match place.load(Ordering::Relaxed) {
            0 => return None,
            site if site >> 16 == return_address => {
                return Some(if site & HAS_FRAME == HAS_FRAME {
                    Caller::ByFrame
                } else {
                    Caller::After(site & HAS_FRAME)
                });
            }
            _ => {}
        }
    }
    None
}

/// Remembers what was found of a return address in code that stays. Async-signal-safe: where there is no free place it is found anew.
pub(crate) fn remember(return_address: u64, caller: Caller) {
    let bytes = match caller {
        Caller::After(bytes @ 0..HAS_FRAME) => bytes,
        Caller::ByFrame => HAS_FRAME,
        Caller::After(_) => return,
    };
    if return_address >> 47 == 0
        && let Some(place) = places(return_address).find(|place| place.load(Ordering::Relaxed) == 0)
    {
        // Who adds or remembers another one meanwhile has the place.
        let _ = place.compare_exchange(0, return_address << 16 | bytes, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Notes a call site. One that finds no place is left out: its caller will be, too. One caller at a time.
pub(crate) fn add(return_address: u64, bytes: u32) {
    if u64::from(bytes) >= HAS_FRAME || return_address >> 47 != 0 {
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
        assert_eq!(find(0x7f00_0007), Some(Caller::After(48)), "newest");
        assert_eq!(find(0x7f00_0fff), Some(Caller::After(40)));
        forget(0x7f00_0007);
        assert_eq!((find(0x7f00_0007), find(0x7f00_0008)), (None, Some(Caller::After(40))));
        add(0x7f00_0007, 56);
        assert_eq!(find(0x7f00_0007), Some(Caller::After(56)));
        add(0x7f00_0009, 70_000);
        assert_eq!(find(0x7f00_0009), Some(Caller::After(40)), "a frame that large is not noted");
        assert_eq!(find(0), None);
        remember(0x7f00_2000, Caller::ByFrame);
        remember(0x7f00_2008, Caller::After(8));
        remember(0x7f00_2010, Caller::After(70_000));
        let found = [0x7f00_2000, 0x7f00_2008, 0x7f00_2010].map(find);
        assert_eq!(found, [Some(Caller::ByFrame), Some(Caller::After(8)), None]);
    }
}
