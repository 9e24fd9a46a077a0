//! Questions: only a few are worked on at once, on threads that no upload needs, and each has a time to be answered in.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::work::{self, Gone, Haste};

/// So many wait at most, as each keeps a connection's place; one more is told at once.
const MOST_WAITING: usize = 32;
/// How long a question may wait for others, and how long it may be worked on.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST_WORK: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// What the request of this task still holds of the permits of questions.
    static KEPT: RefCell<Option<OwnedSemaphorePermit>>;
}

/// Runs what answers a request, and then `send`. The permit of a question is kept until `send` is done, so that answers
/// which wait for their place among those that are sent are no more than questions that are worked on.
pub(crate) async fn keeping<T, U>(answer: impl Future<Output = T>, send: impl AsyncFnOnce(T) -> U) -> U {
    KEPT.scope(RefCell::default(), async move { send(answer.await).await }).await
}

/// Lets a few questions of all tenants be worked on at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Queries {
    at_once: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

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
        Self { at_once: Arc::new(Semaphore::new(at_once)), waiting: Arc::new(Semaphore::new(MOST_WAITING)) }
    }

    /// Runs `work` on a thread that may wait for the store.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotRun> {
        // One that asks twice holds no other up.
        let _ = KEPT.try_with(RefCell::take);
        let Ok(turn) = self.waiting.try_acquire() else {
            return Err(NotRun::Busy);
        };
        let permit = Arc::clone(&self.at_once).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(PATIENCE, permit).await else {
            return Err(NotRun::Busy);
        };
        drop(turn);
        let gone = Gone::default();
        let _waiting = gone.waiting();
        // The permit goes along, as the work goes on for a moment when the one who asks hangs up.
        let work = move || (work::within(LONGEST_WORK, Haste::Patient, gone, work), permit);
        let done = tokio::task::spawn_blocking(work).await;
        let (answer, permit) = done.map_err(|error| NotRun::Failed(error.to_string()))?;
        // Where nobody keeps it, it is free.
        let _ = KEPT.try_with(|kept| kept.replace(Some(permit)));
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_hangs_up_ends_the_work_on_the_question() {
        let queries = Queries::new(1);
        let (tell, told) = std::sync::mpsc::channel();
        let work = move || {
            tell.send("begins").unwrap();
            while !work::is_over() {
                std::thread::yield_now();
            }
            tell.send("ends").unwrap();
        };
        let asked = queries.clone();
        let waits = tokio::spawn(async move { asked.run(work).await.is_ok() });
        let told = tokio::task::spawn_blocking(move || (told.recv(), told)).await.unwrap();
        assert_eq!(told.0, Ok("begins"));
        waits.abort();
        assert_eq!(tokio::task::spawn_blocking(move || told.1.recv()).await.unwrap(), Ok("ends"));
        assert_eq!(queries.run(|| 7).await.ok(), Some(7));
    }

    #[tokio::test]
    async fn an_answer_that_is_not_sent_yet_is_one_that_is_worked_on() {
        let queries = Queries::new(1);
        let free = || queries.at_once.available_permits();
        let asked = async { (queries.run(|| 7).await.ok(), queries.run(|| 8).await.ok()) };
        let sent = keeping(asked, async |answer| (answer, free())).await;
        assert_eq!(sent, ((Some(7), Some(8)), 0));
        assert_eq!(free(), 1);
        assert_eq!((queries.run(|| 9).await.ok(), free()), (Some(9), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_more_than_may_wait_is_told_at_once() {
        let queries = Queries::new(1);
        let permit = Arc::clone(&queries.at_once).acquire_owned().await.unwrap();
        let ask = || {
            let queries = queries.clone();
            tokio::spawn(async move { queries.run(|| 7).await.ok() })
        };
        let waiting: Vec<_> = (0..MOST_WAITING).map(|_| ask()).collect();
        let start = tokio::time::Instant::now();
        tokio::task::yield_now().await;
        assert_eq!((ask().await.unwrap(), start.elapsed()), (None, Duration::ZERO));
        drop(permit);
        for asked in waiting {
            assert_eq!(asked.await.unwrap(), Some(7));
        }
    }
}
