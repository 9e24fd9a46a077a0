//! Profiles that are unusual and valid: those of other profilers, deep ones, ones with addresses only.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{PERIOD, Server, profile, span};
use serde_json::json;
use spanprof_core::wire::pprof::{Label, Mapping, Profile, ValueType};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";

fn string(profile: &mut Profile, text: &str) -> i64 {
    profile.string_table.push(text.into());
    i64::try_from(profile.string_table.len()).unwrap() - 1
}

#[test]
fn a_sample_type_that_counts_samples_is_what_counts_them() {
    let server = Server::start();
    let mut go = profile(&[(&["main:1", "work:2"], &[("span_id", ROOT)], 7)]);
    let (samples, count) = (string(&mut go, "samples"), string(&mut go, "count"));
    go.sample_type.insert(0, ValueType { r#type: samples, unit: count });
    go.sample[0].value = vec![3, 7 * PERIOD];
    assert_eq!(server.push("shop", &go).status, 200);
    let cpu = server.json(&format!("/api/flame?span={ROOT}"));
    assert_eq!((&cpu["total"], &cpu["samples"]), (&json!(7 * PERIOD), &json!(3)));
    assert_eq!(cpu["profile_type"], "process_cpu:cpu:nanoseconds:cpu:nanoseconds");
    let counts = server.json(&format!("/api/flame?span={ROOT}&type=process_cpu:samples:count:cpu:nanoseconds"));
    assert_eq!((&counts["total"], &counts["unit"]), (&json!(3), &json!("count")));
    assert_eq!(server.json("/api/services")["services"][0]["cpu_ns"], 7 * PERIOD);
}

#[test]
fn a_stack_that_is_too_deep_keeps_its_leaf() {
    let server = Server::start();
    let mut deep = profile(&[(&["main:1", "recurse:2", "leaf:3"], &[], 1)]);
    let [leaf, recurse, main] = deep.sample[0].location_id[..] else { unreachable!() };
    deep.sample[0].location_id = [vec![leaf], vec![recurse; 2_000], vec![main]].concat();
    assert_eq!(server.push("shop", &deep).status, 200);
    let text = server.get("/folded?service=shop").text();
    let frames: Vec<&str> = text.split(';').collect();
    assert_eq!((frames.len(), frames[0], frames[999]), (1_000, "(callers beyond 1,000 frames)", "leaf 10000000\n"));
    assert_eq!(server.json("/api/top?service=shop")["functions"][1]["total"], PERIOD);
    // A thousand levels are more than this test's JSON reader follows.
    let graph = server.get("/api/flame?service=shop");
    assert!(graph.status == 200 && graph.text().contains("\"total\":10000000"));
    assert_eq!(server.get("/flame.svg?service=shop").status, 200);
}

#[test]
fn an_address_without_a_line_is_its_own_name() {
    let server = Server::start();
    let mut native = profile(&[(&["main:1", "x:2"], &[], 1)]);
    let library = string(&mut native, "libnative.so");
    native.mapping.push(Mapping { id: 7, filename: library, ..Mapping::default() });
    let location = native.location.iter_mut().find(|location| location.id == native.sample[0].location_id[0]).unwrap();
    location.line.clear();
    location.address = 0xdead_beef;
    location.mapping_id = 7;
    assert_eq!(server.push("shop", &native).status, 200);
    let top = server.json("/api/top?service=shop");
    assert_eq!(
        (&top["functions"][0]["function"], &top["functions"][0]["file"]),
        (&json!("0xdeadbeef"), &json!("libnative.so"))
    );
}

#[test]
fn inlined_functions_and_an_empty_stack_are_frames() {
    let server = Server::start();
    let mut inlined = profile(&[(&["main:1", "outer:2", "inner:3"], &[], 1)]);
    let [inner, outer, _] = inlined.sample[0].location_id[..] else { unreachable!() };
    let lines: Vec<_> = [inner, outer]
        .iter()
        .map(|id| inlined.location.iter().find(|location| location.id == *id).unwrap().line[0])
        .collect();
    inlined.location.iter_mut().find(|location| location.id == inner).unwrap().line = lines;
    inlined.sample[0].location_id.remove(1);
    inlined.sample.push(spanprof_core::wire::pprof::Sample { value: vec![PERIOD], ..Default::default() });
    assert_eq!(server.push("shop", &inlined).status, 200);
    assert_eq!(server.get("/folded?service=shop").text(), "(no stack) 10000000\nmain;outer;inner 10000000\n");
}

#[test]
fn other_labels_make_series_and_numbers_do_not() {
    let server = Server::start();
    let mut labelled = profile(&[
        (&["main:1"], &[("span_id", ROOT), ("region", "eu")], 1),
        (&["main:1"], &[("span_id", ROOT), ("region", "us")], 2),
    ]);
    let bytes = string(&mut labelled, "bytes");
    labelled.sample[0].label.push(Label { key: bytes, str: 0, num: 512, num_unit: 0 });
    assert_eq!(server.push("shop", &labelled).status, 200);
    let flame = server.json(&format!("/api/flame?span={ROOT}"));
    assert_eq!((&flame["samples"], flame["frames"].as_array().unwrap().len()), (&json!(3), 2));
    let services = server.json("/api/services");
    assert_eq!((&services["services"][0]["profiles"], &services["services"][0]["samples"]), (&json!(1), &json!(3)));
}

#[test]
fn rubys_older_labels_are_understood() {
    let server = Server::start();
    let labels = [("profile_id", ROOT), ("span", "Cart#show")];
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &labels, 2)])).status, 200);
    let names = server.json("/api/spans?service=shop");
    assert_eq!((&names["spans"][0]["name"], &names["spans"][0]["cpu_ns"]), (&json!("Cart#show"), &json!(2 * PERIOD)));
}

#[test]
fn a_span_that_only_its_id_is_known_of_is_listed_as_unnamed() {
    let server = Server::start();
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[("span_id", ROOT)], 2)])).status, 200);
    let names = server.json("/api/spans?service=shop");
    assert_eq!(names["spans"][0]["name"], "(unnamed span)");
    assert_eq!(server.json("/api/flame?service=shop&name=(unnamed%20span)")["total"], 2 * PERIOD);
    // Its trace comes later and names it.
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 60)]).status, 200);
    assert_eq!(server.json("/api/spans?service=shop")["spans"][0]["name"], "GET /cart");
    assert_eq!(server.json("/api/flame?service=shop&name=(unnamed%20span)")["total"], 0);
}

#[test]
fn a_repeated_export_does_not_count_twice() {
    let server = Server::start();
    for _ in 0..2 {
        assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 60)]).status, 200);
    }
    assert_eq!(server.json("/api/spans?service=shop")["spans"][0]["count"], 1);
}
