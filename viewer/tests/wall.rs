//! Where the time of spans goes: profiles of type `wall`, whose samples say their state, on each page and in each answer.

mod common;

use common::{Server, number, profile, span, spanprof, wall, with_attribute, words};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";
const CHILD: &str = "00f067aa0ba902b8";
const MS: i64 = 1_000_000;

type Labels = [(&'static str, &'static str); 3];

fn of(span: &'static str, name: &'static str) -> Labels {
    [("span_id", span), ("trace_id", TRACE), ("span_name", name)]
}

/// A request of 100 ms that was 30 on a CPU and 20 in a lock, and whose query took 40, of which the server took 38. Its samples
/// carry their own span.
fn fill(server: &Server) {
    let (root, child) = (of(ROOT, "GET /cart"), of(CHILD, "SELECT"));
    assert_eq!(server.push("shop", &profile(&[(&["main:1", "cart:2"], &root, 3)])).status, 200);
    let rows: [common::WallRow<'_>; 4] = [
        (&["main:1", "cart:2"], &root, "cpu", 0, 30),
        (&["main:1", "cart:3", "acquire:9"], &root, "lock", 1, 20),
        (&["main:1", "cart:4", "query:1", "recv:1"], &child, "io", 1, 30),
        (&["main:1", "cart:4", "query:1", "poll:1"], &child, "io", 4, 8),
    ];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    let spans = vec![span(TRACE, ROOT, "", "GET /cart", 0, 100), span(TRACE, CHILD, ROOT, "SELECT", 10, 40)];
    assert_eq!(server.trace("shop", spans).status, 200);
}

#[test]
fn span_names_say_where_their_time_went() {
    let server = Server::start();
    fill(&server);
    let answer = server.json("/api/spans?service=shop");
    assert_eq!(answer["states"], json!({ "cpu": 30 * MS, "lock": 20 * MS, "io": 38 * MS }));
    let row = |name: &str| answer["spans"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
    let (cart, query) = (row("GET /cart"), row("SELECT"));
    assert_eq!(cart["states"], json!({ "cpu": 30 * MS, "lock": 20 * MS }));
    assert_eq!((&cart["in_child_spans_ns"], &cart["unexplained_ns"]), (&json!(40 * MS), &json!(10 * MS)));
    assert_eq!(query["states"], json!({ "io": 38 * MS }));
    assert_eq!((&query["in_child_spans_ns"], &query["unexplained_ns"]), (&json!(0), &json!(2 * MS)));

    // Read aloud, or without a script: the numbers are text.
    let page = server.page("/spans?service=shop");
    let text = words(&page);
    for says in [
        "name where it went wall total count err wall p50 p95 p99 CPU total CPU/span samples",
        "CPU 30.0 ms 34 % lock 20.0 ms 23 % I/O 38.0 ms 43 %",
        "GET /cart CPU 30.0 ms, 30 % lock 20.0 ms, 20 % (in child spans) 40.0 ms, 40 % (unexplained) 10.0 ms, 10 % \
         (in child spans) 40 % 100 ms 1 100 ms 100 ms 100 ms 30.0 ms",
        "SELECT I/O 38.0 ms, 95 % (unexplained) 2.00 ms, 5.0 % I/O 95 % 40.0 ms 1 40.0 ms 40.0 ms 40.0 ms 0 0 0 flame",
        "CPU/span samples hottest function",
        "100 % of 3 samples cart flame",
        "A bar is the wall time of all spans of a name",
    ] {
        assert!(text.contains(says), "{says:?}: {text}");
    }
    assert!(page.contains("<rect class=\"in-lock\" x=\"30.000%\" width=\"20.000%\""), "{page}");
    assert!(!text.contains("What these spans wait for is not measured"));
    // A filter that leaves none of it takes the columns away, and is no reason to say that nothing is measured.
    let none = words(&server.page("/spans?service=shop&name~=cart&dur%3C=1ms"));
    assert!(!none.contains("where it went") && !none.contains("is not measured"), "{none}");
    // What has states leads to all of its time, and not to its few samples of CPU.
    for name in ["SELECT", "GET%20/cart"] {
        let link = format!("class=\"flame\" href=\"flame?service=shop&amp;name={name}&amp;type=wall\"");
        assert!(page.contains(&link), "{link}: {page}");
    }
    let plain = Server::start();
    assert_eq!(plain.push("shop", &profile(&[(&["main:1"], &of(ROOT, "GET /cart"), 10)])).status, 200);
    let page = plain.page("/spans?service=shop");
    assert!(page.contains("class=\"flame\" href=\"flame?service=shop&amp;name=GET%20/cart\""), "{page}");
    assert!(words(&page).contains("100 % main flame"), "ten samples are enough: {page}");
}

#[test]
fn time_that_nothing_explains_is_a_bar_too_where_only_waits_are_in_spans() {
    let server = Server::start();
    // No CPU sample has a span, as nothing here burns any.
    assert_eq!(
        server.push_as("wall", "shop", &wall(&[(&["main:1"], &of(ROOT, "GET /cart"), "io", 1, 30)])).status,
        200
    );
    let other = "00f067aa0ba902b9";
    let spans = vec![
        span(TRACE, ROOT, "", "GET /cart", 0, 40),
        span(TRACE, other, "", "GET /idle", 0, 50),
        span(TRACE, CHILD, ROOT, "SELECT", 5, 30),
    ];
    assert_eq!(server.trace("shop", spans).status, 200);
    let text = words(&server.page("/spans?service=shop"));
    assert!(text.contains("GET /idle (unexplained) 50.0 ms, 100 % (unexplained) 100 % 50.0 ms 1"), "{text}");
    // It may be sampled by root span: then this one's time is in its root.
    assert!(text.contains("SELECT – 30.0 ms 1"), "{text}");
    let waits = wall(&[(&["main:1"], &of(CHILD, "SELECT"), "io", 1, 20)]);
    assert_eq!(server.push_as("wall", "shop", &waits).status, 200);
    assert_eq!(server.trace("shop", vec![span(TRACE, "00f067aa0ba902ba", ROOT, "UPDATE", 5, 10)]).status, 200);
    let text = words(&server.page("/spans?service=shop"));
    assert!(text.contains("UPDATE (unexplained) 10.0 ms, 100 % (unexplained) 100 % 10.0 ms 1"), "{text}");
}

#[test]
fn span_names_are_sorted_by_wall_time_by_waits_and_by_each_state() {
    let server = Server::start();
    fill(&server);
    let first = |sort: &str| {
        let page = server.page(&format!("/spans?service=shop&sort={sort}"));
        let rows = words(page.split("<tbody>").nth(1).unwrap());
        if rows.starts_with("GET /cart ") { "GET /cart" } else { "SELECT" }
    };
    for (sort, expected) in [
        ("wall", "GET /cart"),
        ("wall&order=asc", "SELECT"),
        ("waits", "SELECT"),
        ("in.io", "SELECT"),
        ("in.lock", "GET /cart"),
        ("in.lock&order=asc", "SELECT"),
        // What nobody has.
        ("in.gc", "GET /cart"),
    ] {
        assert_eq!(first(sort), expected, "{sort}");
    }
    let page = server.page("/spans?service=shop&sort=in.io");
    assert!(page.contains("sort=in.io&amp;order=asc") && page.contains("sort=waits&amp;order=desc"), "{page}");
    let refused = server.get("/spans?service=shop&sort=in.colour");
    assert!(
        refused.status == 400 && words(&refused.text()).contains("and in.STATE, such as in.lock"),
        "{}",
        refused.text()
    );
}

#[test]
fn profiles_that_say_no_state_change_nothing() {
    let server = Server::start();
    let labels = of(ROOT, "GET /cart");
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &labels, 20)])).status, 200);
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 600)]).status, 200);
    let before = server.page("/spans?service=shop");
    assert!(words(&before).contains(
        "What these spans wait for is not measured. PYROSCOPE_PROFILING_WALLTIME_ENABLED=true in the service"
    ));
    // As those of Node and Java.
    assert_eq!(server.push_as("wall", "shop", &wall(&[(&["main:1", "epoll:2"], &labels, "", 0, 90)])).status, 200);
    let after = server.page("/spans?service=shop");
    let types = |page: &str| words(page).replace("beside CPU cpu wall ", "");
    assert_eq!(types(&after), types(&before));
    assert!(!words(&server.page("/flame?service=shop")).contains("Where the time went"));
    let trace = server.json(&format!("/api/trace/{TRACE}"));
    assert!(trace["spans"][0].get("states").is_none() && trace["spans"][0].get("unexplained_ns").is_none(), "{trace}");
    let flame = server.json("/api/flame?service=shop&type=wall");
    assert_eq!((&flame["total"], flame.get("states"), flame.get("states_of_frames")), (&json!(90 * MS), None, None));
    let page = words(&server.page("/flame?service=shop&type=wall"));
    assert!(page.contains("Colour: the stronger, the more") && !page.contains("(not told)"), "{page}");
    // With some that do, it is a state of its own.
    assert_eq!(server.push_as("wall", "shop", &wall(&[(&["main:1", "read:3"], &labels, "io", 1, 10)])).status, 200);
    let flame = server.json("/api/flame?service=shop&type=wall");
    assert_eq!(flame["states"], json!({ "io": 10 * MS, "not_told": 90 * MS }));
    assert!(words(&server.page("/flame?service=shop&type=wall")).contains("I/O 10.0 ms 10 % (not told) 90.0 ms 90 %"));
    assert_eq!(server.json("/api/flame?service=shop&type=wall&state=not_told")["total"], 90 * MS);
    assert_eq!(server.json("/api/flame?service=shop&type=wall&state=waits")["total"], 10 * MS);
}

#[test]
fn a_state_that_is_not_known_here_is_some_other() {
    let server = Server::start();
    let labels = of(ROOT, "GET /cart");
    let rows: [common::WallRow<'_>; 3] = [
        (&["main:1"], &labels, "quantum", 1, 5),
        (&["main:1"], &labels, "other", 1, 7),
        (&["main:1"], &labels, "cpu", 0, 9),
    ];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    assert_eq!(server.json("/api/spans?service=shop")["states"], json!({ "cpu": 9 * MS, "other": 12 * MS }));
    assert_eq!(server.json("/api/flame?service=shop&type=wall&state=other")["total"], 12 * MS);
    assert_eq!(server.json("/api/flame?service=shop&type=wall&state=waits")["total"], 12 * MS);
}

#[test]
fn a_trace_is_coloured_by_state() {
    let server = Server::start();
    fill(&server);
    // Its server is another service, which measures nothing.
    let remote = span(TRACE, "00f067aa0ba902b9", CHILD, "query", 15, 30);
    assert_eq!(server.trace("database", vec![remote]).status, 200);
    let answer = server.json(&format!("/api/trace/{TRACE}"));
    let spans = answer["spans"].as_array().unwrap();
    assert_eq!(spans[0]["states"], json!({ "cpu": 30 * MS, "lock": 20 * MS }));
    assert_eq!((&spans[0]["in_child_spans_ns"], &spans[0]["unexplained_ns"]), (&json!(40 * MS), &json!(10 * MS)));
    // What a server in another service did is a wait here, and none of its child spans'.
    assert_eq!((&spans[1]["in_child_spans_ns"], &spans[1]["unexplained_ns"]), (&json!(0), &json!(2 * MS)));
    assert!(spans[2].get("states").is_none());
    let page = server.page(&format!("/trace/{TRACE}"));
    let text = words(&page);
    for says in [
        "from 10.0 ms for 40.0 ms I/O 38.0 ms, 95 % (unexplained) 2.00 ms, 5.0 %",
        "CPU lock I/O (in child spans) (unexplained)",
        "The parts of a bar are shares of the span's wall time",
        "Where the time went",
    ] {
        assert!(text.contains(says), "{says:?}: {text}");
    }
    // From 10 on 38 of 100 ms.
    assert!(page.contains("<rect class=\"in-io\" x=\"10.000%\" width=\"38.000%\""), "{page}");
}

#[test]
fn where_the_time_of_spans_went_stands_beside_times_alone() {
    let server = Server::start();
    fill(&server);
    let counts = "wall:wait_count:count:wall:nanoseconds";
    for (kind, says, own) in [
        ("wall", "  (in child spans)   40.0 ms    40 %\n  (unexplained)      10.0 ms    10 %\n", true),
        (counts, ": 1, 1 sample of 1 span that took 100 ms\n  lock                   1   100 %\n", false),
    ] {
        let arguments = ["top", "--url", &server.url, "--type", kind, "--service", "shop", "--span", "GET /cart"];
        let printed = String::from_utf8(spanprof().args(arguments).output().unwrap().stdout).unwrap();
        assert!(printed.contains(says), "{printed}");
        assert!(own || !printed.contains("(in child spans)") && !printed.contains("(shares of"), "{printed}");
        let answer = server.json(&format!("/api/top?service=shop&name=GET%20/cart&type={kind}"));
        assert_eq!((answer["own"].is_object(), &answer["spans"]), (own, &json!(1)), "{answer}");
    }
    // Nor where there is none.
    let answer = server.json(&format!("/api/top?service=shop&name=GET%20/cart&dur>1h&type={counts}"));
    assert_eq!((&answer["unit"], &answer["own"]), (&json!("count"), &Value::Null), "{answer}");
}

#[test]
fn a_span_name_without_samples_has_its_wall_time_split_too() {
    let server = Server::start();
    fill(&server);
    let (trace, root) = ("4bf92f3577b34da6a3ce929d0e0e4738", "00f067aa0ba902e1");
    let spans = vec![
        span(trace, root, "", "checkout", 0, 200),
        span(trace, "00f067aa0ba902e2", root, "native", 20, 150),
        span(trace, "00f067aa0ba902e3", root, "GET /cart", 175, 10),
    ];
    assert_eq!(server.trace("shop", spans).status, 200);
    for (name, in_child_spans, unexplained, printed, page) in [
        (
            "checkout",
            160,
            40,
            "checkout of shop, wall, last hour: 0, 0 samples of 1 span that took 200 ms
  (in child spans)    160 ms    80 %
  (unexplained)      40.0 ms    20 %
",
            "Of their wall time: (in child spans) 160 ms, 80 %; (unexplained) 40.0 ms, 20 %.",
        ),
        (
            "native",
            0,
            150,
            "native of shop, wall, last hour: 0, 0 samples of 1 span that took 150 ms
  (unexplained)     150 ms   100 %
",
            "Of their wall time: (unexplained) 150 ms, 100 %.",
        ),
    ] {
        let rest =
            json!({ "states": {}, "in_child_spans_ns": in_child_spans * MS, "unexplained_ns": unexplained * MS });
        let answer = server.json(&format!("/api/top?service=shop&name={name}&type=wall"));
        assert_eq!((&answer["own"], answer.get("absence")), (&rest, None), "{answer}");
        // With other names beside it and alone.
        for query in ["", &format!("&name={name}"), &format!("&name~={name}")] {
            let answer = server.json(&format!("/api/spans?service=shop{query}"));
            let row = answer["spans"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
            for part in ["states", "in_child_spans_ns", "unexplained_ns"] {
                assert_eq!(row[part], rest[part], "{query}: {row}");
            }
        }
        let arguments = ["top", "--url", &server.url, "--type", "wall", "--service", "shop", "--span", name];
        let done = spanprof().args(arguments).output().unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap(), printed);
        let text = words(&server.page(&format!("/flame?service=shop&name={name}&type=wall")));
        assert!(text.contains(page) && !text.contains("in this selection"), "{text}");
        let text = words(&server.page(&format!("/spans?service=shop&name={name}")));
        assert!(text.contains(&format!("(unexplained) {unexplained}")), "{text}");
    }
    // Where nothing is known to be measured nothing is told of it.
    let none = server.json("/api/top?service=shop&name=checkout&type=wall&from=1000&to=2000");
    assert_eq!(none.get("own"), None, "{none}");
}

#[test]
fn a_child_span_without_samples_has_its_wall_time_split_where_only_waits_are_in_spans() {
    let server = Server::start();
    let child = |id: &'static str| vec![span(TRACE, id, ROOT, "UPDATE", 5, 10)];
    let waits = |of: &Labels| server.push_as("wall", "shop", &wall(&[(&["main:1"], of, "io", 1, 30)])).status;
    assert_eq!(waits(&of(ROOT, "GET /cart")), 200);
    let spans = vec![span(TRACE, ROOT, "", "GET /cart", 0, 90), span(TRACE, CHILD, ROOT, "SELECT", 20, 40)];
    assert_eq!(server.trace("shop", [spans, child("00f067aa0ba902ba")].concat()).status, 200);
    let own = || server.json("/api/top?service=shop&name=UPDATE&type=wall")["own"].clone();
    // It may be sampled by root span: then this one's time is in its root.
    assert_eq!(own(), Value::Null);
    assert_eq!(waits(&of(CHILD, "SELECT")), 200);
    assert_eq!(own()["unexplained_ns"], 10 * MS);
}

#[test]
fn of_a_service_sampled_by_root_span_the_root_has_all_and_its_children_are_unknown() {
    let server = Server::start();
    let root = of(ROOT, "GET /cart");
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &root, 3)])).status, 200);
    let rows: [common::WallRow<'_>; 2] =
        [(&["main:1"], &root, "cpu", 0, 30), (&["main:1", "recv:1"], &root, "io", 1, 50)];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    let root = with_attribute(span(TRACE, ROOT, "", "GET /cart", 0, 100), "pyroscope.profile.id", ROOT);
    assert_eq!(server.trace("shop", vec![root, span(TRACE, CHILD, ROOT, "SELECT", 10, 60)]).status, 200);
    for path in [format!("/api/trace/{TRACE}"), "/api/spans?service=shop".into()] {
        let answer = server.json(&path);
        let (root, child) = (&answer["spans"][0], &answer["spans"][1]);
        assert_eq!(root["states"], json!({ "cpu": 30 * MS, "io": 50 * MS }));
        assert_eq!((&root["in_child_spans_ns"], &root["unexplained_ns"]), (&json!(0), &json!(20 * MS)));
        assert!(child.get("states").is_none() && child.get("unexplained_ns").is_none(), "{child}");
    }
    let arguments = ["top", "--url", &server.url, "--type", "wall", "--service", "shop", "--span", "SELECT"];
    let printed = String::from_utf8(spanprof().args(arguments).output().unwrap().stdout).unwrap();
    let says = "No sample of shop so far is of a child span such as \"SELECT\": if its profiler labels root spans alone (scope root), what that did is counted in the span that entered the service. To see each span's own, set OTEL_PYROSCOPE_ROOT_SPAN_ONLY=false.\n";
    assert!(printed.ends_with(says), "{printed}");
}

#[test]
fn a_span_that_says_its_times_itself_has_them_without_samples() {
    let server = Server::start();
    let said = |mut span: Span, times: &[(&str, i64)]| {
        span.attributes.extend(times.iter().map(|(state, ns)| number(&format!("pyroscope.time.{state}"), *ns)));
        span
    };
    // Too short for a sample, and one that has samples beside its attributes.
    let short = said(span(TRACE, CHILD, ROOT, "SELECT", 10, 4), &[("io", 3 * MS), ("gil", MS / 2)]);
    let root = said(span(TRACE, ROOT, "", "GET /cart", 0, 100), &[("lock", 21 * MS), ("cpu", 33 * MS)]);
    assert_eq!(
        server.push_as("wall", "shop", &wall(&[(&["main:1"], &of(ROOT, "GET /cart"), "lock", 1, 20)])).status,
        200
    );
    assert_eq!(server.trace("shop", vec![root, short]).status, 200);
    let spans = &server.json(&format!("/api/trace/{TRACE}"))["spans"];
    assert_eq!((&spans[0]["states"], spans[0].get("by_attributes")), (&json!({ "lock": 20 * MS }), None));
    assert_eq!(spans[1]["states"], json!({ "gil": MS / 2, "io": 3 * MS }));
    assert_eq!((&spans[1]["unexplained_ns"], &spans[1]["by_attributes"]), (&json!(MS / 2), &json!(true)));
    let text = words(&server.page(&format!("/trace/{TRACE}")));
    let says =
        "from 10.0 ms for 4.00 ms, as its attributes say GIL 500 µs, 13 % I/O 3.00 ms, 75 % (unexplained) 500 µs, 13 %";
    assert!(text.contains(says), "{text}");
    let text = words(&server.page(&format!("/flame?span={ROOT}")));
    let says = "its process measured CPU 33.0 ms, 61 % lock 21.0 ms, 39 % CPU 33.0 ms, 61 %; lock 21.0 ms, 39 % trace";
    assert!(text.contains(says), "{text}");
    let text = words(&server.page(&format!("/flame?span={CHILD}")));
    assert!(text.contains("GIL 500 µs, 13 %; I/O 3.00 ms, 75 %; (unexplained) 500 µs, 13 %"), "{text}");
    // Without any profile: what child spans took that say their times is theirs, and no riddle.
    let alone = Server::start();
    let root = said(span(TRACE, ROOT, "", "GET /cart", 0, 100), &[("lock", 21 * MS)]);
    let child = said(span(TRACE, CHILD, ROOT, "SELECT", 10, 4), &[("io", 4 * MS)]);
    assert_eq!(alone.trace("shop", vec![root, child]).status, 200);
    let root = &alone.json(&format!("/api/trace/{TRACE}"))["spans"][0];
    assert_eq!((&root["in_child_spans_ns"], &root["unexplained_ns"]), (&json!(4 * MS), &json!(75 * MS)));
    // A local root's CPU time has that of its child spans in it, which is in their bars.
    let busy = Server::start();
    let root = said(span(TRACE, ROOT, "", "GET /cart", 0, 100), &[("lock", 5 * MS), ("cpu", 60 * MS)]);
    let child = said(span(TRACE, CHILD, ROOT, "SELECT", 10, 80), &[("io", 30 * MS)]);
    assert_eq!(busy.trace("shop", vec![root, child]).status, 200);
    let root = &busy.json(&format!("/api/trace/{TRACE}"))["spans"][0];
    assert_eq!(root["states"], json!({ "cpu": 15 * MS, "lock": 5 * MS }));
    assert_eq!((&root["in_child_spans_ns"], &root["unexplained_ns"]), (&json!(80 * MS), &json!(0)));
}

#[test]
fn threads_that_ran_at_once_are_more_than_the_wall_time_and_it_is_said() {
    let server = Server::start();
    let labels = of(ROOT, "GET /cart");
    let rows: [common::WallRow<'_>; 2] = [(&["main:1"], &labels, "cpu", 0, 60), (&["pool:1"], &labels, "lock", 2, 90)];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 100)]).status, 200);
    assert_eq!(server.json(&format!("/api/trace/{TRACE}"))["spans"][0]["unexplained_ns"], 0);
    for path in [format!("/trace/{TRACE}"), "/spans?service=shop".into()] {
        let page = server.page(&path);
        let says = "CPU 60.0 ms, 60 % lock 90.0 ms, 90 % together 150 % of the wall time";
        assert!(words(&page).contains(says), "{}", words(&page));
    }
    assert!(words(&server.page("/spans?service=shop")).contains("lock 90 % , all 150 %"));
}

#[test]
fn where_no_cpu_was_free_more_than_the_wall_time_is_an_event_loop_in_the_run_queue() {
    let server = Server::start();
    let labels = of(ROOT, "GET /cart");
    let rows: [common::WallRow<'_>; 2] =
        [(&["main:1"], &labels, "run_queue", 0, 70), (&["main:1"], &labels, "await", 2, 40)];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 100)]).status, 200);
    let says = "as no CPU was free: while the thread of an event loop stood in the run queue its coroutines waited too, so both have that time; or of few spans";
    let arguments = ["top", "--url", &server.url, "--type", "wall", "--service", "shop", "--span", "GET /cart"];
    let printed = String::from_utf8(spanprof().args(arguments).output().unwrap().stdout).unwrap();
    assert!(printed.contains(&format!("  together 110 % of the wall time: {says}")), "{printed}");
    assert!(server.page("/spans?service=shop").contains(says));
}

#[test]
fn what_other_threads_or_tasks_did_is_beside_the_wall_time() {
    let server = Server::start();
    let labels = of(ROOT, "GET /cart");
    let concurrent = [labels[0], labels[1], labels[2], ("flow", "concurrent")];
    let rows: [common::WallRow<'_>; 3] = [
        (&["main:1"], &labels, "await", 1, 80),
        (&["(concurrent task):0", "pool:1"], &concurrent, "cpu", 0, 50),
        (&["(concurrent task):0", "pool:1", "recv:1"], &concurrent, "io", 1, 25),
    ];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 100)]).status, 200);
    for path in [format!("/api/trace/{TRACE}"), "/api/spans?service=shop".into()] {
        let row = &server.json(&path)["spans"][0];
        assert_eq!(
            (&row["states"], &row["unexplained_ns"], &row["concurrent_ns"]),
            (&json!({ "await": 80 * MS }), &json!(20 * MS), &json!(75 * MS)),
            "{path}"
        );
    }
    for path in [format!("/trace/{TRACE}"), "/spans?service=shop".into()] {
        let page = words(&server.page(&path));
        let says = "await 80.0 ms, 80 % (unexplained) 20.0 ms, 20 % beside it 75.0 ms in other threads or tasks";
        assert!(page.contains(says), "{page}");
    }
    // A flame graph has both, says how much of it is no wall time, and can be had without.
    let flame = "service=shop&name=GET%20/cart&type=wall";
    for (query, total, concurrent, says) in [
        (flame.into(), 155, json!(75 * MS), "155 ms in total (of it 75.0 ms beside the spans)"),
        (format!("{flame}&state=io&fold=1"), 25, json!(25 * MS), "25.0 ms in total (of it 25.0 ms beside the spans)"),
        (format!("{flame}&label.flow="), 80, json!(null), "80.0 ms in total, 1 sample"),
    ] {
        for path in ["flame", "top"] {
            let answer = server.json(&format!("/api/{path}?{query}"));
            assert_eq!((&answer["total"], &answer["concurrent"]), (&json!(total * MS), &concurrent), "{path} {query}");
        }
        let page = words(&server.page(&format!("/flame?{query}")));
        assert!(page.contains(says), "{says}: {page}");
    }
    let top = |more: &[&str]| {
        let done = spanprof().args(["top", "--url", &server.url, "--type", "wall"]).args(more).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    let printed = top(&[]);
    assert!(printed.contains("155 ms (of it 75.0 ms beside the spans), 7 samples"), "{printed}");
    let printed = top(&["--service", "shop", "--span", "GET /cart"]);
    let says = "took 100 ms\n  await            80.0 ms    80 %\n  (unexplained)    20.0 ms    20 %\n  ";
    assert!(printed.contains(says.trim_end()), "the spans' own: {printed}");
    let two_totals = "  (the functions below have what is beside the spans too; label.flow= leaves it out)\n";
    assert!(printed.contains(two_totals), "{printed}");
    let printed = top(&["--service", "shop", "--span", "GET /cart", "label.flow="]);
    assert!(printed.contains("80.0 ms, 1 sample") && !printed.contains("beside the spans"), "{printed}");
}

#[test]
fn without_traces_the_wall_time_is_unknown_and_parts_are_of_what_was_measured() {
    let server = Server::start();
    let labels = of(ROOT, "GET /cart");
    let rows: [common::WallRow<'_>; 2] = [(&["main:1"], &labels, "sleep", 1, 70), (&["idle:1"], &[], "io", 1, 500)];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    let row = &server.json("/api/spans?service=shop")["spans"][0];
    assert_eq!(
        (&row["states"], &row["wall_total_ns"], &row["unexplained_ns"]),
        (&json!({ "sleep": 70 * MS }), &json!(null), &json!(0))
    );
    let text = words(&server.page("/spans?service=shop"));
    assert!(text.contains("GET /cart sleep 70.0 ms, 100 % sleep 100 % – – – – –"), "{text}");
    assert!(text.contains("(outside spans) I/O 500 ms, 100 % I/O 100 % – 0"), "{text}");
}

#[test]
fn a_flame_graph_of_time_has_its_states_and_is_switched_between_them() {
    let server = Server::start();
    fill(&server);
    let flame = server.json("/api/flame?service=shop&type=wall");
    assert_eq!(flame["profile_type"], "wall:wall:nanoseconds:wall:nanoseconds");
    assert_eq!(flame["states"], json!({ "cpu": 30 * MS, "lock": 20 * MS, "io": 38 * MS }));
    let (frames, states) = (flame["frames"].as_array().unwrap(), flame["states_of_frames"].as_array().unwrap());
    assert_eq!((frames.len(), states.len()), (7, 7));
    for (frame, states) in frames.iter().zip(states) {
        let sum: i64 = states.as_object().unwrap().values().map(|value| value.as_i64().unwrap()).sum();
        assert_eq!(frame[3], sum);
    }
    // A long wait is one sample, and one that stands for four short ones is as many as it has periods.
    assert_eq!(flame["samples"], 3 + 1 + 1 + 1);
    for (choice, total, folded) in [
        ("cpu", 30, "main;cart 30000000\n"),
        ("waits", 58, "main;cart;acquire 20000000\nmain;cart;query;poll 8000000\nmain;cart;query;recv 30000000\n"),
        ("lock", 20, "main;cart;acquire 20000000\n"),
    ] {
        let query = format!("service=shop&type=wall&state={choice}");
        assert_eq!(server.json(&format!("/api/flame?{query}"))["total"], total * MS);
        assert_eq!(server.get(&format!("/folded?{query}")).text(), folded);
        assert_eq!(server.get(&format!("/flame.svg?{query}")).status, 200);
        let page = server.page(&format!("/flame?{query}"));
        assert!(page.contains("href=\"flame?service=shop&amp;type=wall\"") && page.contains(">both<"), "{page}");
    }
    let page = server.page("/flame?service=shop&type=wall");
    let text = words(&page);
    assert!(text.contains("CPU waits both CPU 30.0 ms 34 % lock 20.0 ms 23 % I/O 38.0 ms 43 %"), "{text}");
    assert!(text.contains("recv recv.py 30.0 ms 34 % ±") && text.contains("Colours: in which states"), "{text}");
    assert!(
        page.contains("data-state=\"lock\"")
            && page.contains("href=\"flame?service=shop&amp;type=wall&amp;state=waits\"")
    );
    // Nothing is in that state, and the way back is there.
    let none = server.page("/flame?service=shop&type=wall&state=gc");
    assert!(words(&none).contains("0 samples") && none.contains(">both<"), "{none}");
    // From CPU there is a way to it, of the same spans.
    let cpu = server.page("/flame?service=shop&name=GET%20/cart");
    assert!(
        cpu.contains("href=\"flame?service=shop&amp;name=GET%20/cart&amp;type=wall\" title=\"all their time"),
        "{cpu}"
    );
    assert!(words(&cpu).contains("Colour: the stronger"));
    let folded = server.json("/api/flame?service=shop&type=wall&fold=1");
    assert_eq!(folded["states"], flame["states"]);
}

#[test]
fn a_state_needs_samples_that_say_it() {
    let server = Server::start();
    for (path, says) in [
        ("/flame?state=waits", "\"state\" = \"waits\": needs type=wall"),
        ("/api/flame?type=wall&state=idle", "allowed are all, waits, and one of cpu"),
        ("/diff?a.name=x&type=wall&b.state=idle", "\"b.state\" = \"idle\""),
        (
            "/spans?service=a&type=wall&state=waits",
            "\"state\" = \"waits\": is known to flame graphs, and not to lists of spans",
        ),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 400, "{path}");
        let text = words(&answer.text()).replace('\\', "");
        assert!(text.contains(says), "{path}: {text}");
    }
}

#[test]
fn slow_spans_are_compared_with_fast_ones_by_what_they_wait_for() {
    let server = Server::start();
    let mut spans = Vec::new();
    for n in 0..20_u64 {
        let (id, trace) = (format!("00f067aa0ba9{n:04x}"), format!("4bf92f3577b34da6a3ce929d0e0e{:04x}", n + 1));
        // The two slowest wait for a lock.
        let lock = if n >= 18 { 900 } else { 0 };
        spans.push(span(&trace, &id, "", "GET /cart", 0, 100 + n + lock));
        let labels = [("span_id", id.as_str()), ("trace_id", trace.as_str()), ("span_name", "GET /cart")];
        let mut rows: Vec<common::WallRow<'_>> =
            vec![(&["main:1"], &labels, "cpu", 0, 60), (&["main:1", "recv:1"], &labels, "io", 9, 40)];
        if lock > 0 {
            rows.push((&["main:1", "acquire:1"], &labels, "lock", 60, 900));
        }
        assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    }
    assert_eq!(server.trace("shop", spans).status, 200);
    let link = "diff?service=shop&amp;name=GET%20/cart&amp;type=wall&amp;a.dur%3C=p50&amp;b.dur%3E=p95";
    for (path, words) in [
        ("/spans?service=shop", ">slow<"),
        ("/traces?service=shop&name=GET%20/cart", ">What do slow ones wait for that fast ones do not?<"),
        ("/flame?service=shop&name=GET%20/cart", ">What do slow ones wait for that fast ones do not?<"),
        ("/flame?service=shop&name=GET%20/cart&type=wall", ">What do slow ones wait for that fast ones do not?<"),
    ] {
        let page = server.page(path);
        assert!(page.contains(&format!("href=\"{link}\"")) && page.contains(words), "{path}: {page}");
    }
    let query = link.replace("&amp;", "&");
    let diff = server.json(&format!("/api/{query}"));
    assert_eq!(diff["a"]["states"], json!({ "cpu": 600 * MS, "io": 400 * MS }));
    assert_eq!(diff["b"]["states"], json!({ "cpu": 120 * MS, "lock": 1_800 * MS, "io": 80 * MS }));
    let lock = diff["states"].as_array().unwrap().iter().find(|row| row["state"] == "lock").unwrap();
    assert!(lock["change"].as_f64().unwrap() > 0.89 && lock["sure"] == true, "{lock}");
    let text = words(&server.page(&format!("/{query}")));
    assert!(text.contains("state a b change CPU 60 % 6.0 % −54"), "{text}");
    assert!(text.contains("lock 0 % 90 % +90"), "{text}");
    // The switch holds for both sides.
    let page = server.page(&format!("/{query}"));
    assert!(
        page.contains("diff?service=shop&amp;name=GET%20/cart&amp;type=wall&amp;state=waits&amp;a.dur%3C=p50"),
        "{page}"
    );
    let waits = server.json(&format!("/api/{query}&state=waits"));
    assert_eq!((&waits["a"]["total"], &waits["b"]["total"]), (&json!(400 * MS), &json!(1_880 * MS)));
}

#[test]
fn top_prints_states() {
    let server = Server::start();
    fill(&server);
    let top = |more: &[&str]| {
        let done = spanprof().args(["top", "--url", &server.url, "--type", "wall"]).args(more).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    let text = top(&["--service", "shop"]);
    for line in
        ["  CPU              30.0 ms    34 %\n", "  lock             20.0 ms    23 %\n", "  I/O    recv  recv.py\n"]
    {
        assert!(text.contains(line), "{line:?}: {text}");
    }
    // What the states of a name are to be held against.
    let cart = top(&["--service", "shop", "--span", "GET /cart"]);
    let says = ": 50.0 ms, 4 samples of 1 span that took 100 ms
  CPU                30.0 ms    30 %
  lock               20.0 ms    20 %
  (in child spans)   40.0 ms    40 %
  (unexplained)      10.0 ms    10 %
";
    assert!(cart.contains(says), "{cart}");
    let locks = top(&["--service", "shop", "--span", "GET /cart", "state=lock"]);
    assert!(
        locks.contains("that took 100 ms\n") && !locks.contains("(unexplained)"),
        "what else it did is not asked: {locks}"
    );
    assert!(!text.contains("that took"), "{text}");
    let cart = ["--span", "GET /cart"];
    for (more, why) in [
        (&["--service", "shop", "state=lock"][..], "state= chooses among samples, so shares are of these samples"),
        (&["service=shop", "label=flow="], "label.KEY= chooses among samples, so shares are of these samples"),
        (&["--service", "shop", "inside=1"], "inside= chooses among samples, so shares are of these samples"),
        (
            &["--service", "shop", &format!("trace={TRACE}")],
            "trace= chooses among the spans of a name, so shares are of these samples",
        ),
        (&[], "shares are of these samples; with --service, of the spans' wall time"),
    ] {
        let printed = top(&[&cart, more].concat());
        assert!(printed.contains(&format!(" %\n  ({why})\n")), "{printed}");
    }
    let waits = top(&["--service", "shop", "state=waits"]);
    assert!(
        waits.starts_with("everything of shop, wall, state waits, last hour: 58.0 ms") && !waits.contains("CPU"),
        "{waits}"
    );
    let answer = server.json("/api/top?service=shop&type=wall");
    let recv = answer["functions"].as_array().unwrap().iter().find(|row| row["function"] == "recv").unwrap();
    assert_eq!((&recv["states"], &answer["states"]["io"]), (&json!({ "io": 30 * MS }), &json!(38 * MS)));
    assert!(server.json("/api/top?service=shop").get("states").is_none());
}

#[test]
fn a_collection_is_no_wait() {
    let server = Server::start();
    let labels = of(ROOT, "GET /cart");
    let rows: [common::WallRow<'_>; 3] = [
        (&["main:1"], &labels, "cpu", 0, 10),
        (&["main:1", "gc:1"], &labels, "gc", 0, 70),
        (&["recv:1"], &labels, "io", 1, 20),
    ];
    assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    let of_state = |state: &str| {
        server.json(&format!("/api/flame?service=shop&type=wall&state={state}"))["total"].as_i64().unwrap() / MS
    };
    assert_eq!(["waits", "cpu", "gc", "all"].map(of_state), [20, 10, 70, 100]);
}

#[test]
fn who_asks_for_time_that_is_not_measured_is_told_so() {
    let server = Server::start();
    fill(&server);
    let labels = of("00f067aa0ba902c1", "GET /stock");
    assert_eq!(server.push("stock", &profile(&[(&["main:1"], &labels, 20)])).status, 200);
    let trace = vec![span("4bf92f3577b34da6a3ce929d0e0e4737", "00f067aa0ba902d1", "", "pay", 0, 40)];
    assert_eq!(server.trace("till", trace).status, 200);
    let top = |service: &str, more: &[&str]| {
        let arguments = ["top", "--url", &server.url, "--type", "wall", "--service", service];
        String::from_utf8(spanprof().args(arguments).args(more).output().unwrap().stdout).unwrap()
    };
    let says = "stock sends process_cpu, and no wall. PYROSCOPE_PROFILING_WALLTIME_ENABLED=true in the service's environment shows";
    for more in [&[][..], &["--span", "GET /stock"]] {
        assert!(top("stock", more).contains(says), "{}", top("stock", more));
    }
    let till = top("till", &[]);
    assert!(till.contains("till sends traces, and no profiles come under this name. There are some of: "), "{till}");
    for (path, says) in [
        (
            "/flame?service=stock&type=wall",
            "What these spans wait for is not measured. PYROSCOPE_PROFILING_WALLTIME_ENABLED",
        ),
        ("/flame?service=shpo", "Nothing is stored of a service \"shpo\"."),
        ("/flame?service=shop&name=POST", "No span of shop is named \"POST\". Look at those that there are ."),
        ("/flame?service=till&type=wall", "Traces but no profiles yet. Start the profiler there"),
        ("/flame?service=stock&type=memory", "stock sends process_cpu, and no memory."),
        ("/flame?service=shop&type=wall&state=sleep", "No sample was taken in this selection."),
    ] {
        let text = words(&server.page(path));
        assert!(text.contains(says), "{path}: {text}");
    }
}

#[test]
fn a_download_says_the_state_of_its_samples_and_whose_time_it_is() {
    use std::io::Write as _;
    let server = Server::start();
    fill(&server);
    let labels = of(ROOT, "GET /cart");
    let concurrent = [labels[0], labels[1], labels[2], ("flow", "concurrent")];
    assert_eq!(server.push_as("wall", "shop", &wall(&[(&["main:1"], &concurrent, "gc", 1, 12)])).status, 200);
    let packed = server.get("/profile.pb.gz?service=shop&type=wall");
    let mut file = tempfile::Builder::new().prefix("shop-").suffix(".pb.gz").tempfile().unwrap();
    file.write_all(&packed.body).unwrap();
    // Another one reads it as it was sent.
    let shown = spanprof().args(["view", "--once"]).arg(file.path()).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    for line in [
        "100 ms (of it 12.0 ms beside the spans)",
        "  CPU              30.0 ms    30 %\n",
        "  lock             20.0 ms    20 %\n",
        "  I/O              38.0 ms    38 %\n",
        "  GC               12.0 ms    12 %\n",
    ] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
}
