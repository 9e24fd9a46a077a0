//! The places of connections: only so many at once. Where all are taken, the one that was silent for longest makes room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::budget::Budget;

/// The most connections of all doors; fewer where the process may open few files, or has little memory.
const MOST: usize = 1_000;
const LEAST: usize = 64;
/// What a connection may keep of what came in and was not read yet, and of what goes out.
pub(super) const BUFFER: usize = 64 << 10;
/// A connection without a request is closed after this time.
pub(super) const SILENT: Duration = Duration::from_secs(60);
/// And makes room for another after this one.
const YOUNG: Duration = Duration::from_millis(500);
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
    /// Requests that are worked on or answered.
    requests: usize,
    silent_since: Instant,
    /// When a request came, an answer was done, or a piece of one was taken.
    moved: Instant,
    close: Arc<Notify>,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Place {
    all: Arc<Connections>,
    number: u64,
    pub(super) close: Arc<Notify>,
}

/// A request of a connection that is worked on or answered.
#[derive(Debug)]
pub(super) struct Working(Arc<Place>);

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

    /// None if all connections are at work.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Arc<Place>> {
        let mut places = self.places();
        if places.by_number.len() >= self.most {
            let silent = places.by_number.iter().filter(|(_, state)| state.is_silent(YOUNG));
            let (number, state) = silent.min_by_key(|(_, state)| state.silent_since)?;
            state.close.notify_one();
            let number = *number;
            places.by_number.remove(&number);
        }
        let (number, close) = (places.next, Arc::new(Notify::new()));
        places.next += 1;
        let now = Instant::now();
        let state = State { requests: 0, silent_since: now, moved: now, close: Arc::clone(&close) };
        places.by_number.insert(number, state);
        Some(Arc::new(Place { all: Arc::clone(self), number, close }))
    }
}

#[cfg(test)]
impl Connections {
    /// Whether no place is taken.
    pub(super) fn is_empty(&self) -> bool {
        self.places().by_number.is_empty()
    }
}

impl State {
    fn is_silent(&self, time: Duration) -> bool {
        self.requests == 0 && self.silent_since.elapsed() >= time
    }
}

impl Place {
    /// One more request.
    pub(super) fn work(self: &Arc<Self>) -> Working {
        if let Some(state) = self.all.places().by_number.get_mut(&self.number) {
            state.requests += 1;
            state.moved = Instant::now();
        }
        Working(Arc::clone(self))
    }

    fn moves(&self) {
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
    /// Something of its answer was taken.
    pub(super) fn moves(&self) {
        self.0.moves();
    }

    /// The bytes of answers that are being sent.
    pub(super) fn sent(&self) -> &Arc<Budget> {
        self.0.all.sent()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.places().by_number.remove(&self.number);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some(state) = self.0.all.places().by_number.get_mut(&self.0.number) {
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
