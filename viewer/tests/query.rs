//! Pyroscope's query API, asked in JSON and in protobuf as Grafana's clients ask it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use base64::Engine as _;
use common::{PERIOD, Server, now, profile, request, span};
use prost::Message as _;
use serde_json::{Value, json};
use spanprof_core::wire::pprof::Profile;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const OTHER: &str = "00f067aa0ba902b8";
const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

/// A service with two spans and some work outside of them, and another service.
fn filled() -> Server {
    let server = Server::start();
    let (first, second) = ([("span_id", SPAN), ("trace_id", TRACE)], [("span_id", OTHER)]);
    let shop = profile(&[
        (&["main:1", "cart:2", "work:3"], &first, 7),
        (&["main:1", "cart:2"], &second, 2),
        (&["main:1"], &[("region", "eu")], 1),
    ]);
    assert_eq!(server.push("shop", &shop).status, 200);
    let labels = [("__name__", "process_cpu"), ("service_name", "search"), ("http.route", "/suggest")];
    let body = request(&labels, profile(&[(&["main:1"], &[], 4)]).encode_to_vec());
    assert_eq!(server.post("/push.v1.PusherService/Push", &[("content-type", "application/proto")], &body).status, 200);
    server
}

fn ask_with(server: &Server, method: &str, headers: &[(&str, &str)], question: &Value) -> (u16, Value) {
    let headers = [&[("content-type", "application/json")], headers].concat();
    let path = format!("/querier.v1.QuerierService/{method}");
    let answer = server.post(&path, &headers, question.to_string().as_bytes());
    assert_eq!(answer.kind, "application/json", "{}", answer.text());
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn ask(server: &Server, method: &str, question: Value) -> Value {
    let (status, answer) = ask_with(server, method, &[], &question);
    assert_eq!(status, 200, "{method} {question}: {answer}");
    answer
}

/// The time range of everything, as strings the way protobuf's JSON has it, with what else is asked.
fn in_time(mut question: Value) -> Value {
    let ms = now() / 1_000_000;
    question["start"] = (ms - 600_000).to_string().into();
    question["end"] = (ms + 60_000).to_string().into();
    question
}

fn merge(server: &Server, question: Value) -> Value {
    let mut question = in_time(question);
    question["profileTypeID"] = CPU.into();
    ask(server, "SelectMergeStacktraces", question)
}

#[test]
fn profile_types_are_there_whatever_the_data_source_test_asks() {
    let server = filled();
    let types = ask(&server, "ProfileTypes", in_time(json!({})));
    let expected = json!({
        "ID": CPU, "name": "process_cpu", "sampleType": "cpu", "sampleUnit": "nanoseconds",
        "periodType": "cpu", "periodUnit": "nanoseconds" });
    assert_eq!(types["profileTypes"], json!([expected]));
    assert_eq!(ask(&server, "ProfileTypes", json!({ "start": 1000, "end": "4000" }))["profileTypes"], json!([]));
}

#[test]
fn labels_and_their_values_are_chosen_by_matchers() {
    let server = filled();
    let names = ask(&server, "LabelNames", in_time(json!({ "matchers": ["{service_name=\"search\"}"] })));
    let expected = [
        "__name__",
        "__period_type__",
        "__period_unit__",
        "__profile_type__",
        "__service_name__",
        "__type__",
        "__unit__",
        "service_name",
    ];
    assert_eq!(names["names"], json!(expected));
    let accept = [("accept", "*/*; allow-utf8-labelnames=true")];
    let (_, with_dots) = ask_with(&server, "LabelNames", &accept, &in_time(json!({})));
    let with_dots = with_dots["names"].as_array().unwrap();
    assert!(with_dots.contains(&json!("http.route")) && with_dots.contains(&json!("region")));
    let values = |question: Value| ask(&server, "LabelValues", in_time(question))["names"].clone();
    assert_eq!(values(json!({ "name": "service_name" })), json!(["search", "shop"]));
    assert_eq!(values(json!({ "name": "__profile_type__", "matchers": null })), json!([CPU]));
    assert_eq!(values(json!({ "name": "service_name", "matchers": ["{region=~\"e.\"}"] })), json!(["shop"]));
    let matchers = json!(["{__profile_type__=\"process_cpu:cpu:nanoseconds:cpu:nanoseconds\", region=\"\"}"]);
    assert_eq!(values(json!({ "name": "service_name", "matchers": matchers })), json!(["search", "shop"]));
}

#[test]
fn series_are_label_sets() {
    let server = filled();
    let asked = json!({ "matchers": ["{}"], "labelNames": ["service_name", "region"] });
    let series = ask(&server, "Series", in_time(asked));
    let label = |name: &str, value: &str| json!({ "name": name, "value": value });
    let expected = json!([
        { "labels": [label("region", "eu"), label("service_name", "shop")] },
        { "labels": [label("service_name", "search")] },
        { "labels": [label("service_name", "shop")] },
    ]);
    assert_eq!(series["labelsSet"], expected);
    let names: Vec<String> = (0..1_001).map(|name| name.to_string()).collect();
    assert_eq!(ask(&server, "Series", in_time(json!({ "labelNames": names[1..] })))["labelsSet"], json!([]));
    let (status, refused) = ask_with(&server, "Series", &[], &in_time(json!({ "labelNames": names })));
    assert_eq!((status, &refused["message"]), (400, &json!("labelNames has more than 1000 names")));
}

#[test]
fn a_flame_graph_of_a_service_has_levels_of_four() {
    let server = filled();
    let graph =
        &merge(&server, json!({ "labelSelector": "{service_name=\"shop\"}", "format": "SOMETHING_NEW" }))["flamegraph"];
    assert_eq!(graph["names"], json!(["total", "main", "cart", "work"]));
    let ms = |periods: i64| (periods * PERIOD).to_string();
    assert_eq!((graph["total"].clone(), graph["maxSelf"].clone()), (json!(ms(10)), json!(ms(7))));
    let levels = json!([
        { "values": ["0", ms(10), "0", "0"] },
        { "values": ["0", ms(10), ms(1), "1"] },
        { "values": [ms(1), ms(9), ms(2), "2"] },
        { "values": [ms(3), ms(7), ms(7), "3"] },
    ]);
    assert_eq!(graph["levels"], levels);
    assert_eq!(merge(&server, json!({ "labelSelector": "{}" }))["flamegraph"]["total"], ms(14));
    assert_eq!(merge(&server, json!({ "labelSelector": "{region=\"eu\"}" }))["flamegraph"]["total"], ms(1));
    let cut = &merge(&server, json!({ "labelSelector": "{service_name=\"shop\"}", "maxNodes": "3" }))["flamegraph"];
    assert_eq!((cut["names"][3].clone(), cut["total"].clone()), (json!("other"), json!(ms(10))));
}

#[test]
fn spans_and_traces_choose_samples() {
    let server = filled();
    let total =
        |question: Value| merge(&server, question)["flamegraph"]["total"].as_str().unwrap().parse::<i64>().unwrap();
    assert_eq!(total(json!({ "spanSelector": [SPAN] })), 7 * PERIOD);
    assert_eq!(total(json!({ "spanSelector": [SPAN, OTHER] })), 9 * PERIOD);
    assert_eq!(total(json!({ "span_selector": ["ffffffffffffffff"] })), 0);
    assert_eq!(total(json!({ "traceIdSelector": [TRACE] })), 7 * PERIOD);
    assert_eq!(total(json!({ "spanSelector": [SPAN], "labelSelector": "{service_name=\"search\"}" })), 0);
    // A trace that was received joins spans that no sample named it for.
    assert_eq!(server.trace("shop", vec![span(TRACE, OTHER, SPAN, "render", 0, 5)]).status, 200);
    assert_eq!(total(json!({ "traceIdSelector": [TRACE] })), 9 * PERIOD);
    let mut old = in_time(json!({ "profileTypeID": CPU, "spanSelector": [SPAN] }));
    let answer = ask(&server, "SelectMergeSpanProfile", old.clone());
    assert_eq!(answer["flamegraph"]["total"], (7 * PERIOD).to_string());
    old["spanSelector"] = json!(["xyz"]);
    let (status, error) = ask_with(&server, "SelectMergeSpanProfile", &[], &old);
    assert_eq!((status, error["code"].clone()), (400, json!("invalid_argument")));
    assert!(error["message"].as_str().unwrap().contains("\"xyz\": allowed are 16 hex digits"));
}

#[test]
fn a_tree_and_a_pprof_say_the_same() {
    let server = filled();
    let question = |format: &str| json!({ "labelSelector": "{service_name=\"search\"}", "format": format });
    let tree = merge(&server, question("PROFILE_FORMAT_TREE"))["tree"].as_str().unwrap().to_owned();
    let tree = base64::engine::general_purpose::STANDARD.decode(tree).unwrap();
    // 40,000,000 as a varint.
    assert_eq!(tree, b"\x00\x00\x01\x04main\x80\xb4\x89\x13\x00");
    let profile = &merge(&server, question("PROFILE_FORMAT_PPROF"))["pprof"]["profile"];
    assert_eq!(profile["sample"][0]["value"], json!([(4 * PERIOD).to_string()]));
    assert!(profile["stringTable"].as_array().unwrap().contains(&json!("main.py")));
}

#[test]
fn a_bare_pprof_is_sent_to_whoever_asks_without_connects_headers() {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Request {
        #[prost(string, tag = "1")]
        profile_type: String,
        #[prost(string, tag = "2")]
        selector: String,
        #[prost(int64, tag = "3")]
        start: i64,
        #[prost(int64, tag = "4")]
        end: i64,
    }
    let server = filled();
    let ms = i64::try_from(now() / 1_000_000).unwrap();
    let question = Request {
        profile_type: CPU.into(),
        selector: "{service_name=\"shop\"}".into(),
        start: ms - 60_000,
        end: ms + 60_000,
    };
    let path = "/querier.v1.QuerierService/SelectMergeProfile";
    let answer = server.post(path, &[("content-type", "application/proto")], &question.encode_to_vec());
    assert_eq!((answer.status, answer.kind.as_str()), (200, "application/proto"));
    let profile = Profile::decode(answer.body.as_slice()).unwrap();
    assert_eq!(profile.sample.iter().map(|sample| sample.value[0]).sum::<i64>(), 10 * PERIOD);
}

#[test]
fn points_sit_on_the_steps_and_groups_are_series() {
    let server = filled();
    let mut question = in_time(json!({ "profileTypeID": CPU, "step": 15, "groupBy": ["service_name"] }));
    let answer = ask(&server, "SelectSeries", question.clone());
    let series = answer["series"].as_array().unwrap();
    assert_eq!(series.len(), 2);
    assert_eq!(series[1]["labels"], json!([{ "name": "service_name", "value": "shop" }]));
    assert!((series[1]["points"][0]["value"].as_f64().unwrap() - 10.0 * PERIOD as f64).abs() < 1.0);
    let start: i64 = question["start"].as_str().unwrap().parse().unwrap();
    let at: i64 = series[1]["points"][0]["timestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!((at - start) % 15_000, 0);
    question["limit"] = "1".into();
    question["aggregation"] = "TIME_SERIES_AGGREGATION_TYPE_AVERAGE".into();
    let answer = ask(&server, "SelectSeries", question.clone());
    assert_eq!(answer["series"].as_array().unwrap().len(), 1);
    // A step that never ends holds nothing before its end.
    let (step, endless) = (question["step"].take(), "Infinity");
    question["step"] = endless.into();
    assert_eq!(ask(&server, "SelectSeries", question.clone())["series"][0]["points"], json!([]));
    question["step"] = step;
    question["step"] = 0.into();
    let (status, error) = ask_with(&server, "SelectSeries", &[], &question);
    assert!(status == 400 && error["message"].as_str().unwrap().contains("step 0"), "{error}");
}

#[test]
fn a_difference_has_levels_of_seven() {
    let server = filled();
    let side = |service: &str| {
        in_time(json!({ "profileTypeID": CPU, "labelSelector": format!("{{service_name=\"{service}\"}}") }))
    };
    let graph = &ask(&server, "Diff", json!({ "left": side("shop"), "right": side("search") }))["flamegraph"];
    let ms = |periods: i64| (periods * PERIOD).to_string();
    assert_eq!((graph["leftTicks"].clone(), graph["rightTicks"].clone()), (json!(ms(10)), json!(ms(4))));
    assert_eq!(graph["levels"][1]["values"], json!(["0", ms(10), ms(1), "0", ms(4), ms(4), "1"]));
    let query = "leftQuery=process_cpu:cpu:nanoseconds:cpu:nanoseconds%7Bservice_name%3D%22shop%22%7D&leftFrom=now-1h&leftUntil=now\
                 &rightQuery=process_cpu:cpu:nanoseconds:cpu:nanoseconds%7Bservice_name%3D%22search%22%7D&rightFrom=now-1h&rightUntil=now";
    let rendered = server.json(&format!("/pyroscope/render-diff?{query}"));
    assert_eq!((&rendered["leftTicks"], &rendered["metadata"]["format"]), (&json!(10 * PERIOD), &json!("double")));
}

#[test]
fn render_is_a_flame_graph_and_a_timeline() {
    let server = filled();
    let query =
        "query=process_cpu:cpu:nanoseconds:cpu:nanoseconds%7Bservice_name%3D%22shop%22%7D&from=now-1h&until=now";
    let rendered = server.json(&format!("/pyroscope/render?{query}&groupBy=region&format=json"));
    assert_eq!(rendered["flamebearer"]["numTicks"], 10 * PERIOD);
    assert_eq!(rendered["flamebearer"]["levels"][0], json!([0, 10 * PERIOD, 0, 0]));
    assert_eq!((&rendered["metadata"]["name"], &rendered["metadata"]["units"]), (&json!("cpu"), &json!("samples")));
    assert_eq!(rendered["groups"].as_object().unwrap().keys().collect::<Vec<_>>(), ["*", "eu"]);
    let one = server.json(&format!("/pyroscope/render?{query}"));
    let samples = one["timeline"]["samples"].as_array().unwrap();
    assert!((samples.iter().map(|sample| sample.as_f64().unwrap()).sum::<f64>() - 10.0 * PERIOD as f64).abs() < 1.0);
    let answer = server.get("/pyroscope/render?query=%7Bservice_name%3D%22shop%22%7D");
    assert!(answer.status == 400 && answer.text().contains("profile type is missing"), "{}", answer.text());
    assert_eq!(server.get("/pyroscope/render?query=x&from=yesterday").status, 400);
    // The type as a label, written as Prometheus lets one write it, also where a value looks like it.
    for selector in [
        "{__name__ = \"TYPE\"}",
        "{ __name__=`TYPE` , region!=\"__name__='TYPE'\"}",
        "{region!='', __name__='TYPE:delta'}",
    ] {
        let query: String = selector.replace("TYPE", CPU).bytes().map(|byte| format!("%{byte:02x}")).collect();
        let rendered = server.json(&format!("/pyroscope/render?query={query}&from=now-1h"));
        let expected = if selector.starts_with("{region") { 1 } else { 14 };
        assert_eq!(rendered["flamebearer"]["numTicks"], expected * PERIOD, "{selector}");
    }
    // Times at the ends of all numbers are sums of none.
    for (from, until) in [(i64::MIN, 0), (i64::MIN, i64::MAX), (1 - i64::MAX, i64::MAX), (i64::MAX, i64::MAX)] {
        let answer = server.get(&format!("/pyroscope/render?query={CPU}%7B%7D&from={from}&until={until}"));
        assert!([200, 400].contains(&answer.status), "{from} {until}: {}", answer.text());
    }
}

#[test]
fn stats_say_whether_there_is_anything() {
    let server = Server::start();
    assert_eq!(ask(&server, "GetProfileStats", json!({}))["dataIngested"], false);
    let server = filled();
    let stats = ask(&server, "GetProfileStats", json!({}));
    assert_eq!((&stats["dataIngested"], stats["oldestProfileTime"].is_string()), (&json!(true), true));
}

#[test]
fn what_is_not_answered_is_said_the_way_clients_expect() {
    let server = filled();
    // As Pyroscope's newer read path: which of its parts would be asked says nothing about one program.
    assert_eq!(ask(&server, "AnalyzeQuery", in_time(json!({ "query": "{}" }))), json!({}));
    let unknown = server.post("/querier.v1.QuerierService/Nothing", &[("content-type", "application/json")], b"{}");
    assert_eq!((unknown.status, unknown.kind.as_str()), (404, "text/plain; charset=utf-8"));
    for (question, says) in [
        (json!({ "profileTypeID": "process_cpu" }), "profile type \"process_cpu\": allowed is <name>:<sample type>"),
        (json!({ "profileTypeID": CPU, "labelSelector": "{a=~\"(\"}" }), "not a regular expression"),
        (json!({ "profileTypeID": CPU, "start": "5", "end": "4" }), "start 5 is after end 4"),
        (json!({ "profileTypeID": 5 }), "not understood"),
        (json!({ "profileTypeID": CPU, "start": "x" }), "not a 64-bit integer"),
    ] {
        let (status, error) = ask_with(&server, "SelectMergeStacktraces", &[], &question);
        assert_eq!((status, &error["code"]), (400, &json!("invalid_argument")), "{question}");
        assert!(error["message"].as_str().unwrap().contains(says), "{question}: {error}");
    }
    let garbage =
        server.post("/querier.v1.QuerierService/Series", &[("content-type", "application/proto")], &[0xff; 9]);
    assert_eq!(garbage.status, 400);
    assert_eq!(server.post("/querier.v1.QuerierService/Series", &[("content-type", "text/csv")], b"").status, 415);
}

#[test]
fn no_time_range_is_refused_as_pyroscope_refuses_it() {
    let server = filled();
    let asked = json!({ "profileTypeID": CPU, "name": "service_name", "step": 15 });
    for method in [
        "ProfileTypes",
        "LabelNames",
        "LabelValues",
        "Series",
        "SelectMergeStacktraces",
        "SelectSeries",
        "SelectHeatmap",
    ] {
        for range in [json!({}), json!({ "start": "5" }), json!({ "end": 5 })] {
            let mut question = asked.clone();
            question.as_object_mut().unwrap().extend(range.as_object().unwrap().clone());
            let (status, error) = ask_with(&server, method, &[], &question);
            let message = error["message"].as_str().unwrap();
            assert!(
                status == 400 && message.starts_with("missing time range in the query"),
                "{method} {question}: {message}"
            );
        }
    }
}

#[test]
fn the_older_path_lists_values_of_a_label() {
    let server = filled();
    assert_eq!(server.json("/pyroscope/label-values?label=service_name"), json!(["search", "shop"]));
    assert_eq!(server.json("/pyroscope/label-values?label=__name__"), json!([CPU]));
    assert_eq!(server.json("/pyroscope/label-values?label=region&from=now-1h&until=now"), json!(["eu"]));
    let refused = server.get("/pyroscope/label-values");
    assert!(
        refused.status == 400 && refused.text().contains("the parameter \\\"label\\\" is missing"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_heat_map_of_spans_has_exemplars_with_their_traces() {
    let server = filled();
    // Its samples name no trace, and one was received.
    assert_eq!(
        server.trace("shop", vec![span("4bf92f3577b34da6a3ce929d0e0e4737", OTHER, "", "GET /", 0, 60)]).status,
        200
    );
    let question = |more: Value| {
        let mut question =
            in_time(json!({ "profileTypeID": CPU, "step": 3600, "queryType": "HEATMAP_QUERY_TYPE_SPAN" }));
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    let all = ask(
        &server,
        "SelectHeatmap",
        question(json!({ "exemplarType": "EXEMPLAR_TYPE_SPAN", "groupBy": ["service_name"] })),
    );
    let series = &all["series"].as_array().unwrap()[..];
    assert_eq!((series.len(), &series[0]["labels"]), (1, &json!([{ "name": "service_name", "value": "shop" }])));
    let slot = &series[0]["slots"][0];
    let counts: Vec<i64> = slot["counts"].as_array().unwrap().iter().map(|count| count.as_i64().unwrap()).collect();
    assert_eq!((counts.len(), counts[0], counts[19], counts.iter().sum::<i64>()), (20, 1, 1, 2));
    assert_eq!((&slot["yMin"][0], &slot["yMin"][10]), (&json!(2e7), &json!(4.5e7)));
    let exemplars: Vec<_> =
        slot["exemplars"].as_array().unwrap().iter().map(|e| (&e["spanId"], &e["traceId"], &e["value"])).collect();
    let other = json!("4bf92f3577b34da6a3ce929d0e0e4737");
    assert_eq!(
        exemplars,
        [(&json!(OTHER), &other, &json!("20000000")), (&json!(SPAN), &json!(TRACE), &json!("70000000"))]
    );
    let labels = slot["exemplars"][0]["labels"].as_array().unwrap();
    assert!(labels.contains(&json!({ "name": "__profile_type__", "value": CPU })), "{labels:?}");
    assert!(!labels.iter().any(|label| label["name"] == "service_name"), "{labels:?}");

    let none = ask(&server, "SelectHeatmap", question(json!({ "exemplarType": 1 })));
    assert!(none["series"][0]["slots"][0].get("exemplars").is_none());
    let profiles = ask(
        &server,
        "SelectHeatmap",
        question(json!({ "queryType": 1, "groupBy": ["service_name", "region"], "limit": "2" })),
    );
    assert_eq!(profiles["series"].as_array().unwrap().len(), 2);
    for (more, says) in [
        (json!({ "queryType": 0 }), "queryType 0: allowed are"),
        (json!({ "queryType": 1, "exemplarType": 3 }), "exemplars of spans are those of a query of spans"),
        (json!({ "exemplarType": 7 }), "exemplarType 7"),
        (json!({ "limit": -1 }), "limit -1"),
        (json!({ "step": 0.0001 }), "step 0.0001"),
        (json!({ "start": 5, "end": 5 }), "start 5 must be before end 5"),
    ] {
        let (status, error) = ask_with(&server, "SelectHeatmap", &[], &question(more));
        assert!(status == 400 && error["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn exemplars_of_profiles_lead_to_their_profile() {
    let server = filled();
    let shop = profile(&[(&["main:1", "night:9"], &[], 25)]);
    assert_eq!(server.push("shop", &shop).status, 200);
    let exemplar_of = |answer: &Value, list: &str, inner: &str| {
        let all = answer["series"].as_array().unwrap().iter().filter(|series| {
            series["labels"].as_array().unwrap().contains(&json!({ "name": "service_name", "value": "shop" }))
        });
        let within = all.flat_map(|series| series[list].as_array().unwrap().clone());
        let exemplars = within.flat_map(|point| point[inner].as_array().cloned().unwrap_or_default());
        let exemplars: Vec<Value> = exemplars.collect();
        exemplars
            .into_iter()
            .max_by_key(|exemplar| exemplar["value"].as_str().unwrap().parse::<i64>().unwrap())
            .unwrap()
    };
    let question = |kind: Value| {
        in_time(json!({ "profileTypeID": CPU, "step": 60, "groupBy": ["service_name"], "exemplarType": kind }))
    };
    let mut of_heatmap = question(json!("EXEMPLAR_TYPE_INDIVIDUAL"));
    of_heatmap["queryType"] = json!("HEATMAP_QUERY_TYPE_INDIVIDUAL");
    let heatmap = ask(&server, "SelectHeatmap", of_heatmap);
    let series = ask(&server, "SelectSeries", question(json!(2)));
    for exemplar in [exemplar_of(&heatmap, "slots", "exemplars"), exemplar_of(&series, "points", "exemplars")] {
        assert_eq!(exemplar["value"], "250000000");
        assert!(exemplar.get("spanId").is_none(), "{exemplar}");
        let labels = exemplar["labels"].as_array().unwrap();
        assert!(labels.contains(&json!({ "name": "__profile_type__", "value": CPU })), "{labels:?}");
        assert!(!labels.iter().any(|label| label["name"] == "service_name"), "{labels:?}");
        let of_it = json!({ "labelSelector": "{service_name=\"shop\"}", "profileIdSelector": [exemplar["profileId"]] });
        let graph = merge(&server, of_it.clone())["flamegraph"].clone();
        assert_eq!((&graph["total"], &graph["names"]), (&json!("250000000"), &json!(["total", "main", "night"])));
        // A profile of the same time, and one of another: neither is there.
        let id = exemplar["profileId"].as_str().unwrap();
        for other in [format!("{}{}", &id[..35], "f"), format!("f{}", &id[1..])] {
            let none = merge(&server, json!({ "profileIdSelector": [other] }));
            assert_eq!(none["flamegraph"]["total"], "0");
        }
        let mut pprof = in_time(of_it);
        pprof["profileTypeID"] = CPU.into();
        let pprof = ask(&server, "SelectMergeProfile", pprof);
        assert_eq!(pprof["sample"][0]["value"], json!(["250000000"]));
    }
    let none = ask(&server, "SelectSeries", question(json!("EXEMPLAR_TYPE_NONE")));
    assert!(none["series"][0]["points"][0].get("exemplars").is_none());
    for (method, more, code, says) in [
        ("SelectSeries", json!({ "exemplarType": 3 }), 501, "exemplars of spans are those of SelectHeatmap"),
        ("SelectSeries", json!({ "exemplarType": 9 }), 400, "exemplarType 9: allowed are 0, 1 and 2"),
        (
            "SelectMergeStacktraces",
            json!({ "profileIdSelector": ["x"] }),
            400,
            "profile id \"x\": allowed are the UUIDs",
        ),
    ] {
        let mut asked = question(json!(0));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, error) = ask_with(&server, method, &[], &asked);
        assert!(status == code && error["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn a_heat_map_without_exemplars_needs_no_room_for_labels() {
    let server = Server::with(&["--memory", "64m"]);
    let (keys, values): (Vec<String>, Vec<String>) = (0..2_000).map(|n| (format!("key_{n}"), n.to_string())).unzip();
    let same: Vec<(&str, &str)> = keys.iter().take(20).map(|key| (key.as_str(), "x")).collect();
    let labels: Vec<Vec<(&str, &str)>> = values.iter().map(|own| [&same[..], &[("own", own)]].concat()).collect();
    let rows: Vec<common::Row<'_>> = labels.iter().map(|labels| (&["main:1"][..], &labels[..], 1)).collect();
    assert_eq!(server.push("shop", &profile(&rows)).status, 200);
    let found = ask(&server, "SelectHeatmap", in_time(json!({ "profileTypeID": CPU, "step": 3600, "queryType": 1 })));
    let counts = found["series"][0]["slots"][0]["counts"].as_array().unwrap();
    assert_eq!(counts.iter().map(|count| count.as_i64().unwrap()).sum::<i64>(), 2_000);
}

#[test]
fn a_question_in_the_frames_of_grpc_web_is_answered_in_them() {
    let server = filled();
    let ask = |body: &[u8]| {
        let headers = [("content-type", "application/grpc-web+json")];
        server.post("/querier.v1.QuerierService/LabelValues", &headers, body)
    };
    let question = in_time(json!({ "name": "service_name" })).to_string();
    let frame = [&[0, 0, 0, 0, u8::try_from(question.len()).unwrap()], question.as_bytes()].concat();
    let answer = ask(&frame);
    let names = br#"{"names":["search","shop"]}"#;
    let expected = [&[0, 0, 0, 0, 27][..], names, &[0x80, 0, 0, 0, 16], b"grpc-status: 0\r\n"].concat();
    assert_eq!((answer.status, answer.kind.as_str(), answer.body), (200, "application/grpc-web+json", expected));
    for (body, says) in [
        (&frame[..frame.len() - 1], "not%20one%20gRPC%20message"),
        (&frame[..3], "cut%20off"),
        (&[0, 0, 0, 0, 0][..], "name%20is%20missing"),
    ] {
        let answer = ask(body);
        assert!(
            answer.status == 200 && answer.text().contains("grpc-status: 3\r\n") && answer.text().contains(says),
            "{}",
            answer.text()
        );
    }
}
