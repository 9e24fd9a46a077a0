//! How long uploading waits, and how much it keeps.

use std::time::Duration;

/// Times and sizes that no setting changes. Tests make them small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The first wait after a failure, at most.
    pub(super) backoff: Duration,
    /// The longest wait after failures.
    pub(super) max_backoff: Duration,
    /// Servers refuse what started an hour ago; a window is up to 15 s long, and a request takes its time too.
    pub(super) max_age: Duration,
    pub(super) queue_bytes: usize,
    /// One request, from name lookup to the end of the answer.
    pub(super) request: Duration,
    /// The question for the server's version, which holds up the first upload.
    pub(super) question: Duration,
    /// How long a forked child asks nothing: one that becomes a daemon closes all descriptors now.
    pub(super) child_rest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            max_age: Duration::from_secs(59 * 60),
            queue_bytes: 16 << 20,
            request: Duration::from_secs(10),
            question: Duration::from_secs(2),
            child_rest: Duration::from_secs(1),
        }
    }
}
