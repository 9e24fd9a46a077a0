//! Why nothing was found: the API, its page and `spanprof top` say the same, and none says that there is nothing of what there is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::process::Output;

use common::{Server, profile, request, span, spanprof, wall, with_attribute, words};
use prost::Message as _;
use serde_json::Value;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";
const CHILD: &str = "00f067aa0ba902b8";

/// A service of each kind: `shop` sends CPU and all time by root span and traces, `stock` CPU alone, `mem` CPU of one span and memory of
/// another, `nap` CPU of one and all time of another, `till` traces alone; nothing of `broken` could be taken.
/// No sample of `plain` carries a span.
fn server() -> Server {
    let server = Server::start();
    let cart = [("span_id", ROOT), ("span_name", "GET /cart")];
    let load = [("span_id", "00f067aa0ba902c1"), ("span_name", "load")];
    let cpu = profile(&[(&["main:1"], &cart, 5)]);
    for service in ["shop", "stock", "mem"] {
        assert_eq!(server.push(service, &cpu).status, 200);
    }
    assert_eq!(server.push_as("wall", "shop", &wall(&[(&["main:1"], &cart, "io", 1, 20)])).status, 200);
    assert_eq!(server.push_as("memory", "mem", &profile(&[(&["main:1"], &load, 5)])).status, 200);
    let root = with_attribute(span(TRACE, ROOT, "", "GET /cart", 0, 600), "pyroscope.profile.id", ROOT);
    let child = span(TRACE, CHILD, ROOT, "render", 1, 500);
    assert_eq!(server.trace("shop", vec![root, child]).status, 200);
    assert_eq!(server.trace("till", vec![span(&TRACE.replace('4', "5"), CHILD, "", "pay", 0, 40)]).status, 200);
    // What slept burnt nothing.
    let nap = [("span_id", "00f067aa0ba902c2"), ("span_name", "sleep")];
    assert_eq!(server.push("nap", &cpu).status, 200);
    assert_eq!(server.push_as("wall", "nap", &wall(&[(&["main:1"], &nap, "sleep", 1, 20)])).status, 200);
    // Memory is of no span there.
    assert_eq!(server.push("deep", &cpu).status, 200);
    assert_eq!(server.push_as("memory", "deep", &profile(&[(&["main:1"], &[], 5)])).status, 200);
    let (root, child) = ("00f067aa0ba902d1", "00f067aa0ba902d2");
    let trace = TRACE.replace('4', "6");
    let spans = vec![span(&trace, root, "", "GET /cart", 0, 600), span(&trace, child, root, "render", 1, 500)];
    assert_eq!(server.trace("deep", spans).status, 200);
    assert_eq!(server.push("plain", &profile(&[(&["main:1"], &[], 5)])).status, 200);
    let trace = TRACE.replace('4', "7");
    assert_eq!(server.trace("plain", vec![span(&trace, "00f067aa0ba902e1", "", "pay", 0, 40)]).status, 200);
    assert_eq!(server.post("/ingest?name=broken&from=yesterday", &[], b"").status, 400);
    server
}

/// What `spanprof top` says of a selection.
fn top(server: &Server, selection: &str) -> (bool, String) {
    let Output { status, stdout, stderr } =
        spanprof().args(["top", "--url", &server.url]).args(selection.split('&')).output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

#[test]
fn why_there_is_no_sample_is_said_alike_everywhere() {
    let server = server();
    // The selection; the API's reason; whether `top` ends well, and what it says; what the page says.
    for (selection, reason, ends_well, says, page) in [
        (
            "service=shpo",
            "no_service",
            false,
            "there is no service \"shpo\"; there are profiles of: ",
            "Nothing is stored of a service \"shpo\".",
        ),
        (
            "service=broken",
            "refused",
            false,
            "No profile of broken is stored, and some were refused",
            "No profile of this service is stored, and some were refused.",
        ),
        (
            "service=till",
            "no_profiles",
            true,
            "till sends traces, and no profiles come under this name.",
            "Traces but no profiles yet. Start the profiler",
        ),
        ("service=till&name=pay", "no_profiles", true, "till sends traces", "Traces but no profiles yet."),
        (
            "service=till&name=bay",
            "no_span",
            false,
            "no span of till is named \"bay\"; there are: pay\n",
            "No span of till is named \"bay\".",
        ),
        (
            "service=shop&name=nowhere",
            "no_span",
            false,
            "no span of shop is named \"nowhere\"; there are: GET /cart, render\n",
            "No span of shop is named \"nowhere\".",
        ),
        (
            "service=stock&type=wall",
            "no_type",
            true,
            "stock sends process_cpu, and no wall. PYROSCOPE_PROFILING_WALLTIME_ENABLED=true in",
            "What these spans wait for is not measured.",
        ),
        (
            "service=stock&type=memory&name=GET /cart",
            "no_type",
            true,
            "stock sends process_cpu, and no memory.\n",
            "stock sends process_cpu, and no memory.",
        ),
        // It cannot have what nothing of the service has, whatever its spans are labelled with.
        ("service=shop&type=memory&name=render", "no_type", true, "and no memory.\n", "and no memory."),
        // Of each of the types that have samples of it.
        (
            "service=mem&name=load",
            "other_type",
            true,
            "Spans of mem named \"load\" have samples of memory, and none of process_cpu.\n",
            "have samples of memory, and none of process_cpu. Look at cpu .",
        ),
        (
            "service=nap&name=sleep",
            "other_type",
            true,
            "Spans of nap named \"sleep\" have samples of wall, wall:wait_count:count:wall:nanoseconds, and none of process_cpu.\n",
            "and none of process_cpu. Look at wall .",
        ),
        (
            "service=shop&name=render",
            "child_span",
            true,
            "No sample of shop so far is of a child span such as \"render\": if its profiler labels root spans alone",
            "No sample of this service so far is of a child span. If its profiler labels root spans alone (scope root)",
        ),
        // All time is measured in spans alone: that none came does not say that it is not measured.
        (
            "service=plain&type=wall",
            "unlabelled",
            true,
            "No sample carries a span. Add the profiler's span processor to the tracer provider; in Ruby an exporter's too",
            "No sample carries a span. Add the profiler's span processor to the tracer provider; in Ruby an exporter's too",
        ),
        (
            "service=plain&type=wall&name=pay",
            "unlabelled",
            true,
            "No sample carries a span. Add the profiler's span processor to the tracer provider; in Ruby an exporter's too",
            "No sample carries a span. Add the profiler's span processor to the tracer provider; in Ruby an exporter's too",
        ),
        (
            "service=plain&name=pay",
            "unlabelled",
            true,
            "No sample carries a span. Add the profiler's span processor to the tracer provider; in Ruby an exporter's too",
            "No sample carries a span. Add the profiler's span processor to the tracer provider; in Ruby an exporter's too",
        ),
        (
            "service=plain&name=bay",
            "no_span",
            false,
            "no span of plain is named \"bay\"; there are: pay\n",
            "No span of plain",
        ),
        ("service=plain&type=memory", "no_type", true, "and no memory.\n", "plain sends process_cpu, and no memory."),
    ] {
        let path = selection.replace(' ', "%20");
        let absence = &server.json(&format!("/api/top?{path}"))["absence"];
        assert_eq!(absence["reason"], reason, "{selection}");
        let (ended_well, said) = top(&server, selection);
        assert!(ended_well == ends_well && said.contains(says), "{selection}: {ended_well} {said}");
        let text = words(&server.page(&format!("/flame?{path}")));
        assert!(text.contains(page) && !text.contains("No sample was taken"), "{selection}: {text}");
    }
}

#[test]
fn nothing_is_said_to_be_missing_that_is_there() {
    let server = server();
    for selection in [
        "service=shop",
        "service=shop&type=wall&state=sleep",
        "service=shop&type=wall:wall:nanoseconds:wall:nanoseconds&state=sleep",
        "service=shop&label.region=eu",
        "service=plain",
        "service=mem&name=load&type=memory",
        "service=deep&type=memory&name=render",
        // Nothing came then.
        "service=shop&type=wall&from=1000&to=2000",
        // Of a single trace its page says what is missing.
        "service=till&trace=5bf92f3577b35da6a3ce929d0e0e5736",
        "name=nowhere",
    ] {
        let answer = server.json(&format!("/api/top?{selection}"));
        assert_eq!(answer["absence"], Value::Null, "{selection}: {answer}");
        let text = words(&server.page(&format!("/flame?{selection}")));
        assert!(
            ["No span of", "not measured", "Nothing is stored of"].iter().all(|says| !text.contains(says)),
            "{text}"
        );
        let (ended_well, said) = top(&server, selection);
        assert!(ended_well && !said.contains(" and no "), "{selection}: {said}");
    }
}

#[test]
fn how_time_is_measured_is_said_for_who_sends() {
    for (spy, says) in [
        ("spanprof-python", "wall_time=True in pyroscope.configure, or PYROSCOPE_PROFILING_WALLTIME_ENABLED=true"),
        (
            "",
            "and no wall. PYROSCOPE_PROFILING_WALLTIME_ENABLED=true in the service's environment shows where the time of its spans goes.\n",
        ),
        ("gospy", "and no wall. This service's profiler cannot tell.\n"),
        ("javaspy", "and no wall. PYROSCOPE_PROFILER_EVENT=wall samples wall time in place of CPU time.\n"),
        ("ebpfspy", "The eBPF profiler's -off-cpu-threshold samples waits"),
    ] {
        let server = Server::start();
        let labels = [("__name__", "process_cpu"), ("service_name", "shop"), ("pyroscope_spy", spy)];
        let body = request(&labels, profile(&[(&["main:1"], &[("span_id", ROOT)], 20)]).encode_to_vec());
        let headers = [("content-type", "application/proto")];
        assert_eq!(server.post("/push.v1.PusherService/Push", &headers, &body).status, 200);
        let (ended_well, said) = top(&server, "service=shop&type=wall");
        assert!(ended_well && said.contains(says), "{spy}: {said}");
    }
}

#[test]
fn who_cannot_measure_time_is_not_sent_to_label_spans_for_it() {
    for (spy, says) in [
        ("spanprof-ruby", "No sample carries a span. Add the profiler's span processor"),
        ("gospy", "and no wall. This service's profiler cannot tell.\n"),
        ("javaspy", "and no wall. PYROSCOPE_PROFILER_EVENT=wall samples"),
    ] {
        let server = Server::start();
        let labels = [("__name__", "process_cpu"), ("service_name", "shop"), ("pyroscope_spy", spy)];
        let body = request(&labels, profile(&[(&["main:1"], &[], 20)]).encode_to_vec());
        let headers = [("content-type", "application/proto")];
        assert_eq!(server.post("/push.v1.PusherService/Push", &headers, &body).status, 200);
        let (ended_well, said) = top(&server, "service=shop&type=wall");
        assert!(ended_well && said.contains(says), "{spy}: {said}");
    }
}

#[test]
fn a_long_name_that_there_is_none_of_is_said_in_short() {
    let server = server();
    let (long, said) = ("é".repeat(2_000), format!("{:?}", "é".repeat(100) + "…"));
    for selection in [format!("service=shop&name={long}"), format!("service={long}")] {
        let sentence =
            server.json(&format!("/api/top?{selection}"))["absence"]["sentence"].as_str().unwrap().to_owned();
        let (ended_well, printed) = top(&server, &selection);
        assert!(!ended_well && sentence.contains(&said) && printed.contains(&said), "{sentence} {printed}");
        assert!(sentence.chars().count() < 200 && printed.chars().count() < 500, "{sentence} {printed}");
    }
}

#[test]
fn a_service_without_profiles_is_none_that_there_are_profiles_of() {
    let server = server();
    let (ended_well, said) = top(&server, &format!("service=till&trace={}", TRACE.replace('4', "5")));
    assert!(ended_well && said.contains("There are profiles of: ") && !said.contains("till ("), "{said}");
}
