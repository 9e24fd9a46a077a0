//! What the walk in the handler could not know is mended by code bytes when a sample is read, and addresses become frame ids.
//!
//! The rbp chain leaves out the caller of the first managed frame where that has no frame of its own at the instant:
//! * D1: in a prologue the return address is behind what was pushed so far.
//! * D2: in an epilogue it is behind what is still to be popped.
//! * D3: a method without a frame has it at a fixed distance; so may its caller, and so on.
//! * D4: a stub of the runtime pushed nothing, or one word, as the one that finds an interface's method does.

use spanprof_core::{FrameId, Repair, State};

use crate::clr::info::{self, Clr};
use crate::stack::library_names::{self, NO_NAME};
use crate::stack::modules;
use crate::stack::sample_header::{self, CUT, FirstManaged};
use crate::symbols::code_map::{self, CodeMap};
use crate::symbols::lock_wait::LockWait;
use crate::symbols::{await_stack, prologue, refresh, resolver};

/// Callers that are inserted at most.
const MAX_INSERTED: usize = 16;
const STUB: &str = "(runtime stub)";
const UNNAMED: &str = "(managed code)";
const NO_CALLERS: &str = "(unknown callers)";

/// First the engine asks with locks held that a fork takes; names come of CoreCLR, which may take long. Once all is
/// read it asks again, without them.
pub(crate) fn repair(frames: &mut Vec<u64>, extra: &[u64], state: &mut State) -> Repair {
    if frames.last() != Some(&resolver::ASKED) {
        frames.push(resolver::ASKED);
        return Repair::Later;
    }
    frames.pop();
    *state = mend(frames, extra, *state);
    Repair::Ready
}

/// Mends a sample: `frames` as the walk pushed them; `extra` is the header and the stack's words at the rsp of the first
/// managed frame, of an event nothing. Returns the state that it turned out to be in.
fn mend(frames: &mut Vec<u64>, extra: &[u64], state: State) -> State {
    refresh::note_sample();
    let is_event = extra.is_empty();
    let (first, word_count, method_count) =
        extra.first().map_or((None, 0, u32::MAX), |header| sample_header::read(*header));
    let (words, names) = extra.get(1..).unwrap_or_default().split_at_checked(word_count).unwrap_or_default();
    let native_count = first.map_or(0, |first| first.frame);
    let native = |at, pc| {
        // Of an event the runtime tells managed frames only.
        if is_event {
            return None;
        }
        // Below its first frame managed code is told by what is known of it.
        let mut place = NO_NAME;
        match library_names::name_at(names, at, &mut place).filter(|_| at < native_count) {
            Some(name) => Some(resolver::native_id_in(pc, name)),
            None => resolver::native_id(pc),
        }
    };
    let wait = first.and_then(|first| LockWait::of(frames, first.frame, state));
    let Some(clr) = info::attached() else {
        to_ids(frames, native, |pc| modules::is_executable(pc).then(|| resolver::id_of(UNNAMED, "")));
        // How many of them there are tells nobody anything.
        frames.dedup();
        return wait.map_or(state, |wait| wait.state(frames));
    };
    code_map::with(|map| {
        let mut stub = None;
        if let Some(first) = first {
            stub = insert_callers(frames, first, words, |pc, is_leaf| {
                return_address(map, clr, (pc, method_count), is_leaf)
            });
        }
        let mut replaced = None;
        to_ids(frames, native, |pc| match map.id_at(clr, pc, method_count) {
            // The runtime's own walk tells a body that was entered by replacement and the one below it that it replaced.
            Some((id, _)) if is_event && replaced.take() == Some(id) => None,
            Some((id, is_osr)) => {
                replaced = is_osr.then_some(id);
                Some(id)
            }
            // A word of the stack that was taken for a return address: the frame of a replaced body not known as one yet.
            None if !modules::is_executable(pc) => None,
            None => Some(resolver::id_of(if stub == Some(pc) { STUB } else { code_map::UNKNOWN }, "")),
        });
    });
    // Where the objects did not tell who awaits whom.
    if state == State::Await && !is_event {
        await_stack::begin_with_method(frames);
    }
    wait.map_or(state, |wait| wait.state(frames))
}

/// Where the return address of a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Return {
    /// Where rbp says: the walk found it.
    Frame,
    /// So many bytes above rsp.
    Bytes(u32),
    /// No method is here.
    Nowhere,
}

/// `is_leaf`: `pc` is the interrupted instruction, not within a call.
fn return_address(map: &mut CodeMap, clr: Clr, (pc, method_count): (u64, u32), is_leaf: bool) -> Return {
    let Some(code) = map.code_at(clr, pc) else { return Return::Nowhere };
    // Its bytes are not those that ran.
    if code.is_younger(method_count) {
        return Return::Frame;
    }
    let Some(prologue) = code.prologue() else { return Return::Frame };
    let bytes = if is_leaf {
        let (Ok(offset), Ok(size)) = (u32::try_from(pc - code.start), u32::try_from(code.end - code.start)) else {
            return Return::Frame;
        };
        match prologue::epilogue(&code.bytes_from(pc), offset, size) {
            Some(end) if prologue.has_frame && end.pops_rbp => None,
            Some(end) => Some(end.to_return_address),
            None => prologue.to_return_address(offset),
        }
    } else {
        prologue.frameless_bytes()
    };
    bytes.map_or(Return::Frame, Return::Bytes)
}

/// Puts in the callers that the walk left out. Returns the leaf if that is a stub.
fn insert_callers(
    frames: &mut Vec<u64>,
    first: FirstManaged,
    words: &[u64],
    mut find: impl FnMut(u64, bool) -> Return,
) -> Option<u64> {
    let (mut at, mut used, mut stub) = (first.frame, 0, None);
    for _ in 0..MAX_INSERTED {
        let is_leaf = at == first.frame && first.is_interrupted;
        let Some(pc) = frames.get(at).copied() else { break };
        let bytes = match find(pc, is_leaf) {
            Return::Bytes(bytes) if bytes % 8 == 0 => bytes as usize,
            Return::Nowhere if is_leaf => {
                let mut in_a_method = |address: u64| find(address.wrapping_sub(1), false) != Return::Nowhere;
                let Some(pushed) = words.iter().take(2).position(|word| in_a_method(*word)) else { break };
                stub = Some(pc);
                8 * pushed
            }
            _ => break,
        };
        let Some(back) = words.get(used + bytes / 8).copied().filter(|back| *back >= 4096) else { break };
        at += 1;
        frames.insert(at, back - 1);
        used += bytes / 8 + 1;
    }
    stub
}

/// Turns addresses into frame ids, and leaves out what is no code. Of native frames one a function is kept, and none on the far side
/// of all managed ones: how the runtime starts its threads is the same everywhere.
fn to_ids(
    frames: &mut Vec<u64>,
    native: impl Fn(usize, u64) -> Option<u64>,
    mut managed: impl FnMut(u64) -> Option<u64>,
) {
    let mut ids: Vec<(FrameId, bool)> = Vec::with_capacity(frames.len());
    for (at, pc) in frames.iter().enumerate() {
        if *pc == CUT {
            ids.push((resolver::id_of(NO_CALLERS, ""), false));
            continue;
        }
        if resolver::is_id(*pc) {
            // What the stack of a wait begins with is libc's.
            ids.push((*pc, at == 0));
            continue;
        }
        let (id, is_native) = match native(at, *pc) {
            Some(id) => (id, true),
            None => match managed(*pc) {
                Some(id) => (id, false),
                None => continue,
            },
        };
        if !is_native || ids.last() != Some(&(id, true)) {
            ids.push((id, is_native));
        }
    }
    if let Some(last) = ids.iter().rposition(|(_, is_native)| !is_native) {
        ids.truncate(last + 1);
    }
    frames.clear();
    frames.extend(ids.into_iter().map(|(id, _)| id));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Methods are hundreds: 100 has a frame; 200 keeps its return address two words up; 9xx is no method.
    fn find(pc: u64, is_leaf: bool) -> Return {
        match pc / 10_000 {
            1 => Return::Frame,
            2 => Return::Bytes(16),
            3 if is_leaf => Return::Bytes(0),
            3 => Return::Frame,
            _ => Return::Nowhere,
        }
    }

    fn mended(frames: &[u64], frame: usize, words: &[u64]) -> Vec<u64> {
        let mut frames = frames.to_vec();
        let first = FirstManaged { frame, is_interrupted: frame == 0 };
        let stub = insert_callers(&mut frames, first, words, find);
        assert_eq!(stub, frames.first().copied().filter(|pc| pc / 10_000 == 9 && frames.get(1) == Some(&10_300)));
        frames
    }

    #[test]
    fn the_caller_that_the_chain_left_out_is_put_in() {
        assert_eq!(mended(&[10_000, 10_500], 0, &[20_000]), [10_000, 10_500], "rbp is its frame: nothing is missing");
        assert_eq!(mended(&[30_000, 10_500], 0, &[10_301]), [30_000, 10_300, 10_500], "at its first instruction");
        assert_eq!(mended(&[20_000, 10_500], 0, &[7, 7, 10_301, 7]), [20_000, 10_300, 10_500]);
    }

    #[test]
    fn callers_without_a_frame_are_followed_until_one_has_one() {
        let words = [7, 7, 20_401, 7, 7, 20_401, 7, 7, 10_301];
        assert_eq!(mended(&[20_000, 10_500], 0, &words), [20_000, 20_400, 20_400, 10_300, 10_500], "recursion too");
        assert_eq!(mended(&[99_000, 20_000, 10_500], 1, &[7, 7, 10_301]), [99_000, 20_000, 10_300, 10_500]);
    }

    #[test]
    fn a_stub_has_its_caller_on_top_of_the_stack_if_that_is_a_method() {
        assert_eq!(mended(&[90_000, 10_500], 0, &[10_301]), [90_000, 10_300, 10_500]);
        assert_eq!(mended(&[90_000, 10_500], 0, &[7, 10_301]), [90_000, 10_300, 10_500], "it saved a register");
        assert_eq!(mended(&[90_000, 10_500], 0, &[7, 7, 10_301]), [90_000, 10_500]);
        assert_eq!(mended(&[90_000, 10_500], 0, &[91_001]), [90_000, 10_500]);
        assert_eq!(mended(&[90_000, 10_500], 0, &[]), [90_000, 10_500]);
        assert_eq!(mended(&[], 5, &[1]), [0; 0]);
    }

    #[test]
    fn native_frames_are_kept_once_and_not_below_managed_ones() {
        let native = |_, pc| (pc >= 500).then_some(pc / 100);
        let ids = |frames: &[u64]| {
            let mut frames = frames.to_vec();
            to_ids(&mut frames, native, |pc| (pc != 23).then_some(pc + 1_000));
            frames
        };
        assert_eq!(ids(&[510, 520, 610, 21, 23, 21, 710, 720, 22, 810, 910]), [5, 6, 1_021, 1_021, 7, 1_022]);
        assert_eq!(ids(&[510, 610, 620]), [5, 6]);
        let wait = resolver::id_of("wait", "");
        assert_eq!(ids(&[wait, 510, 610]), [wait, 5, 6], "a wait of the runtime's own is not alone");
        assert_eq!(ids(&[wait, 510, 21, 610]), [wait, 5, 1_021]);
        assert_eq!(ids(&[wait]), [wait]);
        let cut = resolver::id_of(NO_CALLERS, "");
        assert_eq!(ids(&[510, CUT, 21]), [5, cut, 1_021]);
    }
}
