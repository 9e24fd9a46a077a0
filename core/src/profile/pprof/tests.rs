//! What an independent decoder reads of encoded windows.

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
    WindowSample {
        profile_type: ProfileTypeId::TIMER,
        state: State::Cpu,
        stack,
        concurrent: None,
        span,
        tags,
        value,
        count: 1,
        samples: 1,
    }
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
    let wall = ProfileType { name: "wall", sample_types: &[("wall", "nanoseconds")], ..ProfileType::process_cpu(1) };
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
        .map(|i| frame(&format!("Module{}::function_{i}", i % 97), &format!("src/module_{}.py", i % 97), i % 500, 1))
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
fn what_is_beside_a_span_s_own_time_is_told_apart_in_wall_time_and_nowhere_else() {
    let concurrent = WindowSample { concurrent: Some(2), ..sample(0, Some(0), 1, 40) };
    let window = Window {
        profile_types: vec![ProfileType::process_cpu(10_000_000), ProfileType::wall_time(10_000_000)],
        frames: vec![frame("leaf", "", 0, 0), frame("main", "", 0, 0), frame("(concurrent task)", "", 0, 0)],
        stacks: vec![[0, 1].into(), [1].into(), [0, 1, 2].into()],
        tag_sets: vec![Arc::from([]), tags(&[("flow", "theirs")])],
        samples: vec![sample(0, Some(0), 1, 30), concurrent],
        ..two_samples()
    };
    let encoded = encode(&window, &EncodeOptions::default());
    let short = |profile: &protos::Profile| -> Vec<(Vec<String>, Option<String>, i64)> {
        let name =
            |place: String| place.split(' ').take_while(|word| !word.starts_with(':')).collect::<Vec<_>>().join(" ");
        let flow =
            |labels: Vec<(String, String)>| labels.into_iter().find(|(name, _)| name == "flow").map(|pair| pair.1);
        let samples = said(profile).into_iter().zip(&profile.sample);
        samples
            .map(|((stack, labels, _), sample)| {
                (stack.into_iter().map(name).collect(), flow(labels), *sample.value.last().expect("a value"))
            })
            .collect()
    };
    let stack = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    assert_eq!(short(&decode(&encoded[0])), [(stack(&["leaf", "main"]), Some("theirs".into()), 70)]);
    let expected = [
        (stack(&["leaf", "main"]), None, 30),
        (stack(&["leaf", "main", "(concurrent task)"]), Some("concurrent".into()), 40),
    ];
    assert_eq!(short(&decode(&encoded[1])), expected);
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
    for part in ["PeriodType: cpu nanoseconds", "Period: 10000000", "span_id:[0000000000000abc]", "leaf a.py:12:0 s=10"]
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
