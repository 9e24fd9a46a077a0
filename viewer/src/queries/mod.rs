//! Questions: only a few are worked on at once, on threads that no upload needs, and each has a time to be answered in.

mod line;

use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::work::{self, Gone, Haste};

pub(crate) use line::{Client, network};
use line::{Line, MOST_WAITING, Turn};

/// How long a question may wait for others, and how long it may be worked on.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST_WORK: Duration = Duration::from_secs(30);

/// The request of a task.
struct Asking {
    client: Client,
    /// The turn of its question, until its answer is sent.
    kept: RefCell<Option<Turn>>,
}

tokio::task_local! {
    static ASKING: Asking;
}

/// Runs what answers a request of this client, and then `send`. The turn of a question is kept until `send` is done, so
/// that answers which wait for their place among those that are sent are no more than questions that are worked on.
pub(crate) async fn keeping<T, U>(
    client: Client,
    answer: impl Future<Output = T>,
    send: impl AsyncFnOnce(T) -> U,
) -> U {
    ASKING.scope(Asking { client, kept: RefCell::default() }, async move { send(answer.await).await }).await
}

/// The address that the request of this task comes from; the local one where it has none.
pub(crate) fn asking_address() -> IpAddr {
    ASKING.try_with(|asking| asking.client.address()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Lets a few questions of all tenants be worked on at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Queries(Arc<Line>);

/// Why a question was not worked on.
#[derive(Debug)]
pub(crate) enum NotRun {
    /// Others are or wait for it; the sentence says how many or how long.
    Busy(String),
    /// The thread ended.
    Failed(String),
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(sentence) => write!(f, "{sentence}; try again in a second"),
            Self::Failed(reason) => write!(f, "the request could not be worked on: {reason}"),
        }
    }
}

impl Queries {
    /// So many at once.
    pub(crate) fn new(at_once: usize) -> Self {
        Self(Line::new(at_once))
    }

    /// Runs `work` on a thread that may wait for the store.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotRun> {
        // One that asks twice holds no other up.
        let _ = ASKING.try_with(|asking| asking.kept.take());
        let client = ASKING.try_with(|asking| asking.client);
        let client = client.unwrap_or_else(|_| Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        let full = |of_whom: &str| NotRun::Busy(format!("{MOST_WAITING} questions wait, as many as may, {of_whom}"));
        let mut turn = self.0.enter(client).ok_or_else(|| full("and nobody else has more of them than you"))?;
        match tokio::time::timeout(PATIENCE, turn.comes()).await {
            Ok(true) => {}
            Ok(false) => return Err(full("and most of them are yours, so this one made way for another's")),
            Err(_) => {
                let seconds = PATIENCE.as_secs();
                let sentence = format!("other questions are worked on right now, and this one waited for {seconds} s");
                return Err(NotRun::Busy(sentence));
            }
        }
        let gone = Gone::default();
        let _waiting = gone.waiting();
        // The turn goes along, as the work goes on for a moment when the one who asks hangs up.
        let work = move || (work::within(LONGEST_WORK, Haste::Patient, gone, work), turn);
        let done = tokio::task::spawn_blocking(work).await;
        let (answer, turn) = done.map_err(|error| NotRun::Failed(error.to_string()))?;
        // Where nobody keeps it, it is over.
        let _ = ASKING.try_with(|asking| asking.kept.replace(Some(turn)));
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1)
    }

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
        let free = || queries.0.free();
        let asked = async { (queries.run(|| 7).await.ok(), queries.run(|| 8).await.ok()) };
        let sent = keeping(client(), asked, async |answer| (answer, free())).await;
        assert_eq!(sent, ((Some(7), Some(8)), 0));
        assert_eq!(free(), 1);
        assert_eq!((queries.run(|| 9).await.ok(), free()), (Some(9), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_not_wait_or_waits_in_vain_is_told_why() {
        let queries = Queries::new(1);
        let turn = queries.0.enter(client()).unwrap();
        let ask = |client| {
            let queries = queries.clone();
            let asked = async move { queries.run(|| 7).await.map_err(|error| error.to_string()) };
            tokio::spawn(keeping(client, asked, async |answer| answer))
        };
        let mut waiting: Vec<_> = (0..MOST_WAITING).map(|_| ask(client())).collect();
        let start = tokio::time::Instant::now();
        tokio::task::yield_now().await;
        let full =
            "32 questions wait, as many as may, and nobody else has more of them than you; try again in a second";
        assert_eq!(ask(client()).await.unwrap(), Err(full.into()));
        let other = ask(Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2));
        let made_way = "32 questions wait, as many as may, and most of them are yours, so this one made way for another's; \
                        try again in a second";
        assert_eq!(waiting.pop().unwrap().await.unwrap(), Err(made_way.into()));
        assert_eq!(start.elapsed(), Duration::ZERO);
        waiting.push(other);
        for asked in waiting {
            let late = "other questions are worked on right now, and this one waited for 10 s; try again in a second";
            assert_eq!(asked.await.unwrap(), Err(late.into()));
        }
        drop(turn);
        assert_eq!(ask(client()).await.unwrap(), Ok(7));
    }
}
