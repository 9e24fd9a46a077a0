//! Who receives: reads a request, works on it on a thread that may wait, and gives what it holds to a store.
//!
//! A request is read whole (at most [`body::MOST_SENT`] bytes), then unpacked, decoded, checked and stored on a thread
//! that may wait, only a few requests at a time. Each takes the bytes that it needs from the [`Budget`] before it has
//! them, and has a time to be done in. Nothing of a refused request is stored. Small requests wait for no large ones:
//! they have threads and bytes of their own, and are the first to write.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use tokio::sync::Semaphore;

use super::profilers::Profilers;
use super::threads::Threads;
use crate::budget::{Budget, Held, NoRoom};
use crate::clock;
use crate::http::allowed::{self, Allowed};
use crate::http::body;
use crate::http::refusal::{Reason, Refusal, Refusals};
use crate::sender::Sender;
use crate::store::{Profile, Span, Store, StoreError};
use crate::work::{self, Gone, Haste};

/// Requests that are decoded at the same time in each lane; what one may take in memory is bounded, so all of them are.
pub(crate) const AT_ONCE: usize = 2;
/// A request is small as long as its body is, and takes no more steps and memory than those of its lane may.
const SMALL_BODY: usize = 256 << 10;
const SMALL_PART: usize = 4;

/// How far the clock of a sender may be ahead of ours.
const AHEAD: i64 = 600 * clock::SECOND;

/// How long a request may wait for others, and how long it may be worked on.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_WORK: Duration = Duration::from_secs(20);

/// Lets a few requests of all tenants be decoded at the same time. Small ones have a lane of their own, with threads and
/// bytes that no other can take, so that what most profilers send is answered soon whatever else comes in.
#[derive(Clone, Debug)]
pub(crate) struct Permits {
    small: Lane,
    large: Lane,
}

/// So many requests, which share so many bytes.
#[derive(Clone, Debug)]
struct Lane {
    at_once: Arc<Semaphore>,
    budget: Arc<Budget>,
    /// Where it is worked on; of large ones on the threads that questions have too.
    threads: Option<Arc<Threads>>,
}

impl Permits {
    /// What is decoded takes its bytes from these.
    pub(crate) fn new(bytes: usize) -> Self {
        let small = bytes / SMALL_PART;
        let lane = |budget, threads| Lane { at_once: Arc::new(Semaphore::new(AT_ONCE)), budget, threads };
        Self {
            small: lane(Budget::new(small, small / AT_ONCE), Some(Threads::new(AT_ONCE))),
            large: lane(Budget::new(bytes - small, bytes - small), None),
        }
    }
}

/// Where what is received is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) store: Arc<Store>,
    pub(crate) profilers: Arc<Profilers>,
    /// What else must stay as long as this is in use.
    pub(crate) _owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// The same, or what makes it when there is something to keep.
pub(crate) enum Keeper {
    Known(Kept),
    Later(Box<dyn Fn() -> Result<Kept, Refusal> + Send + Sync>),
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// What receiving needs.
#[derive(Debug)]
pub(crate) struct Receiver {
    keeper: Keeper,
    pub(super) refusals: Arc<Refusals>,
    retain: Duration,
    permits: Permits,
}

impl Receiver {
    /// Gives `keeper` what is not older than `retain`; counts what it refuses.
    pub(crate) fn new(keeper: Keeper, refusals: Arc<Refusals>, retain: Duration, permits: &Permits) -> Self {
        Self { keeper, refusals, retain, permits: permits.clone() }
    }

    pub(super) fn kept(&self) -> Result<Kept, Refusal> {
        match &self.keeper {
            Keeper::Known(kept) => Ok(kept.clone()),
            Keeper::Later(make) => make(),
        }
    }

    /// Reads a body, in the lane of what is small as long as it is.
    pub(super) async fn read(&self, body: Body) -> Result<(Vec<u8>, Held), Refusal> {
        let Permits { small, large } = &self.permits;
        body::read(body, &small.budget, Some((SMALL_BODY, &large.budget))).await
    }

    /// Runs `work` on what was read, on a thread that may wait. What turns out to take more than a small request may is
    /// worked on anew among the large ones; nothing of it was stored by then.
    pub(super) async fn on_pool<T: Send + 'static>(
        self: &Arc<Self>,
        (bytes, held): (Vec<u8>, Held),
        work: impl Fn(&Self, Vec<u8>, &mut Allowed) -> Result<T, Refusal> + Send + Sync + 'static,
    ) -> Result<T, Refusal> {
        let (Permits { small, large }, work) = (&self.permits, Arc::new(work));
        if bytes.len() > SMALL_BODY {
            return self.in_lane(large, (bytes, held), work).await;
        }
        let mut more = large.budget.hold();
        let again = more.grow_now(bytes.len()).then(|| bytes.clone());
        let began = Instant::now();
        match self.in_lane(small, (bytes, held), Arc::clone(&work)).await {
            // What took all the time that there is would take it again.
            Err(refusal) if refusal.is_too_large() && began.elapsed() < LONGEST_WORK => match again {
                Some(bytes) => self.in_lane(large, (bytes, more), work).await,
                None => Err(allowed::no_room(NoRoom::Busy, "the request")),
            },
            done => done,
        }
    }

    /// Runs `work` on a thread that may wait, beside at most [`AT_ONCE`] − 1 others of the lane.
    async fn in_lane<T: Send + 'static>(
        self: &Arc<Self>,
        lane: &Lane,
        (bytes, held): (Vec<u8>, Held),
        work: Arc<impl Fn(&Self, Vec<u8>, &mut Allowed) -> Result<T, Refusal> + Send + Sync + 'static>,
    ) -> Result<T, Refusal> {
        let is_small = lane.threads.is_some();
        let permit = Arc::clone(&lane.at_once).acquire_owned();
        let Ok(permit) = tokio::time::timeout(PATIENCE, permit).await else {
            return Err(Refusal::new(Reason::Busy, "other requests are worked on right now; try again in a second"));
        };
        let receiver = Arc::clone(self);
        let gone = Gone::default();
        let _waiting = gone.waiting();
        // The permit and the bytes go along, as the work goes on for a moment when the sender hangs up.
        let work = move || {
            let _permit = permit;
            let mut allowed = if is_small { Allowed::of_small(held) } else { Allowed::new(held) };
            let haste = if is_small { Haste::Urgent } else { Haste::Patient };
            work::within(LONGEST_WORK, haste, gone, || work(&receiver, bytes, &mut allowed))
        };
        let done = match &lane.threads {
            Some(threads) => threads.run(work).await,
            None => tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string()),
        };
        done.unwrap_or_else(|error| {
            Err(Refusal::new(Reason::Store, format!("the request could not be worked on: {error}")))
        })
    }

    /// Stores the profiles of a request, all of them or none. Those without samples say that nothing happened, and are none. Whether
    /// there were any.
    pub(super) fn insert_profiles(&self, mut profiles: Vec<Profile>) -> Result<bool, Refusal> {
        profiles.retain(|profile| !profile.parts.is_empty());
        if profiles.is_empty() {
            return Ok(false);
        }
        self.kept()?.store.insert_profiles(&profiles).map_err(failed)?;
        Ok(true)
    }

    /// Takes note of what a service is sent with, of which something was just stored: a tenant is not made for this.
    pub(super) fn note_sender(
        &self,
        service: &str,
        sender: Option<Sender>,
        is_of_profiles: bool,
    ) -> Result<(), Refusal> {
        if let Some(sender) = sender {
            self.kept()?.profilers.note_sender(service, sender, is_of_profiles);
        }
        Ok(())
    }

    /// Stores the spans of a request, all of them or none.
    pub(super) fn insert_spans(&self, spans: &[Span]) -> Result<(), Refusal> {
        if spans.is_empty() {
            return Ok(());
        }
        self.kept()?.store.insert_spans(spans).map_err(failed)
    }

    /// The first and the last time that a profile or span may start at.
    pub(super) fn times(&self) -> (i64, i64) {
        let now = clock::now();
        (now.saturating_sub(i64::try_from(self.retain.as_nanos()).unwrap_or(i64::MAX)), now.saturating_add(AHEAD))
    }
}

fn failed(error: StoreError) -> Refusal {
    let reason = match error.is_over() {
        // It gave the store up for others, and is worked on among the large ones.
        true if work::haste() == Some(Haste::Urgent) && !work::is_over() => Reason::TooLarge,
        true => Reason::Busy,
        false => Reason::Store,
    };
    Refusal::new(reason, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::receive::pprof;
    use crate::store::StorageLimits;

    fn receiver() -> Arc<Receiver> {
        let store = Store::open(None, &StorageLimits::new(16 << 20)).unwrap();
        let keeper = Keeper::Known(Kept { store, profilers: Arc::default(), _owner: None });
        Arc::new(Receiver::new(keeper, Arc::default(), Duration::MAX, &Permits::new(16 << 20)))
    }

    #[tokio::test]
    async fn small_requests_need_nothing_of_large_ones() {
        let receiver = receiver();
        let large = &receiver.permits.large;
        let _permits = large.at_once.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        let mut all = large.budget.hold();
        assert!(all.grow_now(12 << 20));
        let read = receiver.read(Body::from("small")).await.unwrap();
        let done = receiver.on_pool(read, |_, bytes, _| Ok((bytes, work::haste()))).await;
        assert_eq!(done.unwrap(), (b"small".to_vec(), Some(Haste::Urgent)));
        // What is large by its length waits for those.
        let refused = receiver.read(Body::from(vec![0; SMALL_BODY + 1])).await.unwrap_err();
        assert_eq!(refused.status(), 503);
    }

    #[tokio::test]
    async fn what_turns_out_to_be_large_is_worked_on_among_the_large() {
        let receiver = receiver();
        let read = receiver.read(Body::from("small")).await.unwrap();
        let (tell, told) = mpsc::channel();
        let work = move |_: &Receiver, bytes, allowed: &mut Allowed| {
            tell.send(work::haste()).unwrap();
            allowed.take(3 << 20, "it")?;
            Ok(bytes)
        };
        assert_eq!(receiver.on_pool(read, work).await.unwrap(), b"small");
        assert_eq!(told.iter().collect::<Vec<_>>(), [Some(Haste::Urgent), Some(Haste::Patient)]);

        let read = receiver.read(Body::from("small")).await.unwrap();
        let refused = receiver.on_pool(read, |_, _, allowed| allowed.take(13 << 20, "it")).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), receiver.permits.large.at_once.available_permits()), (413, AT_ONCE));
    }

    #[tokio::test]
    async fn what_has_no_room_among_the_small_right_now_keeps_none_of_their_threads() {
        let receiver = receiver();
        let mut others = receiver.permits.small.budget.hold();
        assert!(others.grow_now(2 << 20));
        let read = receiver.read(Body::from("small")).await.unwrap();
        let work = |_: &Receiver, _, allowed: &mut Allowed| allowed.take(3 << 19, "it").map(|()| work::haste());
        assert_eq!(receiver.on_pool(read, work).await.unwrap(), Some(Haste::Patient));
    }

    #[tokio::test]
    async fn a_profile_that_says_it_is_large_is_not_begun_among_the_small() {
        let receiver = receiver();
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&vec![0; 1 << 20]).unwrap();
        let packed = packed.finish().unwrap();
        assert!(packed.len() < SMALL_BODY);
        let read = receiver.read(Body::from(packed)).await.unwrap();
        let (tell, told) = mpsc::channel();
        let work = move |_: &Receiver, bytes: Vec<u8>, allowed: &mut Allowed| {
            let decoded = pprof::decode(&bytes, allowed).map(drop);
            tell.send((work::haste(), decoded.as_ref().is_err_and(Refusal::is_too_large))).unwrap();
            decoded
        };
        assert_eq!(receiver.on_pool(read, work).await.unwrap_err().status(), 400, "a megabyte of zeros is no profile");
        assert_eq!(told.iter().collect::<Vec<_>>(), [(Some(Haste::Urgent), true), (Some(Haste::Patient), false)]);
    }

    #[tokio::test]
    async fn a_sender_that_hangs_up_ends_its_work() {
        for body in [vec![], vec![0; SMALL_BODY + 1]] {
            let receiver = receiver();
            let read = receiver.read(Body::from(body)).await.unwrap();
            let (tell, told) = mpsc::channel();
            let work = move |_: &Receiver, _, _: &mut Allowed| {
                tell.send("begins").unwrap();
                while !work::is_over() {
                    std::thread::yield_now();
                }
                tell.send("ends").unwrap();
                Ok(())
            };
            let waits = tokio::spawn(async move { receiver.on_pool(read, work).await });
            let told = tokio::task::spawn_blocking(move || (told.recv(), told)).await.unwrap();
            assert_eq!(told.0, Ok("begins"));
            waits.abort();
            assert_eq!(tokio::task::spawn_blocking(move || told.1.recv()).await.unwrap(), Ok("ends"));
        }
    }
}
