//! Starts, stops and flushes of the one profiler of this process, and what else they need in the interpreter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use magnus::{Error, RHash, Ruby};
use spanprof_core::host::{self, running};
use spanprof_core::{Level, Profiler};

use crate::drain::parked;
use crate::errors::{guard, is_thread_error, to_ruby};
use crate::events::{gc, hooks};
use crate::runtime::RUBY;
use crate::span::{current, record, tags};
use crate::stack::guard::install_guard;
use crate::symbols::functions;
use crate::transition::Transition;
use crate::value::Gvl;
use crate::without_gvl::without_gvl;
use crate::{arguments, drain, selftest, waits};

/// How long the stop of a profiler may take that makes way for another.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The interpreter has come to its end: nothing is started any more, and nothing put back into what it has taken down.
static HAS_FINISHED: AtomicBool = AtomicBool::new(false);

/// Starts the profiler with `settings` on top of the environment; a profiler that runs is stopped first.
///
/// Returns false, and tells why, where profiling is switched off or not possible here.
/// Raises ArgumentError for a setting that is not allowed, before anything is started or stopped.
pub(crate) fn start(ruby: &Ruby, settings: RHash) -> Result<bool, Error> {
    guard(ruby, || {
        let mut config = arguments::from_environment(ruby, settings)?;
        arguments::apply(ruby, &mut config, settings)?;
        if host::is_switched_off(&config) {
            return Ok(false);
        }
        config.check().map_err(|error| to_ruby(ruby, &error))?;
        if let Some(why) = selftest::supported(ruby)? {
            host::report_unsupported(why);
            return Ok(false);
        }
        if HAS_FINISHED.load(Ordering::Relaxed) || drain::threads_end()? {
            return Ok(false);
        }
        let Some(_transition) = Transition::begin()? else {
            host::report(
                Level::Warning,
                "configure: profiling is being started or stopped by another call, so this one changed nothing",
            );
            return Ok(false);
        };
        if spanprof_core::forked() {
            // Nothing of it is dropped: its locks may be held by threads that do not exist here.
            let _ = std::mem::ManuallyDrop::new(leave_parents());
        }
        end(STOP_TIMEOUT)?;
        install_guard();
        launch(|| Profiler::start(config, &RUBY)).and_then(|started| match started {
            Ok(()) => Ok(true),
            Err(error) => Err(to_ruby(ruby, &error)),
        })
    })
}

/// Starts what `make` makes, and what it needs in the interpreter. Outer errors are Ruby's.
fn launch(
    make: impl FnOnce() -> Result<Profiler, spanprof_core::Error>,
) -> Result<Result<(), spanprof_core::Error>, Error> {
    let prepared = hooks::add().and_then(|()| gc::watch_gc(true)).and_then(|()| parked::park());
    if let Err(error) = prepared {
        unhook();
        return Err(error);
    }
    match make() {
        Ok(profiler) => {
            host::set_running(profiler.clone());
            if current::is_installed() && !current::follows() {
                current::follow(true);
            }
            // SAFETY: called by Ruby.
            let gvl = unsafe { Gvl::held() };
            tags::republish(gvl);
            spanprof_core::thread_started();
            waits::begin(&profiler)?;
            Ok(Ok(()))
        }
        Err(error) => {
            unhook();
            Ok(Err(error))
        }
    }
}

/// Takes all that is ours out of the interpreter.
fn unhook() {
    parked::unpark();
    waits::end();
    hooks::remove();
    // No interrupt is dropped with it, as none is taken in there; it raises only if there are no hooks.
    drop(gc::watch_gc(false));
}

/// Ends sampling, uploads what there is. False: no profiler ran, or not all was delivered.
pub(crate) fn stop(ruby: &Ruby, timeout: f64) -> Result<bool, Error> {
    guard(ruby, || {
        let Some(_transition) = Transition::begin()? else { return Ok(false) };
        let stopped = end(duration(timeout))?;
        if stopped.is_some() {
            current::follow(false);
        }
        Ok(stopped.unwrap_or(false))
    })
}

/// Within a transition, so that what is taken out afterwards is this profiler's. `None`: there was none.
fn end(timeout: Duration) -> Result<Option<bool>, Error> {
    let Some(profiler) = running() else { return Ok(None) };
    let stopping = profiler.clone();
    let stopped = wait_for(move || stopping.stop(timeout))?;
    take_out(&profiler);
    Ok(Some(stopped))
}

/// As [`stop`], after the last block of `at_exit`, where the calling thread is Ruby's only one. Nothing is started from then on.
pub(crate) fn finish(ruby: &Ruby, timeout: f64) -> Result<bool, Error> {
    guard(ruby, || {
        HAS_FINISHED.store(true, Ordering::Relaxed);
        let Some(profiler) = running() else { return Ok(false) };
        let waiter = drain::Waiter::new();
        let stopped = drain::serve(move || Profiler::end_process(duration(timeout)));
        drop(waiter);
        // Also where a signal interrupted that: Ruby goes on to take itself down.
        take_out(&profiler);
        current::follow(false);
        stopped
    })
}

/// Of a profiler that has stopped.
fn take_out(profiler: &Profiler) {
    host::ended(profiler);
    unhook();
}

/// Uploads what was sampled so far. True: the server has it. False: no profiler, or not within `timeout` seconds.
pub(crate) fn flush(ruby: &Ruby, timeout: f64) -> Result<bool, Error> {
    guard(ruby, || {
        let Some(profiler) = running() else { return Ok(false) };
        wait_for(move || profiler.flush(duration(timeout)))
    })
}

/// What `body` returns, for which samples are to be drained.
fn wait_for(body: impl FnOnce() -> bool + Send + 'static) -> Result<bool, Error> {
    let _waiter = drain::Waiter::new();
    if drain::threads_end()? {
        return drain::serve(body);
    }
    parked::park_if_possible()?;
    without_gvl(body)
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::from_secs(3_600))
}

/// Whether a profiler runs.
pub(crate) fn is_running() -> bool {
    running().is_some()
}

/// Whether a profiler runs that was asked for wall time.
pub(crate) fn has_wall_time() -> bool {
    running().is_some_and(|profiler| profiler.config().wall_time)
}

/// In a forked child: a profiler of its own, where the parent had one. Returns whether one runs now.
pub(crate) fn after_fork(ruby: &Ruby) -> Result<bool, Error> {
    guard(ruby, restart_after_fork)
}

/// The same, for our callbacks.
pub(crate) fn restart_after_fork() -> Result<bool, Error> {
    if !spanprof_core::forked() || HAS_FINISHED.load(Ordering::Relaxed) {
        return Ok(is_running());
    }
    let Some(_transition) = Transition::begin()? else { return Ok(is_running()) };
    if !spanprof_core::forked() {
        return Ok(is_running());
    }
    let Some(parents) = leave_parents() else {
        // Its parent had stopped its own before the fork.
        spanprof_core::leave_parent_behind();
        return Ok(false);
    };
    let why = match launch(|| parents.restart_in_child()) {
        Ok(Ok(())) => return Ok(true),
        Ok(Err(error)) => error.to_string(),
        Err(error) if is_thread_error(&error) => error.to_string(),
        Err(error) => return Err(error),
    };
    host::report_not_in_child(why);
    Ok(false)
}

/// Forgets what is the parent's, in a forked child; its profiler, if it had one.
fn leave_parents() -> Option<Profiler> {
    drain::forget();
    if let Some(slot) = record::own() {
        slot.begin_anew();
    }
    // SAFETY: called by Ruby.
    functions::forget(unsafe { Gvl::held() });
    drop(host::take_messages());
    host::set_last(None);
    host::take_running()
}
