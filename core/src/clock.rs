//! Clocks: wall time for stamps, monotonic time for durations, CPU time for weights.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the epoch, by CLOCK_REALTIME.
pub(crate) fn unix_nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
