//! Since when coroutines are suspended: a slot for each, found again when it goes on.
//!
//! A hash table by address would cost a miss of the cache and of the TLB at each step of ten thousand tasks. So from 3.11 on the number
//! of a coroutine's slot stands in four bytes of the coroutine that are nobody's; it counts only if the slot names the coroutine in
//! turn, so what was there before does no harm. 3.10 has no such bytes, and a table by address.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr;

use crate::stack::memory::Object;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The coroutine, null in a slot that is free.
    coroutine: Object,
    /// When it was suspended; 0: it runs, or what it does is not counted. In a slot that is free the next one that is.
    since: u64,
    /// The number of the flow that it is the root of.
    flow: u64,
    /// Whether the span that was current in it when that was looked at last had begun in another flow.
    is_concurrent: bool,
    /// Its number was given before the last stop, and it was not met since.
    is_old: bool,
}

const FREE: Slot = Slot { coroutine: ptr::null(), since: 0, flow: 0, is_concurrent: false, is_old: false };

/// A coroutine that was met before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) slot: u32,
    pub(super) since: u64,
    pub(super) flow: u64,
    pub(super) is_concurrent: bool,
}

#[derive(Debug)]
pub(super) struct Slots {
    /// The first is none: 0 means that there is none.
    slots: Vec<Slot>,
    free: u32,
    padding: Option<usize>,
    by_address: HashMap<usize, u32, BuildHasherDefault<AddressHasher>>,
}

impl Slots {
    pub(super) const fn new() -> Self {
        let by_address = HashMap::with_hasher(BuildHasherDefault::new());
        Self { slots: Vec::new(), free: 0, padding: None, by_address }
    }

    /// Coroutines have this padding, which never changes.
    pub(super) fn set_padding(&mut self, padding: Option<usize>) {
        self.padding = padding;
    }

    /// Measuring ends: forgets since when coroutines are suspended. Their numbers stay until it ends for the second time, so
    /// a span that is under way keeps its flow. A coroutine that dies meanwhile stays too, so whoever meets one of these first asks
    /// whether it has just been made.
    pub(super) fn retire(&mut self) {
        let mut is_empty = true;
        for number in 1..self.slots.len() {
            let slot = &mut self.slots[number];
            if slot.coroutine.is_null() {
                continue;
            }
            if slot.is_old {
                self.release(u32::try_from(number).unwrap_or(0));
            } else {
                (slot.since, slot.is_old) = (0, true);
                is_empty = false;
            }
        }
        if is_empty {
            *self = Self { padding: self.padding, ..Self::new() };
        }
    }

    /// One that was met before the last stop is met again.
    pub(super) fn renew(&mut self, slot: u32) {
        if let Some(known) = self.slots.get_mut(slot as usize) {
            known.is_old = false;
        }
    }

    /// Whether a coroutine is the root of this flow.
    pub(super) fn has_flow(&self, flow: u64) -> bool {
        self.slots.iter().any(|slot| !slot.coroutine.is_null() && slot.flow == flow)
    }

    /// Of what class the suspensions of this one are from now on.
    pub(super) fn note_class(&mut self, slot: u32, is_concurrent: bool) {
        if let Some(known) = self.slots.get_mut(slot as usize) {
            known.is_concurrent = is_concurrent;
        }
    }

    /// # Safety
    /// `coroutine` must be one, and the GIL be held: here and below.
    #[inline(always)]
    unsafe fn find(&self, coroutine: Object) -> u32 {
        let Some(padding) = self.padding else {
            return if self.by_address.is_empty() { 0 } else { self.found_by_address(coroutine) };
        };
        // SAFETY: four bytes of a live coroutine, aligned.
        let slot = unsafe { ptr::read(coroutine.wrapping_add(padding).cast::<u32>()) };
        match self.slots.get(slot as usize) {
            Some(known) if known.coroutine == coroutine => slot,
            _ => 0,
        }
    }

    fn found_by_address(&self, coroutine: Object) -> u32 {
        self.by_address.get(&coroutine.addr()).copied().unwrap_or(0)
    }

    /// A coroutine goes on: since when it was suspended.
    #[inline(always)]
    pub(super) unsafe fn resume(&mut self, coroutine: Object) -> Option<Met> {
        // SAFETY: the caller's promise.
        let slot = unsafe { self.find(coroutine) };
        if slot == 0 {
            return None;
        }
        let known = self.slots.get_mut(slot as usize)?;
        let met = Met { slot, since: known.since, flow: known.flow, is_concurrent: known.is_concurrent };
        known.since = 0;
        Some(met)
    }

    /// A coroutine is suspended. `slot`: where it was met when it went on, 0 if it was not. False: it has none, and is to be inserted.
    #[inline(always)]
    pub(super) fn suspend(&mut self, slot: u32, coroutine: Object, since: u64) -> bool {
        match self.slots.get_mut(slot as usize) {
            Some(known) if known.coroutine == coroutine => {
                known.since = since;
                true
            }
            _ => false,
        }
    }

    /// A coroutine is suspended that has no slot. Where memory is out it gets none, and this suspension of it is not seen.
    #[inline(never)]
    pub(super) unsafe fn insert(&mut self, coroutine: Object, since: u64, flow: u64, is_concurrent: bool) {
        let slot = Slot { coroutine, since, flow, is_concurrent, is_old: false };
        // SAFETY: the caller's promise.
        let known = unsafe { self.find(slot.coroutine) };
        if known != 0 {
            self.slots[known as usize] = slot;
            return;
        }
        if self.free == 0 {
            let is_first = self.slots.is_empty();
            if self.slots.try_reserve(2).is_err() {
                return;
            }
            if is_first {
                self.slots.push(FREE);
            }
        }
        let number = if self.free == 0 { self.slots.len() } else { self.free as usize };
        let Ok(narrow) = u32::try_from(number) else { return };
        match self.padding {
            // SAFETY: four bytes of a live coroutine that are nobody's.
            Some(padding) => unsafe { ptr::write(slot.coroutine.wrapping_add(padding).cast_mut().cast(), narrow) },
            None => {
                if self.by_address.try_reserve(1).is_err() {
                    return;
                }
                self.by_address.insert(slot.coroutine.addr(), narrow);
            }
        }
        if self.free == 0 {
            self.slots.push(slot);
        } else {
            self.free = u32::try_from(self.slots[number].since).unwrap_or(0);
            self.slots[number] = slot;
        }
    }

    /// A coroutine is over.
    #[inline(always)]
    pub(super) unsafe fn forget(&mut self, coroutine: Object) {
        // SAFETY: the caller's promise.
        let slot = unsafe { self.find(coroutine) };
        if slot != 0 {
            self.release(slot);
        }
    }

    #[inline(never)]
    fn release(&mut self, slot: u32) {
        let released = &mut self.slots[slot as usize];
        if self.padding.is_none() {
            self.by_address.remove(&released.coroutine.addr());
        }
        *released = Slot { since: u64::from(self.free), ..FREE };
        self.free = slot;
    }

    /// Whether a coroutine at this address is suspended, by looking through all, as there may be none any more.
    pub(super) fn has(&self, coroutine: Object) -> bool {
        self.slots.iter().any(|slot| slot.coroutine == coroutine && slot.since != 0)
    }
}

/// Spreads addresses, which are multiples of sixteen.
#[derive(Debug, Default)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, _: &[u8]) {}

    #[inline]
    fn write_usize(&mut self, address: usize) {
        self.0 = (address as u64 >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table takes its places from the lowest bits, the product has its best ones above.
        self.0.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(padding: Option<usize>) {
        let objects: Vec<[u64; 4]> = (0..1_000).map(|_| [u64::MAX; 4]).collect();
        let at = |number: usize| -> Object { (&raw const objects[number]).cast() };
        let mut slots = Slots::new();
        slots.set_padding(padding);
        let mut known = vec![None; objects.len()];
        let mut random = 1_u64;
        for round in 1..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 33) as usize % objects.len();
            // SAFETY: memory that stands in for coroutines, and nobody else is here.
            let met = unsafe { slots.resume(at(number)) };
            assert_eq!(met.map(|met| (met.since, met.flow)), known[number]);
            if random >> 62 == 0 {
                // SAFETY: as above.
                unsafe { slots.forget(at(number)) };
                known[number] = None;
            } else {
                let flow = met.map_or(round, |met| met.flow);
                if !slots.suspend(met.map_or(0, |met| met.slot), at(number), round) {
                    // SAFETY: as above.
                    unsafe { slots.insert(at(number), round, flow, false) };
                }
                known[number] = Some((round, flow));
            }
        }
        assert!(slots.slots.len() <= objects.len() + 1, "slots are used again");
    }

    #[test]
    fn each_coroutine_finds_its_own_suspension() {
        check(None);
        check(Some(12));
    }

    #[test]
    fn numbers_outlive_one_stop_and_no_second_one() {
        let objects = [[0_u64; 4]; 2];
        let [first, second] = [&raw const objects[0], &raw const objects[1]].map(<*const [u64; 4]>::cast::<u8>);
        let mut slots = Slots::new();
        // SAFETY: memory that stands in for coroutines, and nobody else is here.
        unsafe { slots.insert(first, 5, 1, true) };
        // SAFETY: as above.
        unsafe { slots.insert(second, 6, 2, false) };
        slots.retire();
        assert!(!slots.has(first));
        // SAFETY: as above.
        let met = unsafe { slots.resume(first) }.unwrap();
        assert_eq!((met.since, met.flow), (0, 1));
        slots.renew(met.slot);
        assert!(slots.suspend(met.slot, first, 7));
        slots.retire();
        // SAFETY: as above.
        assert!(unsafe { slots.resume(second) }.is_none());
        // SAFETY: as above.
        assert_eq!(unsafe { slots.resume(first) }.map(|met| met.flow), Some(1));
        slots.retire();
        assert!(slots.slots.is_empty());
    }
}
