//! How many timers there may be: each holds a signal that may be pending, of which the host needs some itself.

/// How many more timers may be made, and by how many there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) left: u64,
    pub(super) too_many: u64,
}

/// A timer holds one of the signals that may be pending for the whole user (`ulimit -i`). A host that needs some itself, as
/// .NET does to suspend a thread, hangs without. So a part is left to it: one for each thread, 64 at least, half at most.
pub(super) fn room_for_timers(threads: usize) -> Room {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    pending_signals(&status).map_or(Room { left: u64::MAX, too_many: 0 }, |(used, limit)| {
        let reserve = (threads as u64).max(64).min(limit / 2);
        let usable = limit - reserve;
        Room { left: usable.saturating_sub(used), too_many: used.saturating_sub(usable) }
    })
}

/// Signals that are pending or reserved for the user, and how many may be, by the text of /proc/self/status.
fn pending_signals(status: &str) -> Option<(u64, u64)> {
    let (used, limit) = status.lines().find_map(|line| line.strip_prefix("SigQ:"))?.trim().split_once('/')?;
    Some((used.parse().ok()?, limit.parse().ok()?))
}
