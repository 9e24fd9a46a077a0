//! What the pages say in each state a newcomer meets, and the one thing they are told to do next.

mod common;

use common::{PERIOD, Server, failed, profile, span, with_attribute, words};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";
const CHILD: &str = "00f067aa0ba902b8";

fn assert_says(server: &Server, path: &str, sentences: &[&str]) {
    let text = words(&server.page(path));
    for sentence in sentences {
        assert!(text.contains(sentence), "{path} does not say {sentence:?}: {text}");
    }
}

#[test]
fn nothing_received_yet_shows_how_to_start() {
    let server = Server::start();
    let address = format!("server_address=\"{}\"", server.url);
    let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT={}", server.otlp);
    assert_says(&server, "/", &["Nothing received yet", "pip install 'pyroscope-otel>=2'", &address, &endpoint]);
    assert_says(&server, "/", &["PYROSCOPE_PROFILING_WALLTIME_ENABLED=true in the environment of any of these"]);
    let both = format!("PYROSCOPE_SERVER_ADDRESS={} {endpoint}", server.url);
    let dotnet = format!("{both} OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf dotnet run");
    assert_says(
        &server,
        "/",
        &[
            "bundle add pyroscope-otel --version '>= 2'",
            "dotnet add package Pyroscope.OpenTelemetry --version '2.*'",
            &both,
            &dotnet,
        ],
    );
}

#[test]
fn the_first_program_in_ruby_sends_traces_too_as_the_sdk_adds_no_exporter_beside_a_processor() {
    let server = Server::start();
    let adds = "sdk.add_span_processor(OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(exporter))";
    assert_says(&server, "/", &["opentelemetry-exporter-otlp", "OpenTelemetry::Exporter::OTLP::Exporter.new", adds]);
}

#[test]
fn spans_without_profiles() {
    let server = Server::start();
    assert_eq!(server.trace("shop", vec![failed(span(TRACE, ROOT, "", "GET /cart", 0, 600))]).status, 200);
    assert_says(&server, "/", &["Traces but no profiles yet: shop . Start the profiler there"]);
    assert_says(
        &server,
        "/spans?service=shop",
        &["Traces but no profiles.", "GET /cart 1 100 % 600 ms 600 ms 600 ms –"],
    );
    assert_says(
        &server,
        &format!("/trace/{TRACE}"),
        &["No profile holds a span of shop.", "600 ms wall, – CPU in 1 service, 1 span", "error"],
    );
    assert_says(&server, &format!("/flame?span={ROOT}"), &["No profile holds a span of this service.", "0 samples"]);
}

#[test]
fn profiles_without_spans() {
    let server = Server::start();
    let labels = [("span_id", ROOT), ("trace_id", TRACE), ("span_name", "GET /cart")];
    assert_eq!(
        server.push("shop", &profile(&[(&["main:1", "cart:2"], &labels, 20), (&["main:1"], &[], 5)])).status,
        200
    );
    let of_ruby = "In Ruby the SDK adds no exporter beside a span processor: add OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor";
    assert_says(
        &server,
        "/",
        &["shop – ", "Profiles but no traces yet: shop . Span names come from the profiles", of_ruby],
    );
    assert_says(
        &server,
        "/spans?service=shop",
        &["Profiles but no traces.", "GET /cart – – – – 200 ms", "100 % cart", "(outside spans) 50.0 ms"],
    );
    assert_says(&server, "/traces?service=shop&name=GET%20/cart", &["Profiles but no traces.", TRACE, "200 ms"]);
    assert_says(&server, &format!("/trace/{TRACE}"), &["Profiles but no trace.", "GET /cart shop – 200 ms 200 ms 20"]);
    assert_says(
        &server,
        &format!("/flame?span={ROOT}"),
        &["wall unknown: its trace was not received", "200 ms CPU, 20 samples"],
    );
    assert_says(
        &server,
        "/flame?service=shop&outside=1",
        &["Outside spans", "50.0 ms CPU, 5 samples", "5 samples: shares are rough"],
    );
}

#[test]
fn profiles_that_carry_no_span() {
    let server = Server::start();
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[("span_id", "short")], 20)])).status, 200);
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 600)]).status, 200);
    assert_says(&server, "/", &["no sample carries a span: shop . Add the profiler's span processor"]);
    assert_says(&server, "/spans?service=shop", &["No sample carries a span.", "(outside spans) 200 ms"]);
}

#[test]
fn a_service_sampled_by_root_span() {
    let server = Server::start();
    let labels = [("span_id", ROOT), ("span_name", "GET /cart")];
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &labels, 20)])).status, 200);
    let root = with_attribute(span(TRACE, ROOT, "", "GET /cart", 0, 600), "pyroscope.profile.id", ROOT);
    assert_eq!(server.trace("shop", vec![root, span(TRACE, CHILD, ROOT, "render", 1, 500)]).status, 200);
    assert_says(&server, "/", &["Sampled by root span: shop"]);
    assert_says(&server, "/spans?service=shop", &["Sampled by root span.", "render 1 500 ms 500 ms 500 ms –"]);
    assert_says(
        &server,
        &format!("/trace/{TRACE}"),
        &["Sampled by root span.", "render shop 500 ms in root in root 0"],
    );
    let child = server.page(&format!("/flame?span={CHILD}"));
    assert!(words(&child).contains(
        "No sample of this service so far is of a child span. If its profiler labels root spans alone (scope root), \
             what this one did is counted in the span that entered its service: look at that one"
    ));
    assert!(child.contains(&format!("href=\"flame?span={ROOT}\"")));
}

#[test]
fn a_span_of_a_service_sampled_by_each_span_leads_to_it_with_all_below_it() {
    let server = Server::start();
    let labels = |id| [("span_id", id), ("trace_id", TRACE)];
    let rows: [common::Row<'_>; 2] = [(&["main:1"], &labels(ROOT), 20), (&["main:1", "render:2"], &labels(CHILD), 30)];
    assert_eq!(server.push("shop", &profile(&rows)).status, 200);
    let spans = vec![span(TRACE, ROOT, "", "GET /cart", 0, 600), span(TRACE, CHILD, ROOT, "render", 1, 500)];
    assert_eq!(server.trace("shop", spans).status, 200);
    let (alone, with) = (format!("flame?span={ROOT}"), format!("flame?span={ROOT}&below=1"));
    let page = server.page(&format!("/{alone}"));
    assert!(words(&page).contains("200 ms CPU, 20 samples With all spans below it"), "{}", words(&page));
    assert!(page.contains(&format!("href=\"{}\"", with.replace('&', "&amp;"))));
    let page = server.page(&format!("/{with}"));
    assert!(words(&page).contains("500 ms CPU, 50 samples This span alone"), "{}", words(&page));
    assert!(page.contains(&format!("href=\"{alone}\"")));
    assert!(!words(&server.page(&format!("/flame?span={CHILD}"))).contains("below it"), "there is none");
}

#[test]
fn a_span_without_samples_and_one_with_few_lead_to_their_name() {
    let server = Server::start();
    let labels = [("span_id", ROOT), ("span_name", "GET /cart")];
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &labels, 8)])).status, 200);
    let spans = vec![span(TRACE, ROOT, "", "GET /cart", 0, 600), span(TRACE, CHILD, "", "GET /cart", 1, 5)];
    assert_eq!(server.trace("shop", spans).status, 200);
    let link = "href=\"flame?service=shop&amp;name=GET%20/cart\"";
    for (id, says) in [
        (ROOT, "8 samples: look at all spans of this name instead"),
        (
            CHILD,
            "No sample was taken in this span. It was on a CPU for less than a sample's period: look at all spans of this name",
        ),
    ] {
        let page = server.page(&format!("/flame?span={id}"));
        assert!(words(&page).contains(says) && page.contains(link), "{}", words(&page));
        // A span is looked for at any time; what its page leads to is of the usual one.
        assert!(page.contains("href=\"spans?service=shop\"") && !page.contains("/spans?service=shop&amp;since"));
    }
}

#[test]
fn what_is_not_there_is_a_404_in_words() {
    let server = Server::start();
    for (path, says) in [
        (format!("/trace/{TRACE}"), "There is no trace 4bf92f3577b34da6a3ce929d0e0e4736 here"),
        (format!("/flame?span={ROOT}"), "There is no span 00f067aa0ba902b7 here"),
        ("/spans?service=nobody".into(), "Nothing was received of a service \"nobody\" (last hour)"),
        ("/nowhere".into(), "There is no such page"),
        ("/flame.svg?service=nobody".into(), "There is no sample of everything of nobody"),
        (format!("/api/trace/{TRACE}"), "There is no trace"),
    ] {
        let answer = server.get(&path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(words(&answer.text()).contains(says), "{path}: {}", answer.text());
    }
}

#[test]
fn a_bad_parameter_is_a_400_that_names_it() {
    let server = Server::start();
    for (path, says) in [
        ("/flame?span=xyz", "parameter \"span\" = \"xyz\": allowed are 16 hex digits"),
        ("/api/flame?sevice=shop", "parameter \\\"sevice\\\" = \\\"shop\\\": is not known here; allowed are service"),
        ("/api/trace/4bf92f3577b34da6a3ce929d0e0e4736?service=x", "is not known here; no parameter is"),
        ("/api/flame?inside=2", "allowed is 1, or no value; leave it out for no"),
        ("/spans", "parameter \"service\" = \"\": is missing"),
        ("/spans?service=a&sort=colour", "allowed are name, waits, wall, count, err"),
        ("/api/traces?service=a&sort=best", "allowed are wall and cpu"),
        ("/api/services?since=1y", "a time such as 90s, 15m, 1h or 2d"),
        ("/trace/123", "allowed are 32 hex digits"),
        ("/find?id=123", "a trace id of 32 hex digits and a span id of 16"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 400, "{path}");
        let text = if path.starts_with("/api") { answer.text() } else { words(&answer.text()) };
        assert!(text.contains(says), "{path}: {text}");
    }
}

#[test]
fn the_box_leads_to_a_trace_or_a_span() {
    let server = Server::start();
    for (id, page) in [(TRACE, format!("trace/{TRACE}")), (ROOT, format!("flame?span={ROOT}"))] {
        let answer = server.get(&format!("/find?id=%20{id}%20"));
        assert_eq!((answer.status, answer.headers.get("location")), (303, Some(&page)));
    }
}

#[test]
fn names_are_text_and_never_markup() {
    let server = Server::start();
    let name = "<script>alert(1)</script>'; DROP TABLE spans;--";
    let labels = [("span_id", ROOT), ("trace_id", TRACE), ("span_name", name), ("<b>", "\"'&")];
    assert_eq!(server.push(name, &profile(&[(&["<img src=x>:1"], &labels, 20)])).status, 200);
    assert_eq!(server.trace(name, vec![span(TRACE, ROOT, "", name, 0, 600)]).status, 200);
    let encoded = "%3Cscript%3Ealert(1)%3C/script%3E%27%3B%20DROP%20TABLE%20spans%3B--";
    for path in [
        "/".to_owned(),
        format!("/spans?service={encoded}"),
        format!("/traces?service={encoded}&name={encoded}"),
        format!("/trace/{TRACE}"),
        format!("/flame?service={encoded}&name={encoded}"),
    ] {
        let page = server.page(&path);
        assert!(!page.contains("<script>alert") && !page.contains("<img src"), "{path}");
        assert!(words(&page).contains(name), "{path}: {}", words(&page));
    }
    assert!(server.page(&format!("/flame?span={ROOT}")).contains("&lt;img src=x&gt;"));
}

#[test]
fn a_flame_page_has_numbers_without_a_script() {
    let server = Server::start();
    let labels = [("span_id", ROOT), ("span_name", "GET /cart")];
    assert_eq!(
        server.push("shop", &profile(&[(&["main:1", "cart:2"], &labels, 30), (&["main:1"], &labels, 10)])).status,
        200
    );
    assert_eq!(40 * PERIOD, 400_000_000);
    assert_says(
        &server,
        "/flame?service=shop&name=GET%20/cart",
        &[
            "GET /cart of shop, last hour",
            "400 ms CPU, 40 samples",
            "cart cart.py 300 ms 75 % ± 6.8 300 ms 75 % ± 6.8",
            "main main.py 100 ms 25 % ± 6.8 400 ms 100 % ± 0.0",
        ],
    );
}
