//! Which threads give up ring and timer when there are not enough: the quietest.

use std::time::Instant;

use super::registry::{LEAVE_TIMEOUT, Parked, Registry, Sampled};
use crate::sample::record::RECORDS;

impl Registry {
    /// Notes which threads are quiet, and takes the rings of the quietest for those that found none. They are free when
    /// they have been drained.
    pub(super) fn part_with_rings(&mut self) {
        self.sweeps += 1;
        for thread in self.by_tid.values_mut() {
            let samples = RECORDS[thread.index as usize].samples();
            if samples != thread.samples {
                (thread.samples, thread.quiet_since) = (samples, self.sweeps);
            }
        }
        let wanted = std::mem::take(&mut self.short_of_rings);
        if wanted > 0 {
            let sweeps = self.sweeps;
            self.park(wanted, |thread| thread.quiet_since < sweeps);
        }
    }

    /// Gives signals back to the user's other programs, or to the host: there are too many timers by that.
    pub(super) fn part_with_timers(&mut self, too_many: u64) {
        if too_many > 0 {
            self.park(usize::try_from(too_many).unwrap_or(usize::MAX), |thread| thread.timer.is_some());
        }
    }

    /// Takes timer and ring from this many threads of a kind, from the quietest first.
    fn park(&mut self, wanted: usize, is_one: impl Fn(&Sampled) -> bool) {
        let some = self.by_tid.iter().filter(|(_, thread)| is_one(thread));
        let mut some: Vec<(u64, i32)> = some.map(|(&tid, thread)| (thread.quiet_since, tid)).collect();
        some.sort_unstable();
        let until = Instant::now() + LEAVE_TIMEOUT;
        for (_, tid) in some.into_iter().take(wanted) {
            if let Some((plan, accounted)) = self.take_away(tid, until) {
                self.parked.insert(tid, Parked { plan, accounted, leaves: false });
            }
        }
    }
}
