//! The engine's part of the vectors that all languages share (tests/conformance).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

mod support;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use spanprof_core::{
    Config, ErrorKind, Profiler, Secret, SpanContext, Stats, add_thread_tag, check_tag_name, parse_trace_id,
    remove_thread_tag, span_end, span_start,
};
use spanprof_faults::{Options, Push, Reply, Server};
use support::{Addresses, PATIENT, Sample, burn, read};

/// There is one profiler a process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn vectors(file: &str) -> Value {
    let path = format!("{}/../tests/conformance/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// A text, as it is or as a list of [text, times].
fn text(value: &Value) -> String {
    let repeated = |part: &Value| part[0].as_str().unwrap().repeat(part[1].as_u64().unwrap().try_into().unwrap());
    value.as_str().map_or_else(|| list(value).map(repeated).collect(), str::to_owned)
}

/// Values of JSON as users write them in code.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What a case's environment and settings give.
fn configured(vectors: &Value, case: &Value, place: &str) -> Result<Config, spanprof_core::Error> {
    let mut environment: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in entries(&vectors["defaults"]).chain(entries(&case["environment"])) {
        environment.insert(name, text(value).replace("PLACE", place));
    }
    let mut config = Config::from_environment(|name| environment.get(name).cloned())?;
    for (name, value) in entries(&case["settings"]) {
        let value_text = plain(value).replace("PLACE", place);
        match name.as_str() {
            "application_name" => config.application_name = value_text,
            "server_address" => config.server_address = value_text,
            "basic_auth_username" => config.basic_auth_user = value_text,
            "basic_auth_password" => config.basic_auth_password = Secret(value_text),
            "tenant_id" => config.tenant_id = value_text,
            "http_headers" => {
                config.http_headers = entries(value).map(|(name, value)| (name.clone(), Secret(text(value)))).collect();
            }
            "tags" => config.tags.extend(entries(value).map(|(name, value)| (name.clone(), text(value)))),
            "sample_rate" => config.sample_rate = value.as_u64().unwrap().try_into().unwrap(),
            "upload_interval" => config.upload_interval = Duration::from_secs_f64(value.as_f64().unwrap()),
            "trace_id" => config.trace_id = parse_trace_id(name, &value_text)?,
            _ => panic!("{name} is no setting of the engine"),
        }
    }
    Ok(config)
}

/// What arrives of a profiler with these settings.
fn sent(vectors: &Value, case: &Value) -> Push {
    let server = Server::start(Vec::new(), Reply::Ok, Options::default());
    let config = configured(vectors, case, &format!("127.0.0.1:{}", server.port)).unwrap();
    let profiler = Profiler::start(config, &Addresses).unwrap();
    burn(Duration::from_millis(10));
    assert!(profiler.stop(PATIENT), "{case}: {:?}", profiler.stats());
    let newest = server.seen().newest.take();
    newest.unwrap()
}

/// Asserts that what is expected is there, and what is null is not.
fn assert_has<'a>(case: &Value, expected: &Value, find: impl Fn(&str) -> Option<&'a str>) {
    for (name, value) in entries(expected) {
        let wanted = (!value.is_null()).then(|| text(value));
        assert_eq!(find(name), wanted.as_deref(), "{name} of {case}");
    }
}

#[test]
fn settings() {
    let _alone = alone();
    let vectors = vectors("settings");
    for case in list(&vectors["cases"]).filter(|case| case["only"] != "bindings") {
        let checked = configured(&vectors, case, "127.0.0.1:9").and_then(|config| config.check().map(|()| config));
        if let Some(error) = case["error"].as_str() {
            assert_eq!(checked.expect_err(&case.to_string()).message(), error);
            continue;
        }
        let config = checked.unwrap_or_else(|error| panic!("{case}: {error}"));
        if let Some(starts) = case["starts"].as_bool() {
            let started = Profiler::start(Config { server_address: "none".to_owned(), ..config }, &Addresses);
            assert_eq!(started.as_ref().err().map(|error| error.kind()), (!starts).then_some(ErrorKind::Disabled));
            started.iter().for_each(|profiler| assert!(profiler.stop(PATIENT)));
            continue;
        }
        let push = sent(&vectors, case);
        let expected = &case["sent"];
        let header = |name: &str| push.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_has(case, &expected["headers"], header);
        assert_has(case, &expected["labels"], |name| push.labels.get(name).map(String::as_str));
        if let Some(path) = expected["path"].as_str() {
            assert_eq!(push.path, path, "{case}");
        }
        if let Some(period) = expected["period"].as_i64() {
            assert_eq!(push.profile.period, period, "{case}");
        }
    }
}

#[test]
fn tags_of_all_profiles() {
    let _alone = alone();
    let vectors = vectors("tags");
    let with = |tags: Vec<(String, String)>| Config { application_name: "app".to_owned(), tags, ..Config::default() };
    let refusal = |name: &str| with(vec![(name.to_owned(), "x".to_owned())]).check().err();
    for name in list(&vectors["names"]) {
        assert_eq!(refusal(&text(name)), None);
    }
    for (name, why) in entries(&vectors["refused_names"]) {
        assert_eq!(refusal(name).unwrap().message(), format!("tags: {}", text(why)));
        assert_eq!(check_tag_name("call", name).unwrap_err().message(), format!("call: {}", text(why)));
    }
    let most = vectors["most"].as_u64().unwrap();
    let many = |most: u64| with((0..most).map(|number| (format!("t{number}"), String::new())).collect()).check();
    assert!(many(most).is_ok());
    assert_eq!(many(most + 1).unwrap_err().message(), text(&vectors["too_many"]));
    let defaults = self::vectors("settings");
    for case in list(&vectors["values"]) {
        let push = sent(&defaults, &serde_json::json!({ "settings": { "tags": { "cut": text(&case["value"]) } } }));
        assert_eq!(push.labels.get("cut"), Some(&text(&case["label"])));
    }
}

/// The samples that are taken while `work` runs.
fn sampled(work: impl FnOnce(&Profiler)) -> Vec<Sample> {
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(support::config(folder.path(), 1000), &Addresses).unwrap();
    work(&profiler);
    assert!(profiler.stop(PATIENT));
    read(folder.path())
}

/// Burns with a tag by which its samples are found, until there are some: a busy machine's ticks come late.
fn node(profiler: &Profiler, name: &str) {
    assert!(add_thread_tag("node", name));
    let enough = kept(profiler) + 2;
    for _ in 0..5_000 {
        burn(Duration::from_millis(1));
        if kept(profiler) >= enough {
            break;
        }
    }
    assert!(remove_thread_tag("node", name));
}

/// Samples that were taken and not lost.
fn kept(profiler: &Profiler) -> u64 {
    let stats = profiler.stats();
    stats.taken.samples - stats.dropped_ring.samples
}

/// Asserts that a node was sampled, and that each sample has these labels.
fn assert_labels(samples: &[Sample], node: &str, expected: &[(&str, Option<String>)]) {
    let of_node = |sample: &&Sample| sample.labels.get("node").map(String::as_str) == Some(node);
    assert!(samples.iter().any(|sample| of_node(&sample)), "{node} was not sampled");
    for sample in samples.iter().filter(of_node) {
        for (name, value) in expected {
            assert_eq!(sample.labels.get(*name), value.as_ref(), "{name} in {node}");
        }
    }
}

#[test]
fn tags_of_a_part_of_the_program() {
    let _alone = alone();
    let vectors = vectors("tags");
    let blocks: Vec<&Value> = list(&vectors["blocks"]).collect();
    let samples = sampled(|profiler| {
        for (number, case) in blocks.iter().enumerate() {
            // Those of threads: an execution context of its own is the host's.
            let tags: Vec<_> = list(&case["enter"]).flat_map(entries).collect();
            tags.iter().for_each(|(name, value)| assert!(add_thread_tag(name, &text(value))));
            node(profiler, &number.to_string());
            tags.iter().for_each(|(name, value)| assert!(remove_thread_tag(name, &text(value))));
        }
    });
    for (number, case) in blocks.iter().enumerate() {
        let labels: Vec<_> = entries(&case["labels"]).map(|(name, value)| (name.as_str(), Some(text(value)))).collect();
        assert_labels(&samples, &number.to_string(), &labels);
    }
}

#[test]
fn names_and_ids_of_spans() {
    let _alone = alone();
    let vectors = vectors("spans");
    let names: Vec<&Value> = list(&vectors["names"]).collect();
    let ids: Vec<(String, String)> =
        list(&vectors["ids"]).map(|case| (text(&case["trace_id"]), text(&case["span_id"]))).collect();
    let samples = sampled(|profiler| {
        // A name belongs to an id, so none of the other list's.
        for (number, case) in (1_000..).zip(&names) {
            span_start(number, &text(&case["name"]));
            node(profiler, &format!("name {number}"));
            span_end();
        }
        for (trace_id, span_id) in &ids {
            let half = |hex: &str| u64::from_str_radix(hex, 16).unwrap();
            let trace = [half(&trace_id[..16]), half(&trace_id[16..])];
            span_start(SpanContext { trace_id: trace, span_id: half(span_id) }, "ids");
            node(profiler, span_id);
            span_end();
        }
    });
    for (number, case) in (1_000..).zip(&names) {
        assert_labels(&samples, &format!("name {number}"), &[("span_name", Some(text(&case["label"])))]);
    }
    for (trace_id, span_id) in &ids {
        let expected = [("trace_id", Some(trace_id.clone())), ("span_id", Some(span_id.clone()))];
        assert_labels(&samples, span_id, &expected);
    }
}

/// Runs in a span and in those within it; bindings alone know which spans are local roots.
fn run(profiler: &Profiler, spans: &Value, next: &mut u64, innermost: &mut BTreeMap<String, u64>) {
    for span in list(spans) {
        let (name, id) = (text(&span["name"]), *next);
        *next += 1;
        // A span that nobody exports is not told to the engine.
        let is_sampled = span["sampled"] != false;
        if is_sampled {
            span_start(id, &name);
        }
        node(profiler, &name);
        run(profiler, &span["children"], next, innermost);
        node(profiler, &name);
        if is_sampled {
            span_end();
        }
        innermost.insert(name, id);
    }
}

fn each_span(spans: &Value, check: &impl Fn(&Value)) {
    for span in list(spans) {
        check(span);
        each_span(&span["children"], check);
    }
}

#[test]
fn scope_all() {
    let _alone = alone();
    let vectors = vectors("scopes");
    let mut ids = BTreeMap::new();
    let samples = sampled(|profiler| run(profiler, &vectors["spans"], &mut 1, &mut ids));
    each_span(&vectors["spans"], &|span| {
        let carried = span["all"].as_str();
        let id = carried.map(|name| format!("{:016x}", ids[name]));
        let expected = [("span_name", carried.map(str::to_owned)), ("span_id", id)];
        assert_labels(&samples, &text(&span["name"]), &expected);
    });
}

#[test]
fn statistics() {
    let vectors = vectors("stats");
    let names = |list_of: &str| list(&vectors[list_of]).map(text).collect::<Vec<_>>();
    let stats = Stats::default();
    assert_eq!(stats.tallies().map(|(name, _)| name).as_slice(), names("tallies"));
    assert_eq!(stats.numbers().map(|(name, _)| name).as_slice(), names("numbers"));

    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let profiler = Profiler::start(support::config(folder.path(), 1000), &Addresses).unwrap();
    burn(Duration::from_millis(20));
    assert_adds_up(&vectors, &profiler.stats());
    assert!(profiler.stop(PATIENT));
    let stats = profiler.stats();
    assert_adds_up(&vectors, &stats);
    assert!(stats.taken.samples > 0);
    let tallies = BTreeMap::from(stats.tallies());
    for name in names("nothing_after_a_stop") {
        assert_eq!((tallies[name.as_str()].samples, tallies[name.as_str()].weight), (0, 0), "{name}");
    }
}

fn assert_adds_up(vectors: &Value, stats: &Stats) {
    let (tallies, numbers) = (BTreeMap::from(stats.tallies()), BTreeMap::from(stats.numbers()));
    for (name, parts) in entries(&vectors["sums"]) {
        let of = |name: &str| match tallies.get(name) {
            Some(tally) => [tally.samples, tally.weight],
            None => [numbers[name]; 2],
        };
        let sum =
            list(parts).map(|part| of(&text(part))).fold([0, 0], |sum, part| [sum[0] + part[0], sum[1] + part[1]]);
        assert_eq!(of(name), sum, "{name} in {stats:?}");
    }
}
