//! Questions: only a few are worked on at once, on threads that no upload needs, and each has a time to be answered in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::work::{self, Gone};

/// How long a question may wait for others, and how long it may be worked on.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST_WORK: Duration = Duration::from_secs(30);

/// Lets a few questions of all tenants be worked on at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Queries(Arc<Semaphore>);

/// Why a question was not worked on.
#[derive(Debug)]
pub(crate) enum NotRun {
    /// Others are, and it waited long enough.
    Busy,
    /// The thread ended.
    Failed(String),
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("other questions are worked on right now; try again in a second"),
            Self::Failed(reason) => write!(f, "the request could not be worked on: {reason}"),
        }
    }
}

impl Queries {
    /// So many at once.
    pub(crate) fn new(at_once: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_once)))
    }

    /// Runs `work` on a thread that may wait for the store.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotRun> {
        let permit = Arc::clone(&self.0).acquire_owned();
        let Ok(permit) = tokio::time::timeout(PATIENCE, permit).await else {
            return Err(NotRun::Busy);
        };
        let gone = Gone::default();
        let _waiting = gone.waiting();
        // The permit goes along, as the work goes on for a moment when the one who asks hangs up.
        let work = move || {
            let _permit = permit;
            work::within(LONGEST_WORK, gone, work)
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| NotRun::Failed(error.to_string()))
    }
}
