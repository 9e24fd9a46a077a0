//! The profiler's thread.
//!
//! It ticks every 100 ms while threads burn CPU, and ever more rarely, down to once a second, while none does. A tick checks
//! the signal, looks for new threads, drains the rings, and rotates the window when it is due.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::process::STOP_PATIENCE;
use crate::context::tags;
use crate::messages::Cause;
use crate::os::{allocator, background_thread, clock, panics};
use crate::sample::handler::{self, WAKE};
use crate::sample::runtime::Drain;
use crate::sample::safe_load;
use crate::sample::threads::{self, Sampling};
use crate::sample::waits;

const TICK: Duration = Duration::from_millis(100);
const IDLE_TICK: Duration = Duration::from_secs(1);
/// While timers of threads are late.
const LATE_TICK: Duration = Duration::from_millis(20);
/// The sweep for threads rests for this many times the CPU time that it took, so with thousands of threads it still uses no
/// more than 0.4 % of a core.
const SWEEP_REST: u32 = 250;
/// A window is no longer, since Grafana looks 30 s around a span and a profile is stamped with its window's start.
const MAX_WINDOW: Duration = Duration::from_secs(15);
/// CPU time in a tick below which the process counts as idle.
const IDLE_CPU_NS: u64 = 1_000_000;

/// What a tick compares with the one before.
struct Pulse {
    cpu_ns: u64,
    tasks: u64,
    swept: Instant,
    /// CPU time that this took.
    sweep: Duration,
    tick: Duration,
    /// No thread of the host's is left.
    is_alone: bool,
}

impl Engine {
    /// The body of the profiler's thread. A panic, ours or of the host's runtime, ends sampling and is told as that.
    pub(super) fn run(&self) {
        if let Err(panic) = panics::caught(|| self.tick_until_stopped()) {
            self.give_up(&panic);
        }
    }

    fn tick_until_stopped(&self) {
        let mut pulse =
            Pulse { cpu_ns: 0, tasks: 0, swept: Instant::now(), sweep: Duration::ZERO, tick: TICK, is_alone: false };
        // Sets of tags are counted since the process started.
        let mut reported = [0, 0, 0, 0, 0, 0, tags::overflowed().0, tags::overflowed().1];
        let mut faults_lost = false;
        let window = self.settings.upload_interval.min(MAX_WINDOW);
        loop {
            WAKE.sleep(pulse.tick);
            let (stop, flushes, flushed) = {
                let control = self.control();
                (control.stop, control.flushes, control.flushed)
            };
            if stop {
                self.end(&mut reported);
                return;
            }
            self.keep_signal();
            // Reported at the second check: some borrow the handlers for a moment, as Ruby does to compact its heap.
            let lost = safe_load::is_replaced();
            if std::mem::replace(&mut faults_lost, lost) && lost {
                self.messages.report(Cause::FaultsLost, &[]);
            }
            if !waits::tick(self.owner) {
                waits::stop(self.owner);
                self.messages
                    .report(Cause::NoWaits, &["since the start a thread of the program asks ld.so for modules"]);
            }
            if let Some(calls) = waits::take_refused() {
                self.messages.report(Cause::WaitsUnseen, &[&calls.to_string()]);
            }
            threads::give_wanted(self.owner);
            self.sweep_if_due(&mut pulse);
            if pulse.is_alone {
                self.end_with_host(&mut reported);
                return;
            }
            // What is kept goes first, as the rest of this tick needs memory too.
            if allocator::is_short() {
                self.aggregate().let_go(&self.counters);
            }
            if self.runtime.request_drain() == Drain::Now {
                self.drain(false);
            }
            let due = {
                let aggregate = self.aggregate();
                aggregate.age() >= window || aggregate.must_rotate()
            };
            if due || flushes > flushed {
                self.rotate_window(false);
                self.report_losses(&mut reported);
                self.control().flushed = flushes;
                self.changed.notify_all();
            }
        }
    }

    fn end(&self, reported: &mut [u64; 8]) {
        self.close();
        self.rotate_window(true);
        self.report_losses(reported);
        let mut control = self.control();
        control.flushed = control.flushes;
        control.stopped = true;
        drop(control);
        self.changed.notify_all();
    }

    /// Nobody ticks any more: timers end, what was sampled is counted as dropped, and nobody waits for this thread.
    fn give_up(&self, panic: &str) {
        self.close();
        let why = format!("the profiler's thread met an error of its own, please report it: {panic}");
        self.messages.report(Cause::NoSignal, &[&why]);
        self.counters.set_last_error(&why);
        *self.ended() = Some(why);
        // What fails once more here stays counted as pending.
        let _ = panics::caught(|| {
            let mut aggregate = self.aggregate();
            threads::drain(self.owner, |drained| aggregate.add(drained, self.runtime, &self.counters));
            aggregate.let_go(&self.counters);
        });
        let mut control = self.control();
        control.stopped = true;
        drop(control);
        self.changed.notify_all();
    }

    /// Sends what there is and ends our threads, as those of the host have all ended: a child that was forked by a thread and
    /// has come to the end of that thread's function. We would keep it alive for ever.
    fn end_with_host(&self, reported: &mut [u64; 8]) {
        self.control().stop = true;
        self.end(reported);
        self.uploader.stop(STOP_PATIENCE);
    }

    /// Timers go at once if our handler was replaced: another's would have our signals, and a real-time one without a handler
    /// kills the host.
    fn keep_signal(&self) {
        let mut ended = self.ended();
        if !self.config.cpu_enabled || (ended.is_none() && handler::is_installed()) {
            return;
        }
        let lost = handler::signal();
        if ended.is_none() {
            threads::stop(self.owner);
        }
        match handler::install(self.runtime.signal()) {
            Ok(signal) => {
                self.messages.report(Cause::SignalLost, &[&lost.to_string(), &signal.to_string()]);
                if ended.take().is_some() {
                    threads::stop(self.owner);
                }
                threads::start_again(self.sampling(signal));
            }
            Err(error) if ended.is_none() => {
                self.messages.report(Cause::NoSignal, &[error.message()]);
                *ended = Some(error.message().to_owned());
                // What the host samples itself needs no timer.
                threads::start_again(Sampling { timers: false, ..self.sampling(lost) });
            }
            Err(_) => {}
        }
    }

    fn sweep_if_due(&self, pulse: &mut Pulse) {
        let cpu_ns = clock::process_cpu_ns().saturating_sub(background_thread::cpu_ns());
        // Each thread is a folder in it, so its link count is the number of threads and two.
        let tasks = std::fs::metadata("/proc/self/task").map_or(0, |folder| folder.nlink());
        let came_or_went = tasks != pulse.tasks;
        let busy = cpu_ns.saturating_sub(pulse.cpu_ns) > IDLE_CPU_NS || came_or_went;
        // Where threads announce themselves, the others matter that came while as many went.
        let soon = if self.runtime.announces_threads() { came_or_went } else { busy };
        let rest = if soon { (pulse.sweep * SWEEP_REST).min(IDLE_TICK) } else { IDLE_TICK };
        if pulse.swept.elapsed() >= rest {
            let began = clock::own_thread_cpu();
            match threads::sweep(self.owner) {
                Ok(unsampled) => self.report_unsampled(&unsampled),
                Err(error) => {
                    self.messages.report(Cause::NoThreadList, &[&error.to_string()]);
                }
            }
            pulse.sweep = clock::own_thread_cpu().saturating_sub(began);
            pulse.swept = Instant::now();
        }
        pulse.is_alone = !busy && tasks <= 3 + background_thread::tids().len() as u64 && threads::is_host_gone();
        pulse.tick = match busy {
            true if threads::remind_late(self.owner, cpu_ns) => LATE_TICK,
            true => TICK,
            false => (pulse.tick * 2).min(IDLE_TICK),
        };
        (pulse.cpu_ns, pulse.tasks) = (cpu_ns, tasks);
    }
}
