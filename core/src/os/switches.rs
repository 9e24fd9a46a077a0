//! How often the calling thread had its processor taken away, and gave it away.

use std::time::Duration;

/// So often so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches {
    /// As who waits does.
    pub(crate) voluntary: u64,
    /// Another thread got it, or the container had used up its share.
    pub(crate) involuntary: u64,
}

/// Those of the calling thread; `None`: the kernel does not say. Async-signal-safe. 0.3 µs: a system call.
pub(crate) fn own() -> Option<Switches> {
    // SAFETY: plain bits.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a place of ours.
    let is_told = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } == 0;
    let [voluntary, involuntary] = [usage.ru_nvcsw, usage.ru_nivcsw].map(|times| u64::try_from(times).unwrap_or(0));
    is_told.then_some(Switches { voluntary, involuntary })
}

/// Whether a wait of the calling thread is counted: gVisor's kernel counts other things there. Waits for some 70 µs. One of 10,000 sleeps
/// is over before the thread gave its processor away.
pub(crate) fn count_waits() -> bool {
    (0..3).any(|_| {
        let Some(before) = own() else { return false };
        std::thread::sleep(Duration::from_micros(10));
        own().is_some_and(|after| after.voluntary > before.voluntary)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_gives_its_processor_away_and_who_runs_does_not() {
        let voluntary = || own().unwrap().voluntary;
        let before = voluntary();
        (0..1_000_000_u64).for_each(|number| assert!(std::hint::black_box(number) < 1_000_000));
        let ran = voluntary();
        (0..10).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
        assert!(voluntary() - ran >= 10 && count_waits());
        assert!(ran - before < 10, "now and then it may wait for memory");
    }
}
