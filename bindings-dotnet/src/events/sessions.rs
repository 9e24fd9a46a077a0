//! Sessions of the runtime, whose events come on the threads that cause them: which of them run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clr::info;
use crate::interface::types::Feature;

/// Keywords and level of a session. At another level, exceptions would come four times each.
const SAMPLED_ALLOCATIONS: (u64, u32) = (0x800_0000_0000, 4);
const ALLOCATION_TICKS: (u64, u32) = (0x1, 5);
const CONTENTION: (u64, u32) = (0x4000, 4);
const EXCEPTIONS: (u64, u32) = (0x8000, 2);
/// The first version with sampled allocations.
const SAMPLED_SINCE: u32 = 10;

/// How long a session may take to begin or to end. The runtime tells EventSources and listeners of it, under a lock that the caller
/// may hold: in `OnEventSourceCreated`, and in a handler of an exception that it threw.
const PATIENCE: Duration = Duration::from_secs(2);

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
    let clr = info::attached().ok_or("no profiler is attached")?;
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
        let late = move |result: Result<u64, i32>| {
            if let Ok(session) = result {
                clr.stop_session(session);
            }
        };
        match info::on_native_thread_within(PATIENCE, move || clr.start_session(*keywords, *level), late) {
            Ok(Some(Ok(session))) => sessions.push((feature, session)),
            Ok(Some(Err(result))) => return Err(format!("the runtime refused a session: 0x{result:08x}")),
            Err(_) => return Err("a thread could not be started".to_owned()),
            Ok(None) => return Err(format!("the runtime started no session within {} s", PATIENCE.as_secs())),
        }
    }
    Ok(())
}

/// Ends the sessions of these features, those that take longer than `patience` a while later.
pub(crate) fn stop(features: &[Feature], patience: Duration) {
    if let Some(sessions) = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        stop_those(sessions, patience, |known| features.contains(&known));
    }
}

/// Ends all sessions, and lets none begin or end from here on: an instant later the runtime disposes of its EventSources,
/// and to tell one of them of a session meanwhile ends the process (.NET 8: NullReferenceException).
pub(crate) fn end() {
    if let Some(mut sessions) = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner).take() {
        stop_those(&mut sessions, PATIENCE, |_| true);
    }
}

/// Whether the process ends, so that no session begins any more.
pub(crate) fn have_ended() -> bool {
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

/// Under the lock, so that [`end`] waits for another thread's.
fn stop_those(sessions: &mut Vec<(Feature, u64)>, patience: Duration, which: impl Fn(Feature) -> bool) {
    let Some(clr) = info::attached() else { return };
    let ending: Vec<(Feature, u64)> = sessions.extract_if(.., |(feature, _)| which(*feature)).collect();
    let numbers: Vec<u64> = ending.iter().map(|(_, session)| *session).collect();
    let stop = move || numbers.into_iter().for_each(|session| clr.stop_session(session));
    if !ending.is_empty() && info::on_native_thread_within(patience, stop, drop).is_err() {
        sessions.extend(ending);
    }
}

/// Whether events of a feature come.
pub(crate) fn is_on(feature: Feature) -> bool {
    let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    sessions.iter().flatten().any(|(known, _)| *known == feature)
}
