//! A trace through services in Python, Ruby and .NET, each with the profile types of its profiler, some with two sample
//! types: numbers and units on every page.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{PERIOD, Server, gzip, profile, request, span};
use prost::Message as _;
use serde_json::{Value, json};
use spanprof_core::wire::pprof::{Profile, ValueType};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SHOP: &str = "00f067aa0ba902b7";
const SEARCH: &str = "00f067aa0ba902b8";
const ORDERS: &str = "00f067aa0ba902b9";
const PUSH: &str = "/push.v1.PusherService/Push";

/// A profile of one stack in one span, with a value of each sample type.
fn events(stack: &[&str], span: &str, name: &str, types: &[(&str, &str, i64)]) -> Profile {
    let mut events = profile(&[(stack, &[("span_id", span), ("trace_id", TRACE), ("span_name", name)], 1)]);
    let mut string = |text: &str| {
        events.string_table.push(text.into());
        i64::try_from(events.string_table.len()).unwrap() - 1
    };
    let types: Vec<_> = types
        .iter()
        .map(|(kind, unit, value)| (ValueType { r#type: string(kind), unit: string(unit) }, *value))
        .collect();
    events.sample_type = types.iter().map(|(kind, _)| *kind).collect();
    events.period_type = events.sample_type.last().copied();
    events.period = 1;
    events.sample[0].value = types.iter().map(|(_, value)| *value).collect();
    events
}

fn push(server: &Server, name: &str, service: &str, profile: &Profile) {
    let body = request(&[("__name__", name), ("service_name", service)], gzip(&profile.encode_to_vec()));
    let answer = server.post(PUSH, &[("content-type", "application/proto")], &body);
    assert_eq!(answer.status, 200, "{name} of {service}: {}", answer.text());
}

/// One request: Python serves it, asks Ruby, and Ruby asks .NET.
fn three_languages() -> Server {
    let server = Server::start();
    for (service, id, parent, name, start, wall) in [
        ("shop", SHOP, "", "GET /cart", 0, 600),
        ("search", SEARCH, SHOP, "POST /quote", 100, 400),
        ("orders", ORDERS, SEARCH, "Orders.Place", 150, 200),
    ] {
        assert_eq!(server.trace(service, vec![span(TRACE, id, parent, name, start, wall)]).status, 200);
    }
    for (service, id, name, stack, periods) in [
        ("shop", SHOP, "GET /cart", &["main@shop.py:1", "cart@shop.py:7"][..], 4),
        ("search", SEARCH, "POST /quote", &["<main>@search.rb:1", "Quote#total@search.rb:12"], 9),
        ("orders", ORDERS, "Orders.Place", &["Program.Main@:1", "System.Linq.Enumerable.Sum@:0"], 11),
    ] {
        let labels = [("span_id", id), ("trace_id", TRACE), ("span_name", name)];
        push(&server, "process_cpu", service, &profile(&[(stack, &labels, periods)]));
    }
    let orders = |name: &str, types: &[(&str, &str, i64)]| {
        push(&server, name, "orders", &events(&["Program.Main@:1", "Order.Place@:0"], ORDERS, "Orders.Place", types));
    };
    orders("memory", &[("alloc_samples", "count", 12), ("alloc_size", "bytes", 3 << 20)]);
    orders("lock", &[("lock_count", "count", 5), ("lock_time", "nanoseconds", 70_000_000)]);
    orders("exception", &[("exception", "count", 6)]);
    push(
        &server,
        "wall",
        "search",
        &events(
            &["<main>@search.rb:1", "IO#read@search.rb:20"],
            SEARCH,
            "POST /quote",
            &[("wall", "nanoseconds", 300_000_000)],
        ),
    );
    server
}

#[test]
fn a_waterfall_has_the_cpu_of_each_language() {
    let server = three_languages();
    let trace = server.json(&format!("/api/trace/{TRACE}"));
    assert_eq!(trace["cpu_ns"], 24 * PERIOD);
    let rows: Vec<_> = trace["spans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| (span["service"].as_str().unwrap(), span["own_cpu_ns"].as_i64(), span["inclusive_cpu_ns"].as_i64()))
        .collect();
    // Values of other types are no CPU.
    let row = |service, own: i64, inclusive: i64| (service, Some(own * PERIOD), Some(inclusive * PERIOD));
    assert_eq!(rows, [row("shop", 4, 24), row("search", 9, 20), row("orders", 11, 11)]);
    let page = server.page(&format!("/trace/{TRACE}"));
    assert!(page.contains("CPU in <b>3 services</b>") || page.contains("CPU in 3 services"), "{page}");
    let flame = server.json(&format!("/api/flame?trace={TRACE}"));
    assert_eq!((&flame["total"], &flame["samples"]), (&json!(24 * PERIOD), &json!(24)));
    let folded = server.get(&format!("/folded?trace={TRACE}")).text();
    assert_eq!(folded.lines().count(), 3, "{folded}");
    assert!(
        folded.contains("<main>;Quote#total 90000000") && folded.contains("System.Linq.Enumerable.Sum 110000000"),
        "{folded}"
    );
    // Ruby's and .NET's own frames fold too.
    let folded = server.get(&format!("/folded?trace={TRACE}&fold=1")).text();
    assert!(folded.contains("Program.Main;(runtime and libraries) 110000000"), "{folded}");
}

#[test]
fn both_sample_types_of_a_profile_have_their_units() {
    let server = three_languages();
    for (profile_type, total, unit) in [
        ("memory", 3 << 20, "bytes"),
        ("memory:alloc_samples:count:alloc_size:bytes", 12, "count"),
        ("memory:alloc_size:bytes:alloc_size:bytes", 3 << 20, "bytes"),
        ("lock", 70_000_000, "nanoseconds"),
        ("lock:lock_count:count:lock_time:nanoseconds", 5, "count"),
        ("exception", 6, "count"),
    ] {
        let flame = server.json(&format!("/api/flame?span={ORDERS}&type={profile_type}"));
        assert_eq!((&flame["total"], &flame["unit"]), (&json!(total), &json!(unit)), "{profile_type}");
        let top = server.json(&format!("/api/top?service=orders&type={profile_type}"));
        assert_eq!((&top["functions"][0]["own"], &top["unit"]), (&json!(total), &json!(unit)), "{profile_type}");
        let names = server.json(&format!("/api/spans?service=orders&type={profile_type}"));
        assert_eq!(
            (&names["spans"][0]["beside"], &names["beside"]["unit"]),
            (&json!(total), &json!(unit)),
            "{profile_type}"
        );
        // So many of them were taken, whatever they weigh.
        let samples = if profile_type.starts_with("memory") {
            12
        } else if profile_type.starts_with("lock") {
            5
        } else {
            6
        };
        assert_eq!(flame["samples"], samples, "{profile_type}");
        // What stands beside CPU does not change it.
        assert_eq!(names["spans"][0]["cpu_ns"], 11 * PERIOD);
    }
    assert_eq!(server.json(&format!("/api/flame?span={SEARCH}&type=wall"))["total"], 300_000_000);
}

#[test]
fn pages_write_values_in_their_units() {
    let server = three_languages();
    for (profile_type, says) in [
        ("memory", "3.00 MiB"),
        ("memory:alloc_samples:count:alloc_size:bytes", ">12<"),
        ("lock", "70.0 ms"),
        ("lock:lock_count:count:lock_time:nanoseconds", ">5<"),
        ("exception", ">6<"),
    ] {
        for path in [
            "/flame?service=orders&type=",
            "/spans?service=orders&type=",
            "/function?service=orders&function=Order.Place&type=",
        ] {
            let page = server.page(&format!("{path}{profile_type}"));
            assert!(page.contains(says), "{path}{profile_type} does not say {says:?}: {page}");
        }
    }
    let services = server.json("/api/services");
    let orders = services["services"].as_array().unwrap().iter().find(|row| row["service"] == "orders").unwrap();
    let words: Vec<_> =
        orders["profile_types"].as_array().unwrap().iter().map(|row| row["word"].as_str().unwrap()).collect();
    assert_eq!(words, ["cpu", "exception", "lock_time", "lock_count", "alloc_size", "alloc_samples"]);
    assert_eq!((&orders["cpu_ns"], &orders["samples"]), (&json!(11 * PERIOD), &json!(11)));
}

#[test]
fn the_query_api_has_all_types() {
    let server = three_languages();
    let ask = |method: &str, body: Value| -> Value {
        let path = format!("/querier.v1.QuerierService/{method}");
        let answer = server.post(&path, &[("content-type", "application/json")], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    };
    let types = ask("ProfileTypes", json!({ "start": "1", "end": "99999999999999" }));
    let ids: Vec<_> = types["profileTypes"].as_array().unwrap().iter().map(|row| row["ID"].as_str().unwrap()).collect();
    assert_eq!(
        ids,
        [
            "exception:exception:count:exception:count",
            "lock:lock_count:count:lock_time:nanoseconds",
            "lock:lock_time:nanoseconds:lock_time:nanoseconds",
            "memory:alloc_samples:count:alloc_size:bytes",
            "memory:alloc_size:bytes:alloc_size:bytes",
            "process_cpu:cpu:nanoseconds:cpu:nanoseconds",
            "wall:wall:nanoseconds:wall:nanoseconds",
        ]
    );
    let merge = json!({ "start": "1", "end": "99999999999999", "labelSelector": "{service_name=\"orders\"}", "spanSelector": [ORDERS],
        "profileTypeID": "memory:alloc_size:bytes:alloc_size:bytes" });
    let graph = ask("SelectMergeStacktraces", merge);
    assert_eq!(graph["flamegraph"]["total"], (3 << 20).to_string());
}
