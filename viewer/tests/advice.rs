//! What pages advise fits what a service is sent with, and nobody is told to start a profiler whose profiles were refused.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::Path;

use common::{Server, attribute, export, profile, request, span, with_attribute, words};
use prost::Message as _;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";
const CHILD: &str = "00f067aa0ba902b8";

/// Sends a root span and a child as an SDK of this language does.
fn traces(server: &Server, service: &str, language: &str) {
    let root = with_attribute(span(TRACE, ROOT, "", "GET /cart", 0, 600), "pyroscope.profile.id", ROOT);
    let mut traces = export(service, vec![root, span(TRACE, CHILD, ROOT, "render", 1, 500)]);
    let resource = traces.resource_spans[0].resource.as_mut().unwrap();
    resource.attributes.push(attribute("telemetry.sdk.language", language));
    let answer = server.post("/v1/traces", &[("content-type", "application/x-protobuf")], &traces.encode_to_vec());
    assert_eq!(answer.status, 200);
}

/// Pushes CPU time as this profiler does.
fn push_as(server: &Server, service: &str, spy: &str, labels: &[(&str, &str)]) {
    let pairs = [("__name__", "process_cpu"), ("service_name", service), ("pyroscope_spy", spy)];
    let body = request(&pairs, profile(&[(&["main:1"], labels, 20)]).encode_to_vec());
    let answer = server.post("/push.v1.PusherService/Push", &[("content-type", "application/proto")], &body);
    assert_eq!(answer.status, 200);
}

fn assert_says(server: &Server, path: &str, says: &[&str], not: &[&str]) {
    let text = words(&server.page(path));
    for part in says {
        assert!(text.contains(part), "{path}: no {part:?} in {text}");
    }
    for part in not {
        assert!(!text.contains(part), "{path}: {part:?} in {text}");
    }
}

#[test]
fn how_a_profiler_is_started_is_said_in_its_language() {
    for (language, says) in [
        ("go", "pyroscope.Start(pyroscope.Config{"),
        ("java", "-Dotel.javaagent.extensions"),
        ("nodejs", "Pyroscope.init({"),
        ("python", "with its server address"),
        ("cpp", "eBPF"),
    ] {
        let server = Server::start();
        traces(&server, "shop", language);
        assert_says(&server, "/", &["Traces but no profiles yet: shop", says], &[]);
    }
}

#[test]
fn how_each_span_is_labelled_is_said_for_the_profiler_that_sent_it() {
    for (spy, no_span, all_spans) in [
        (
            "gospy",
            "otelpyroscope.NewTracerProvider(provider)",
            "WithSpanIDLabelScope(otelpyroscope.ScopeAllSpans) and otelpyroscope.WithSpanNameLabelScope",
        ),
        ("javaspy", "pyroscope-otel.jar", "-Dotel.pyroscope.root.span.only=false"),
        ("nodespy", "Pyroscope.wrapWithLabels({ span_id, span_name }, work)", "Pyroscope.wrapWithLabels"),
        ("dotnetspy", "new PyroscopeSpanProcessor()", "OTEL_PYROSCOPE_ROOT_SPAN_ONLY=false"),
        ("spanprof-ruby", "the profiler's span processor", "OTEL_PYROSCOPE_ROOT_SPAN_ONLY=false"),
    ] {
        for (labels, advice) in [(&[][..], no_span), (&[("span_id", ROOT)], all_spans)] {
            let server = Server::start();
            push_as(&server, "shop", spy, labels);
            // What its SDK is written in says less than the profiler itself.
            traces(&server, "shop", "python");
            assert_says(&server, "/", &[advice], &["wall_time=True"]);
            assert_says(&server, "/spans?service=shop", &[advice], &["wall_time=True"]);
            if !labels.is_empty() {
                let says = [
                    "No sample of this service so far is of a child span. If its profiler labels root spans alone",
                    advice,
                ];
                assert_says(
                    &server,
                    "/flame?service=shop&name=render",
                    &says,
                    &["No sample was", "Sampled by root span"],
                );
            }
        }
    }
}

#[test]
fn how_waits_are_measured_is_said_in_the_language_that_sent_the_profiles() {
    const NONE: &str = "is not measured. PYROSCOPE_PROFILING_WALLTIME_ENABLED=true in the service's environment";
    let python = "wall_time=True in pyroscope.configure , or PYROSCOPE_PROFILING_WALLTIME_ENABLED=true";
    let ruby = "config.wall_time = true in Pyroscope.configure , or PYROSCOPE_PROFILING_WALLTIME_ENABLED=true";
    let dotnet =
        "WallTimeProfilingEnabled = true in the settings of AddPyroscope or Configure , or PYROSCOPE_PROFILING";
    for (spy, language, says) in [
        ("spanprof-python", "python", python),
        ("spanprof-ruby", "python", ruby),
        ("spanprof-dotnet", "dotnet", dotnet),
        // Its traces alone say the language, or nothing does.
        ("", "ruby", ruby),
        ("", "dotnet", dotnet),
        ("spanprof-lua", "lua", NONE),
        ("", "", NONE),
    ] {
        let server = Server::start();
        push_as(&server, "shop", spy, &[("span_id", ROOT), ("span_name", "GET /cart")]);
        traces(&server, "shop", language);
        let others: Vec<&str> = ["wall_time=True", "config.wall_time", "WallTimeProfilingEnabled"]
            .into_iter()
            .filter(|setting| !says.starts_with(setting))
            .collect();
        assert_says(&server, "/spans?service=shop", &[says], &others);
        let sender = server.json("/api/spans?service=shop")["sender"].clone();
        assert_eq!(
            sender,
            if says == NONE && spy.is_empty() { serde_json::json!(null) } else { serde_json::json!("ours") }
        );
    }
}

#[test]
fn services_of_several_languages_with_one_advice_share_a_sentence() {
    let server = Server::start();
    traces(&server, "cart", "ruby");
    traces(&server, "shop", "python");
    traces(&server, "stock", "go");
    assert_says(
        &server,
        "/",
        &["no profiles yet: cart, shop . Start the profiler", "no profiles yet: stock . Start"],
        &[],
    );
}

/// What the Collector and the eBPF profiler's reporter sent (tests/clients/collector), and the same with other resources.
#[test]
fn what_comes_by_otlp_gets_the_advice_for_who_sent_it() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/collector/fixtures");
    let recorded = |name: &str| std::fs::read_to_string(fixtures.join(name)).unwrap();
    let unlinked = recorded("sdk-json.json").replace("\"linkIndex\"", "\"noLink\"");
    let said = |key: &str, value: &str| {
        let first = "\"attributes\":[";
        assert!(unlinked.contains(first));
        unlinked.replacen(first, &format!(r#"{first}{{"key":"{key}","value":{{"stringValue":"{value}"}}}},"#), 1)
    };
    let ebpf = recorded("ebpf-json.json").replace("\"linkIndex\"", "\"noLink\"");
    for (what, service, body, says) in [
        ("eBPF", "cpp-json", ebpf, "A profiler outside of the process knows spans only where"),
        ("a Collector", "shop-json", unlinked.clone(), "Its profiles come by OTLP: samples belong to the span"),
        ("Go", "shop-json", said("process.runtime.name", "go"), "otelpyroscope.NewTracerProvider(provider)"),
        ("Java", "shop-json", said("telemetry.sdk.language", "java"), "pyroscope-otel.jar"),
        ("Python", "shop-json", said("telemetry.sdk.language", "python"), "Its profiles come by OTLP"),
    ] {
        let server = Server::with(&["--retain", "36500d"]);
        let headers = [("content-type", "application/json")];
        let answer = server.post("/v1development/profiles", &headers, body.as_bytes());
        assert_eq!((answer.status, answer.text().as_str()), (200, "{}"), "{what}");
        // What its SDK is written in says less than the profiler itself.
        traces(&server, service, "python");
        let path = format!("/spans?service={service}&since=all");
        assert_says(&server, &path, &[says], &["the profiler's span processor", "wall_time=True"]);
    }
}

#[test]
fn whose_profiles_are_refused_is_not_told_to_start_a_profiler() {
    let server = Server::start();
    assert_eq!(server.post("/ingest?name=shop&spyName=gospy&from=yesterday", &[], b"").status, 400);
    assert_says(&server, "/", &["What came could not be taken.", "profiles shop invalid 1"], &["Start a program"]);
    traces(&server, "shop", "go");
    let not = ["Start the profiler", "CPU is unknown until"];
    assert_says(&server, "/", &["no profile that could be taken: shop", "profiles shop invalid 1"], &not);
    assert_says(&server, "/spans?service=shop", &["No profile of this service could be taken."], &not);
    assert_says(&server, &format!("/trace/{TRACE}"), &["No profile of shop could be taken."], &not);
    assert_says(&server, &format!("/flame?span={ROOT}"), &["No profile of this service could be taken."], &not);
}
