//! The one profiler of this process: start, flush, stop, statistics, forks and messages.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use magnus::{Error, IntoValue, RArray, RHash, Ruby};
use rb_sys::VALUE;
use spanprof_core::{Level, Message, Profiler, Stats, Tally};

use crate::errors::{guard, is_thread_error, quietly, to_ruby};
use crate::transition::Transition;
use crate::unwind::RUBY;
use crate::value::{Gvl, NIL};
use crate::{context, drain, events, names, options, selftest, tags, unwind};

/// How long the stop of a profiler may take that makes way for another.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The interpreter has come to its end: nothing is started any more, and nothing put back into what it has taken down.
static HAS_FINISHED: AtomicBool = AtomicBool::new(false);
/// What the last profiler had counted when it was stopped. Locked as `PROFILER` is.
static LAST: Mutex<Option<Stats>> = Mutex::new(None);
/// The profiler that runs. Locked with the GVL held and for no more than a clone, so that no fork finds it locked.
static PROFILER: Mutex<Option<Profiler>> = Mutex::new(None);
/// It was told that this interpreter cannot be sampled.
static REFUSAL_TOLD: AtomicBool = AtomicBool::new(false);
/// That is still to be told.
static GUARD_IS_LOST: AtomicBool = AtomicBool::new(false);
/// Messages of this binding, until Ruby asks. Locked as `PROFILER` is.
static WAITING: Mutex<Vec<Message>> = Mutex::new(Vec::new());

fn current() -> MutexGuard<'static, Option<Profiler>> {
    PROFILER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn last() -> MutexGuard<'static, Option<Stats>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn waiting() -> MutexGuard<'static, Vec<Message>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profiler that runs. With the GVL held. The parent's does not run in a forked child.
pub(crate) fn running() -> Option<Profiler> {
    if spanprof_core::forked() { None } else { current().clone() }
}

/// Whether one runs.
pub(crate) fn is_running() -> bool {
    running().is_some()
}

/// What our callbacks do beside their work: restart in a forked child. A load, mostly.
#[inline]
pub(crate) fn housekeep() -> Result<(), Error> {
    if spanprof_core::forked() {
        // By C code, past Process._fork.
        restart_after_fork()?;
    }
    Ok(())
}

/// Faults do not come to us any more. For the engine's thread, which a fork may find anywhere: no lock.
pub(crate) fn guard_is_lost() {
    GUARD_IS_LOST.store(true, Ordering::Relaxed);
}

/// Keeps a sentence until Ruby asks for it. With the GVL held.
pub(crate) fn tell(level: Level, text: impl Into<String>) {
    waiting().push(Message { level, text: text.into() });
}

/// What a logger is to be told since the last call.
pub(crate) fn messages(ruby: &Ruby) -> Result<RArray, Error> {
    guard(ruby, || {
        if !tags::is_main_ractor() {
            // The logger is the main one's.
            return Ok(ruby.ary_new());
        }
        if GUARD_IS_LOST.swap(false, Ordering::Relaxed) {
            tell(
                Level::Warning,
                "Another library replaced the handler of SIGSEGV or SIGBUS, so stacks are not read: samples have spans and no frames.",
            );
        }
        let mut messages = std::mem::take(&mut *waiting());
        if let Some(profiler) = running() {
            messages.extend(profiler.take_messages());
        }
        let told = ruby.ary_new_capa(messages.len());
        for Message { level, text } in messages {
            let level = match level {
                Level::Info => "info",
                Level::Warning => "warning",
            };
            told.push((ruby.to_symbol(level), text))?;
        }
        Ok(told)
    })
}

/// Starts the profiler with `settings` on top of the environment; a profiler that runs is stopped first.
///
/// Returns false, and tells why, where profiling is switched off or not possible here.
/// Raises ArgumentError for a setting that is not allowed, before anything is started or stopped.
pub(crate) fn start(ruby: &Ruby, settings: RHash) -> Result<bool, Error> {
    guard(ruby, || {
        let mut config = options::from_environment(ruby, settings)?;
        options::apply(ruby, &mut config, settings)?;
        if !(config.enabled && config.cpu_enabled) {
            tell(Level::Info, "profiling is switched off by configuration or environment");
            return Ok(false);
        }
        config.check().map_err(|error| to_ruby(ruby, &error))?;
        if let Some(why) = selftest::supported(ruby)? {
            if !REFUSAL_TOLD.swap(true, Ordering::Relaxed) {
                tell(Level::Warning, format!("no profiles are taken, spans go on working: {why}"));
            }
            return Ok(false);
        }
        if HAS_FINISHED.load(Ordering::Relaxed) || drain::threads_end()? {
            return Ok(false);
        }
        let Some(_transition) = Transition::begin()? else {
            tell(
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
        unwind::install_guard();
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
    let prepared = events::add().and_then(|()| events::watch_gc(true)).and_then(|()| drain::park());
    if let Err(error) = prepared {
        unhook();
        return Err(error);
    }
    match make() {
        Ok(profiler) => {
            *current() = Some(profiler);
            if context::is_installed() && !context::follows() {
                context::follow(true);
            }
            // SAFETY: called by Ruby.
            let gvl = unsafe { Gvl::held() };
            context::republish_tags(gvl);
            spanprof_core::thread_started();
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
    drain::unpark();
    events::remove();
    // No interrupt is dropped with it, as none is taken in there; it raises only if there are no hooks.
    drop(events::watch_gc(false));
}

/// Ends sampling, uploads what there is. False: no profiler ran, or not all was delivered.
pub(crate) fn stop(ruby: &Ruby, timeout: f64) -> Result<bool, Error> {
    guard(ruby, || {
        let Some(_transition) = Transition::begin()? else { return Ok(false) };
        let stopped = end(duration(timeout))?;
        if stopped.is_some() {
            context::follow(false);
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
        context::follow(false);
        stopped
    })
}

/// Of a profiler that has stopped.
fn take_out(profiler: &Profiler) {
    current().take();
    *last() = Some(profiler.stats());
    waiting().extend(profiler.take_messages());
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
    drain::park_if_possible()?;
    without_gvl(body)
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::from_secs(3_600))
}

/// What `body` returns, while other Ruby threads run. It cannot be interrupted: callers bound its time. What came for this
/// thread before is an error, and nothing was done; what comes meanwhile waits until Ruby looks for it next.
fn without_gvl<T: Default>(body: impl FnOnce() -> T) -> Result<T, Error> {
    struct Call<T, F> {
        body: Option<F>,
        result: T,
    }
    unsafe extern "C" fn call<T: Default, F: FnOnce() -> T>(data: *mut c_void) -> *mut c_void {
        // SAFETY: the address of the `Call` below, which waits for this.
        let call = unsafe { &mut *data.cast::<Call<T, F>>() };
        if let Some(body) = call.body.take() {
            call.result = quietly(body);
        }
        data
    }
    fn function<T: Default, F: FnOnce() -> T>(_: &Call<T, F>) -> unsafe extern "C" fn(*mut c_void) -> *mut c_void {
        call::<T, F>
    }
    let mut request = Call { body: Some(body), result: T::default() };
    let function = function(&request);
    let data = &raw mut request;
    // SAFETY: `function` reads `request`, which outlives it, and calls nothing of Ruby's. This call raises nothing: it returns
    // null where an interrupt waits.
    while unsafe { rb_sys::rb_thread_call_without_gvl2(Some(function), data.cast(), None, ptr::null_mut()) }.is_null() {
        // SAFETY: what it raises is caught.
        let _: VALUE = magnus::rb_sys::protect(|| unsafe {
            rb_sys::rb_thread_check_ints();
            NIL
        })?;
    }
    Ok(request.result)
}

/// In a forked child: a profiler of its own, where the parent had one. Returns whether one runs now.
pub(crate) fn after_fork(ruby: &Ruby) -> Result<bool, Error> {
    guard(ruby, restart_after_fork)
}

fn restart_after_fork() -> Result<bool, Error> {
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
    tell(Level::Warning, format!("no profiles are taken in this forked process: {why}"));
    Ok(false)
}

/// Forgets what is the parent's, in a forked child; its profiler, if it had one.
fn leave_parents() -> Option<Profiler> {
    drain::forget();
    // SAFETY: called by Ruby.
    names::forget(unsafe { Gvl::held() });
    waiting().clear();
    *last() = None;
    current().take()
}

/// What the environment alone says: the application's name ("" if it has none) and names of tags.
pub(crate) fn environment(ruby: &Ruby) -> Result<(String, Vec<String>), Error> {
    guard(ruby, || {
        let config = options::from_environment(ruby, ruby.hash_new())?;
        Ok((config.application_name, config.tags.into_iter().map(|(name, _)| name).collect()))
    })
}

/// The labels that an OpenTelemetry resource with these attributes gives to profiles.
pub(crate) fn resource_labels(ruby: &Ruby, attributes: RHash) -> Result<RHash, Error> {
    guard(ruby, || {
        let attributes = tags::pairs(ruby, "resource", attributes)?;
        let known = |name: &str| attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let labels = ruby.hash_new();
        for (name, value) in spanprof_core::resource_labels(known) {
            labels.aset(name, value)?;
        }
        Ok(labels)
    })
}

/// What became of every sample, as a Hash: of the profiler that runs, else of the last one, else zeros.
pub(crate) fn stats(ruby: &Ruby) -> Result<RHash, Error> {
    guard(ruby, || {
        let stats = match running() {
            Some(profiler) => profiler.stats(),
            None => last().clone().unwrap_or_default(),
        };
        let hash = ruby.hash_new();
        for (name, Tally { samples, weight }) in stats.tallies() {
            let entry = ruby.hash_new();
            entry.aset(ruby.to_symbol("samples"), samples)?;
            entry.aset(ruby.to_symbol("weight"), weight)?;
            hash.aset(ruby.to_symbol(name), entry)?;
        }
        let own = [("drain_ns", drain::cpu_ns()), ("stacks_unreadable", unwind::fault_count())];
        for (name, number) in stats.numbers().into_iter().chain(own) {
            hash.aset(ruby.to_symbol(name), number)?;
        }
        hash.aset(ruby.to_symbol("last_error"), stats.last_error.into_value_with(ruby))?;
        Ok(hash)
    })
}
