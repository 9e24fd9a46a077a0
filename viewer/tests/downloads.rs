//! What a file of a selection says of its samples.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;

use common::{PERIOD, Server, profile, span};
use serde_json::json;
use spanprof_core::wire::pprof::Profile;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CART: &str = "00f067aa0ba902b7";
const USER: &str = "00f067aa0ba902b8";

/// Two spans of one name, one of another without a trace, and work outside of spans.
fn server() -> Server {
    let server = Server::start();
    let cart = |id| [("span_id", id), ("trace_id", TRACE), ("span_name", "GET /cart")];
    let shop = profile(&[
        (&["main:1", "handle:2", "query:3"], &cart(CART), 7),
        (&["main:1", "handle:2"], &cart(USER), 2),
        (&["main:1", "handle:2", "query:3"], &[("span_id", "00f067aa0ba902b9")], 4),
        (&["main:1"], &[], 1),
    ]);
    assert_eq!(server.push("shop", &shop).status, 200);
    server
}

fn text(profile: &Profile, index: i64) -> &str {
    &profile.string_table[usize::try_from(index).unwrap()]
}

/// The values by what samples say that they are of.
fn labels(profile: &Profile) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    for sample in &profile.sample {
        let labels: Vec<String> = sample
            .label
            .iter()
            .map(|label| format!("{}={}", text(profile, label.key), text(profile, label.str)))
            .collect();
        *sums.entry(labels.join(" ")).or_default() += sample.value[0];
    }
    sums
}

#[test]
fn a_label_state_is_one_of_all_time_alone() {
    let server = Server::start();
    let order = [("span_name", "GET /cart"), ("state", "order-17"), ("flow", "east")];
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &order, 7)])).status, 200);
    let sums = labels(&server.pprof("service=shop"));
    assert_eq!(sums, BTreeMap::from([("span_name=GET /cart".to_owned(), 7 * PERIOD)]));
}

#[test]
fn a_pprof_says_when_and_of_which_spans_its_samples_are() {
    let server = server();
    let of = |id: &str| format!("span_name=GET /cart span_id={id} trace_id={TRACE}");
    let all = server.pprof("service=shop");
    let expected = BTreeMap::from([
        (of(CART), 7 * PERIOD),
        (of(USER), 2 * PERIOD),
        ("span_id=00f067aa0ba902b9".into(), 4 * PERIOD),
        (String::new(), PERIOD),
    ]);
    assert_eq!(labels(&all), expected);
    let now = i64::try_from(common::now()).unwrap();
    assert!((now - 60_000_000_000..=now).contains(&all.time_nanos), "{}", all.time_nanos);
    assert!(all.duration_nanos > 0 && all.time_nanos + all.duration_nanos <= now, "{}", all.duration_nanos);
    assert!(all.comment.is_empty(), "{:?}", all.comment);

    let one = server.pprof(&format!("span={CART}"));
    assert_eq!(labels(&one), BTreeMap::from([(of(CART), 7 * PERIOD)]));
    // Its trace is known by what was received, and names it.
    let received = span("4bf92f3577b34da6a3ce929d0e0e4737", "00f067aa0ba902b9", "", "GET /user", 0, 60);
    assert_eq!(server.trace("shop", vec![received]).status, 200);
    let named = server.pprof("service=shop&name=GET%20/user");
    let label = "span_name=GET /user span_id=00f067aa0ba902b9 trace_id=4bf92f3577b34da6a3ce929d0e0e4737";
    assert_eq!(labels(&named), BTreeMap::from([(label.to_owned(), 4 * PERIOD)]));
    assert_eq!(labels(&server.pprof("service=shop&fold=1")), labels(&server.pprof("service=shop")));
}

#[test]
fn what_there_are_too_many_of_for_a_file_is_left_out_and_said() {
    let server = Server::with(&["--memory", "64m"]);
    let stack: Vec<String> = (0..400).map(|frame| format!("function_{frame}:1")).collect();
    let stack: Vec<&str> = stack.iter().map(String::as_str).collect();
    let ids: Vec<String> = (1..=2_000).map(|id| format!("{id:016x}")).collect();
    for ids in ids.chunks(250) {
        let labels = ids.iter().map(|id| [("span_id", id.as_str()), ("span_name", "GET /cart")]);
        let labels: Vec<[(&str, &str); 2]> = labels.collect();
        let rows: Vec<common::Row<'_>> = labels.iter().map(|labels| (&stack[..], &labels[..], 1)).collect();
        assert_eq!(server.push("shop", &profile(&rows)).status, 200);
    }
    let all = server.pprof("service=shop");
    assert_eq!(labels(&all), BTreeMap::from([("span_name=GET /cart".to_owned(), 2_000 * PERIOD)]));
    let said = "span_id and trace_id are left out, as there are more than a file may have; choose less";
    assert_eq!(text(&all, all.comment[0]), said);
    assert_eq!(labels(&server.pprof("span=0000000000000007")).len(), 1);
}

#[test]
fn speedscope_reads_frames_and_lists_of_them() {
    let server = server();
    let answer = server.get("/speedscope.json?service=shop");
    assert_eq!((answer.status, answer.kind.as_str()), (200, "application/json"));
    assert!(answer.headers["content-disposition"].ends_with("filename=\"profile.speedscope.json\""));
    let file: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let profile = &file["profiles"][0];
    assert_eq!(
        (&profile["type"], &profile["unit"], &profile["endValue"]),
        (&json!("sampled"), &json!("nanoseconds"), &json!(14 * PERIOD))
    );
    let frames = file["shared"]["frames"].as_array().unwrap();
    let name = |frame: &serde_json::Value| {
        frames[usize::try_from(frame.as_u64().unwrap()).unwrap()]["name"].as_str().unwrap().to_owned()
    };
    let mut stacks: Vec<(String, i64)> = profile["samples"]
        .as_array()
        .unwrap()
        .iter()
        .zip(profile["weights"].as_array().unwrap())
        .map(|(stack, weight)| {
            let names: Vec<String> = stack.as_array().unwrap().iter().map(&name).collect();
            (names.join(";"), weight.as_i64().unwrap())
        })
        .collect();
    stacks.sort();
    let folded: Vec<String> = stacks.into_iter().map(|(stack, weight)| format!("{stack} {weight}\n")).collect();
    assert_eq!(folded.concat(), server.get("/folded?service=shop").text());
    assert_eq!(server.get("/speedscope.json?service=nobody").status, 404);
}
