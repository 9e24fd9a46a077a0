//! Allocations, lock waits and exceptions: sessions of the runtime whose events come on the threads that cause them.
//!
//! A callback reads the thread's own block, so each sample has the span of the thread that did it, walks the managed
//! stack by DoStackSnapshot (no stack comes with the event) and writes one entry into the thread's ring. An allocation's
//! callback runs while a garbage collection cannot: it waits for nothing. The type that was allocated or thrown is the
//! leaf frame.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use spanprof_core::{FrameWriter, ProfileType, ProfileTypeId};

use crate::interface::Feature;
use crate::payload::{self, Event, Utf16};
use crate::symbols::{code_map, resolver};
use crate::{block, clr, names};

/// The kinds of profile that events make, in the order of their ids.
pub(crate) const PROFILE_TYPES: [ProfileType; 3] = [
    ProfileType {
        name: "memory",
        sample_types: &[("alloc_samples", "count"), ("alloc_size", "bytes")],
        period_type: ("space", "bytes"),
        period: 102_400,
    },
    ProfileType {
        name: "lock",
        sample_types: &[("lock_count", "count"), ("lock_time", "nanoseconds")],
        period_type: ("lock", "count"),
        period: 1,
    },
    ProfileType {
        name: "exception",
        sample_types: &[("exception", "count")],
        period_type: ("exception", "count"),
        period: 1,
    },
];

const MEMORY: ProfileTypeId = ProfileTypeId(1);
const LOCK: ProfileTypeId = ProfileTypeId(2);
const EXCEPTION: ProfileTypeId = ProfileTypeId(3);

/// Keywords and level of a session. At another level, exceptions would come four times each.
const SAMPLED_ALLOCATIONS: (u64, u32) = (0x800_0000_0000, 4);
const ALLOCATION_TICKS: (u64, u32) = (0x1, 5);
const CONTENTION: (u64, u32) = (0x4000, 4);
const EXCEPTIONS: (u64, u32) = (0x8000, 2);
/// The first version with sampled allocations.
const SAMPLED_SINCE: u32 = 10;

/// Sessions that run, with what they are for; none once the process [`end`]s.
static SESSIONS: Mutex<Option<Vec<(Feature, u64)>>> = Mutex::new(Some(Vec::new()));
/// The runtime's major version, 0 if it was not told.
static MAJOR: AtomicU32 = AtomicU32::new(0);

/// Says which runtime this is, such as 10.0.12.
pub(crate) fn set_runtime_version(version: &str) {
    let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    MAJOR.store(major, Ordering::Relaxed);
}

/// Starts the sessions of a feature; nothing happens if they run.
pub(crate) fn start(feature: Feature) -> Result<(), String> {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let sessions = sessions.as_mut().ok_or("the process ends")?;
    if sessions.iter().any(|(known, _)| *known == feature) {
        return Ok(());
    }
    let clr = clr::attached().ok_or("no profiler is attached")?;
    let major = MAJOR.load(Ordering::Relaxed);
    let wanted: &[(u64, u32)] = match feature {
        Feature::Allocations if major == 0 => &[SAMPLED_ALLOCATIONS, ALLOCATION_TICKS],
        Feature::Allocations if major >= SAMPLED_SINCE => &[SAMPLED_ALLOCATIONS],
        Feature::Allocations => &[ALLOCATION_TICKS],
        Feature::Locks => &[CONTENTION],
        Feature::Exceptions => &[EXCEPTIONS],
        Feature::Cpu => &[],
    };
    for (keywords, level) in wanted {
        match clr::on_native_thread(move || clr.start_session(*keywords, *level)) {
            Some(Ok(session)) => sessions.push((feature, session)),
            Some(Err(result)) => return Err(format!("the runtime refused a session: 0x{result:08x}")),
            None => return Err("a thread could not be started".to_owned()),
        }
    }
    Ok(())
}

/// Ends the sessions of a feature.
pub(crate) fn stop(feature: Feature) {
    if let Some(sessions) = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        stop_those(sessions, |known| known == feature);
    }
}

/// Ends all sessions, and lets none begin or end from here on: an instant later the runtime disposes of its EventSources,
/// and to tell one of them of a session meanwhile ends the process (.NET 8: NullReferenceException).
pub(crate) fn end() {
    if let Some(mut sessions) = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner).take() {
        stop_those(&mut sessions, |_| true);
    }
}

fn stop_those(sessions: &mut Vec<(Feature, u64)>, which: impl Fn(Feature) -> bool) {
    let Some(clr) = clr::attached() else { return };
    sessions.retain(|(feature, session)| {
        let session = *session;
        !which(*feature) || clr::on_native_thread(move || clr.stop_session(session)).is_none()
    });
}

/// Whether events of a feature come.
pub(crate) fn is_on(feature: Feature) -> bool {
    let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    sessions.iter().flatten().any(|(known, _)| *known == feature)
}

/// Tells what the calling thread runs: Main and what it called were compiled before we were attached.
pub(crate) fn tell_own_stack() {
    let Some(clr) = clr::attached() else { return };
    let mut functions = Vec::new();
    clr.snapshot(|function, _| {
        functions.push(function);
        functions.len() < spanprof_core::MAX_FRAMES
    });
    // This thread waits meanwhile, so its functions stay.
    clr::on_native_thread(|| functions.into_iter().for_each(|function| code_map::was_compiled(clr, function)));
}

/// An event, on the thread that caused it.
pub(crate) fn delivered(id: u32, version: u32, payload: &[u8]) {
    let Some(clr) = clr::attached() else { return };
    let (profile_type, value, count, type_name) = match payload::read(id, version, payload) {
        Some(Event::Allocation { objects, bytes, type_name }) => (MEMORY, bytes, objects, Some(type_name)),
        Some(Event::Contention { nanoseconds }) => (LOCK, nanoseconds, 1, None),
        Some(Event::Exception { type_name }) => (EXCEPTION, 1, 1, Some(type_name)),
        None => return,
    };
    let type_word = type_name.and_then(type_word);
    let walk = |out: &mut FrameWriter<'_>| {
        if let Some(word) = type_word {
            out.push(word);
        }
        clr.snapshot(|_, address| out.push(address - 1));
    };
    // SAFETY: a callback of the runtime, not a signal handler; the span is in this thread's block.
    unsafe { spanprof_core::sample_here(profile_type, value, count, block::context(), walk) };
}

const TYPES: usize = 4_096;

/// Hashes of types' names and their words. Two threads may write one place: who finds a word whose hash was just
/// overwritten has the wrong type for one sample.
static TYPE_WORDS: [[AtomicU64; 2]; TYPES] = [const { [AtomicU64::new(0), AtomicU64::new(0)] }; TYPES];

/// The word for a type's name; `None` while another thread makes one: nothing here may wait.
fn type_word(name: Utf16<'_>) -> Option<u64> {
    let hash = name.hash();
    #[expect(clippy::cast_possible_truncation, reason = "a place in the table")]
    let [known, word] = &TYPE_WORDS[hash as usize % TYPES];
    if known.load(Ordering::Acquire) == hash {
        return Some(word.load(Ordering::Relaxed));
    }
    let new = resolver::try_word_of(&names::of_type(&name.text()))?;
    word.store(new, Ordering::Relaxed);
    // Release: who sees the hash sees the word.
    known.store(hash, Ordering::Release);
    Some(new)
}
