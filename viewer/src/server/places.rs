//! The places of connections: only so many at once. Where all are taken, the one on which next to nothing moved for
//! longest makes room, unless it waits for the server; where bytes move on each, the oldest takes no further request, and
//! makes room when it has answered those that came before. A newcomer waits a moment for that. One address has at most three
//! quarters of them, and makes room for itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::budget::Budget;

/// The most connections of all listeners; fewer where the process may open few files, or has little memory.
const MOST: usize = 1_000;
const LEAST: usize = 64;
/// What a connection may keep of what came in and was not read yet, and of what goes out.
pub(super) const BUFFER: usize = 64 << 10;
/// A connection without a request is closed after this time.
pub(super) const SILENT: Duration = Duration::from_secs(60);
/// One on which fewer bytes moved in this time makes room for another, unless it waits for the server. A bad line brings
/// four times as many.
const IDLE: Duration = Duration::from_secs(1);
const LEAST_MOVED: usize = 4 << 10;
/// The same of a newcomer, so that who opens many at once keeps others out for no longer, a probe of `/ready` among them.
/// A bad line's first packet has more.
const NEW: Duration = Duration::from_millis(80);
const FIRST_MOVED: usize = 1 << 10;
/// One that was told to go is kept for no request that comes later than this after it; those that come before were on their
/// way. Over HTTP/2 it goes when its other end answers a ping, and some answer none.
const LEAVE: Duration = Duration::from_secs(1);
/// Nor longer than this for the end of its last answer, which is on its way when all of it was taken: two buffers over a bad line.
const LAST_BYTES: Duration = Duration::from_secs(30);
/// How often a newcomer that waits for a place looks for one.
const GLANCE: Duration = Duration::from_millis(20);
/// A connection on which nothing moves is closed after this time, also where HTTP/2 keeps a window closed. More than any
/// request takes until its answer begins.
const STILL: Duration = Duration::from_secs(120);

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    places: Mutex<Places>,
    /// The bytes of answers that are being sent.
    sent: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    by_number: BTreeMap<u64, State>,
}

#[derive(Debug)]
struct State {
    /// Where it comes from.
    from: IpAddr,
    /// Requests that are worked on or answered, without those that came too late to be waited for.
    requests: usize,
    /// Those of them that wait for the server, and not for their client.
    ours: isize,
    /// When the last [`State::least_moved`] bytes had come or gone, or the first of its requests came; later by the time that
    /// its requests waited for the server.
    active: Instant,
    /// The bytes that came or went since then.
    bytes: usize,
    /// How long it may take for the next of them.
    patience: Duration,
    /// Since when it waits for the server.
    waits_since: Instant,
    silent_since: Instant,
    /// When a request came, an answer was done, or a piece of one was taken.
    moved: Instant,
    close: Arc<Notify>,
    /// When it came.
    since: Instant,
    /// Tells it to take no further request, once.
    end: Option<Arc<Notify>>,
    /// When it was told so.
    told: Option<Instant>,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Place {
    all: Arc<Connections>,
    /// Of all connections since the start.
    pub(super) number: u64,
    /// It makes room, now.
    pub(super) close: Arc<Notify>,
    /// It takes no further request, so that others have its place.
    pub(super) end: Arc<Notify>,
}

/// A request of a connection that is worked on or answered.
#[derive(Debug)]
pub(super) struct Working {
    place: Arc<Place>,
    /// Whether it came long after its connection was told to go.
    is_late: bool,
}

/// So many more requests of a connection, or fewer, wait for the server as long as this is kept.
#[derive(Debug)]
pub(super) struct Ours(Arc<Place>, isize);

impl Connections {
    /// `sent` are the bytes that answers may take while they are sent.
    pub(super) fn new(sent: usize) -> Arc<Self> {
        let by_memory = (sent / BUFFER).clamp(LEAST, MOST);
        let most = most_files().map_or(by_memory, |files| (files / 2).clamp(16, by_memory));
        Arc::new(Self { most, places: Mutex::default(), sent: Budget::new(sent, sent) })
    }

    /// The bytes of answers that are being sent.
    pub(super) fn sent(&self) -> &Arc<Budget> {
        &self.sent
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more may wait for a place at a listener, beside so many, of which so many are of its address: they have
    /// files too.
    pub(super) fn may_wait(&self, waiting: usize, of_one: usize) -> bool {
        let most = self.most / 8;
        waiting < most && of_one < most - most / 4
    }

    /// Whether an address has as many places as it may.
    pub(super) fn has_most(&self, from: IpAddr) -> bool {
        self.places().has(from, self.most_of_one())
    }

    /// Why there is no place for one of this address.
    pub(super) fn why(&self, from: IpAddr) -> String {
        if self.has_most(from) {
            let most = self.most_of_one();
            return format!(
                "this server has {most} connections of your address, as many as it takes of one; try again in a second\n"
            );
        }
        "this server has as many connections as it takes; try again in a second\n".into()
    }

    /// The most of one address. A proxy is one, so it is most of all; others find a place whatever one does.
    pub(super) fn most_of_one(&self) -> usize {
        self.most - self.most / 4
    }

    /// A place for the first of these that there is one for, as soon as there is.
    pub(super) async fn enter_later(self: &Arc<Self>, from: &[IpAddr]) -> (usize, Arc<Place>) {
        loop {
            let entered = from.iter().enumerate().find_map(|(at, from)| self.enter(*from).map(|place| (at, place)));
            if let Some(entered) = entered {
                break entered;
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// None if all places are taken, of this address or at all, and bytes move on each or it waits for the server.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Arc<Place>> {
        let mut places = self.places();
        let has_most = places.has(from, self.most_of_one());
        if has_most || places.by_number.len() >= self.most {
            let now = Instant::now();
            let counts = |state: &State| !has_most || state.from == from;
            let all = || places.by_number.iter().filter(|(_, state)| counts(state));
            let stays = all().find(|(_, state)| state.requests == 0 && state.stays_for_nothing(now));
            let idle = all().filter(|(_, state)| state.ours <= 0 && state.until() <= now);
            let chosen = stays.or_else(|| idle.min_by_key(|(_, state)| state.until()));
            let Some(number) = chosen.map(|(number, _)| *number) else {
                places.end_oldest(counts);
                return None;
            };
            if let Some(state) = places.by_number.remove(&number) {
                state.close.notify_one();
            }
        }
        let (number, close, end) = (places.next, Arc::new(Notify::new()), Arc::new(Notify::new()));
        places.next += 1;
        let now = Instant::now();
        let state = State {
            from,
            requests: 0,
            ours: 0,
            active: now,
            bytes: 0,
            patience: NEW,
            waits_since: now,
            silent_since: now,
            moved: now,
            close: Arc::clone(&close),
            since: now,
            end: Some(Arc::clone(&end)),
            told: None,
        };
        places.by_number.insert(number, state);
        Some(Arc::new(Place { all: Arc::clone(self), number, close, end }))
    }
}

#[cfg(test)]
impl Connections {
    /// Whether no place is taken.
    pub(super) fn is_empty(&self) -> bool {
        self.places().by_number.is_empty()
    }
}

impl Places {
    /// Whether an address has so many, or more.
    fn has(&self, from: IpAddr, most: usize) -> bool {
        // Mostly there are not as many at all.
        self.by_number.len() >= most && self.by_number.values().filter(|state| state.from == from).count() >= most
    }

    /// Who asks again and again on one connection keeps it no longer than others wait for it.
    fn end_oldest(&mut self, counts: impl Fn(&State) -> bool) {
        let oldest = self.by_number.values_mut().find(|state| state.end.is_some() && counts(state));
        if let Some(state) = oldest.filter(|state| state.since.elapsed() >= IDLE)
            && let Some(end) = state.end.take()
        {
            state.told = Some(Instant::now());
            end.notify_one();
        }
    }
}

impl State {
    /// When it makes room, unless bytes move or it waits for the server.
    fn until(&self) -> Instant {
        self.active + self.patience
    }

    /// So many bytes move in its [`patience`](Self::patience), or it makes room.
    fn least_moved(&self) -> usize {
        if self.patience == NEW { FIRST_MOVED } else { LEAST_MOVED }
    }

    /// Whether it was told to go, and would be gone if its other end did its part.
    fn is_late(&self) -> bool {
        self.told.is_some_and(|told| told.elapsed() >= LEAVE)
    }

    /// Whether it is late, and no answer from before is still on its way.
    fn stays_for_nothing(&self, now: Instant) -> bool {
        self.is_late() && (self.until() <= now || self.told.is_some_and(|told| told.elapsed() >= LAST_BYTES))
    }

    fn is_silent(&self, time: Duration) -> bool {
        self.requests == 0 && self.silent_since.elapsed() >= time
    }
}

impl Place {
    /// One more request.
    pub(super) fn work(self: &Arc<Self>) -> Working {
        let mut is_late = false;
        if let Some(state) = self.all.places().by_number.get_mut(&self.number) {
            is_late = state.is_late();
            if !is_late {
                state.moved = Instant::now();
                if state.requests == 0 {
                    (state.active, state.bytes) = (state.moved, 0);
                }
                state.requests += 1;
            }
        }
        Working { place: Arc::clone(self), is_late }
    }

    /// Bytes came or went.
    pub(super) fn touch(&self, bytes: usize) {
        if bytes > 0
            && let Some(state) = self.all.places().by_number.get_mut(&self.number)
        {
            state.bytes += bytes;
            if state.bytes >= state.least_moved() {
                (state.active, state.bytes, state.patience) = (Instant::now(), 0, IDLE);
            }
        }
    }

    fn count(&self, ours: isize) {
        if let Some(state) = self.all.places().by_number.get_mut(&self.number) {
            let (waited, waits) = (state.ours > 0, state.ours + ours > 0);
            if waits && !waited {
                state.waits_since = Instant::now();
            } else if waited && !waits {
                // The time that it waited is not its own.
                state.active += state.waits_since.max(state.active).elapsed();
            }
            state.ours += ours;
        }
    }

    /// Something that was waited for came or was taken.
    pub(super) fn moves(&self) {
        if let Some(state) = self.all.places().by_number.get_mut(&self.number) {
            state.moved = Instant::now();
        }
    }

    /// Whether nothing was asked or taken for too long.
    pub(super) fn is_silent(&self) -> bool {
        let places = self.all.places();
        let state = places.by_number.get(&self.number);
        state.is_none_or(|state| state.is_silent(SILENT) || state.moved.elapsed() >= STILL)
    }
}

impl Working {
    /// The server is what it waits for.
    pub(super) fn ours(&self) -> Ours {
        Ours::new(&self.place, 1)
    }

    /// The connection of the request.
    pub(super) fn place(&self) -> Arc<Place> {
        Arc::clone(&self.place)
    }

    /// Something of its answer was taken.
    pub(super) fn moves(&self) {
        self.place.moves();
    }

    /// The bytes of answers that are being sent.
    pub(super) fn sent(&self) -> &Arc<Budget> {
        self.place.all.sent()
    }
}

impl Ours {
    fn new(place: &Arc<Place>, requests: isize) -> Self {
        place.count(requests);
        Self(Arc::clone(place), requests)
    }

    /// One of the requests waits for more of its body instead.
    pub(super) fn less(place: &Arc<Place>) -> Self {
        Self::new(place, -1)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.0.count(-self.1);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.places().by_number.remove(&self.number);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some(state) = self.place.all.places().by_number.get_mut(&self.place.number)
            && !self.is_late
        {
            state.requests -= 1;
            state.silent_since = Instant::now();
            state.moved = state.silent_since;
        }
    }
}

/// How many files the process may have open.
fn most_files() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWCOMER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 0));

    /// Takes all places, each from another address.
    fn fill(all: &Arc<Connections>) -> Vec<Arc<Place>> {
        (0..u16::MAX)
            .map_while(|number| all.enter(IpAddr::from([10, 0, number.to_be_bytes()[0], number.to_be_bytes()[1]])))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_leaves_places_to_others_and_makes_room_for_itself() {
        let (all, other) = (Connections::new(1 << 20), IpAddr::from([10, 2, 0, 0]));
        let places: Vec<Arc<Place>> = std::iter::from_fn(|| all.enter(NEWCOMER)).collect();
        assert_eq!(places.len(), all.most_of_one());
        let of_other = all.enter(other).unwrap();
        // Who waits first is kept out by itself, and keeps nobody else out.
        let (at, _second) = all.enter_later(&[NEWCOMER, other]).await;
        assert_eq!(at, 1);
        let _working: Vec<Working> = places.iter().map(Place::work).collect();
        tokio::time::sleep(2 * IDLE).await;
        let _newcomer = all.enter(NEWCOMER).unwrap();
        let is_there = |place: &Place| all.places().by_number.contains_key(&place.number);
        assert_eq!(
            (is_there(&of_other), places.iter().filter(|place| is_there(place)).count()),
            (true, places.len() - 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_keeps_the_server_waiting_makes_room_and_who_waits_for_it_does_not() {
        let all = Connections::new(1 << 20);
        let places: Vec<Arc<Place>> = fill(&all);
        assert_eq!(places.len(), all.most);
        let working: Vec<Working> = places.iter().map(Place::work).collect();
        let mut ours: Vec<Ours> = working.iter().map(Working::ours).collect();
        tokio::time::sleep(2 * IDLE).await;
        assert!(all.enter(NEWCOMER).is_none(), "the server works on each");

        // Of those whose body does not come, the one on which something moved longest ago.
        let _less: Vec<Ours> = places[5..].iter().map(Ours::less).collect();
        tokio::time::sleep(IDLE / 2).await;
        places[5].touch(LEAST_MOVED);
        let start = Instant::now();
        let newcomer = tokio::time::timeout(IDLE, all.enter_later(&[NEWCOMER])).await.unwrap().1;
        assert!(start.elapsed() <= IDLE / 2 + GLANCE);
        let closed = || -> Vec<usize> {
            let places_now = all.places();
            (0..places.len()).filter(|index| !places_now.by_number.contains_key(&places[*index].number)).collect()
        };
        assert_eq!(closed(), [6]);

        // And one whose answer is not taken.
        let _works = newcomer.work();
        let _ours: Vec<Ours> = places.iter().skip(5).map(|place| Ours::new(place, 2)).collect();
        drop(ours.drain(..1));
        let _newcomers_own = Ours::new(&newcomer, 1);
        assert!(all.enter(NEWCOMER).is_none(), "its answer may be on its way");
        let _place = tokio::time::timeout(2 * IDLE, all.enter_later(&[NEWCOMER])).await.unwrap().1;
        assert_eq!(closed(), [0, 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_moves_a_byte_now_and_then_makes_room_and_a_bad_line_keeps_its_place() {
        let all = Connections::new(1 << 20);
        let places: Vec<Arc<Place>> = fill(&all);
        let _working: Vec<Working> = places.iter().map(Place::work).collect();
        // The oldest has 20 kB/s.
        for tick in 1..=40 {
            tokio::time::sleep(Duration::from_millis(70)).await;
            places[0].touch(1_400);
            if tick % 10 == 0 {
                for place in &places[1..] {
                    place.touch(1);
                    drop(Ours::new(place, 1));
                }
            }
        }
        let newcomers: Vec<_> = fill(&all);
        assert_eq!(newcomers.len(), all.most - 1);
        assert!(all.places().by_number.contains_key(&places[0].number));
    }

    #[tokio::test(start_paused = true)]
    async fn who_opens_many_at_once_keeps_others_out_for_less_than_a_probe_waits() {
        let all = Connections::new(1 << 20);
        let places: Vec<Arc<Place>> = fill(&all);
        // The first packet of the oldest came, those of the others say next to nothing.
        places.iter().for_each(|place| place.touch(100));
        places[0].touch(1_300);
        let _probe = tokio::time::timeout(Duration::from_millis(100), all.enter_later(&[NEWCOMER])).await.unwrap().1;
        let is_there = |index: usize| all.places().by_number.contains_key(&places[index].number);
        assert_eq!([is_there(0), is_there(1), is_there(2)], [true, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_again_and_again_keeps_no_place_that_others_wait_for() {
        let all = Connections::new(1 << 20);
        let places: Vec<Arc<Place>> = fill(&all);
        for _ in 0..10 {
            tokio::time::sleep(IDLE / 2).await;
            places.iter().for_each(|place| drop(place.work()));
        }
        assert!(all.enter(NEWCOMER).is_none());
        let told = tokio::time::timeout(Duration::ZERO, places[0].end.notified());
        assert!(told.await.is_ok(), "the oldest ends after its request");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_told_to_go_and_asks_on_keeps_no_place_and_what_was_asked_before_is_answered() {
        let all = Connections::new(1 << 20);
        let places: Vec<Arc<Place>> = fill(&all);
        tokio::time::sleep(IDLE).await;
        // The oldest waits for the server, all others ask again and again.
        let asked = places[0].work();
        let _ours = asked.ours();
        places.iter().for_each(|place| drop(place.work()));
        let newcomer = tokio::spawn({
            let all = Arc::clone(&all);
            async move { all.enter_later(&[NEWCOMER]).await }
        });
        for _ in 0..30 {
            tokio::time::sleep(IDLE / 10).await;
            places.iter().for_each(|place| drop(place.work()));
        }
        assert!(newcomer.is_finished());
        let is_there = |index: usize| all.places().by_number.contains_key(&places[index].number);
        assert_eq!([is_there(0), is_there(1), is_there(2)], [true, false, true]);
    }
}
