//! Writes a window as pprof, one profile a profile type, split where a server would refuse it.
//!
//! Runs on the profiler's own thread, on a window that nobody else holds. The same content gives the same bytes
//! whatever order it was collected in: everything is written in the order of [`canonical`](super::canonical), and a location or
//! a string gets its number when the walk first meets it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;

use flate2::Compression;
use flate2::bufread::GzEncoder;
use prost::Message;

use super::canonical::{CanonicalWindow, Row};
use super::labels::{Content, LabelOptions};
use super::strings::Strings;
use super::window::Window;
use crate::os::allocator;
use crate::profile_type::ProfileType;
use crate::stats::Tally;
use crate::wait_state::State;
use crate::wire::pprof::{Function, Label, Line, Location, Profile, Sample, ValueType};

/// What goes into profiles, and how large one may become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodeOptions {
    pub(crate) labels: LabelOptions,
    /// Servers refuse a profile of more than 16,000.
    pub(crate) max_samples: usize,
    /// Before compression. Servers refuse 4 MiB, and rate limits refuse a single profile of 2 MB for ever.
    pub(crate) max_bytes: usize,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { labels: LabelOptions::default(), max_samples: 12_000, max_bytes: 3 << 19 }
    }
}

/// One profile, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub(crate) profile_type: ProfileType,
    pub(crate) start_unix_nanos: i64,
    /// pprof in gzip.
    pub(crate) body: Vec<u8>,
    /// What is in it.
    pub(crate) tally: Tally,
}

/// The profiles of a window: none for a profile type without samples, several where limits demand it. One that there is no memory
/// to compress is left out.
///
/// Cost: about a microsecond a sample, see the measurement `encode_cost` below.
pub(crate) fn encode(window: &Window, options: &EncodeOptions) -> Vec<Encoded> {
    let content = Content::new(window, &options.labels);
    let canonical = CanonicalWindow::new(window, &content);
    let mut encoded = Vec::new();
    for (id, profile_type) in window.profile_types.iter().enumerate() {
        let rows = canonical.rows(window, id);
        let mut rows = rows.as_slice();
        while !rows.is_empty() {
            let mut piece = Piece::new(&canonical);
            let written = rows.iter().take_while(|row| piece.add(row, profile_type, options)).count();
            let comment = if encoded.is_empty() { window.comment.as_str() } else { "" };
            encoded.extend(piece.finish(profile_type, window, comment));
            rows = &rows[written..];
        }
    }
    encoded
}

/// More than zlib-rs takes, in one piece; it panics where there is none.
const COMPRESSOR_BYTES: usize = 400 << 10;

/// Compresses at the level where time is spent best; without a time stamp, so that equal profiles stay equal. `None`: there is no
/// memory.
pub(crate) fn gzip(bytes: &[u8]) -> Option<Vec<u8>> {
    if !allocator::has(COMPRESSOR_BYTES) {
        // From the reserve, if it has a piece as large.
        Vec::<u8>::new().try_reserve_exact(COMPRESSOR_BYTES).ok()?;
    }
    let mut compressed = Vec::new();
    compressed.try_reserve(bytes.len() / 4).ok()?;
    GzEncoder::new(bytes, Compression::new(1)).read_to_end(&mut compressed).ok()?;
    Some(compressed)
}

/// A profile that is being filled.
#[derive(Debug)]
struct Piece<'a> {
    canonical: &'a CanonicalWindow<'a>,
    strings: Strings<'a>,
    /// By frame rank; 0 = not in this profile yet.
    location_ids: Vec<u64>,
    /// By indices of name and file, and first line.
    function_ids: HashMap<(i64, i64, u32), u64>,
    /// By place of the span, rank of the tags, state and flow: most samples share theirs with others.
    labels: HashMap<(u32, u32, Option<State>, bool), Vec<Label>>,
    /// All but the samples.
    profile: Profile,
    /// The samples as they are encoded, and how many.
    samples: (Vec<u8>, usize),
    /// Used for each of them in turn.
    sample: Sample,
    /// At least the bytes that everything else takes.
    table_bytes: usize,
    tally: Tally,
}

/// Room for the fields that every profile has.
const HEADER_BYTES: usize = 256;
/// More than a location, a function and their strings' tags and indices take.
const FRAME_BYTES: usize = 64;
/// More than a label and its strings' tags and indices take.
const LABEL_BYTES: usize = 32;
/// Field 2, length-delimited: what stands before each sample of a profile.
const SAMPLE_TAG: u8 = 2 << 3 | 2;

impl<'a> Piece<'a> {
    fn new(canonical: &'a CanonicalWindow<'a>) -> Self {
        Self {
            canonical,
            strings: Strings::new(),
            location_ids: vec![0; canonical.frames.len()],
            function_ids: HashMap::new(),
            labels: HashMap::new(),
            profile: Profile::default(),
            samples: (Vec::new(), 0),
            sample: Sample::default(),
            table_bytes: HEADER_BYTES,
            tally: Tally::default(),
        }
    }

    /// Adds a sample. False: this profile is full. One sample always fits.
    fn add(&mut self, row: &Row, profile_type: &ProfileType, options: &EncodeOptions) -> bool {
        let (bytes, samples) = (self.samples.0.len() + self.table_bytes, self.samples.1);
        if samples > 0 && (samples >= options.max_samples || bytes + self.bound(row) > options.max_bytes) {
            return false;
        }
        let mut sample = std::mem::take(&mut self.sample);
        let stack = &self.canonical.stacks[row.stack as usize];
        sample.location_id.clear();
        sample.location_id.extend(stack.iter().map(|&frame| self.location(frame)));
        sample.value.clear();
        if profile_type.sample_types.len() > 1 {
            sample.value.push(row.count);
        }
        sample.value.push(row.value);
        sample.label.clear();
        sample.label.extend_from_slice(self.labels(row));
        self.samples.0.push(SAMPLE_TAG);
        // It fails for a buffer without room only, and a Vec grows.
        let _ = sample.encode_length_delimited(&mut self.samples.0);
        self.samples.1 += 1;
        self.sample = sample;
        // CPU time among wall time is counted where it was sampled.
        if row.samples > 0 {
            self.tally += Tally { samples: row.samples, weight: u64::try_from(row.value).unwrap_or(0) };
        }
        true
    }

    fn labels(&mut self, row: &Row) -> &[Label] {
        match self.labels.entry((row.span, row.tags, row.state, row.is_concurrent)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (strings, table_bytes) = (&mut self.strings, &mut self.table_bytes);
                let label = |(name, value): (&'a str, &'a str)| Label {
                    key: index(strings, table_bytes, name),
                    str: index(strings, table_bytes, value),
                    ..Label::default()
                };
                new.insert(self.canonical.labels(row).map(label).collect())
            }
        }
    }

    /// At least what adding the sample can cost.
    fn bound(&self, row: &Row) -> usize {
        let stack = &self.canonical.stacks[row.stack as usize];
        let frames: usize = stack
            .iter()
            .filter(|&&rank| self.location_ids[rank as usize] == 0)
            .map(|&rank| self.canonical.frames[rank as usize])
            .map(|frame| frame.function.len() + frame.file.len() + FRAME_BYTES)
            .sum();
        let labels: usize =
            self.canonical.labels(row).map(|(name, value)| name.len() + value.len() + LABEL_BYTES).sum();
        frames + labels + stack.len() * 5 + 42
    }

    fn location(&mut self, rank: u32) -> u64 {
        let known = self.location_ids[rank as usize];
        if known != 0 {
            return known;
        }
        let frame = self.canonical.frames[rank as usize];
        let name = index(&mut self.strings, &mut self.table_bytes, &frame.function);
        let file = index(&mut self.strings, &mut self.table_bytes, &frame.file);
        let next = self.function_ids.len() as u64 + 1;
        let function_id = *self.function_ids.entry((name, file, frame.first_line)).or_insert(next);
        if function_id == next {
            let start_line = i64::from(frame.first_line);
            // No system name: where it equals the name, readers demangle it as if it were C++, and `<module>` is lost.
            let function = Function { id: next, name, system_name: 0, filename: file, start_line };
            self.table_bytes += field_bytes(function.encoded_len());
            self.profile.function.push(function);
        }
        let id = self.profile.location.len() as u64 + 1;
        let line = Line { function_id, line: i64::from(frame.line), column: 0 };
        let location = Location { id, line: vec![line], ..Location::default() };
        self.table_bytes += field_bytes(location.encoded_len());
        self.profile.location.push(location);
        self.location_ids[rank as usize] = id;
        id
    }

    fn finish(mut self, profile_type: &ProfileType, window: &Window, comment: &'a str) -> Option<Encoded> {
        let mut value_type = |(name, unit): (&'a str, &'a str)| ValueType {
            r#type: self.strings.index(name),
            unit: self.strings.index(unit),
        };
        self.profile.sample_type = profile_type.sample_types.iter().copied().map(&mut value_type).collect();
        self.profile.period_type = Some(value_type(profile_type.period_type));
        self.profile.period = profile_type.period;
        self.profile.time_nanos = window.start_unix_nanos;
        self.profile.duration_nanos = i64::try_from(window.duration.as_nanos()).unwrap_or(i64::MAX);
        if !comment.is_empty() {
            self.profile.comment = vec![self.strings.index(comment)];
        }
        self.profile.string_table = self.strings.into_table();
        let mut bytes = self.samples.0;
        // As above: a Vec has room.
        let _ = self.profile.encode(&mut bytes);
        Some(Encoded {
            profile_type: *profile_type,
            start_unix_nanos: window.start_unix_nanos,
            body: gzip(&bytes)?,
            tally: self.tally,
        })
    }
}

/// The index of a string, whose bytes are counted when it is new.
fn index<'a>(strings: &mut Strings<'a>, table_bytes: &mut usize, text: &'a str) -> i64 {
    let before = strings.len();
    let index = strings.index(text);
    if strings.len() > before {
        *table_bytes += field_bytes(text.len());
    }
    index
}

/// Bytes of a string or a message of `len` bytes inside a profile, whose field numbers all take one byte.
fn field_bytes(len: usize) -> usize {
    1 + prost::length_delimiter_len(len) + len
}

#[cfg(test)]
mod tests;
