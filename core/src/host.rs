//! The one profiler of a process, as a language's package keeps it: the one that runs, what the last one counted, and what the
//! program's logger is to be told.
//!
//! Here is what means the same in every language. When a profiler starts and stops, what has to be hooked into the interpreter
//! before and taken out afterwards, who waits for whom, and what nobody may do at the end of a process is the package's own: it puts
//! the profiler in here ([`set_running`]) when it may be used, and takes it out, before the stop ([`take_running`], then
//! [`set_last`]) or after it ([`ended`]).
//!
//! Each lock is held for a clone or a move. Where programs fork, all of this is called with the
//! interpreter's lock held, as whoever forks holds it too: so no fork finds one of them locked.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::messages::{Level, Message};
use crate::os::fork::{forked, is_past_hooks};
use crate::profiler::Profiler;
use crate::stats::Stats;

/// The profiler that runs.
static RUNNING: Mutex<Option<Profiler>> = Mutex::new(None);
/// What the last profiler had counted when it was stopped.
static LAST: Mutex<Option<Stats>> = Mutex::new(None);
/// Messages of the package, and of profilers that were stopped.
static WAITING: Mutex<Vec<Message>> = Mutex::new(Vec::new());
/// There are some. Changed with `WAITING` locked.
static ANY_WAITING: AtomicBool = AtomicBool::new(false);
/// It was reported that this interpreter cannot be sampled.
static REFUSAL_REPORTED: AtomicBool = AtomicBool::new(false);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profiler that runs in this process: none in a forked child that has not started its own.
pub fn running() -> Option<Profiler> {
    if forked() || is_past_hooks() { None } else { lock(&RUNNING).clone() }
}

/// From here on this one is the profiler that runs.
pub fn set_running(profiler: Profiler) {
    let before = lock(&RUNNING).replace(profiler);
    drop(before);
}

/// Takes out the profiler that runs, in a forked child the parent's: there it is restarted, or never dropped, as its locks may be
/// held by threads that do not exist there. None where a child was made past fork and its hooks, which is left as it is.
pub fn take_running() -> Option<Profiler> {
    if is_past_hooks() { None } else { lock(&RUNNING).take() }
}

/// What the last profiler had counted when it was stopped, else zeros.
pub fn last() -> Stats {
    lock(&LAST).clone().unwrap_or_default()
}

/// What a profiler had counted that was stopped; `None`: nothing that is this process's.
pub fn set_last(stats: Option<Stats>) {
    *lock(&LAST) = stats;
}

/// The profiler that runs has stopped, and none takes its place. Until here it is the one whose statistics are asked for, and from
/// here on they are [`last`]: who finds neither does not exist.
pub fn ended(profiler: &Profiler) {
    set_last(Some(profiler.stats()));
    drop(take_running());
    keep(profiler.take_messages());
}

/// Keeps a sentence until the program asks for it.
pub fn report(level: Level, text: impl Into<String>) {
    keep([Message { level, text: text.into() }]);
}

/// Keeps messages until the program asks for them.
pub fn keep(messages: impl IntoIterator<Item = Message>) {
    let mut waiting = lock(&WAITING);
    waiting.extend(messages);
    ANY_WAITING.store(!waiting.is_empty(), Ordering::Relaxed);
}

/// Whether messages were kept that nobody has asked for. A load.
pub fn messages_wait() -> bool {
    ANY_WAITING.load(Ordering::Relaxed)
}

/// What the logger is to be told since the last call: what was kept, then what the profiler says that runs.
pub fn take_messages() -> Vec<Message> {
    let mut messages = {
        let mut waiting = lock(&WAITING);
        ANY_WAITING.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting)
    };
    if let Some(profiler) = running() {
        messages.extend(profiler.take_messages());
    }
    messages
}

/// Whether CPU time is not to be profiled; if so, that is reported.
pub fn is_switched_off(config: &Config) -> bool {
    let is_off = !(config.enabled && config.cpu_enabled);
    if is_off {
        report(Level::Info, "profiling is switched off by configuration or environment");
    }
    is_off
}

/// Reports why no profiler runs though one was asked for.
pub fn report_not_started(why: impl Display) {
    report(Level::Warning, format!("no profiles are taken, spans go on working: {why}"));
}

/// Reports, once in a process, why this interpreter cannot be sampled.
pub fn report_unsupported(why: impl Display) {
    if !REFUSAL_REPORTED.swap(true, Ordering::Relaxed) {
        report_not_started(why);
    }
}

/// Reports why no profiler runs in a forked child whose parent has one.
pub fn report_not_in_child(why: impl Display) {
    report(Level::Warning, format!("no profiles are taken in this forked process: {why}"));
}
