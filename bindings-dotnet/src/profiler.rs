//! The one profiler of this process: start, stop, switches, statistics, status.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use spanprof_core::{Config, Error, ErrorKind, Level, Profiler, host};

use crate::attach::request::attach;
use crate::clr::info;
use crate::events::{resumed, sessions};
use crate::interface::types::{Feature, FeatureState, Number, Settings, Statistics};
use crate::libraries::registry;
use crate::runtime::CoreClr;
use crate::stack::loader;
use crate::symbols::code_map;
use crate::{arguments, messages};

/// Held over a start, a stop or a switch, from the check of what runs to what runs then. Whoever asks what runs does not take it, so
/// waits for nothing.
static CHANGE: Mutex<()> = Mutex::new(());
/// What events are made of.
const EVENTS: [Feature; 3] = [Feature::Allocations, Feature::Locks, Feature::Exceptions];
/// How long switching CPU time on or off may wait for the server.
const RESTART_TIMEOUT: Duration = Duration::from_secs(2);
/// Whether methods have names, and why not.
static NAMES: Mutex<Result<(), String>> = Mutex::new(Ok(()));
/// The runtime has not loaded this library since the start, which waits for that for seconds only.
static AWAITS_RUNTIME: AtomicBool = AtomicBool::new(false);
/// A wait was not seen as one since the start.
static SEES_NO_WAITS: AtomicBool = AtomicBool::new(false);

/// Starts the profiler.
pub(crate) fn start(settings: &Settings) -> Result<(), Error> {
    silence_panics();
    let config = arguments::config(settings)?;
    if config.enabled {
        // A setting that is not allowed leaves alone what runs.
        config.check()?;
    }
    messages::set_level(config.log_level);
    if !(config.enabled && (config.cpu_enabled || config.wall_time || wanted(&config).next().is_some())) {
        return Err(Error::new(ErrorKind::Disabled, "profiling is switched off by configuration or environment"));
    }
    // Of two that start at once the second is told so.
    let _one = lock(&CHANGE);
    if host::running().is_some() {
        return Err(Error::new(ErrorKind::AlreadyRunning, "a profiler runs in this process already"));
    }
    config.check()?;
    loader::prepare();
    registry::refresh();
    resumed::prepare();
    SEES_NO_WAITS.store(false, Ordering::Relaxed);
    // First of all, since it may be refused, and CoreCLR lets nobody go whom it was attached to.
    let profiler = Profiler::start(config.clone(), &CoreClr)?;
    let names = attach().and_then(|()| code_map::listen());
    AWAITS_RUNTIME.store(names.is_err() && info::attached().is_none(), Ordering::Relaxed);
    *lock(&NAMES) = names;
    code_map::note_own_stack();
    sessions::set_runtime_version(&config.runtime.1);
    host::set_running(profiler);
    if let Err(why) = &*lock(&NAMES) {
        host::report(
            Level::Warning,
            format!("Profiles have no names of methods, no allocations, no locks and no exceptions: {why}"),
        );
        return Ok(());
    }
    start_events(&config);
    Ok(())
}

fn start_events(config: &Config) {
    for feature in wanted(config) {
        if let Err(why) = sessions::start(feature)
            && !sessions::have_ended()
        {
            host::report(Level::Warning, format!("{} are not profiled: {why}", name_of(feature)));
        }
    }
}

/// Does what the start could not, where the runtime has loaded this library since. True: methods have names from now on. A load mostly.
pub(crate) fn attach_late() -> bool {
    if !AWAITS_RUNTIME.load(Ordering::Relaxed) || info::attached().is_none() {
        return false;
    }
    let Ok(_one) = CHANGE.try_lock() else { return false };
    let Some(profiler) = host::running() else { return false };
    if profiler.is_stopping() || !AWAITS_RUNTIME.swap(false, Ordering::Relaxed) {
        return false;
    }
    let names = code_map::listen();
    let has_names = names.is_ok();
    *lock(&NAMES) = names;
    if has_names {
        start_events(profiler.config());
    }
    has_names
}

/// The events that the settings ask for.
fn wanted(config: &Config) -> impl Iterator<Item = Feature> + use<> {
    let all = [
        (Feature::Allocations, config.allocation_enabled),
        (Feature::Locks, config.lock_enabled),
        (Feature::Exceptions, config.exception_enabled),
    ];
    all.into_iter().filter_map(|(feature, enabled)| enabled.then_some(feature))
}

fn switch_on(feature: Feature) -> Result<(), String> {
    lock(&NAMES).clone().and_then(|()| sessions::start(feature))
}

fn name_of(feature: Feature) -> &'static str {
    match feature {
        Feature::Cpu => "cpu",
        Feature::Allocations => "allocations",
        Feature::Locks => "locks",
        Feature::Exceptions => "exceptions",
    }
}

/// Stops it. True: all that it still had was delivered; so it is when none runs.
pub(crate) fn stop(timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    // Somebody who starts what came late may wait for the runtime.
    let Some(_one) = lock_until(&CHANGE, deadline) else { return false };
    sessions::stop(&EVENTS, timeout / 2);
    let Some(profiler) = host::running() else {
        return true;
    };
    let all = profiler.stop(deadline.saturating_duration_since(Instant::now()));
    leave(&profiler, deadline);
    all
}

/// Of one that has stopped, and none takes its place.
fn leave(profiler: &Profiler, deadline: Instant) {
    let left = || deadline.saturating_duration_since(Instant::now());
    sessions::stop(&EVENTS, left());
    // What was sampled has its names by now.
    info::silence(left());
    host::ended(profiler);
}

/// Uploads what there is. True: all of it is settled; false also when no profiler runs.
pub(crate) fn flush(timeout: Duration) -> bool {
    host::running().is_some_and(|profiler| profiler.flush(timeout))
}

/// What works.
pub(crate) fn status() -> Vec<FeatureState> {
    let running = host::running();
    let runs = match &running {
        None => Err("no profiler runs".to_owned()),
        Some(profiler) if profiler.is_stopping() => Err("the profiler stops".to_owned()),
        Some(_) => Ok(()),
    };
    let off = || Err("switched off".to_owned());
    let names = runs.clone().and_then(|()| lock(&NAMES).clone());
    let event = |feature| names.clone().and_then(|()| if sessions::is_on(feature) { Ok(()) } else { off() });
    let waits = runs.clone().and_then(|()| match &running {
        _ if spanprof_core::measures_waits() => Ok(()),
        Some(profiler) if profiler.config().wall_time || SEES_NO_WAITS.load(Ordering::Relaxed) => {
            Err("waits are not seen in this process; a message says why".to_owned())
        }
        _ => off(),
    });
    let cpu = runs.and_then(|()| match running {
        Some(profiler) if profiler.config().cpu_enabled => profiler.ended().map_or(Ok(()), Err),
        _ => off(),
    });
    let [allocations, locks, exceptions] = EVENTS.map(event);
    [
        ("cpu", cpu),
        ("allocations", allocations),
        ("locks", locks),
        ("exceptions", exceptions),
        ("names", names),
        ("waits", waits),
    ]
    .map(|(name, state)| FeatureState {
        name: name.to_owned(),
        is_on: state.is_ok(),
        why: state.err().unwrap_or_default(),
    })
    .into()
}

/// Switches a part on or off while the profiler runs. For CPU time that is a stop and a start; where the start fails it is
/// as it was before.
pub(crate) fn set_tracking(feature: Feature, on: bool) -> Result<(), Error> {
    let _one = lock(&CHANGE);
    let Some(profiler) = host::running() else {
        return Err(Error::new(ErrorKind::Disabled, "no profiler runs"));
    };
    let config = profiler.config();
    match feature {
        Feature::Cpu if config.cpu_enabled == on => Ok(()),
        Feature::Cpu => {
            profiler.stop(RESTART_TIMEOUT);
            host::keep(profiler.take_messages());
            let run = |config: Config| {
                host::set_running(Profiler::start(config, &CoreClr)?);
                Ok(())
            };
            let wall_time = config.wall_time && !SEES_NO_WAITS.load(Ordering::Relaxed);
            run(Config { cpu_enabled: on, wall_time, ..config.clone() }).inspect_err(|_| {
                if run(config.clone()).is_err() {
                    // The one that was stopped is no profiler any more.
                    leave(&profiler, Instant::now() + RESTART_TIMEOUT);
                }
            })
        }
        _ if on => switch_on(feature).map_err(|why| {
            Error::new(ErrorKind::Unsupported, format!("{} cannot be profiled: {why}", name_of(feature)))
        }),
        _ => {
            sessions::stop(&[feature], RESTART_TIMEOUT);
            Ok(())
        }
    }
}

/// Measures no waits any more, until the next start: one that was made to see that was not seen.
pub(crate) fn measure_no_waits() {
    if let Some(profiler) = host::running() {
        profiler.saw_no_wait();
        SEES_NO_WAITS.store(!spanprof_core::measures_waits(), Ordering::Relaxed);
    }
}

/// Numbers by name, the same ones whether a profiler runs or not.
pub(crate) fn statistics() -> Statistics {
    let stats = host::running().map_or_else(host::last, |profiler| profiler.stats());
    let tallies = stats.tallies().into_iter().flat_map(|(name, tally)| {
        [(format!("{name}_samples"), tally.samples), (format!("{name}_weight"), tally.weight)]
    });
    let numbers = tallies.chain(stats.numbers().map(|(name, number)| (name.to_owned(), number)));
    let numbers = numbers.map(|(name, number)| Number { name, number }).collect();
    Statistics { numbers, last_error: stats.last_error }
}

fn lock_until<T>(mutex: &Mutex<T>, deadline: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(locked) => return Some(locked),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Panics become answers, and a profiler does not write to stderr. This library's copy of Rust's runtime is its own.
fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use spanprof_core::host::running;

    use super::*;
    use crate::clr::info::testing;
    use crate::interface::types::Pair;

    const ALWAYS: u32 = 0x1000_0000;
    const LISTENING: u32 = 0x1000_0220;

    fn settings() -> Settings {
        let pair = |name: &str, text: &str| Pair { name: name.to_owned(), text: text.to_owned() };
        let values = vec![pair("application_name", "unit"), pair("server_address", "none")];
        Settings { environment: Vec::new(), values }
    }

    fn masks() -> Vec<u32> {
        std::mem::take(&mut *testing::MASKS.lock().unwrap())
    }

    /// One test, as there is one profiler and one runtime in a process.
    #[test]
    fn the_runtime_reports_while_a_profiler_runs_and_threads_that_switch_at_once_leave_one_that_can_be_stopped() {
        let refused = Profiler::start(arguments::config(&settings()).unwrap(), &CoreClr).unwrap();
        assert_eq!(start(&settings()).unwrap_err().kind(), ErrorKind::AlreadyRunning);
        assert!(info::attached().is_none(), "the engine was refused, so nothing was attached");
        refused.stop(Duration::from_secs(5));

        let names = || status().into_iter().any(|feature| feature.name == "names" && feature.is_on);
        start(&settings()).unwrap();
        assert!(!attach_late() && !names(), "there is no runtime");
        testing::attach();
        assert_eq!(masks(), [ALWAYS], "nothing is told to one that is only attached");
        assert!(attach_late() && names(), "it was attached after the start");
        assert!(!attach_late() && stop(Duration::from_secs(5)));
        assert_eq!(masks(), [LISTENING, ALWAYS]);
        start(&settings()).unwrap();
        assert_eq!(masks(), [LISTENING]);
        for round in 0..40 {
            let barrier = Barrier::new(2);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        barrier.wait();
                        set_tracking(Feature::Cpu, round % 2 == 1).unwrap();
                    });
                }
            });
            assert!(running().is_some(), "round {round}");
        }
        assert!(stop(Duration::from_secs(5)));
        assert_eq!(masks(), [ALWAYS]);
        start(&settings()).unwrap();
        assert!(stop(Duration::from_secs(5)));
        assert_eq!(masks(), [LISTENING, ALWAYS]);

        // A server that answers nothing holds a stop up.
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut held = settings();
        held.values[1].text = server.local_addr().unwrap().to_string();
        start(&held).unwrap();
        let cpu =
            || status().into_iter().find(|feature| feature.name == "cpu").map(|cpu| (cpu.is_on, cpu.why)).unwrap();
        assert_eq!(cpu(), (true, String::new()));
        while running().unwrap().stats().taken.samples == 0 {
            std::hint::black_box((0..100_000_u64).fold(0_u64, u64::wrapping_add));
        }
        std::thread::scope(|scope| {
            let stops = scope.spawn(|| stop(Duration::from_secs(60)));
            while !running().unwrap().is_stopping() {
                std::thread::yield_now();
            }
            assert_eq!(cpu(), (false, "the profiler stops".to_owned()));
            drop(server);
            assert!(!stops.join().unwrap(), "nothing was delivered");
        });
        assert_eq!(cpu(), (false, "no profiler runs".to_owned()));
        assert_eq!(masks(), [LISTENING, ALWAYS]);

        // From here on no profiler starts in this process, so the one that a switch has stopped has no successor.
        start(&settings()).unwrap();
        Profiler::end_process(Duration::from_secs(5));
        assert_eq!(set_tracking(Feature::Cpu, false).unwrap_err().kind(), ErrorKind::Disabled);
        assert_eq!((running().is_some(), masks()), (false, vec![LISTENING, ALWAYS]));

        // A runtime that is slow to begin a session holds up nobody who asks, and the end of the process for two seconds.
        testing::HELD[0].store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let starts = scope.spawn(|| sessions::start(Feature::Allocations));
            while !testing::HELD[1].load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert!(!sessions::is_on(Feature::Allocations) && !sessions::have_ended());
            assert!(!starts.is_finished(), "who asked waited for it");
            let began = Instant::now();
            sessions::end();
            assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
            assert_eq!(starts.join().unwrap(), Err("the runtime started no session within 2 s".to_owned()));
        });
        testing::HELD[0].store(false, Ordering::Relaxed);
        assert_eq!(sessions::start(Feature::Locks), Err("the process ends".to_owned()));
    }
}
