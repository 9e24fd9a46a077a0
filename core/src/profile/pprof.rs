//! Writes a window as pprof, one profile a profile type, split where a server would refuse it.
//!
//! Runs on the profiler's own thread, on a window that nobody else holds. The same content gives the same bytes
//! whatever order it was collected in: everything is written in the order of [`rank`](super::rank), and a location or
//! a string gets its number when the walk first meets it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read};

use flate2::Compression;
use flate2::bufread::GzEncoder;
use prost::Message;

use super::labels::{Content, LabelOptions};
use super::rank::{Ranked, Row};
use super::strings::Strings;
use super::window::Window;
use crate::profile_type::ProfileType;
use crate::stats::Tally;
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

/// The profiles of a window: none for a profile type without samples, several where limits demand it.
///
/// Cost: about a microsecond a sample, see the measurement `encode_cost` below.
pub(crate) fn encode(window: &Window, options: &EncodeOptions) -> Vec<Encoded> {
    let content = Content::new(window, &options.labels);
    let ranked = Ranked::new(window, &content);
    let mut encoded = Vec::new();
    for (id, profile_type) in window.profile_types.iter().enumerate() {
        let rows = ranked.rows(window, id);
        let mut rows = rows.as_slice();
        while !rows.is_empty() {
            let mut piece = Piece::new(&ranked);
            let written = rows.iter().take_while(|row| piece.add(row, profile_type, options)).count();
            let comment = if encoded.is_empty() { window.comment.as_str() } else { "" };
            encoded.push(piece.finish(profile_type, window, comment));
            rows = &rows[written..];
        }
    }
    encoded
}

/// Compresses at the level where time is spent best; without a time stamp, so that equal profiles stay equal.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::with_capacity(bytes.len() / 4);
    read_all(GzEncoder::new(bytes, Compression::new(1)), &mut compressed).map_or_else(|_| Vec::new(), |_| compressed)
}

fn read_all(mut from: impl Read, into: &mut Vec<u8>) -> io::Result<usize> {
    from.read_to_end(into)
}

/// A profile that is being filled.
#[derive(Debug)]
struct Piece<'a> {
    ranked: &'a Ranked<'a>,
    strings: Strings<'a>,
    /// By frame rank; 0 = not in this profile yet.
    location_ids: Vec<u64>,
    /// By indices of name and file, and first line.
    function_ids: HashMap<(i64, i64, u32), u64>,
    /// By place of the span and rank of the tags: most samples share theirs with others.
    labels: HashMap<(u32, u32), Vec<Label>>,
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
    fn new(ranked: &'a Ranked<'a>) -> Self {
        Self {
            ranked,
            strings: Strings::new(),
            location_ids: vec![0; ranked.frames.len()],
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
        let stack = &self.ranked.stacks[row.stack as usize];
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
        self.tally += Tally { samples: row.samples, weight: u64::try_from(row.value).unwrap_or(0) };
        true
    }

    fn labels(&mut self, row: &Row) -> &[Label] {
        match self.labels.entry((row.span, row.tags)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (strings, table_bytes) = (&mut self.strings, &mut self.table_bytes);
                let label = |(name, value): (&'a str, &'a str)| Label {
                    key: index(strings, table_bytes, name),
                    str: index(strings, table_bytes, value),
                    ..Label::default()
                };
                new.insert(self.ranked.labels(row).map(label).collect())
            }
        }
    }

    /// At least what adding the sample can cost.
    fn bound(&self, row: &Row) -> usize {
        let stack = &self.ranked.stacks[row.stack as usize];
        let frames: usize = stack
            .iter()
            .filter(|&&rank| self.location_ids[rank as usize] == 0)
            .map(|&rank| self.ranked.frames[rank as usize])
            .map(|frame| frame.function.len() + frame.file.len() + FRAME_BYTES)
            .sum();
        let labels: usize = self.ranked.labels(row).map(|(name, value)| name.len() + value.len() + LABEL_BYTES).sum();
        frames + labels + stack.len() * 5 + 42
    }

    fn location(&mut self, rank: u32) -> u64 {
        let known = self.location_ids[rank as usize];
        if known != 0 {
            return known;
        }
        let frame = self.ranked.frames[rank as usize];
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

    fn finish(mut self, profile_type: &ProfileType, window: &Window, comment: &'a str) -> Encoded {
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
        Encoded {
            profile_type: *profile_type,
            start_unix_nanos: window.start_unix_nanos,
            body: gzip(&bytes),
            tally: self.tally,
        }
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
mod tests {
    use std::io::Write;
    use std::iter;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use flate2::read::GzDecoder;
    use pprof::protos;

    use super::super::window::{WindowSample, WindowSpan};
    use super::*;
    use crate::profile_type::ProfileTypeId;
    use crate::sample::frames::Frame;

    const START: i64 = 1_700_000_000_000_000_000;

    fn window() -> Window {
        Window {
            start_unix_nanos: START,
            duration: Duration::from_secs(15),
            profile_types: vec![ProfileType::process_cpu(10_000_000)],
            tag_sets: vec![Arc::from([])],
            ..Window::default()
        }
    }

    fn frame(function: &str, file: &str, line: u32, first_line: u32) -> Arc<Frame> {
        Arc::new(Frame { function: function.into(), file: file.into(), line, first_line })
    }

    fn span(span_id: u64, trace_id: [u64; 2], name: &str) -> WindowSpan {
        WindowSpan { span_id, trace_id, name: name.into() }
    }

    fn sample(stack: u32, span: Option<u32>, tags: u32, value: i64) -> WindowSample {
        WindowSample { profile_type: ProfileTypeId::TIMER, stack, span, tags, value, count: 1, samples: 1 }
    }

    fn tags(pairs: &[(&str, &str)]) -> Arc<[(String, String)]> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn unzipped(body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(body).read_to_end(&mut bytes).expect("gzip");
        bytes
    }

    /// By a decoder that others wrote, so that a mistake in our field numbers shows.
    fn decode(encoded: &Encoded) -> protos::Profile {
        protos::Message::decode(unzipped(&encoded.body).as_slice()).expect("pprof")
    }

    fn text(profile: &protos::Profile, index: i64) -> &str {
        &profile.string_table[usize::try_from(index).expect("index")]
    }

    /// A sample as people would say it: stack, labels, value. Checks ids and indices on the way.
    type Said = (Vec<String>, Vec<(String, String)>, i64);

    fn said(profile: &protos::Profile) -> Vec<Said> {
        let location = |id: &u64| {
            let location = profile.location.iter().find(|location| location.id == *id).expect("location");
            let line = &location.line[0];
            let function = profile.function.iter().find(|function| function.id == line.function_id).expect("function");
            let (name, file) = (text(profile, function.name), text(profile, function.filename));
            format!("{name} {file}:{} from {}", line.line, function.start_line)
        };
        let label = |label: &protos::Label| {
            assert_eq!((label.num, label.num_unit), (0, 0));
            (text(profile, label.key).to_owned(), text(profile, label.str).to_owned())
        };
        let sample = |sample: &protos::Sample| {
            assert_eq!(sample.value.len(), profile.sample_type.len());
            let stack = sample.location_id.iter().map(location).collect();
            (stack, sample.label.iter().map(label).collect(), sample.value[0])
        };
        profile.sample.iter().map(sample).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        tags(pairs).to_vec()
    }

    fn with_labels(labels: LabelOptions) -> EncodeOptions {
        EncodeOptions { labels, ..EncodeOptions::default() }
    }

    fn two_samples() -> Window {
        Window {
            frames: vec![frame("leaf", "a.py", 12, 10), frame("main", "a.py", 90, 80)],
            stacks: vec![[0, 1].into(), [1].into()],
            spans: vec![span(0xabc, [1, 2], "GET /")],
            tag_sets: vec![Arc::from([]), tags(&[("action", "list"), ("zone", "a")])],
            samples: vec![sample(0, Some(0), 1, 30), sample(1, None, 0, 20)],
            ..window()
        }
    }

    #[test]
    fn an_independent_decoder_reads_what_went_in() {
        let encoded = encode(&two_samples(), &EncodeOptions::default());
        assert_eq!(encoded.len(), 1);
        assert_eq!(encoded[0].tally, Tally { samples: 2, weight: 50 });
        let profile = decode(&encoded[0]);
        assert_eq!(profile.string_table[0], "");
        let value_type = |kind: &protos::ValueType| (text(&profile, kind.ty), text(&profile, kind.unit));
        assert_eq!(profile.sample_type.iter().map(value_type).collect::<Vec<_>>(), [("cpu", "nanoseconds")]);
        assert_eq!(profile.period_type.as_ref().map(value_type), Some(("cpu", "nanoseconds")));
        assert_eq!((profile.period, profile.time_nanos), (10_000_000, START));
        assert_eq!(profile.duration_nanos, 15_000_000_000);
        let main = "main a.py:90 from 80".to_owned();
        let labels = [
            ("span_id", "0000000000000abc"),
            ("trace_id", "00000000000000010000000000000002"),
            ("span_name", "GET /"),
            ("action", "list"),
            ("zone", "a"),
        ];
        assert_eq!(
            said(&profile),
            [(vec!["leaf a.py:12 from 10".to_owned(), main.clone()], pairs(&labels), 30), (vec![main], Vec::new(), 20),]
        );
    }

    #[test]
    fn ids_are_unique_and_not_zero_and_strings_unique() {
        let profile = decode(&encode(&two_samples(), &EncodeOptions::default())[0]);
        let mut ids: Vec<u64> = profile.location.iter().map(|location| location.id).collect();
        assert_eq!(ids, [1, 2]);
        ids = profile.function.iter().map(|function| function.id).collect();
        assert_eq!(ids, [1, 2]);
        let mut strings = profile.string_table.clone();
        strings.sort_unstable();
        strings.dedup();
        assert_eq!(strings.len(), profile.string_table.len());
    }

    #[test]
    fn the_order_of_collection_does_not_change_a_byte() {
        let first = two_samples();
        let second = Window {
            frames: vec![first.frames[1].clone(), frame("unused", "", 0, 0), first.frames[0].clone()],
            stacks: vec![[0].into(), [2, 0].into()],
            spans: vec![span(9, [0, 0], "unused"), first.spans[0].clone()],
            tag_sets: vec![Arc::from([]), tags(&[("unused", "x")]), first.tag_sets[1].clone()],
            samples: vec![sample(0, None, 0, 20), sample(1, Some(1), 2, 30)],
            ..window()
        };
        let options = EncodeOptions::default();
        assert_eq!(encode(&first, &options), encode(&second, &options));
    }

    #[test]
    fn stacks_that_resolved_to_the_same_frames_become_one_sample() {
        let window = Window {
            frames: vec![frame("f", "a.rb", 3, 0), frame("f", "a.rb", 3, 1), frame("f", "a.rb", 4, 1)],
            stacks: vec![[0].into(), [1].into(), [2].into()],
            samples: vec![sample(0, None, 0, 1), sample(1, None, 0, 2), sample(2, None, 0, 4)],
            ..window()
        };
        let encoded = encode(&window, &EncodeOptions::default());
        assert_eq!(encoded[0].tally, Tally { samples: 3, weight: 7 });
        let profile = decode(&encoded[0]);
        assert_eq!((profile.location.len(), profile.function.len()), (2, 1));
        let of = |line: &str, value| (vec![line.to_owned()], Vec::new(), value);
        assert_eq!(said(&profile), [of("f a.rb:3 from 1", 3), of("f a.rb:4 from 1", 4)]);
    }

    #[test]
    fn labels_that_are_switched_off_are_left_out_and_their_samples_summed() {
        let window = Window {
            frames: vec![frame("f", "", 0, 0)],
            stacks: vec![[0].into()],
            spans: vec![span(7, [1, 1], "a"), span(7, [2, 2], "b"), span(0, [3, 3], "no span")],
            samples: vec![sample(0, Some(0), 0, 1), sample(0, Some(1), 0, 2), sample(0, Some(2), 0, 4)],
            ..window()
        };
        let options = with_labels(LabelOptions { trace_ids: false, span_names: false, ..LabelOptions::default() });
        let stack = vec!["f :0 from 0".to_owned()];
        assert_eq!(
            said(&decode(&encode(&window, &options)[0])),
            [(stack.clone(), Vec::new(), 4), (stack, pairs(&[("span_id", "0000000000000007")]), 3)]
        );
    }

    #[test]
    fn the_name_comes_under_its_old_name_too_where_that_is_asked_for() {
        let window = Window {
            frames: vec![frame("f", "", 0, 0)],
            stacks: vec![[0].into()],
            spans: vec![span(7, [0, 0], "a")],
            tag_sets: vec![tags(&[("span", "of the user"), ("zone", "b")])],
            samples: vec![sample(0, Some(0), 0, 1), sample(0, None, 0, 2)],
            ..window()
        };
        let stack = vec!["f :0 from 0".to_owned()];
        let labels = [("span_id", "0000000000000007"), ("span_name", "a"), ("span", "a"), ("zone", "b")];
        let options = with_labels(LabelOptions { legacy_labels: true, ..LabelOptions::default() });
        assert_eq!(
            said(&decode(&encode(&window, &options)[0])),
            [(stack.clone(), pairs(&[("zone", "b")]), 2), (stack, pairs(&labels), 1)]
        );
    }

    #[test]
    fn tags_that_would_cost_the_span_or_the_profile_are_left_out() {
        let long = "x".repeat(3000);
        let window = Window {
            frames: vec![frame("f", "", 0, 0)],
            stacks: vec![[0].into()],
            spans: vec![span(7, [0, 0], "")],
            tag_sets: vec![tags(&[("__x", "1"), ("a-b", "1"), ("empty", ""), ("long", &long), ("span_id", "1")])],
            samples: vec![sample(0, Some(0), 0, 1)],
            ..window()
        };
        let said = said(&decode(&encode(&window, &EncodeOptions::default())[0]));
        assert_eq!(said[0].1, pairs(&[("span_id", "0000000000000007"), ("long", &long[..2048])]));
    }

    #[test]
    fn tags_beyond_what_a_series_may_have_are_left_out() {
        let window = Window {
            frames: vec![frame("f", "", 0, 0)],
            stacks: vec![[0].into()],
            tag_sets: vec![tags(&[("a", "1"), ("b-", "no label"), ("c", "1"), ("d", "1")])],
            samples: vec![sample(0, None, 0, 1)],
            ..window()
        };
        let options = with_labels(LabelOptions { max_tags: 2, ..LabelOptions::default() });
        assert_eq!(said(&decode(&encode(&window, &options)[0]))[0].1, pairs(&[("a", "1"), ("c", "1")]));
    }

    #[test]
    fn each_profile_type_with_samples_has_its_own_profile() {
        let wall =
            ProfileType { name: "wall", sample_types: &[("wall", "nanoseconds")], ..ProfileType::process_cpu(1) };
        let mut window = Window { profile_types: vec![wall, wall, ProfileType::process_cpu(1)], ..two_samples() };
        window.samples[0].profile_type = ProfileTypeId(2);
        let encoded = encode(&window, &EncodeOptions::default());
        let names: Vec<_> = encoded.iter().map(|one| (one.profile_type.name, one.tally.weight)).collect();
        assert_eq!(names, [("wall", 20), ("process_cpu", 30)]);
        // A string that only the other profile needs does not travel along.
        assert!(!decode(&encoded[0]).string_table.contains(&"leaf".to_owned()));
        assert!(encode(&Window { samples: Vec::new(), ..window }, &EncodeOptions::default()).is_empty());
    }

    #[test]
    fn what_the_profiler_says_of_itself_is_a_comment_of_the_first_profile() {
        let window = Window { comment: "itself".into(), ..two_samples() };
        let encoded = encode(&window, &EncodeOptions { max_samples: 1, ..EncodeOptions::default() });
        let comments = encoded
            .iter()
            .map(decode)
            .map(|profile| profile.comment.iter().map(|&index| text(&profile, index).to_owned()).collect::<Vec<_>>());
        assert_eq!(comments.collect::<Vec<_>>(), [vec!["itself"], vec![]]);
    }

    #[test]
    fn two_sample_types_tell_how_many_and_how_much() {
        let memory = ProfileType {
            name: "memory",
            sample_types: &[("alloc_samples", "count"), ("alloc_size", "bytes")],
            period_type: ("space", "bytes"),
            period: 102_400,
        };
        let mut window = Window { profile_types: vec![memory], ..two_samples() };
        window.samples[0].count = 7;
        let profile = decode(&encode(&window, &EncodeOptions::default())[0]);
        let value_type = |one: &protos::ValueType| (text(&profile, one.ty), text(&profile, one.unit));
        let types: Vec<_> = profile.sample_type.iter().map(value_type).collect();
        assert_eq!(types, [("alloc_samples", "count"), ("alloc_size", "bytes")]);
        let mut values: Vec<_> = profile.sample.iter().map(|sample| sample.value.clone()).collect();
        values.sort_unstable();
        let mut expected = vec![vec![7, window.samples[0].value], vec![1, window.samples[1].value]];
        expected.sort_unstable();
        assert_eq!(values, expected);
    }

    /// A call tree that branches every third call, of 4,000 places in code, sampled in 2,000 spans of 40 names.
    fn large(samples: u32, depth: u32) -> Window {
        let frames: Vec<_> = (0..4_000)
            .map(|i| {
                frame(&format!("Module{}::function_{i}", i % 97), &format!("src/module_{}.py", i % 97), i % 500, 1)
            })
            .collect();
        let place = |s: u32, level: u32| level * 53 + s.wrapping_mul(7_919) % (1 << (level / 3)) * 31;
        let above = |s: u32| (0..depth - 1).rev().map(move |level| place(s, level) % 4_000);
        let stack = |s: u32| iter::once(s % 4_000).chain(above(s)).collect();
        let names: Vec<Arc<str>> = (0..40).map(|i| format!("GET /route/{i}").into()).collect();
        let spans = (1..2_001u64).map(|i| WindowSpan {
            span_id: i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            trace_id: [i.wrapping_mul(0xbf58_476d_1ce4_e5b9), i],
            name: names[usize::try_from(i % 40).expect("small")].clone(),
        });
        Window {
            frames,
            stacks: (0..samples).map(stack).collect(),
            spans: spans.collect(),
            samples: (0..samples).map(|s| sample(s, (s % 10 != 0).then_some(s % 2_000), 0, 10_000_000)).collect(),
            ..window()
        }
    }

    #[test]
    fn a_profile_is_split_at_the_limits_and_nothing_is_lost() {
        let window = large(1_000, 20);
        let whole = said(&decode(&encode(&window, &EncodeOptions::default())[0]));
        for options in [
            EncodeOptions { max_samples: 300, ..EncodeOptions::default() },
            EncodeOptions { max_bytes: 40_000, ..EncodeOptions::default() },
        ] {
            let pieces = encode(&window, &options);
            assert!(pieces.len() >= 4, "{}", pieces.len());
            let mut together = Vec::new();
            let mut tally = Tally::default();
            for piece in &pieces {
                let bytes = unzipped(&piece.body).len();
                assert!(bytes <= options.max_bytes, "{bytes} of {}", options.max_bytes);
                let profile = decode(piece);
                assert!(profile.sample.len() <= options.max_samples);
                assert_eq!(profile.string_table[0], "");
                together.extend(said(&profile));
                tally += piece.tally;
            }
            assert_eq!(together, whole);
            assert_eq!(tally, Tally { samples: 1_000, weight: 10_000_000_000 });
        }
        let one_each = EncodeOptions { max_bytes: 1, ..EncodeOptions::default() };
        assert_eq!(encode(&window, &one_each).len(), 1_000);
    }

    #[test]
    fn a_sample_that_would_go_over_the_limit_starts_the_next_profile() {
        let long = |i: usize| frame(&format!("{i}{}", "x".repeat(1_000)), &"y".repeat(500), 1, 1);
        let window = Window {
            frames: (0..20).map(long).collect(),
            stacks: (0..20).map(|i| [i].into()).collect(),
            samples: (0..20).map(|i| sample(i, None, 0, 1)).collect(),
            ..window()
        };
        let options = EncodeOptions { max_bytes: 5_000, ..EncodeOptions::default() };
        let sizes: Vec<_> = encode(&window, &options).iter().map(|one| unzipped(&one.body).len()).collect();
        assert!(sizes.len() < 10 && sizes.iter().all(|size| *size <= 5_000), "{sizes:?}");
    }

    #[test]
    fn go_tool_pprof_reads_a_profile() {
        if Command::new("go").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            println!("skipped: `go` is not on PATH");
            return;
        }
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(&encode(&two_samples(), &EncodeOptions::default())[0].body).expect("written");
        let pprof = |format: &str| {
            let output = Command::new("go").args(["tool", "pprof", format]).arg(file.path()).output().expect("go");
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let raw = pprof("-raw");
        for part in
            ["PeriodType: cpu nanoseconds", "Period: 10000000", "span_id:[0000000000000abc]", "leaf a.py:12:0 s=10"]
        {
            assert!(raw.contains(part), "{part} is not in\n{raw}");
        }
        let top = pprof("-top");
        assert!(top.contains("60.00%") && top.contains("leaf"), "{top}");
    }

    #[test]
    #[ignore = "a measurement, run by ci/bench"]
    fn encode_cost() {
        let window = large(10_000, 40);
        let options = EncodeOptions::default();
        let mut runs: Vec<Duration> = (0..21)
            .map(|_| {
                let start = Instant::now();
                assert!(!std::hint::black_box(encode(&window, &options)).is_empty());
                start.elapsed()
            })
            .collect();
        runs.sort_unstable();
        println!("encode_10000x40_ms: {:.1}", runs[10].as_secs_f64() * 1e3);
    }
}
