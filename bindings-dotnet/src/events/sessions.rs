//! Sessions of the runtime, whose events come on the threads that cause them: which of them run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// What sessions there are. Nobody who waits for the runtime holds the lock.
struct Sessions {
    /// Those that run, with what they are for.
    running: Vec<(Feature, u64)>,
    /// Somebody begins or ends some.
    are_changing: bool,
    /// The process [`end`]s.
    have_ended: bool,
}

static SESSIONS: Mutex<Sessions> = Mutex::new(Sessions { running: Vec::new(), are_changing: false, have_ended: false });
/// Told when a change is over.
static CHANGED: Condvar = Condvar::new();
/// The runtime's major version, 0 if it was not told.
static MAJOR: AtomicU32 = AtomicU32::new(0);

/// Says which runtime this is, such as 10.0.12.
pub(crate) fn set_runtime_version(version: &str) {
    let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    MAJOR.store(major, Ordering::Relaxed);
}

/// Somebody begins or ends sessions, one at a time.
struct Change(());

impl Change {
    /// Waits until `until` for another thread's.
    fn begin(until: Instant) -> Option<Self> {
        let left = until.saturating_duration_since(Instant::now());
        let waited = CHANGED.wait_timeout_while(lock(), left, |sessions| sessions.are_changing);
        let mut sessions = waited.unwrap_or_else(PoisonError::into_inner).0;
        if sessions.are_changing {
            return None;
        }
        sessions.are_changing = true;
        Some(Self(()))
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        lock().are_changing = false;
        CHANGED.notify_all();
    }
}

fn lock() -> MutexGuard<'static, Sessions> {
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the sessions of a feature; nothing happens if they run.
pub(crate) fn start(feature: Feature) -> Result<(), String> {
    let not_started = || format!("the runtime started no session within {} s", PATIENCE.as_secs());
    let until = Instant::now() + PATIENCE;
    let _one = Change::begin(until).ok_or_else(not_started)?;
    if is_on(feature) {
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
        if have_ended() {
            return Err("the process ends".to_owned());
        }
        let late = move |result: Result<u64, i32>| {
            if let Ok(session) = result {
                clr.stop_session(session);
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        match info::on_native_thread_within(left, move || clr.start_session(*keywords, *level), late) {
            Ok(Some(Ok(session))) => lock().running.push((feature, session)),
            Ok(Some(Err(result))) => return Err(format!("the runtime refused a session: 0x{result:08x}")),
            Err(_) => return Err("a thread could not be started".to_owned()),
            Ok(None) => return Err(not_started()),
        }
    }
    Ok(())
}

/// Ends the sessions of these features, those that take longer than `patience` a while later.
pub(crate) fn stop(features: &[Feature], patience: Duration) {
    let until = Instant::now() + patience;
    if let Some(_one) = Change::begin(until)
        && !have_ended()
    {
        stop_those(until, |known| features.contains(&known));
    }
}

/// Ends all sessions, and lets none begin or end from here on: an instant later the runtime disposes of its EventSources,
/// and to tell one of them of a session meanwhile ends the process (.NET 8: NullReferenceException). Waits for another thread's, and for
/// the runtime, for two seconds at most together.
pub(crate) fn end() {
    let until = Instant::now() + PATIENCE;
    lock().have_ended = true;
    if let Some(_one) = Change::begin(until) {
        stop_those(until, |_| true);
    }
}

/// Whether the process ends, so that no session begins any more.
pub(crate) fn have_ended() -> bool {
    lock().have_ended
}

/// Within a [`Change`], so that [`end`] waits for another thread's.
fn stop_those(until: Instant, which: impl Fn(Feature) -> bool) {
    let Some(clr) = info::attached() else { return };
    let ending: Vec<(Feature, u64)> = lock().running.extract_if(.., |(feature, _)| which(*feature)).collect();
    let numbers: Vec<u64> = ending.iter().map(|(_, session)| *session).collect();
    let stop = move || numbers.into_iter().for_each(|session| clr.stop_session(session));
    let left = until.saturating_duration_since(Instant::now());
    if !ending.is_empty() && info::on_native_thread_within(left, stop, drop).is_err() {
        lock().running.extend(ending);
    }
}

/// Whether events of a feature come. Waits for nobody.
pub(crate) fn is_on(feature: Feature) -> bool {
    lock().running.iter().any(|(known, _)| *known == feature)
}
