//! Recordings of Java Flight Recorder, as async-profiler and Java write them and Grafana's agent sends them: several
//! profiles in one file, which names spans by numbers, and beside it the texts of these numbers.
//!
//! A recording is chunks; each says what its types look like (`types`), which constants its events refer to (`pools`)
//! and has the events (`events`). What comes of them (`kinds`, `recording`) is named, weighed and told apart as Pyroscope
//! does it with the same upload, so that both can be asked the same; but lengths of time are nanoseconds here, where
//! Pyroscope shows ticks.
//!
//! This is a reader of our own. The one library for it, jfrs 0.2.5, reads what it is given before anything can be bounded:
//! it reserves as many bytes as a number in the file says, up to an abort; it descends into types of types without end; it
//! follows pools that lead in a circle, and returns the same error for ever; and it makes a value with its own memory
//! of each field of each constant. Here every number of something is at most the bytes that are left, nothing is read twice,
//! constants are read in place and only where an event leads to them, and whatever is kept is taken from the budget before.

mod chunk;
mod cursor;
mod events;
#[cfg(test)]
mod hostile;
mod kinds;
mod names;
mod pools;
mod recording;
mod snapshot;
mod types;

use ahash::HashMap;
use spanprof_core::wire::push::LabelPair;

use self::chunk::Chunk;
use self::cursor::Bad;
use self::kinds::{ALL, Kind};
use self::recording::{OfKind, Recording};
use self::snapshot::{Snapshot, SnapshotMessage};
use super::labels::Labels;
use super::pprof::{Reader, Tables};
use crate::clock::SECOND;
use crate::http::allowed::Allowed;
use crate::http::body::{self, too_large};
use crate::http::refusal::Refusal;
use crate::store::{Mark, Profile};

/// Between two samples, where nothing says it: what async-profiler and Grafana's agent do.
const USUAL_INTERVAL: i64 = SECOND / 100;

/// A recording, and what was sent with it.
pub(super) struct Upload<'a> {
    /// Plain or gzip.
    pub(super) recording: &'a [u8],
    /// The labels of its contexts and the names of its spans, plain or gzip; may be empty.
    pub(super) labels: &'a [u8],
    pub(super) service: &'a str,
    /// Of all its profiles.
    pub(super) series: &'a [LabelPair],
    /// When it began, where its sender says it.
    pub(super) start: Option<i64>,
    /// Samples a second, the same.
    pub(super) sample_rate: Option<i64>,
    /// What tells it from other uploads, if it may come again.
    pub(super) mark: Option<Mark>,
    /// When it must have begun.
    pub(super) times: (i64, i64),
}

/// Whether bytes begin as a recording does that is not packed.
pub(super) fn is_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(b"FLR\0")
}

/// Reads the profiles of a recording; one without any event has none.
pub(super) fn read(upload: &Upload<'_>, allowed: &mut Allowed) -> Result<Vec<Profile>, Refusal> {
    let message = SnapshotMessage::decode(upload.labels, allowed)?;
    let snapshot = Snapshot::new(&message, allowed)?;
    let mut recording = decode(upload.recording, allowed)?;
    let Recording { start, ref settings, .. } = recording;
    let event = settings.event.clone();
    let interval = upload.sample_rate.map(|rate| SECOND / rate.max(1)).or(settings.interval).unwrap_or(USUAL_INTERVAL);
    let by_clock = settings.wall.filter(|_| event != "wall").unwrap_or(interval);
    let mut heads = Vec::new();
    for kind in ALL {
        if !recording.has(kind) {
            continue;
        }
        let period = if kind == Kind::Wall { by_clock } else { interval };
        if matches!(kind, Kind::Cpu | Kind::Wall) {
            recording.weigh(kind, period);
        }
        heads.push((kind, kind.head(upload.start.unwrap_or(start), period)));
    }
    let tables =
        Tables::new(&recording.strings, &HashMap::default(), &recording.functions, &recording.locations, allowed)?;
    let mut profiles = Vec::new();
    for (kind, head) in heads {
        let pairs = upload.series.iter().map(|pair| (pair.name.as_str(), pair.value.as_str()));
        let own = [("jfr_event", event.as_str()), ("__name__", kind.name()), ("service_name", upload.service)];
        let labels = Labels::read(pairs.chain(own.into_iter().filter(|(_, value)| !value.is_empty())))?;
        let samples = OfKind { recording: &recording, snapshot: &snapshot, kind };
        let rows = Reader::new(&tables, &samples).read(&head, &labels, upload.times, allowed)?;
        let mark = upload.mark.map(|mark| Mark::of(&(mark.hash, kind.name(), kind.sample_types()), mark.has_id));
        profiles.push(Profile { mark, ..rows });
    }
    Ok(profiles)
}

/// Unpacks a recording and reads all of its chunks.
fn decode(raw: &[u8], allowed: &mut Allowed) -> Result<Recording, Refusal> {
    const WHAT: &str = "the recording";
    let mut unpacked = Vec::new();
    allowed.expect_profile(body::said_unpacked(raw))?;
    let mut bytes = if body::is_gzip(raw) {
        unpacked = body::gunzip(raw, allowed.most_profile(), WHAT, allowed)?;
        &unpacked
    } else {
        raw
    };
    if bytes.len() > allowed.most_profile() {
        return Err(too_large(WHAT, allowed.most_profile()));
    }
    let mut recording = Recording::default();
    recording.string("", allowed)?;
    let mut chunks = || -> Result<(), Bad> {
        while let Some(chunk) = Chunk::take(&mut bytes)? {
            recording.start = if recording.start == 0 { chunk.start } else { recording.start };
            events::read(&chunk, &mut recording, allowed)?;
        }
        Ok(())
    };
    chunks().map_err(|bad| bad.refusal(WHAT))?;
    allowed.give_back(unpacked.capacity());
    Ok(recording)
}
