//! Start, stop, flush and statistics of the profiler, its restart in a forked child, and threads that begin.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use spanprof_core::{ErrorKind, Profiler, Tally, host};

use crate::arguments::{apply, from_environment};
use crate::errors::{guard, nobody_is_inside, to_python};
use crate::messages::set_log_level;
use crate::runtime::MEASURES_WALL_TIME;
use crate::selftest::Refusal;
use crate::stopping::{Stop, running_or_stopping, stopping};
use crate::symbols::definitions;
use crate::{awaits, calls, fork, selftest};

/// How long a stop may take, all in all.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a flush may take: longer ones wait no longer.
const MAX_FLUSH: Duration = Duration::from_secs(3_600);

/// The interpreter is about to end, so nothing starts the profiler any more: nobody would stop it in time.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Starts the profiler with `settings` on top of the environment; a profiler that runs is stopped first.
///
/// Returns False, and says why to the logger, where profiling is switched off or not possible here.
/// Raises ValueError for a setting that is not allowed, before anything is started or stopped.
#[pyfunction]
pub(crate) fn start(py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<bool> {
    // Before the guard, as it begins to count anew who is inside.
    fork::restart_if_forked(py);
    guard(|| {
        // Before any code of Python's runs: the exit has waited for starts.
        if ENDING.load(Ordering::Relaxed) {
            return Ok(too_late());
        }
        let mut config = from_environment(py, settings)?;
        let lines = apply(&mut config, settings)?;
        set_log_level(config.log_level);
        if host::is_switched_off(&config) {
            return Ok(false);
        }
        config.check().map_err(|error| to_python(&error))?;
        let runtime = match selftest::runtime(py)? {
            Ok(runtime) => runtime,
            Err(why) => {
                match why {
                    Refusal::ForGood(why) => host::report_unsupported(why),
                    Refusal::ForNow(why) => host::report_not_started(why),
                }
                return Ok(false);
            }
        };
        end(py, STOP_TIMEOUT);
        definitions::set_line_mode(lines);
        MEASURES_WALL_TIME.store(config.wall_time, Ordering::Relaxed);
        let profiler = match py.detach(|| Profiler::start(config, runtime)) {
            Ok(profiler) => profiler,
            Err(error) if error.kind() == ErrorKind::InvalidConfig => return Err(to_python(&error)),
            Err(error) => {
                host::report_not_started(error);
                return Ok(false);
            }
        };
        if ENDING.load(Ordering::Relaxed) {
            // That became so meanwhile, and who stopped the profiler found none.
            py.detach(|| profiler.stop(STOP_TIMEOUT));
            return Ok(too_late());
        }
        host::set_running(profiler.clone());
        if profiler.config().wall_time {
            if !selftest::measures_waits(py)? {
                profiler.saw_no_wait();
            }
            if spanprof_core::waits_began_pending() {
                // That imports modules.
                profiler.measure_no_awaits("a thread of the program asks ld.so for modules");
            } else if spanprof_core::measures_waits()
                && let Err(why) = selftest::awaits::start(py, runtime)
            {
                profiler.measure_no_awaits(&why);
            }
        }
        Ok(true)
    })
}

/// Says that nothing starts any more.
fn too_late() -> bool {
    host::report_not_started("the process is ending");
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
    let profiler = host::take_running();
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
    awaits::stop();
    let stop = Arc::new(Stop::of(profiler));
    *stopping() = Some(stop.clone());
    let (all, stats) = py.detach(|| (stop.end(timeout), stop.profiler.stats()));
    host::set_last(Some(stats));
    // Unless another one was started and is being stopped by now.
    stopping().take_if(|under_way| Arc::ptr_eq(under_way, &stop));
    host::keep(stop.profiler.take_messages());
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
    host::running().is_some()
}

/// Whether a profiler runs that was asked for wall time.
#[pyfunction]
pub(crate) fn has_wall_time() -> bool {
    host::running().is_some_and(|profiler| profiler.config().wall_time)
}

/// What became of every sample, as a dict: of the profiler that runs, else of the last one, else zeros.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    guard(|| {
        let stats = match running_or_stopping() {
            Some(profiler) => py.detach(|| profiler.stats()),
            None => host::last(),
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

/// Announces that the calling thread just started, so that it is sampled from here on. 5 µs, with `wall_time` 8 µs; nothing
/// without a profiler.
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
    // Also where the parent had not started its first one yet, but was about to.
    nobody_is_inside();
    if ENDING.load(Ordering::Relaxed) || !spanprof_core::forked() {
        return Ok(false);
    }
    guard(|| {
        // Whatever the parent was about to do with it.
        definitions::after_fork();
        // The one that another thread of the parent's was just stopping, never dropped: its locks may be held.
        let _stopping = ManuallyDrop::new(stopping().take());
        let Some(parents) = host::take_running() else {
            // It had stopped its own before the fork, or another thread was just stopping it.
            host::set_last(None);
            spanprof_core::leave_parent_behind();
            awaits::stop();
            return Ok(false);
        };
        match parents.restart_in_child() {
            Ok(profiler) => {
                host::set_running(profiler);
                Ok(true)
            }
            Err(error) => {
                awaits::stop();
                host::report_not_in_child(error);
                Ok(false)
            }
        }
    })
}
