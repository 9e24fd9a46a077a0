//! The one profiler of this process: configure, flush, stop, statistics, forks, threads and messages.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use spanprof_core::{Config, ErrorKind, Level, Profiler, Secret, Stats, Tally};

use crate::definitions::{DEFINITIONS, LineMode};
use crate::errors::{guard, to_python};
use crate::{selftest, tags};

/// How long a stop may take, all in all.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Ticks of the profiler's thread between two looks for messages: a second, as it ticks every 100 ms.
const TICKS_BETWEEN_MESSAGES: u32 = 10;

/// What the last profiler had counted when it was stopped. Locked as `PROFILER` is.
static LAST: Mutex<Option<Stats>> = Mutex::new(None);
/// The profiler that runs. Locked with the GIL held and for no more than a clone, so that no fork finds it locked.
static PROFILER: Mutex<Option<Profiler>> = Mutex::new(None);
/// Ticks of the profiler's thread, and their number when messages were last looked for.
static TICKS: AtomicU32 = AtomicU32::new(0);
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);
/// `enable_logging`: whether messages that are no warnings reach the logger.
static VERBOSE: AtomicBool = AtomicBool::new(false);
/// The first failure of a callback was told.
static TROUBLE_TOLD: AtomicBool = AtomicBool::new(false);

fn current() -> MutexGuard<'static, Option<Profiler>> {
    PROFILER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn last() -> MutexGuard<'static, Option<Stats>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn running() -> Option<Profiler> {
    current().clone()
}

/// A tick of the profiler's thread.
pub(crate) fn tick() {
    TICKS.fetch_add(1, Ordering::Relaxed);
}

/// What our callbacks do beside their work: restart in a forked child, pass messages on. A few loads, mostly.
#[inline]
pub(crate) fn housekeep(py: Python<'_>) {
    if spanprof_core::forked() {
        // By C code, past os.register_at_fork.
        drop(restart_in_child(py));
    }
    let ticks = TICKS.load(Ordering::Relaxed);
    let looked_at = LOOKED_AT.load(Ordering::Relaxed);
    if ticks.wrapping_sub(looked_at) >= TICKS_BETWEEN_MESSAGES
        && LOOKED_AT.compare_exchange(looked_at, ticks, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        && let Some(profiler) = running()
    {
        deliver(py, &profiler);
    }
}

/// Tells once that a callback failed: the program's spans must not suffer for it.
#[cold]
pub(crate) fn trouble(py: Python<'_>, what: &str, error: &PyErr) {
    if !TROUBLE_TOLD.swap(true, Ordering::Relaxed) {
        log(py, Level::Warning, &format!("{what} failed, its samples may miss their span: {error}"));
    }
}

/// Passes a sentence to Python's logger `pyroscope`.
pub(crate) fn log(py: Python<'_>, level: Level, text: &str) {
    let method = match level {
        Level::Warning => intern!(py, "warning"),
        Level::Info if VERBOSE.load(Ordering::Relaxed) => intern!(py, "info"),
        Level::Info => return,
    };
    let logged = py
        .import("logging")
        .and_then(|logging| logging.call_method1("getLogger", ("pyroscope",)))
        .and_then(|logger| logger.call_method1(method, ("%s", text)));
    // A logger that raises is not ours to report: there is nowhere left to say it.
    drop(logged);
}

fn deliver(py: Python<'_>, profiler: &Profiler) {
    for message in profiler.take_messages() {
        log(py, message.level, &message.text);
    }
}

/// Starts the profiler with `settings` on top of the environment; a profiler that runs is stopped first.
///
/// Returns False, and says why to the logger, where profiling is switched off or not possible here.
/// Raises ValueError for a setting that is not allowed, before anything is started or stopped.
#[pyfunction]
pub(crate) fn start(py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<bool> {
    guard(|| {
        let mut config = from_environment(py)?;
        let lines = apply(&mut config, settings)?;
        if !(config.enabled && config.cpu_enabled) {
            log(py, Level::Info, "profiling is switched off by configuration or environment");
            return Ok(false);
        }
        config.check().map_err(|error| to_python(&error))?;
        let runtime = match selftest::runtime(py)? {
            Ok(runtime) => runtime,
            Err(why) => {
                log(py, Level::Warning, &format!("no profiles are taken, spans go on working: {why}"));
                return Ok(false);
            }
        };
        end(py, STOP_TIMEOUT);
        DEFINITIONS.set_line_mode(lines);
        let profiler = match py.detach(|| Profiler::start(config, runtime)) {
            Ok(profiler) => profiler,
            Err(error) if error.kind() == ErrorKind::InvalidConfig => return Err(to_python(&error)),
            Err(error) => {
                log(py, Level::Warning, &format!("no profiles are taken, spans go on working: {error}"));
                return Ok(false);
            }
        };
        *current() = Some(profiler.clone());
        deliver(py, &profiler);
        Ok(true)
    })
}

/// Ends sampling, uploads what there is, 5 s at most. False: no profiler ran, or something was left behind.
#[pyfunction]
pub(crate) fn stop(py: Python<'_>) -> PyResult<bool> {
    guard(|| Ok(end(py, STOP_TIMEOUT)))
}

fn end(py: Python<'_>, timeout: Duration) -> bool {
    let Some(profiler) = current().take() else {
        return false;
    };
    let (all, stats) = py.detach(|| (profiler.stop(timeout), profiler.stats()));
    *last() = Some(stats);
    deliver(py, &profiler);
    all
}

/// Uploads what was sampled so far. True: the server has it. False: no profiler, or not within `timeout` seconds.
#[pyfunction]
pub(crate) fn flush(py: Python<'_>, timeout: f64) -> PyResult<bool> {
    guard(|| {
        let Some(profiler) = running() else {
            return Ok(false);
        };
        let timeout = Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::from_secs(3_600));
        let all = py.detach(|| profiler.flush(timeout));
        deliver(py, &profiler);
        Ok(all)
    })
}

/// Whether a profiler runs.
#[pyfunction]
pub(crate) fn is_running() -> bool {
    current().is_some()
}

/// What the environment alone says: whether to profile, the application's name ("" if it has none), names of tags.
#[pyfunction]
pub(crate) fn environment(py: Python<'_>) -> PyResult<(bool, String, Vec<String>)> {
    guard(|| {
        let config = from_environment(py)?;
        let tags = config.tags.into_iter().map(|(name, _)| name).collect();
        Ok((config.enabled && config.cpu_enabled, config.application_name, tags))
    })
}

/// Reads true, false, 1, 0, yes or no, in any case; ValueError naming `field` for anything else.
#[pyfunction]
pub(crate) fn parse_bool(field: &str, value: &str) -> PyResult<bool> {
    guard(|| spanprof_core::parse_bool(field, value).map_err(|error| to_python(&error)))
}

/// What became of every sample, as a dict: of the profiler that runs, else of the last one, else zeros.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    guard(|| {
        let stats = match running() {
            Some(profiler) => py.detach(|| profiler.stats()),
            None => last().clone().unwrap_or_default(),
        };
        let dict = PyDict::new(py);
        for (name, tally) in [
            ("taken", stats.taken),
            ("dropped_ring", stats.dropped_ring),
            ("dropped_window", stats.dropped_window),
            ("pending", stats.pending),
            ("encoded", stats.encoded),
            ("queued", stats.queued),
            ("uploaded", stats.uploaded),
            ("refused", stats.refused),
            ("dropped_queue", stats.dropped_queue),
            ("dropped_old", stats.dropped_old),
            ("dropped_unanswered", stats.dropped_unanswered),
            ("discarded", stats.discarded),
        ] {
            let Tally { samples, weight } = tally;
            let entry = PyDict::new(py);
            entry.set_item("samples", samples)?;
            entry.set_item("weight", weight)?;
            dict.set_item(name, entry)?;
        }
        for (name, number) in [
            ("windows", stats.windows),
            ("profiles_encoded", stats.profiles_encoded),
            ("profiles_uploaded", stats.profiles_uploaded),
            ("bytes_uploaded", stats.bytes_uploaded),
            ("profiles_refused", stats.profiles_refused),
            ("refused_credentials", stats.refused_credentials),
            ("refused_address", stats.refused_address),
            ("refused_profiles", stats.refused_profiles),
            ("profiles_dropped", stats.profiles_dropped),
            ("retries", stats.retries),
            ("retries_unanswered", stats.retries_unanswered),
            ("spans_lost", stats.spans_lost),
            ("names_cut", stats.names_cut),
            ("frames_unresolved", stats.frames_unresolved),
            ("tag_sets_lost", stats.tag_sets_lost),
            ("threads", stats.threads),
            ("threads_unsampled", stats.threads_unsampled),
            ("threads_without_timer", stats.threads_without_timer),
            ("threads_without_ring", stats.threads_without_ring),
            ("own_cpu_ns", stats.own_cpu_ns),
            ("handler_ns", stats.handler_ns),
        ] {
            dict.set_item(name, number)?;
        }
        dict.set_item("last_error", stats.last_error)?;
        Ok(dict)
    })
}

fn from_environment(py: Python<'_>) -> PyResult<Config> {
    let environ = py.import("os")?.getattr("environ")?;
    let lookup = |name: &str| environ.call_method1("get", (name,)).ok()?.extract::<String>().ok();
    let mut config = Config::from_environment(lookup).map_err(|error| to_python(&error))?;
    let version = Python::version_str();
    let version = version.split_whitespace().next().unwrap_or_default().to_owned();
    config.spy = "spanprof-python".to_owned();
    config.runtime = ("cpython".to_owned(), version);
    config.package = ("pyroscope-otel".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Ok(config)
}

/// Puts the arguments that were given in code over the configuration.
fn apply(config: &mut Config, settings: &Bound<'_, PyDict>) -> PyResult<LineMode> {
    let mut lines = LineMode::LastInstruction;
    for (name, value) in settings {
        let name: String = name.extract()?;
        match name.as_str() {
            "application_name" => config.application_name = string(&name, &value)?,
            "server_address" => config.server_address = string(&name, &value)?,
            "basic_auth_username" => config.basic_auth_user = string(&name, &value)?,
            "basic_auth_password" => config.basic_auth_password = Secret(string(&name, &value)?),
            "tenant_id" => config.tenant_id = string(&name, &value)?,
            "http_headers" => {
                config.http_headers =
                    dict(&name, &value)?.into_iter().map(|(name, value)| (name, Secret(value))).collect();
            }
            "tags" => config.tags.extend(dict(&name, &value)?),
            "sample_rate" => config.sample_rate = number(&name, &value)?,
            "upload_interval" => config.upload_interval = seconds(&name, &value)?,
            "cpu_enabled" => config.cpu_enabled = value.is_truthy()?,
            "enable_logging" => VERBOSE.store(value.is_truthy()?, Ordering::Relaxed),
            "span_names" => config.span_names = value.is_truthy()?,
            "line_no" => {
                lines = match value.extract::<u32>()? {
                    1 => LineMode::First,
                    2 => LineMode::NoLine,
                    _ => LineMode::LastInstruction,
                };
            }
            // For the stress test: rates by wall time that no CPU clock could give.
            "wall_clock" if value.is_truthy()? => config.clock = spanprof_core::SampleClock::Wall,
            "wall_clock" => {}
            _ => return Err(PyTypeError::new_err(format!("configure() got an unexpected keyword argument '{name}'"))),
        }
    }
    Ok(lines)
}

fn string(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_none() {
        return Ok(String::new());
    }
    value.extract().map_err(|_| PyTypeError::new_err(format!("{name} must be a str, not {}", value.get_type())))
}

fn dict(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    if value.is_none() {
        return Ok(Vec::new());
    }
    match value.cast::<PyDict>() {
        Ok(dict) => tags::pairs(dict),
        Err(_) => Err(PyTypeError::new_err(format!("{name} must be a dict, not {}", value.get_type()))),
    }
}

/// Whole numbers that no setting allows become one that is not allowed either, so that the core can say what is.
fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    let number: i64 = value
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("{name} must be an int, not {}", value.get_type())))?;
    match u32::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) => Err(to_python(&spanprof_core::Error::invalid(name, number, "1 to 1000"))),
    }
}

fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = value
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("{name} must be a number of seconds, not {}", value.get_type())))?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| to_python(&spanprof_core::Error::invalid(name, seconds, "1 s to 10 min")))
}

/// Tells that the calling thread just started, so that it is sampled from here on. 5 µs; nothing without a profiler.
#[pyfunction]
pub(crate) fn thread_started() -> PyResult<()> {
    guard(|| {
        spanprof_core::thread_started();
        Ok(())
    })
}

/// In a forked child: a profiler of its own, where the parent had one. Returns whether one runs now.
#[pyfunction]
pub(crate) fn restart_in_child(py: Python<'_>) -> PyResult<bool> {
    guard(|| {
        let Some(parents) = current().take() else {
            return Ok(false);
        };
        DEFINITIONS.after_fork();
        match parents.restart_in_child() {
            Ok(profiler) => {
                *current() = Some(profiler);
                Ok(true)
            }
            Err(error) => {
                log(py, Level::Warning, &format!("no profiles are taken in this forked process: {error}"));
                Ok(false)
            }
        }
    })
}
