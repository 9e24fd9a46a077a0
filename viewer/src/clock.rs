//! Wall-clock time as the store and the wire formats count it: nanoseconds since the epoch, signed.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds in a second.
pub(crate) const SECOND: i64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub(crate) const MILLISECOND: i64 = 1_000_000;

/// Now, in nanoseconds since the epoch; 0 on a machine whose clock stands before it.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
