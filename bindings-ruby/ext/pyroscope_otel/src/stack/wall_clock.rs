//! Timers that count wall time, for the stress test: who takes their signals.

use std::sync::atomic::{AtomicBool, Ordering};

/// Timers count wall time.
pub(crate) static BY_WALL_TIME: AtomicBool = AtomicBool::new(false);

/// The interrupted thread takes no real-time signal until it is one of Ruby's.
///
/// Only where timers count wall time, for the stress test: Ruby's own timer thread sleeps 10 ms at a time, begins anew after
/// each signal, and at some thousand of them a second would never come to hand over the GVL.
#[cold]
pub(super) fn leave_alone(interrupted: &mut libc::ucontext_t) {
    add_real_time(&mut interrupted.uc_sigmask);
}

/// A thread that signals found before it was one of Ruby's, or between two of its, takes them again. When it begins.
pub(crate) fn attend_again() {
    if BY_WALL_TIME.load(Ordering::Relaxed) {
        // SAFETY: a struct of numbers, which the next line sets.
        let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a set of our own.
        unsafe { libc::sigemptyset(&raw mut signals) };
        add_real_time(&mut signals);
        // SAFETY: a set, and nobody asks for the one before.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut()) };
    }
}

fn add_real_time(signals: &mut libc::sigset_t) {
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        // SAFETY: a set of signals, and one of them.
        unsafe { libc::sigaddset(signals, signal) };
    }
}
