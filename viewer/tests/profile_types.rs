//! What the values of profiles mean: which of a profile's sample types a name alone asks for, what is added over time and what is
//! averaged, and how many samples values stand for.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;

use common::{PERIOD, Row, Server, gzip, now, profile, request, span, words};
use prost::Message as _;
use spanprof_core::wire::pprof::{Label, Profile, ValueType};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A profile of one stack whose sample types are these, with their values.
fn of_types(types: &[(&str, &str, i64)], (period_type, period_unit, period): (&str, &str, i64)) -> Profile {
    let mut profile = profile(&[(&["main:1", "work:2"], &[], 1)]);
    let strings = &mut profile.string_table;
    let mut string = |text: &str| {
        strings.push(text.into());
        i64::try_from(strings.len()).unwrap() - 1
    };
    profile.sample_type =
        types.iter().map(|(name, unit, _)| ValueType { r#type: string(name), unit: string(unit) }).collect();
    profile.period_type = Some(ValueType { r#type: string(period_type), unit: string(period_unit) });
    profile.period = period;
    profile.sample[0].value = types.iter().map(|(.., value)| *value).collect();
    profile
}

#[test]
fn a_profile_without_samples_is_taken_and_stores_nothing() {
    let server = Server::start();
    let mut none = profile(&[(&["main:1"], &[], 1)]);
    none.sample.clear();
    let mut zero = profile(&[(&["main:1"], &[], 1)]);
    zero.sample[0].value = vec![0];
    for empty in [none, zero] {
        assert_eq!(server.push("shop", &empty).status, 200);
        assert_eq!(server.post("/ingest?name=shop&format=pprof", &[], &empty.encode_to_vec()).status, 200);
    }
    assert_eq!(server.post("/ingest?name=shop&format=pprof", &[], b"").status, 200);
    let services = server.json("/api/services");
    assert_eq!((&services["services"], &services["refused"]), (&serde_json::json!([]), &serde_json::json!([])));
}

#[test]
fn a_body_without_a_format_says_itself_what_it_is() {
    let server = Server::start();
    let pprof = profile(&[(&["main:1"], &[], 3)]).encode_to_vec();
    // What clients without a rate of folded stacks say.
    let path = "/ingest?name=shop&sampleRate=0";
    for body in [&pprof[..], &gzip(&pprof), b"main;work 2\n"] {
        let answer = server.post(path, &[], body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(server.json("/api/flame?service=shop")["total"], 2 * 3 * PERIOD + 2 * PERIOD);
}

#[test]
fn the_main_value_measures_wherever_it_stands_and_counters_say_how_many_samples() {
    let server = Server::start();
    // As Grafana's .NET profiler orders them, with a period of one nanosecond.
    let dotnet =
        of_types(&[("cpu", "nanoseconds", 641_000_000), ("cpu_samples", "count", 65)], ("cpu", "nanoseconds", 1));
    assert_eq!(server.push("shop", &dotnet).status, 200);
    let cpu = server.json("/api/flame?service=shop");
    assert_eq!((&cpu["total"], &cpu["samples"]), (&641_000_000.into(), &65.into()));
    assert_eq!(server.json("/api/services")["services"][0]["cpu_ns"], 641_000_000);
    let live = of_types(&[("inuse_objects", "count", 4_000), ("inuse_space", "bytes", 1 << 20)], ("", "", 0));
    let locks = of_types(&[("lock_count", "count", 7), ("lock_time", "nanoseconds", 90)], ("", "", 0));
    for (name, profile, total, samples) in [("memory", live, 1 << 20, 4_000), ("mutex", locks, 90, 7)] {
        assert_eq!(server.push_as(name, "shop", &profile).status, 200);
        let flame = server.json(&format!("/api/flame?service=shop&type={name}"));
        assert_eq!((&flame["total"], &flame["samples"]), (&total.into(), &samples.into()), "{name}");
    }
}

#[test]
fn wall_time_that_carries_spans_leaves_their_cpu_time_unknown() {
    let server = Server::start();
    let mut wall =
        of_types(&[("samples", "count", 4), ("wall", "nanoseconds", 4 * PERIOD)], ("wall", "nanoseconds", PERIOD));
    let (key, value) = (wall.string_table.len(), wall.string_table.len() + 1);
    wall.string_table.extend(["span_id".into(), SPAN.into()]);
    let [key, str] = [key, value].map(|index| i64::try_from(index).unwrap());
    wall.sample[0].label = vec![Label { key, str, ..Label::default() }];
    assert_eq!(server.push_as("wall", "node", &wall).status, 200);
    assert_eq!(server.trace("node", vec![span(TRACE, SPAN, "", "GET /cart", 0, 600)]).status, 200);
    assert_eq!(server.json("/api/services")["services"][0]["sampled_by"], "wall");
    let name = server.json("/api/spans?service=node&type=wall")["spans"][0].clone();
    assert_eq!((&name["cpu_ns"], &name["beside"]), (&serde_json::Value::Null, &(4 * PERIOD).into()));
    assert_eq!(server.json(&format!("/api/trace/{TRACE}"))["spans"][0]["own_cpu_ns"], serde_json::Value::Null);
    let text = words(&server.page("/"));
    assert!(text.contains("their own span") && !text.contains("no sample carries a span"), "{text}");
}

#[test]
fn of_go_s_heap_the_samples_are_those_that_were_drawn() {
    let server = Server::start();
    // 512 KiB a sample: of 4,096 objects of 1 KiB it drew 4,096 × (1 − e^(−1/512)) = 8, of 3 objects of 4 MiB all.
    for (service, objects, bytes, drawn) in [("small", 4_096, 4 << 20, 8), ("large", 3, 12 << 20, 3)] {
        let heap = of_types(
            &[("inuse_objects", "count", objects), ("inuse_space", "bytes", bytes)],
            ("space", "bytes", 512 << 10),
        );
        assert_eq!(server.push_as("memory", service, &heap).status, 200);
        for kind in ["memory", "memory:inuse_objects:count:space:bytes"] {
            assert_eq!(server.json(&format!("/api/flame?service={service}&type={kind}"))["samples"], drawn, "{kind}");
        }
    }
}

#[test]
fn a_name_never_adds_two_sample_types() {
    let server = Server::start();
    let allocated = of_types(&[("alloc_samples", "count", 5), ("alloc_size", "bytes", 1_000)], ("", "", 0));
    let live = of_types(&[("inuse_space", "bytes", 30)], ("space", "bytes", 1));
    assert_eq!(server.push_as("memory", "both", &allocated).status, 200);
    assert_eq!(server.push_as("memory", "both", &live).status, 200);
    assert_eq!(server.push_as("memory", "live", &live).status, 200);
    let total = |query: &str| server.json(&format!("/api/flame?{query}"))["total"].clone();
    assert_eq!(total("type=memory"), 1_000);
    assert_eq!(total("type=memory&service=both"), 1_000);
    assert_eq!(total("type=memory&service=live"), 30, "where there is one, it is meant");
    // A span without a service has what it has.
    let mut in_span = of_types(&[("inuse_space", "bytes", 7)], ("space", "bytes", 1));
    let (key, str) = (in_span.string_table.len(), in_span.string_table.len() + 1);
    in_span.string_table.extend(["span_id".into(), SPAN.into()]);
    let [key, str] = [key, str].map(|index| i64::try_from(index).unwrap());
    in_span.sample[0].label = vec![Label { key, str, ..Label::default() }];
    assert_eq!(server.push_as("memory", "spans", &in_span).status, 200);
    assert_eq!(total(&format!("type=memory&span={SPAN}")), 7);
    // Each has a link of its own.
    let rows = server.json("/api/services")["services"].clone();
    let both = rows.as_array().unwrap().iter().find(|row| row["service"] == "both").unwrap();
    let asked: Vec<_> =
        both["profile_types"].as_array().unwrap().iter().map(|seen| seen["type"].as_str().unwrap()).collect();
    assert_eq!(asked, ["memory", "memory:inuse_space:bytes:space:bytes", "memory:alloc_samples:count::"]);
    assert_eq!(total(&format!("service=both&type={}", asked[1])), 30);
    // Nor is CPU in another unit.
    let bytes = of_types(&[("cpu", "bytes", 5)], ("cpu", "bytes", 1));
    assert_eq!(server.push("bytes", &bytes).status, 200);
    // A profile of CPU that counts alone is no CPU time.
    let counts = of_types(&[("samples", "count", 9)], ("cpu", "nanoseconds", PERIOD));
    assert_eq!(server.push("counts", &counts).status, 200);
    assert_eq!(server.push("counts", &profile(&[(&["main:1"], &[], 2)])).status, 200);
    for (query, value) in [("service=counts", 2 * PERIOD), ("service=bytes", 5), ("", 2 * PERIOD)] {
        assert_eq!(total(query), value, "{query}");
    }
    let services = server.json("/api/services");
    let of_counts = services["services"].as_array().unwrap().iter().find(|row| row["service"] == "counts").unwrap();
    assert_eq!(of_counts["cpu_ns"], 2 * PERIOD);
}

#[test]
fn what_there_is_at_an_instant_is_averaged_and_what_happens_is_added() {
    let server = Server::start();
    let at = |service: &str, seconds_ago: u64, live: i64, allocated: i64| {
        let mut profile = of_types(
            &[("alloc_space", "bytes", allocated), ("inuse_space", "bytes", live)],
            ("space", "bytes", 512 << 10),
        );
        profile.time_nanos = i64::try_from(now() - seconds_ago * 1_000_000_000).unwrap();
        let body = request(&[("__name__", "memory"), ("service_name", service)], profile.encode_to_vec());
        let answer = server.post("/push.v1.PusherService/Push", &[("content-type", "application/proto")], &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    // Some lie in whole sums of ten seconds, others at the ends of the time range.
    for (seconds_ago, live) in [(3, 100), (20, 200), (40, 300), (60, 600)] {
        at("shop", seconds_ago, live, 10);
    }
    at("bank", 5, 1_000, 10);
    at("bank", 25, 3_000, 10);
    let flame = |query: &str| server.json(&format!("/api/flame?since=10m&{query}"));
    let live = flame("service=shop&type=memory");
    assert_eq!((&live["total"], &live["averaged_over"]), (&300.into(), &4.into()));
    let allocated = flame("service=shop&type=memory:alloc_space:bytes:space:bytes");
    assert_eq!((&allocated["total"], &allocated["averaged_over"]), (&40.into(), &serde_json::Value::Null));
    // Two services have what both have.
    assert_eq!(flame("type=memory")["total"], 300 + 2_000);
    // A file has the same.
    for (query, total) in [
        ("service=shop&type=memory", 300),
        ("type=memory", 2_300),
        ("service=shop&type=memory:alloc_space:bytes:space:bytes", 40),
    ] {
        let file = server.pprof(&format!("since=10m&{query}"));
        let sum: i64 = file.sample.iter().map(|sample| sample.value[0]).sum();
        assert_eq!(sum, total, "{query}");
    }
    assert_eq!(server.json("/api/spans?service=shop&since=10m&type=memory")["beside"]["outside"], 300);
    let text = words(&server.page("/flame?service=shop&since=10m&type=memory"));
    assert!(text.contains("300 B on average of 4 profiles"), "{text}");
    let text = words(&server.page("/flame?service=shop&since=10m&type=memory:alloc_space:bytes:space:bytes"));
    assert!(text.contains("40 B in total") && text.contains("alloc_space"), "{text}");
}

#[test]
fn a_file_of_averages_has_what_its_pages_have_however_many_spans_share_it() {
    let server = Server::start();
    for number in 0..10 {
        let id = format!("{:016x}", number + 1);
        let name = format!("serve {number}");
        let labels = [("span_id", id.as_str()), ("span_name", name.as_str())];
        let mut profile = profile(&[(&["main:1", "handle:2"], &labels, 1), (&["main:1", "accept:3"], &[], 1)]);
        profile.sample.iter_mut().for_each(|sample| sample.value = vec![3]);
        let text = i64::try_from(profile.string_table.len()).unwrap();
        profile.string_table.extend(["goroutine", "count"].map(String::from));
        profile.sample_type = vec![ValueType { r#type: text, unit: text + 1 }];
        profile.period_type = profile.sample_type.first().copied();
        assert_eq!(server.push_as("goroutine", "shop", &profile).status, 200);
    }
    let total = server.json("/api/flame?service=shop&type=goroutine")["total"].as_i64().unwrap();
    let file = server.pprof("service=shop&type=goroutine");
    let of_file: i64 = file.sample.iter().map(|sample| sample.value[0]).sum();
    assert_eq!((total, of_file), (6, 6));
}

#[test]
fn averages_add_up_however_small_each_stack_is() {
    let server = Server::start();
    for profiles in [2, 4, 7] {
        let service = format!("of {profiles}");
        let total: i64 = 300;
        // A goroutine in each of 300 stacks, which no other profile has; half of them are of spans.
        for number in 0..profiles {
            let names: Vec<String> = (0..total).map(|stack| format!("f{number}_{stack}:2")).collect();
            let stacks: Vec<[&str; 2]> = names.iter().map(|name| ["main:1", name.as_str()]).collect();
            let spans: Vec<(String, String)> =
                (0..total).map(|stack| (format!("{:016x}", stack + 1), format!("serve {}", stack % 50))).collect();
            let labels: Vec<Vec<(&str, &str)>> = spans
                .iter()
                .enumerate()
                .map(
                    |(at, (id, name))| {
                        if at % 2 == 0 { vec![("span_id", &**id), ("span_name", &**name)] } else { vec![] }
                    },
                )
                .collect();
            let rows: Vec<Row<'_>> =
                stacks.iter().zip(&labels).map(|(stack, labels)| (&stack[..], &labels[..], 1)).collect();
            let mut profile = profile(&rows);
            profile.sample.iter_mut().for_each(|sample| sample.value = vec![1]);
            let text = i64::try_from(profile.string_table.len()).unwrap();
            profile.string_table.extend(["goroutine", "count"].map(String::from));
            profile.sample_type = vec![ValueType { r#type: text, unit: text + 1 }];
            profile.period_type = profile.sample_type.first().copied();
            profile.period = 1;
            assert_eq!(server.push_as("goroutine", &service, &profile).status, 200);
        }
        let query = format!("service=of%20{profiles}&type=goroutine");
        let top = server.json(&format!("/api/top?{query}"));
        let own: i64 = top["functions"].as_array().unwrap().iter().map(|row| row["own"].as_i64().unwrap()).sum();
        let main = top["functions"].as_array().unwrap().iter().find(|row| row["function"] == "main").unwrap();
        assert_eq!((&top["total"], &top["samples"], own), (&total.into(), &total.into(), total), "{profiles}");
        assert_eq!(main["total"], total, "{profiles}");
        let file = server.pprof(&query);
        assert_eq!(file.sample.iter().map(|sample| sample.value[0]).sum::<i64>(), total, "{profiles}");
        // Stack by stack.
        let name = |sample: &spanprof_core::wire::pprof::Sample| {
            let leaf = file.location.iter().find(|location| location.id == sample.location_id[0]).unwrap();
            let function = file.function.iter().find(|function| function.id == leaf.line[0].function_id).unwrap();
            file.string_table[usize::try_from(function.name).unwrap()].clone()
        };
        let of_file: BTreeMap<String, i64> = file.sample.iter().map(|sample| (name(sample), sample.value[0])).collect();
        let rows = top["functions"].as_array().unwrap().iter().filter(|row| row["own"] != 0);
        let of_page = rows.map(|row| (row["function"].as_str().unwrap().to_owned(), row["own"].as_i64().unwrap()));
        assert_eq!(of_file, of_page.collect(), "{profiles}");
        let text = words(&server.page(&format!("/flame?{query}")));
        assert!(text.contains(&format!("300 on average of {profiles} profiles")), "{text}");
        let spans = server.json(&format!("/api/spans?{query}"));
        let of_names: i64 = spans["spans"].as_array().unwrap().iter().map(|row| row["beside"].as_i64().unwrap()).sum();
        assert_eq!(of_names + spans["beside"]["outside"].as_i64().unwrap(), total, "{profiles}");
    }
}

#[test]
fn a_profile_type_that_nobody_sent_is_a_400_that_names_those_of_the_service() {
    let server = Server::start();
    // Before anything came nobody can tell.
    assert_eq!(server.json("/api/flame?type=lock_time")["total"], 0);
    let locks = of_types(&[("lock_count", "count", 7), ("lock_time", "nanoseconds", 90)], ("", "", 0));
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[], 1)])).status, 200);
    assert_eq!(server.push_as("queues", "shop", &locks).status, 200);
    assert_eq!(server.push("bank", &profile(&[(&["main:1"], &[], 1)])).status, 200);
    assert_eq!(server.trace("traced", vec![span(TRACE, SPAN, "", "GET /cart", 0, 600)]).status, 200);
    for query in ["flame?", "top?", "spans?", "traces?", "diff?b.since=5m&", "function?function=main&"] {
        for (service, allowed) in [("shop", "process_cpu, queues, queues:lock_count:count::"), ("bank", "process_cpu")]
        {
            let answer = server.get(&format!("/api/{query}service={service}&type=lock_time"));
            let error: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            let says = format!(
                "parameter \"type\" = \"lock_time\": is no profile type of \"{service}\" that is stored; allowed are {allowed}"
            );
            assert_eq!((answer.status, error["error"].as_str()), (400, Some(says.as_str())), "{query}");
        }
    }
    let all = server.get("/api/flame?type=lock_time:lock_time:nanoseconds::");
    assert!(
        all.status == 400 && all.text().contains("is no profile type that is stored; allowed are process_cpu, queues")
    );
    let page = server.get("/flame?service=shop&type=walls");
    assert!(page.status == 400 && words(&page.text()).contains("allowed are process_cpu, queues"), "{}", page.text());
    // What others send, what some profilers do, and anything of a service without profiles.
    for query in [
        "service=bank&type=queues",
        "service=bank&type=queues:lock_count:count::",
        "service=shop&type=wall",
        "service=shop&type=memory:alloc_space:bytes::",
        "service=traced&type=walls",
        "service=nobody&type=walls",
    ] {
        assert_eq!(server.json(&format!("/api/flame?{query}"))["total"], 0, "{query}");
        assert!(server.json(&format!("/api/spans?{query}"))["spans"].is_array(), "{query}");
    }
}

#[test]
fn a_service_of_which_nothing_came_is_an_empty_answer_wherever_it_is_asked_for() {
    let server = Server::start();
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[], 1)])).status, 200);
    for (path, empty) in [("spans", "spans"), ("traces", "traces"), ("top", "functions")] {
        assert_eq!(server.json(&format!("/api/{path}?service=nobody"))[empty], serde_json::json!([]), "{path}");
    }
    assert_eq!(server.json("/api/flame?service=nobody")["total"], 0);
}
