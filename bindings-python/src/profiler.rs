//! The one profiler of this process: configure, flush, stop, statistics, forks, threads and messages.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use spanprof_core::{Config, ErrorKind, Level, Message, Profiler, Secret, Stats, Tally, TraceIdLabel};

use crate::calls;
use crate::errors::{guard, nobody_is_inside, to_python};
use crate::selftest;
use crate::span::tags;
use crate::symbols::definitions;
use crate::symbols::resolver::LineMode;

/// How long a stop may take, all in all.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a flush may take: longer ones wait no longer.
const MAX_FLUSH: Duration = Duration::from_secs(3_600);
/// Ticks of the profiler's thread between two looks for messages: a second, as it ticks every 100 ms.
const TICKS_BETWEEN_MESSAGES: u32 = 10;

/// What the last profiler had counted when it was stopped. Locked as `PROFILER` is.
static LAST: Mutex<Option<Stats>> = Mutex::new(None);
/// The profiler that runs. Locked with the GIL held and for no more than a clone, so that no fork finds it locked.
static PROFILER: Mutex<Option<Profiler>> = Mutex::new(None);
/// What a thread is just stopping, for those who ask meanwhile. Locked as `PROFILER` is.
static STOPPING: Mutex<Option<Arc<Stop>>> = Mutex::new(None);
/// Ticks of the profiler's thread, and their number when messages were last looked for.
static TICKS: AtomicU32 = AtomicU32::new(0);
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);
/// It was told that this interpreter cannot be sampled.
static REFUSAL_TOLD: AtomicBool = AtomicBool::new(false);
/// The least level that the logger is to get, as Python numbers it.
static LOG_LEVEL: AtomicU8 = AtomicU8::new(WARNING);
/// Messages of this binding, which Python code takes and passes on: see `_messages.py`. Locked with the GIL held and
/// for no more than a push or a swap, as `TROUBLE` is.
static WAITING: Mutex<Vec<Message>> = Mutex::new(Vec::new());
/// There are some.
static ANY_WAITING: AtomicBool = AtomicBool::new(false);
/// The first failure of a callback, until it is taken.
static TROUBLE: Mutex<Option<(String, PyErr)>> = Mutex::new(None);
/// There was one.
static TROUBLE_TOLD: AtomicBool = AtomicBool::new(false);

/// The interpreter is about to end, so nothing starts the profiler any more: nobody would stop it in time.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Levels of Python's `logging`, and one above all of them.
const INFO: u8 = 20;
const WARNING: u8 = 30;
const SILENT: u8 = 100;

fn current() -> MutexGuard<'static, Option<Profiler>> {
    PROFILER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn last() -> MutexGuard<'static, Option<Stats>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profiler that runs in this process: none in a forked child that has not started its own.
fn running() -> Option<Profiler> {
    if spanprof_core::forked() {
        return None;
    }
    current().clone()
}

/// A stop that is under way, and whether all was delivered, once it is over. Locked without the GIL.
#[derive(Debug)]
struct Stop {
    profiler: Profiler,
    all: Mutex<Option<bool>>,
    over: Condvar,
}

impl Stop {
    fn all(&self) -> MutexGuard<'_, Option<bool>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, timeout: Duration) -> bool {
        let all = self.profiler.stop(timeout);
        *self.all() = Some(all);
        self.over.notify_all();
        all
    }

    fn wait(&self, timeout: Duration) -> bool {
        let all = self.over.wait_timeout_while(self.all(), timeout, |all| all.is_none());
        all.unwrap_or_else(PoisonError::into_inner).0.unwrap_or(false)
    }
}

fn stopping() -> MutexGuard<'static, Option<Arc<Stop>>> {
    STOPPING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profiler that runs, else the one that is just being stopped.
fn running_or_stopping() -> Option<Profiler> {
    if spanprof_core::forked() {
        return None;
    }
    current().clone().or_else(|| stopping().as_ref().map(|stop| stop.profiler.clone()))
}

/// A tick of the profiler's thread.
pub(crate) fn tick() {
    TICKS.fetch_add(1, Ordering::Relaxed);
}

/// What our callbacks do beside their work: restart in a forked child. A load, mostly.
#[inline]
pub(crate) fn housekeep(py: Python<'_>) {
    if spanprof_core::forked() {
        // By C code, past os.register_at_fork.
        drop(restart_in_child(py));
    }
}

/// Tells once that a callback failed: the program's spans must not suffer for it.
#[cold]
pub(crate) fn trouble(py: Python<'_>, what: &str, error: &PyErr) {
    if !TROUBLE_TOLD.swap(true, Ordering::Relaxed) {
        let text = format!("{what} failed, its samples may miss their span: %s");
        *TROUBLE.lock().unwrap_or_else(PoisonError::into_inner) = Some((text, error.clone_ref(py)));
        ANY_WAITING.store(true, Ordering::Relaxed);
    }
}

/// Keeps a sentence until Python code asks for it.
pub(crate) fn tell(level: Level, text: impl Into<String>) {
    wait_for_python([Message { level, text: text.into() }]);
}

fn wait_for_python(messages: impl IntoIterator<Item = Message>) {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.extend(messages);
    ANY_WAITING.store(!waiting.is_empty(), Ordering::Relaxed);
}

/// Whether it is time for [`take_messages`]: some wait, or nobody has looked for a second. A few loads.
#[pyfunction]
pub(crate) fn messages_due() -> bool {
    let ticks = TICKS.load(Ordering::Relaxed).wrapping_sub(LOOKED_AT.load(Ordering::Relaxed));
    ANY_WAITING.load(Ordering::Relaxed) || ticks >= TICKS_BETWEEN_MESSAGES
}

/// A message for Python: level, text, and an exception to put into the text, if any.
type Told = (u8, String, Option<Py<PyAny>>);

/// What the logger is to be told since the last call.
///
/// Python code passes it on, as loggers run code of the program: see `_process.py`. None if there is nothing, for which
/// no object is made.
#[pyfunction]
pub(crate) fn take_messages(py: Python<'_>) -> PyResult<Option<Vec<Told>>> {
    guard(|| {
        LOOKED_AT.store(TICKS.load(Ordering::Relaxed), Ordering::Relaxed);
        ANY_WAITING.store(false, Ordering::Relaxed);
        let mut messages = std::mem::take(&mut *WAITING.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(profiler) = running() {
            messages.extend(profiler.take_messages());
        }
        let trouble = TROUBLE.lock().unwrap_or_else(PoisonError::into_inner).take();
        let trouble = trouble.map(|(text, error)| (WARNING, text, Some(error.into_value(py).into_any())));
        let messages = messages.into_iter().map(|Message { level, text }| (number_of(level), text, None));
        let told: Vec<Told> = messages.chain(trouble).collect();
        Ok(Some(told).filter(|told| !told.is_empty()))
    })
}

/// The least level of messages that the logger is to get, as Python's `logging` numbers levels.
#[pyfunction]
pub(crate) fn log_level() -> u8 {
    LOG_LEVEL.load(Ordering::Relaxed)
}

fn number_of(level: Level) -> u8 {
    match level {
        Level::Info => INFO,
        Level::Warning => WARNING,
    }
}

/// Starts the profiler with `settings` on top of the environment; a profiler that runs is stopped first.
///
/// Returns False, and says why to the logger, where profiling is switched off or not possible here.
/// Raises ValueError for a setting that is not allowed, before anything is started or stopped.
#[pyfunction]
pub(crate) fn start(py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<bool> {
    // Before the guard, as it begins to count anew who is inside.
    housekeep(py);
    guard(|| {
        // Before any code of Python's runs: the exit has waited for starts.
        if ENDING.load(Ordering::Relaxed) {
            return Ok(too_late());
        }
        let mut config = from_environment(py, settings)?;
        let lines = apply(&mut config, settings)?;
        LOG_LEVEL.store(config.log_level.map_or(SILENT, number_of), Ordering::Relaxed);
        if !(config.enabled && config.cpu_enabled) {
            tell(Level::Info, "profiling is switched off by configuration or environment");
            return Ok(false);
        }
        config.check().map_err(|error| to_python(&error))?;
        let runtime = match selftest::runtime(py)? {
            Ok(runtime) => runtime,
            Err(why) => {
                if !REFUSAL_TOLD.swap(true, Ordering::Relaxed) {
                    tell(Level::Warning, format!("no profiles are taken, spans go on working: {why}"));
                }
                return Ok(false);
            }
        };
        end(py, STOP_TIMEOUT);
        definitions::set_line_mode(lines);
        let profiler = match py.detach(|| Profiler::start(config, runtime)) {
            Ok(profiler) => profiler,
            Err(error) if error.kind() == ErrorKind::InvalidConfig => return Err(to_python(&error)),
            Err(error) => {
                tell(Level::Warning, format!("no profiles are taken, spans go on working: {error}"));
                return Ok(false);
            }
        };
        if ENDING.load(Ordering::Relaxed) {
            // That became so meanwhile, and who stopped the profiler found none.
            py.detach(|| profiler.stop(STOP_TIMEOUT));
            return Ok(too_late());
        }
        *current() = Some(profiler);
        Ok(true)
    })
}

/// Says that nothing starts any more.
fn too_late() -> bool {
    tell(Level::Warning, "no profiles are taken, spans go on working: the process is ending");
    false
}

/// The interpreter is about to end: from now on nothing starts the profiler, in this process and in those it forks.
#[pyfunction]
pub(crate) fn forbid_start() {
    ENDING.store(true, Ordering::Relaxed);
}

/// Ends sampling, uploads what there is, 5 s at most. False: no profiler ran, or not all was delivered.
#[pyfunction]
pub(crate) fn stop(py: Python<'_>) -> PyResult<bool> {
    guard(|| {
        let all = end(py, STOP_TIMEOUT);
        if ENDING.load(Ordering::Relaxed) {
            // Another thread may be starting one, of which nobody but the engine knows yet.
            py.detach(|| Profiler::end_process(STOP_TIMEOUT));
        }
        Ok(all)
    })
}

fn end(py: Python<'_>, timeout: Duration) -> bool {
    let profiler = current().take();
    if spanprof_core::forked() {
        // The parent's, whose threads do not exist here: it is left behind, with locks that they may hold.
        let _parents = ManuallyDrop::new(profiler);
        return false;
    }
    let Some(profiler) = profiler else {
        // Another thread may be at it: this one waits with it, and has the same answer.
        let under_way = stopping().clone();
        return under_way.is_some_and(|stop| py.detach(|| stop.wait(timeout)));
    };
    let stop = Arc::new(Stop { profiler, all: Mutex::new(None), over: Condvar::new() });
    *stopping() = Some(stop.clone());
    let (all, stats) = py.detach(|| (stop.end(timeout), stop.profiler.stats()));
    *last() = Some(stats);
    // Unless another one was started and is being stopped by now.
    stopping().take_if(|under_way| Arc::ptr_eq(under_way, &stop));
    wait_for_python(stop.profiler.take_messages());
    all
}

/// Uploads what was sampled so far. True: the server has it. False: not within `timeout` seconds. None: no profiler.
#[pyfunction]
pub(crate) fn flush(py: Python<'_>, timeout: f64) -> PyResult<Option<bool>> {
    guard(|| {
        let timeout = Duration::try_from_secs_f64(timeout.max(0.0)).map_or(MAX_FLUSH, |timeout| timeout.min(MAX_FLUSH));
        Ok(running_or_stopping().map(|profiler| py.detach(|| profiler.flush(timeout))))
    })
}

/// Whether a profiler runs.
#[pyfunction]
pub(crate) fn is_running() -> bool {
    running().is_some()
}

/// What the environment alone says: whether to profile, the application's name ("" if it has none), names of tags.
#[pyfunction]
pub(crate) fn environment(py: Python<'_>) -> PyResult<(bool, String, Vec<String>)> {
    guard(|| {
        let config = from_environment(py, &PyDict::new(py))?;
        let tags = config.tags.into_iter().map(|(name, _)| name).collect();
        Ok((config.enabled && config.cpu_enabled, config.application_name, tags))
    })
}

/// The labels that an OpenTelemetry resource with these attributes gives to profiles.
#[pyfunction]
pub(crate) fn resource_labels(attributes: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String)>> {
    guard(|| {
        let attributes = tags::pairs("resource", attributes)?;
        let known = |name: &str| attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        Ok(spanprof_core::resource_labels(known))
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
        let stats = match running_or_stopping() {
            Some(profiler) => py.detach(|| profiler.stats()),
            None => last().clone().unwrap_or_default(),
        };
        let dict = calls::dict(py)?;
        for (name, tally) in stats.tallies() {
            let Tally { samples, weight } = tally;
            let entry = calls::dict(py)?;
            entry.set_item("samples", samples)?;
            entry.set_item("weight", weight)?;
            dict.set_item(name, entry)?;
        }
        for (name, number) in stats.numbers() {
            dict.set_item(name, number)?;
        }
        dict.set_item("last_error", stats.last_error)?;
        Ok(dict)
    })
}

/// The configuration that the environment gives. What `settings` say of one variable goes before it.
fn from_environment(py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<Config> {
    let environ = py.import("os")?.getattr("environ")?;
    let resource_labels = match settings.get_item("resource_labels")? {
        Some(value) => Some(value.is_truthy()?.to_string()),
        None => None,
    };
    let lookup = |name: &str| match &resource_labels {
        Some(value) if name == "OTEL_PYROSCOPE_RESOURCE_LABELS" => Some(value.clone()),
        _ => environ.call_method1("get", (name,)).ok()?.extract::<String>().ok(),
    };
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
            "enable_logging" => config.log_level = Some(if value.is_truthy()? { Level::Info } else { Level::Warning }),
            "report_pid" => config.report_pid = value.is_truthy()?,
            "report_thread_id" => config.report_thread_id = value.is_truthy()?,
            "report_thread_name" => config.report_thread_name = value.is_truthy()?,
            "trace_id" => config.trace_id = trace_id(&name, &value)?,
            // Has told from_environment() already.
            "resource_labels" => {}
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

fn trace_id(name: &str, value: &Bound<'_, PyAny>) -> PyResult<TraceIdLabel> {
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(if value.is_true() { TraceIdLabel::Always } else { TraceIdLabel::Never });
    }
    spanprof_core::parse_trace_id(name, &string(name, value)?).map_err(|error| to_python(&error))
}

fn dict(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    if value.is_none() {
        return Ok(Vec::new());
    }
    match value.cast::<PyDict>() {
        Ok(dict) => tags::pairs(name, dict),
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
        Err(_) => Err(to_python(&spanprof_core::Error::invalid(name, number, "1 to 1000 samples a second"))),
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
pub(crate) fn restart_in_child(_py: Python<'_>) -> PyResult<bool> {
    if ENDING.load(Ordering::Relaxed) || !spanprof_core::forked() {
        return Ok(false);
    }
    nobody_is_inside();
    guard(|| {
        // Whatever the parent was about to do with it.
        definitions::after_fork();
        // The one that another thread of the parent's was just stopping, never dropped: its locks may be held.
        let _stopping = ManuallyDrop::new(stopping().take());
        let Some(parents) = current().take() else {
            // It had stopped its own before the fork, or another thread was just stopping it.
            *last() = None;
            spanprof_core::leave_parent_behind();
            return Ok(false);
        };
        match parents.restart_in_child() {
            Ok(profiler) => {
                *current() = Some(profiler);
                Ok(true)
            }
            Err(error) => {
                tell(Level::Warning, format!("no profiles are taken in this forked process: {error}"));
                Ok(false)
            }
        }
    })
}
