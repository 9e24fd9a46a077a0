//! What a selection of spans chooses, and what is made of it: graphs, tables, comparisons, downloads.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{PERIOD, Server, failed, profile, span, with_attribute};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use serde_json::{Value, json};

/// Twenty spans GET /cart: span n takes 10 n ms and burns n periods, in wait from the nineteenth on and in work before.
/// Odd ones are user 7's, even ones user 8's and of profiles from eu; the last one fails.
fn carts() -> Server {
    let server = Server::start();
    let mut spans = Vec::new();
    for n in 1..=20_u64 {
        let (trace, id) = (format!("{n:032x}"), format!("{n:016x}"));
        let mut cart = span(&trace, &id, "", "GET /cart", 0, 10 * n);
        cart = with_attribute(cart, "user", if n % 2 == 1 { "7" } else { "8" });
        let items = AnyValue { value: Some(any_value::Value::IntValue(i64::try_from(n).unwrap())) };
        cart.attributes.push(KeyValue { key: "items".into(), value: Some(items), ..KeyValue::default() });
        spans.push(if n == 20 { failed(cart) } else { cart });
        let leaf = if n >= 19 { "wait:9" } else { "work:5" };
        let region = if n % 2 == 1 { "us" } else { "eu" };
        let labels = [("span_id", id.as_str()), ("span_name", "GET /cart"), ("region", region)];
        let stack =
            ["main:1", "loop@/usr/lib/python3.13/asyncio.py:2", "run@/usr/lib/python3.13/asyncio.py:3", "cart:4", leaf];
        assert_eq!(server.push("shop", &profile(&[(&stack, &labels, i64::try_from(n).unwrap())])).status, 200);
    }
    assert_eq!(server.trace("shop", spans).status, 200);
    server
}

#[test]
fn spans_are_chosen_by_what_their_traces_say() {
    let server = carts();
    for (query, periods) in [
        ("name=GET%20/cart", 210),
        ("dur>p95", 39),
        ("dur%3E=p95&name=GET%20/cart", 39),
        ("dur<p50", 55),
        ("dur>150ms&dur<170ms", 48),
        ("attr.user=7", 100),
        ("attr=user%3D8&dur>0.2s", 20),
        ("attr.items=12", 12),
        ("attr.user=7&dur>p90", 17 + 19),
        ("status=error", 20),
        ("status=unset&dur>190ms", 19),
        ("label.region=eu", 110),
        ("label.region=", 0),
        ("label=region%3D&label=zone%3D", 0),
        ("label=region%3Deu&label=zone%3D&label=", 110),
        ("label.zone=", 210),
        ("attr.user=", 0),
        ("attr.coupon=", 210),
        ("attr=user%3D7&attr=coupon%3D&attr=", 100),
        ("name=", 210),
        ("name~=CART", 210),
        ("name~=order", 0),
        ("attr.user=9", 0),
        ("since=all", 210),
        ("from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", 0),
    ] {
        let graph = server.json(&format!("/api/flame?service=shop&{query}"));
        assert_eq!((&graph["total"], &graph["samples"]), (&json!(periods * PERIOD), &json!(periods)), "{query}");
        let top = server.json(&format!("/api/top?service=shop&{query}"));
        assert_eq!(top["total"], graph["total"], "{query}");
        let folded = server.get(&format!("/folded?service=shop&{query}"));
        assert_eq!(folded.status, if periods > 0 { 200 } else { 404 }, "{query}");
    }
    let none = server.get("/api/flame?service=nobody&dur>p95");
    assert!(none.status == 404 && none.text().contains("percentiles need the traces"), "{}", none.text());
}

#[test]
fn a_list_of_spans_heeds_the_same_choice() {
    let server = carts();
    let names = server.json("/api/spans?service=shop&attr.user=7&dur>p50");
    let cart = &names["spans"][0];
    // Of 10 … 190 ms in steps of 20, the median is the fifth, 90 ms.
    assert_eq!((&cart["count"], &cart["samples"]), (&json!(6), &json!(9 + 11 + 13 + 15 + 17 + 19)));
    assert_eq!((&cart["wall_p50_ns"], &cart["wall_p99_ns"]), (&json!(130_000_000), &json!(190_000_000)));
    let traces = server.json("/api/traces?service=shop&dur<30ms");
    let walls: Vec<_> =
        traces["traces"].as_array().unwrap().iter().map(|trace| trace["span_wall_ns"].clone()).collect();
    assert_eq!(walls, [json!(30_000_000), json!(20_000_000), json!(10_000_000)]);
    for (path, says) in [
        ("/api/spans?service=shop&label.region=eu", "belongs to profiles; choose spans by attr"),
        ("/api/spans?service=shop&outside=1", "is known to flame graphs"),
        ("/api/traces?service=shop&span=00000000000000aa", "is known to flame graphs"),
    ] {
        let answer = server.get(path);
        assert!(answer.status == 400 && answer.text().contains(says), "{path}: {}", answer.text());
    }
}

#[test]
fn slow_spans_against_fast_ones() {
    let server = carts();
    let diff = server.json("/api/diff?service=shop&name=GET%20/cart&a.dur<p50&b.dur>p95");
    assert_eq!((&diff["a"]["samples"], &diff["b"]["samples"]), (&json!(55), &json!(39)));
    assert_eq!(diff["b"]["sentence"], "GET /cart of shop, at least p95, last hour");
    let rows: Vec<_> = diff["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (row["function"].as_str().unwrap(), row["own"]["change"].as_f64().unwrap(), row["own"]["sure"] == true)
        })
        .collect();
    assert_eq!(rows[..3], [("wait", 1.0, true), ("work", -1.0, true), ("cart", 0.0, false)]);
    // [parent, function, line, total of a, own of a, total of b, own of b]
    assert_eq!(diff["frames"][0], json!([0, 0, 0, 55 * PERIOD, 0, 39 * PERIOD, 0]));
    // Each function stands once in this tree, so the graph has of its frames what the table has of its rows.
    let number = |value: &serde_json::Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    for (frame, compared) in diff["frames"].as_array().unwrap().iter().zip(diff["compared"].as_array().unwrap()).skip(1)
    {
        let name = &diff["functions"].as_array().unwrap()[number(&frame[1])]["name"];
        let row = diff["changes"].as_array().unwrap().iter().find(|row| row["function"] == *name).unwrap();
        let total = &row["total"];
        assert_eq!(*compared, json!([total["change"], total["error"], total["sure"]]), "{name}");
    }
    assert_eq!(diff["frames"].as_array().unwrap().len(), diff["compared"].as_array().unwrap().len());
    let wrong = server.get("/api/diff?service=shop&a.dur>fast");
    assert!(wrong.status == 400 && wrong.text().contains("\\\"a.dur>\\\" = \\\"fast\\\""), "{}", wrong.text());
    let page = server.page("/diff?service=shop&name=GET%20/cart&a.dur<p50&b.dur>p95");
    assert!(page.contains("+100") && page.contains("−100") && page.contains("value=\"p95\""));
    assert!(server.page("/diff?service=shop").contains("Both sides are the same"));
}

#[test]
fn a_function_has_callers_callees_and_lines() {
    let server = carts();
    let cart = server.json("/api/function?service=shop&function=cart");
    assert_eq!((&cart["own"]["value"], &cart["total"]["value"]), (&json!(0), &json!(210 * PERIOD)));
    let names = |key: &str| -> Vec<(String, i64)> {
        let rows = cart[key].as_array().unwrap().iter();
        rows.map(|row| (row["function"].as_str().unwrap().to_owned(), row["value"].as_i64().unwrap() / PERIOD))
            .collect()
    };
    assert_eq!(names("callers"), [("run".into(), 210)]);
    assert_eq!(names("callees"), [("work".into(), 171), ("wait".into(), 39)]);
    let share = 39.0 / 210.0_f64;
    let wait = &cart["callees"][1];
    assert!((wait["share"].as_f64().unwrap() - share).abs() < 1e-9);
    assert!((wait["error"].as_f64().unwrap() - (share * (1.0 - share) / 210.0).sqrt()).abs() < 1e-9);
    assert_eq!((&cart["lines"][0]["line"], &cart["lines"][0]["file"]), (&json!(4), &json!("cart.py")));
    let missing = server.get("/api/function?service=shop&function=nothing");
    assert!(missing.status == 404 && missing.text().contains("no sample of a function"), "{}", missing.text());
    assert_eq!(server.get("/function?service=shop").status, 400);
    let page = server.page("/function?service=shop&function=cart&file=cart.py");
    assert!(page.contains("Callers") && page.contains("function=wait") && page.contains("cart.py:4"));
}

#[test]
fn frames_of_the_runtime_fold() {
    let server = carts();
    let folded = server.get("/folded?service=shop&fold=1").text();
    assert_eq!(
        folded,
        format!(
            "main;(runtime and libraries);cart;wait {}\nmain;(runtime and libraries);cart;work {}\n",
            39 * PERIOD,
            171 * PERIOD
        )
    );
    let names = |query: &str| -> Vec<Value> {
        let top = server.json(&format!("/api/top?service=shop&{query}"));
        top["functions"].as_array().unwrap().iter().map(|row| row["function"].clone()).collect()
    };
    assert_eq!(names("fold=1"), ["work", "wait", "(runtime and libraries)", "cart", "main"]);
    assert_eq!(names("").len(), 6);
    let lines = server.json("/api/top?service=shop&lines=1");
    assert_eq!((&lines["functions"][0]["function"], &lines["functions"][0]["line"]), (&json!("work"), &json!(5)));
}

#[test]
fn a_span_with_all_below_it() {
    let server = Server::start();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let id = |n: u64| format!("{n:016x}");
    let mut spans = Vec::new();
    for (n, parent) in [(1, 0), (2, 1), (3, 2), (4, 1), (5, 0)] {
        let parent = if parent == 0 { String::new() } else { id(parent) };
        spans.push(span(trace, &id(n), &parent, "step", n, 5));
        let labels = [("span_id", id(n)), ("trace_id", trace.to_owned())];
        let labels: Vec<_> = labels.iter().map(|(key, value)| (*key, value.as_str())).collect();
        assert_eq!(server.push("shop", &profile(&[(&["main:1"], &labels, 1 << n)])).status, 200);
    }
    assert_eq!(server.trace("shop", spans).status, 200);
    let periods = |query: String| server.json(&format!("/api/flame?{query}"))["samples"].as_i64().unwrap();
    assert_eq!(periods(format!("span={}", id(2))), 4);
    assert_eq!(periods(format!("span={}&below=1", id(2))), 4 + 8);
    assert_eq!(periods(format!("span={}&below=1", id(1))), 2 + 4 + 8 + 16);
}

#[test]
fn services_say_what_they_send_and_how_much() {
    let server = carts();
    let shop = server.json("/api/services")["services"][0].clone();
    let cpu = json!({ "type": "process_cpu", "word": "cpu", "unit": "nanoseconds", "averaged": false });
    assert_eq!(shop["profile_types"], json!([cpu]));
    let heard = shop["heard_ns"].as_i64().unwrap().max(1_000_000_000) as f64 / 1e9;
    assert!((shop["spans_per_second"].as_f64().unwrap() - 20.0 / heard).abs() < 1e-6);
    assert!((shop["cpu_cores"].as_f64().unwrap() - 2.1 / heard).abs() < 1e-6);
}

#[test]
fn other_profile_types_stand_beside_cpu() {
    let server = carts();
    let mut memory =
        profile(&[(&["main:1", "load:2"], &[("span_id", "0000000000000003"), ("span_name", "GET /cart")], 1)]);
    for (word, other) in [("cpu", "alloc_space"), ("nanoseconds", "bytes")] {
        let at = memory.string_table.iter().position(|known| known == word).unwrap();
        memory.string_table[at] = other.into();
    }
    let body =
        common::request(&[("__name__", "memory"), ("service_name", "shop")], prost::Message::encode_to_vec(&memory));
    let headers = [("content-type", "application/proto")];
    assert_eq!(server.post("/push.v1.PusherService/Push", &headers, &body).status, 200);
    let names = server.json("/api/spans?service=shop&type=memory");
    assert_eq!((&names["beside"]["word"], &names["beside"]["unit"]), (&json!("alloc_space"), &json!("bytes")));
    let cart = &names["spans"][0];
    assert_eq!((&cart["cpu_ns"], &cart["beside"]), (&json!(210 * PERIOD), &json!(PERIOD)));
    assert!(server.page("/flame?service=shop").contains("type=memory"));
}

#[test]
fn forms_send_what_is_chosen_and_an_emptied_field_asks_for_nothing() {
    let server = carts();
    let query = "service=shop&attr.user=7&attr.coupon=&label.region=us&label.a%3Db=&label.zone=%20b";
    for (page, prefix) in [(format!("/flame?{query}"), ""), (format!("/diff?{query}"), "a.")] {
        let text = server.page(&page);
        for (name, value) in [
            ("attr", "user=7"),
            ("attr", "coupon="),
            ("attr", ""),
            ("label", "region=us"),
            ("label", ""),
            // Its key has an equals sign.
            ("label.a=b", ""),
            // In a text with its key the space would be lost.
            ("label.zone", " b"),
        ] {
            let field = format!("name=\"{prefix}{name}\" value=\"{value}\"");
            assert!(text.contains(&field), "{page}: no {field} in {text}");
        }
    }
    let sent = "service=shop&attr=user%3D7&attr=&attr=&label=&label=region%3Dus&label.a%3Db=&name~=&status=";
    let graph = server.json(&format!("/api/flame?{sent}"));
    assert_eq!(graph["sentence"], "spans of shop, user = 7, without a=b, region = us, last hour");
    assert_eq!(graph["total"], 100 * PERIOD);
}
