//! Tenants are kept apart: each sees what it sent, and shares nothing but the memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::Path;

use common::{Answer, PERIOD, Server, export, gzip, profile, request, span};
use prost::Message as _;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";
const PUSH: &str = "/push.v1.PusherService/Push";
const TENANT: &str = "x-scope-orgid";

/// Sends a profile of one span to a tenant, and the span.
fn send(server: &Server, tenant: &str, service: &str, periods: i64) {
    let answer = push(server, &[(TENANT, tenant)], service, periods);
    assert_eq!(answer.status, 200, "{tenant}: {}", answer.text());
    let headers = [("content-type", "application/x-protobuf"), (TENANT, tenant)];
    let spans = export(service, vec![span(TRACE, ROOT, "", "GET /cart", 0, 600)]).encode_to_vec();
    assert_eq!(server.post("/v1/traces", &headers, &spans).status, 200);
}

fn push(server: &Server, headers: &[(&str, &str)], service: &str, periods: i64) -> Answer {
    let labels = [("span_id", ROOT), ("span_name", "GET /cart")];
    let raw = gzip(&profile(&[(&["main:1"], &labels, periods)]).encode_to_vec());
    let headers = [&[("content-type", "application/proto")], headers].concat();
    server.post(PUSH, &headers, &request(&[("__name__", "process_cpu"), ("service_name", service)], raw))
}

/// The names of a tenant's services, by header where one is given, else by address.
fn services(server: &Server, tenant: Option<&str>, path: &str) -> Vec<String> {
    let answer = match tenant {
        Some(tenant) => server.get_with(path, (TENANT, tenant)),
        None => server.get(path),
    };
    let found: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    found["services"].as_array().unwrap().iter().map(|row| row["service"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_sees_its_own_by_header_and_by_address() {
    let server = Server::start();
    send(&server, "blue", "shop", 2);
    send(&server, "red", "bank", 3);
    assert_eq!(push(&server, &[], "plain", 4).status, 200);
    for (tenant, home, service, periods) in
        [("blue", "/tenant/blue", "shop", 2), ("red", "/tenant/red", "bank", 3), ("anonymous", "", "plain", 4)]
    {
        assert_eq!(services(&server, Some(tenant), "/api/services"), [service]);
        assert_eq!(services(&server, None, &format!("{home}/api/services")), [service]);
        // The same span id everywhere, and each has the samples of its own.
        assert_eq!(server.json(&format!("{home}/api/flame?span={ROOT}"))["total"], periods * PERIOD);
        assert_eq!(server.get(&format!("{home}/trace/{TRACE}")).status, if home.is_empty() { 404 } else { 200 });
        let asked = serde_json::json!({ "name": "service_name", "start": "1", "end": "99999999999999" }).to_string();
        let headers = [("content-type", "application/json"), (TENANT, tenant)];
        let values = server.post("/querier.v1.QuerierService/LabelValues", &headers, asked.as_bytes());
        assert_eq!(values.text(), format!("{{\"names\":[\"{service}\"]}}"));
    }
    let metrics = server.get("/metrics").text();
    assert!(
        metrics.contains("\nspanprof_tenants 3\n") && metrics.contains("spanprof_profiles_stored_total 3"),
        "{metrics}"
    );
}

#[test]
fn who_was_never_heard_of_is_empty_and_is_not_made_by_asking() {
    let server = Server::start();
    assert_eq!(push(&server, &[], "plain", 1).status, 200);
    assert_eq!(services(&server, Some("green"), "/api/services"), Vec::<String>::new());
    assert!(server.page("/tenant/green/").contains("Nothing received yet"));
    assert!(server.get("/metrics").text().contains("\nspanprof_tenants 1\n"));
    assert!(!server.page("/").contains("aria-label=\"Tenant\""));
}

#[test]
fn a_choice_is_offered_where_there_is_one_and_no_proxy_made_it() {
    let server = Server::start();
    send(&server, "blue", "shop", 1);
    let page = server.page("/");
    assert!(
        page.contains("href=\"/tenant/blue/\"") && page.contains("<span aria-current=\"true\">anonymous</span>"),
        "{page}"
    );
    assert!(server.page("/tenant/blue/").contains("<a href=\"/\">anonymous</a>"));
    let held = server.get_with("/", (TENANT, "blue")).text();
    assert!(held.contains("shop") && !held.contains("aria-label=\"Tenant\""), "{held}");
    // Who is held to one tenant reaches no other by its address.
    let other = server.get_with("/tenant/red/api/services", (TENANT, "blue"));
    assert_eq!(other.status, 400);
    assert!(
        other.text().contains("of tenant red") && other.text().contains("X-Scope-OrgID says blue"),
        "{}",
        other.text()
    );
}

#[test]
fn links_of_a_tenants_pages_stay_with_it() {
    let server = Server::start();
    send(&server, "blue", "shop", 20);
    for (page, base) in
        [("/tenant/blue/spans?service=shop".to_owned(), "./"), (format!("/tenant/blue/trace/{TRACE}"), "../")]
    {
        let text = server.page(&page);
        assert!(text.contains(&format!("<base href=\"{base}\">")), "{text}");
        // None starts at the root, which would be anonymous's.
        assert!(!text.contains("href=\"/") && !text.contains("src=\"/") && !text.contains("action=\"/"), "{text}");
        assert!(text.contains("href=\"flame?"), "{text}");
    }
    let slashless = server.get("/tenant/blue");
    assert_eq!((slashless.status, slashless.headers["location"].as_str()), (308, "blue/"));
    assert_eq!(server.get("/tenant/%0d").status, 400);
    assert_eq!(server.get("/tenant/blue/assets/style.css").status, 200);
    let found = server.get(&format!("/tenant/blue/find?id={TRACE}"));
    assert_eq!((found.status, found.headers["location"].as_str()), (303, format!("trace/{TRACE}").as_str()));
    // Of an address at any depth that is no page; who says the tenant by the header stays with it at the root.
    let nowhere = server.get("/tenant/blue/no/such/page");
    assert!(nowhere.status == 404 && nowhere.text().contains("<base href=\"/tenant/blue/\">"), "{}", nowhere.text());
    let nowhere = server.get_with("/no/such/page", ("x-scope-orgid", "blue"));
    assert!(nowhere.status == 404 && nowhere.text().contains("<base href=\"/\">"), "{}", nowhere.text());
}

#[test]
fn names_that_are_none_are_refused_and_counted() {
    let server = Server::start();
    assert_eq!(push(&server, &[], "plain", 1).status, 200);
    for bad in ["a/b", "..", "a|b", "<script>", &"n".repeat(151)] {
        let answer = push(&server, &[(TENANT, bad)], "shop", 1);
        assert_eq!((answer.status, answer.kind.as_str()), (400, "application/json"), "{bad}");
        let error: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("X-Scope-OrgID: the tenant \"") && message.contains("letters, digits"),
            "{message}"
        );
    }
    // They are nobody's, so on nobody's page.
    assert_eq!(server.json("/api/services")["refused"], serde_json::json!([]));
    assert!(!server.page("/").contains("X-Scope-OrgID"));
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("spanprof_refused_total{what=\"tenants\",reason=\"invalid\"} 5\n"), "{metrics}");
}

#[test]
fn there_are_no_more_than_memory_has_room_for() {
    let server = Server::with(&["--memory", "80m"]);
    let mut answers = (0..10).map(|number| push(&server, &[(TENANT, &format!("t{number}"))], "shop", 1));
    let refused = answers.find(|answer| answer.status != 200).unwrap();
    assert_eq!(refused.status, 429);
    assert!(refused.text().contains("resource_exhausted") && refused.text().contains("--memory"), "{}", refused.text());
    assert_eq!(push(&server, &[(TENANT, "t0")], "shop", 1).status, 200);
    assert_eq!(push(&server, &[], "shop", 1).status, 200);
}

#[test]
fn each_has_a_file_beside_that_of_data() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spanprof.db");
    let flags = ["--data", file.to_str().unwrap()];
    let server = Server::with(&flags);
    let mut old = profile(&[(&["main:1"], &[], 1)]);
    old.time_nanos -= 1_800_000_000_000;
    let old = request(&[("__name__", "process_cpu"), ("service_name", "shop")], gzip(&old.encode_to_vec()));
    let headers = [("content-type", "application/proto"), (TENANT, "it's_(a)*name!.")];
    assert_eq!(server.post(PUSH, &headers, &old).status, 200);
    assert_eq!(push(&server, &[], "plain", 1).status, 200);
    drop(server);
    assert!(Path::new(&folder.path().join("spanprof.db.tenants/it's_(a)*name!..db")).exists());
    let server = Server::with(&flags);
    assert_eq!(services(&server, Some("it's_(a)*name!."), "/api/services"), ["shop"]);
    assert_eq!(services(&server, None, "/api/services"), ["plain"]);
    assert!(server.get("/metrics").text().contains("\nspanprof_tenants 2\n"));
    drop(server);
    // What of a tenant is too old goes, and then the tenant.
    let server = Server::with(&["--data", file.to_str().unwrap(), "--retain", "10m"]);
    while !server.get("/metrics").text().contains("\nspanprof_tenants 1\n") {
        std::thread::yield_now();
    }
    drop(server);
    assert_eq!(folder.path().join("spanprof.db.tenants").read_dir().unwrap().count(), 0);
}

#[test]
fn top_asks_for_a_tenant() {
    let server = Server::start();
    send(&server, "blue", "shop", 20);
    let top = |tenant: &str| {
        let arguments = ["top", "--url", &server.url, "--service", "shop", "--tenant", tenant];
        let done = common::spanprof().args(arguments).output().unwrap();
        (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    let (code, said) = top("blue");
    assert!(code == Some(0) && said.contains("main"), "{said}");
    let (code, said) = top("a/b");
    assert!(code == Some(1) && said.contains("the tenant \"a/b\" is not taken"), "{said}");
}
