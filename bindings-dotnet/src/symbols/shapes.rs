//! What the walk in the handler has to know of managed code before that runs for the first time: where methods without a frame call
//! others, and which bodies on-stack replacement enters.
//!
//! Learned where a method is reported, on the thread that compiled it, before anybody calls it: a sample may be taken a microsecond later.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clr::code::Body;
use crate::memory;
use crate::stack::call_sites;
use crate::stack::unwind::OSR_METHODS;
use crate::symbols::prologue::{self, PROLOGUE_BYTES, Prologue};

/// Longer methods without a frame are not searched for call sites.
const MAX_SEARCHED: u64 = 16 << 10;
/// Bodies that are kept; what further ones call has no caller.
const MAX_SHAPES: usize = 200_000;

/// A body without a frame, or one that on-stack replacement enters.
#[derive(Debug)]
struct Shape {
    end: u64,
    is_osr: bool,
    may_go: bool,
    call_sites: Box<[u64]>,
}

/// By start. Held for some microseconds, and over no question to CoreCLR.
static SHAPES: Mutex<BTreeMap<u64, Shape>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<u64, Shape>> {
    SHAPES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Learns bodies, which take the place of what was there. `may_go`: other code may come there.
pub(crate) fn learn(bodies: &[Body], may_go: bool) {
    let mut shapes = lock();
    let mut osr_changed = false;
    for (place, range) in bodies.iter().flat_map(|body| body.iter().enumerate()) {
        let (start, end) = (range.start, range.end);
        let is_known = |shape: &Shape| shape.end == end && !may_go && !shape.may_go;
        if end <= start || shapes.get(&start).is_some_and(is_known) {
            continue;
        }
        osr_changed |= make_room(&mut shapes, start, end);
        // The parts that follow are entered by jumps.
        if place == 0
            && shapes.len() < MAX_SHAPES
            && let Some(prologue) = prologue_of(start, end)
        {
            let (is_osr, call_sites) = (prologue.is_osr, learn_call_sites(start, end - start, &prologue));
            if is_osr || !call_sites.is_empty() {
                osr_changed |= is_osr;
                shapes.insert(start, Shape { end, is_osr, may_go, call_sites });
            }
        }
    }
    if osr_changed {
        show_osr(&shapes);
    }
}

/// Code that may go has gone, or may have.
pub(crate) fn forget_what_may_go() {
    let mut shapes = lock();
    shapes.retain(|_, shape| {
        if shape.may_go {
            shape.call_sites.iter().for_each(|site| call_sites::forget(*site));
        }
        !shape.may_go
    });
    show_osr(&shapes);
}

/// How the code from `start` on begins, as it is now.
pub(crate) fn prologue_of(start: u64, end: u64) -> Option<Prologue> {
    let mut copy = [0; PROLOGUE_BYTES];
    let length = usize::try_from(end.checked_sub(start)?).ok()?.min(PROLOGUE_BYTES);
    let code = memory::read(start, &mut copy[..length]);
    (length > 1 && code.len() == length).then(|| Prologue::decode(code))
}

/// Takes out what overlaps. True: what was entered by replacement changed.
fn make_room(shapes: &mut BTreeMap<u64, Shape>, start: u64, end: u64) -> bool {
    let mut osr_changed = false;
    while let Some(at) = shapes.range(..end).next_back().filter(|(_, shape)| shape.end > start).map(|(at, _)| *at)
        && let Some(shape) = shapes.remove(&at)
    {
        shape.call_sites.iter().for_each(|site| call_sites::forget(*site));
        osr_changed |= shape.is_osr;
    }
    osr_changed
}

/// Shows the handler where a method without a frame calls others.
fn learn_call_sites(start: u64, size: u64, prologue: &Prologue) -> Box<[u64]> {
    let Some(bytes) = prologue.frameless_bytes().filter(|_| size <= MAX_SEARCHED) else {
        return Box::default();
    };
    let mut copy = vec![0; usize::try_from(size).unwrap_or(0)];
    let offsets = prologue::call_sites(memory::read(start, &mut copy));
    let sites: Box<[u64]> = offsets.map(|offset| start + u64::from(offset)).collect();
    sites.iter().for_each(|site| call_sites::add(*site, bytes));
    sites
}

/// Shows the handler which code was entered by on-stack replacement.
fn show_osr(shapes: &BTreeMap<u64, Shape>) {
    let osr = shapes.iter().filter(|(_, shape)| shape.is_osr);
    OSR_METHODS.replace(&osr.map(|(start, shape)| (*start, shape.end)).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::stack::call_sites::Caller;

    /// Code in memory of its own, where a test puts other code later.
    fn place(code: &[u8]) -> (&'static mut [u8], Range<u64>) {
        let memory = Box::leak(vec![0x90; 64].into_boxed_slice());
        memory[..code.len()].copy_from_slice(code);
        let start = memory.as_ptr() as u64;
        (memory, start..start + 64)
    }

    /// sub rsp, 0x28; call; nop
    const FRAMELESS: [u8; 10] = [0x48, 0x83, 0xec, 0x28, 0xe8, 0, 0, 0, 0, 0x90];
    /// push rbp; mov rbp, rsp; call; nop
    const FRAMED: [u8; 10] = [0x55, 0x48, 0x8b, 0xec, 0xe8, 0, 0, 0, 0, 0x90];
    /// mov rax, [rbp]
    const OSR: [u8; 4] = [0x48, 0x8b, 0x45, 0x00];

    #[test]
    fn what_a_method_without_a_frame_calls_is_known_at_once_and_until_other_code_is_there() {
        let (memory, range) = place(&FRAMELESS);
        learn(&[vec![range.clone()]], true);
        assert_eq!(call_sites::find(range.start + 9), Some(Caller::After(0x28)));
        memory[..10].copy_from_slice(&FRAMED);
        learn(&[vec![range.clone()]], true);
        assert_eq!(call_sites::find(range.start + 9), None);
        memory[..10].copy_from_slice(&FRAMELESS);
        learn(&[vec![range.clone()]], true);
        assert_eq!(call_sites::find(range.start + 9), Some(Caller::After(0x28)));
        forget_what_may_go();
        assert_eq!(call_sites::find(range.start + 9), None);
    }

    #[test]
    fn a_body_that_is_entered_by_replacement_is_known_at_once() {
        let (_, range) = place(&OSR);
        learn(&[vec![range.clone()]], false);
        assert!(OSR_METHODS.contains(range.start) && OSR_METHODS.contains(range.end - 1));
        forget_what_may_go();
        assert!(OSR_METHODS.contains(range.start), "it stays");
    }
}
