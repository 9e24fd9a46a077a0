//! What the JSON API says about profiles and traces that were sent to the running program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{PERIOD, Server, export, failed, gzip, profile, request, span, with_attribute};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";
const CHILD: &str = "00f067aa0ba902b8";
const REMOTE: &str = "f0f067aa0ba902b9";

/// checkout: GET /cart burns 40 ms itself and 30 in render; search: POST /quote burns 20; 50 ms outside spans.
fn shop() -> Server {
    let server = Server::start();
    let cart = [("span_id", ROOT), ("trace_id", TRACE), ("span_name", "GET /cart")];
    let render = [("span_id", CHILD), ("trace_id", TRACE), ("span_name", "render")];
    let quote = [("span_id", REMOTE), ("trace_id", TRACE), ("span_name", "POST /quote")];
    let zeros = [("span_id", "0000000000000000")];
    let checkout = profile(&[
        (&["main:1", "cart:10", "sum:5"], &cart, 3),
        (&["main:1", "cart:11"], &cart, 1),
        (&["main:1", "cart:12", "draw:7"], &render, 3),
        (&["main:2", "gc:1"], &[], 4),
        (&["main:2", "gc:1"], &zeros, 1),
    ]);
    assert_eq!(server.push("checkout", &checkout).status, 200);
    assert_eq!(server.push("search", &profile(&[(&["serve:3", "rank:9"], &quote, 2)])).status, 200);
    let spans = vec![failed(span(TRACE, ROOT, "", "GET /cart", 0, 600)), span(TRACE, CHILD, ROOT, "render", 100, 50)];
    assert_eq!(server.trace("checkout", spans).status, 200);
    assert_eq!(server.trace("search", vec![span(TRACE, REMOTE, CHILD, "POST /quote", 120, 20)]).status, 200);
    server
}

fn ms(count: i64) -> Value {
    json!(count * 1_000_000)
}

#[test]
fn services_add_up() {
    let server = shop();
    let services = server.json("/api/services?since=1h")["services"].clone();
    let checkout = services.as_array().unwrap().iter().find(|row| row["service"] == "checkout").unwrap().clone();
    assert_eq!((&checkout["cpu_ns"], &checkout["cpu_in_spans_ns"]), (&ms(120), &ms(70)));
    assert_eq!((&checkout["samples"], &checkout["spans"], &checkout["profiles"]), (&json!(12), &json!(2), &json!(1)));
    let uploaded = u64::try_from(checkout["last_upload_unix_ms"].as_i64().unwrap()).unwrap();
    assert!(uploaded.abs_diff(common::now() / 1_000_000) < 60_000);
    assert_eq!(services.as_array().unwrap().len(), 2);
}

#[test]
fn span_names_have_wall_and_cpu_and_the_hottest_function() {
    let answer = shop().json("/api/spans?service=checkout");
    assert_eq!(answer["outside"], json!({ "cpu_ns": 5 * PERIOD, "samples": 5 }));
    let cart = &answer["spans"][0];
    assert_eq!((&cart["name"], &cart["count"], &cart["errors"]), (&json!("GET /cart"), &json!(1), &json!(1)));
    assert_eq!((&cart["wall_p50_ns"], &cart["wall_p95_ns"], &cart["wall_total_ns"]), (&ms(600), &ms(600), &ms(600)));
    assert_eq!((&cart["cpu_ns"], &cart["samples"], &cart["sampled_by"]), (&ms(40), &json!(4), &json!("span")));
    assert_eq!(cart["hottest"], json!({ "function": "sum", "file": "sum.py", "own_ns": 3 * PERIOD, "share": 0.75 }));
    assert_eq!(answer["spans"][1]["name"], "render");
    assert_eq!(answer["spans"].as_array().unwrap().len(), 2);
}

#[test]
fn a_trace_has_own_and_inclusive_cpu_across_services() {
    let trace = shop().json(&format!("/api/trace/{TRACE}"));
    assert_eq!((&trace["cpu_ns"], &trace["wall_ns"]), (&ms(90), &ms(600)));
    let rows: Vec<_> = trace["spans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| {
            let text = |key: &str| span[key].as_str().unwrap_or("-").to_owned();
            let cpu =
                (span["own_cpu_ns"].as_i64().unwrap() / PERIOD, span["inclusive_cpu_ns"].as_i64().unwrap() / PERIOD);
            (text("span"), text("parent"), text("service"), text("name"), text("status"), cpu)
        })
        .collect();
    let row = |span: &str, parent: &str, service: &str, name: &str, status: &str, cpu: (i64, i64)| {
        (span.to_owned(), parent.to_owned(), service.to_owned(), name.to_owned(), status.to_owned(), cpu)
    };
    assert_eq!(
        rows,
        [
            row(ROOT, "-", "checkout", "GET /cart", "error", (4, 9)),
            row(CHILD, ROOT, "checkout", "render", "unset", (3, 5)),
            row(REMOTE, CHILD, "search", "POST /quote", "unset", (2, 2)),
        ]
    );
}

#[test]
fn traces_of_a_name_are_sorted_as_asked() {
    let server = shop();
    let slow = "aaf92f3577b34da6a3ce929d0e0e4736";
    assert_eq!(server.trace("checkout", vec![span(slow, "00000000000000aa", "", "GET /cart", 0, 900)]).status, 200);
    let order = |sort: &str| -> Vec<String> {
        let answer = server.json(&format!("/api/traces?service=checkout&name=GET%20/cart&sort={sort}"));
        let traces = answer["traces"].as_array().unwrap();
        traces.iter().map(|trace| trace["trace"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(order("wall"), [slow, TRACE]);
    assert_eq!(order("cpu"), [TRACE, slow]);
    let traces = server.json("/api/traces?service=checkout&name=render");
    let trace = &traces["traces"][0];
    assert_eq!((&trace["root_span"], &trace["wall_ns"], &trace["span_wall_ns"]), (&json!(ROOT), &ms(600), &ms(50)));
    assert_eq!((&trace["cpu_ns"], &trace["spans"]), (&ms(90), &json!(3)));
}

/// All frames of a flame graph as `name:line own/total`, indented by depth.
fn flame(server: &Server, query: &str) -> Vec<String> {
    let graph = server.json(&format!("/api/flame?{query}"));
    let mut depths = vec![0];
    let rows = graph["frames"].as_array().unwrap().iter().enumerate().map(|(row, frame)| {
        let number = |at: usize| frame[at].as_i64().unwrap();
        if row > 0 {
            depths.push(depths[usize::try_from(number(0)).unwrap()] + 1);
        }
        let name = graph["functions"][usize::try_from(number(1)).unwrap()]["name"].as_str().unwrap();
        let (own, total) = (number(4) / PERIOD, number(3) / PERIOD);
        format!("{}{name}:{} {own}/{total}", " ".repeat(depths[row]), number(2))
    });
    rows.collect()
}

#[test]
fn a_flame_graph_of_each_selection() {
    let server = shop();
    let cart = ["total:0 0/4", " main:1 0/4", "  cart:10 1/4", "   sum:5 3/3"];
    assert_eq!(flame(&server, &format!("span={ROOT}")), cart);
    assert_eq!(flame(&server, "service=checkout&name=GET%20/cart"), cart);
    assert_eq!(flame(&server, "service=checkout&outside"), ["total:0 0/5", " main:2 0/5", "  gc:1 5/5"]);
    assert_eq!(flame(&server, "service=search"), ["total:0 0/2", " serve:3 0/2", "  rank:9 2/2"]);
    assert_eq!(flame(&server, &format!("trace={TRACE}"))[0], "total:0 0/9");
    assert_eq!(flame(&server, "service=checkout&inside=1")[0], "total:0 0/7");
    assert_eq!(flame(&server, "service=checkout")[..2], ["total:0 0/12", " main:1 0/12"]);
    assert_eq!(flame(&server, &format!("span={ROOT}&lines"))[2..], ["  cart:10 0/3", "   sum:5 3/3", "  cart:11 1/1"]);
    let whole = server.json(&format!("/api/flame?span={ROOT}"));
    assert_eq!((&whole["samples"], &whole["total"], &whole["unit"]), (&json!(4), &ms(40), &json!("nanoseconds")));
    assert_eq!(whole["functions"][1], json!({ "name": "main", "file": "main.py" }));
}

#[test]
fn top_functions_have_own_total_and_error() {
    let top = shop().json("/api/top?service=checkout&name=GET%20/cart");
    let sum = &top["functions"][0];
    assert_eq!(
        (&sum["function"], &sum["own"], &sum["total"], &sum["share"]),
        (&json!("sum"), &ms(30), &ms(30), &json!(0.75))
    );
    assert!((sum["error"].as_f64().unwrap() - (0.75_f64 * 0.25 / 4.0).sqrt()).abs() < 1e-9);
    assert_eq!((&top["samples"], &top["functions"][1]["function"]), (&json!(4), &json!("cart")));
}

#[test]
fn traces_in_json_and_on_the_port_of_otlp_are_the_same() {
    let server = Server::start();
    let body = serde_json::to_vec(&export("checkout", vec![span(TRACE, ROOT, "", "GET /cart", 0, 600)])).unwrap();
    assert!(String::from_utf8_lossy(&body).contains(TRACE), "the JSON of OTLP writes ids in hex");
    let json = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let answer = server.post("/v1/traces", &json, &gzip(&body));
    assert_eq!((answer.status, answer.kind.as_str(), answer.text().as_str()), (200, "application/json", "{}"));
    let spans = export("search", vec![span(TRACE, REMOTE, ROOT, "POST /quote", 10, 20)]).encode_to_vec();
    let agent = ureq::agent();
    let sent =
        agent.post(format!("{}/v1/traces", server.otlp)).header("content-type", "application/x-protobuf").send(&spans);
    assert_eq!(sent.unwrap().status(), 200);
    let trace = server.json(&format!("/api/trace/{TRACE}"));
    assert_eq!((&trace["spans"][0]["wall_ns"], &trace["spans"][1]["wall_ns"]), (&ms(600), &ms(20)));
}

#[test]
fn a_push_in_json_is_the_same() {
    use base64::Engine as _;
    let server = Server::start();
    let raw = base64::engine::general_purpose::STANDARD
        .encode(profile(&[(&["main:1"], &[("profile_id", ROOT)], 2)]).encode_to_vec());
    let labels = json!([{ "name": "__name__", "value": "process_cpu" }, { "name": "service_name", "value": "shop" }]);
    let body = json!({ "series": [{ "labels": labels, "samples": [{ "rawProfile": raw, "ID": "a" }] }] });
    let answer = server.post(
        "/push.v1.PusherService/Push",
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    );
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"));
    assert_eq!(flame(&server, &format!("span={ROOT}")), ["total:0 0/2", " main:1 2/2"]);
}

#[test]
fn a_service_that_labels_root_spans_only_has_no_cpu_in_children_instead_of_none() {
    let server = Server::start();
    let labels = [("span_id", ROOT), ("span_name", "GET /cart")];
    assert_eq!(server.push("shop", &profile(&[(&["main:1", "cart:2"], &labels, 20)])).status, 200);
    let root = with_attribute(span(TRACE, ROOT, "", "GET /cart", 0, 600), "pyroscope.profile.id", ROOT);
    assert_eq!(server.trace("shop", vec![span(TRACE, CHILD, ROOT, "render", 1, 500), root]).status, 200);
    let trace = server.json(&format!("/api/trace/{TRACE}"));
    assert_eq!((&trace["spans"][0]["own_cpu_ns"], &trace["spans"][0]["inclusive_cpu_ns"]), (&ms(200), &ms(200)));
    assert_eq!(
        (&trace["spans"][1]["own_cpu_ns"], &trace["spans"][1]["inclusive_cpu_ns"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(trace["spans"][1]["sampled_by"], "root");
    let names = server.json("/api/spans?service=shop");
    assert_eq!((&names["spans"][1]["name"], &names["spans"][1]["cpu_ns"]), (&json!("render"), &Value::Null));
}

#[test]
fn the_final_name_of_a_trace_wins_over_the_label() {
    let server = Server::start();
    let labels = [("span_id", ROOT), ("span_name", "GET")];
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &labels, 2)])).status, 200);
    let names = server.json("/api/spans?service=shop");
    assert_eq!((&names["spans"][0]["name"], &names["spans"][0]["wall_p50_ns"]), (&json!("GET"), &Value::Null));
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart/{id}", 0, 60)]).status, 200);
    let names = server.json("/api/spans?service=shop");
    assert_eq!((&names["spans"][0]["name"], &names["spans"][0]["samples"]), (&json!("GET /cart/{id}"), &json!(2)));
    assert_eq!(flame(&server, "service=shop&name=GET%20/cart/%7Bid%7D").len(), 2);
}

#[test]
fn other_sample_types_are_asked_for_by_name() {
    let server = Server::start();
    let mut memory = profile(&[(&["main:1", "load:2"], &[("span_id", ROOT)], 1)]);
    let index =
        |text: &str| i64::try_from(memory.string_table.iter().position(|known| known == text).unwrap()).unwrap();
    let (cpu, ns) = (index("cpu"), index("nanoseconds"));
    memory.string_table[usize::try_from(cpu).unwrap()] = "alloc_space".into();
    memory.string_table[usize::try_from(ns).unwrap()] = "bytes".into();
    let body = request(&[("__name__", "memory"), ("service_name", "shop")], memory.encode_to_vec());
    assert_eq!(server.post("/push.v1.PusherService/Push", &[("content-type", "application/proto")], &body).status, 200);
    let graph = server.json(&format!("/api/flame?span={ROOT}&type=memory"));
    assert_eq!((&graph["unit"], &graph["total"]), (&json!("bytes"), &json!(PERIOD)));
    assert_eq!(graph["profile_type"], "memory:alloc_space:bytes:alloc_space:bytes");
    assert_eq!(server.json(&format!("/api/flame?span={ROOT}"))["total"], 0);
    assert_eq!(
        server.json(&format!("/api/flame?span={ROOT}&type=memory:alloc_space:bytes:alloc_space:bytes"))["samples"],
        1
    );
}

#[test]
fn downloads_hold_the_same_samples() {
    let server = shop();
    let query = format!("span={ROOT}");
    assert_eq!(server.get(&format!("/folded?{query}")).text(), "main;cart 10000000\nmain;cart;sum 30000000\n");
    let merged = server.pprof(&query);
    assert_eq!(merged.sample.iter().map(|sample| sample.value[0]).sum::<i64>(), 4 * PERIOD);
    assert_eq!((merged.period, merged.location.len()), (PERIOD, 4));
    let svg = server.get(&format!("/flame.svg?{query}"));
    assert_eq!((svg.status, svg.kind.as_str()), (200, "image/svg+xml"));
    assert!(svg.headers["content-security-policy"].ends_with("sandbox allow-scripts allow-modals"));
    assert!(svg.text().contains("<svg") && svg.text().contains("sum (30 ms"), "{}", &svg.text()[..400]);
}

#[test]
fn probes_are_answered() {
    let server = Server::start();
    assert_eq!(server.get("/ready").text(), "ready");
    let info = server.json("/api/v1/status/buildinfo");
    assert_eq!((&info["status"], &info["data"]["application"]), (&json!("success"), &json!("spanprof")));
    assert_eq!(info["data"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn sums_of_wall_time_end_where_numbers_do() {
    let server = Server::start();
    let long = |number: u64| Span {
        start_time_unix_nano: 1,
        ..span(&format!("{number:032x}"), &format!("{number:016x}"), "", "GET /", 0, 1)
    };
    // Each since 1970: six of them are more than an integer holds.
    assert_eq!(server.trace("shop", (1..=6).map(long).collect()).status, 200);
    let names = server.json("/api/spans?service=shop&since=all");
    assert_eq!(names["spans"][0]["wall_total_ns"], i64::MAX);
    assert_eq!(names["spans"][0]["count"], 6);
    assert!(server.page("/spans?service=shop&since=all").contains("GET /"));
}
