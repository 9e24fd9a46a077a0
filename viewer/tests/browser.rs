//! The pages in a real browser, with data of a small shop. Skipped, with a reason, where there is no browser.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Server, failed, profile, span, wall as wall_profile, with_attribute};

/// Sixty requests in two services, with deep stacks, an error now and then, and work outside of spans.
fn fill(server: &Server) {
    let mut checkout_spans = Vec::new();
    let mut search_spans = Vec::new();
    for n in 0..60_u64 {
        let trace = format!("4bf92f3577b34da6a3ce9{n:011x}");
        let id = |k: u64| format!("{:016x}", 0x00f0_67aa_0000_0000 + n * 16 + k);
        let wall = 80 + n * 7 % 190;
        let root = span(&trace, &id(1), "", if n % 3 == 0 { "POST /order" } else { "GET /cart" }, n * 10, wall);
        checkout_spans.push(if n % 13 == 5 { failed(root) } else { root });
        checkout_spans.push(span(&trace, &id(2), &id(1), "load_cart", n * 10 + 4, wall / 3));
        checkout_spans.push(span(&trace, &id(3), &id(2), "SELECT items", n * 10 + 6, wall / 5));
        let render = span(&trace, &id(4), &id(1), "render", n * 10 + 8 + wall / 3, wall / 2);
        checkout_spans.push(with_attribute(render, "theme", if n % 4 == 0 { "dark" } else { "light" }));
        search_spans.push(span(&trace, &id(5), &id(2), "POST /quote", n * 10 + 10, wall / 4));
        let label = |k: u64, name: &str| {
            vec![
                ("span_id".to_owned(), id(k)),
                ("trace_id".to_owned(), trace.clone()),
                ("span_name".to_owned(), name.to_owned()),
            ]
        };
        let request = if n % 3 == 0 { "POST /order" } else { "GET /cart" };
        push(
            server,
            "checkout",
            &[
                (
                    &["<module>:3", "serve:88", "handle:41", "dispatch:19", "view:12", "validate:7"],
                    label(1, request),
                    1 + wall_i(n) % 3,
                ),
                (
                    &[
                        "<module>:3",
                        "serve:88",
                        "handle:41",
                        "dispatch:19",
                        "view:14",
                        "dumps@/usr/lib/python3.13/json/__init__.py:231",
                        "encode@/usr/lib/python3.13/json/encoder.py:200",
                        "iterencode@/usr/lib/python3.13/json/encoder.py:258",
                    ],
                    label(1, request),
                    3,
                ),
                (
                    &[
                        "<module>:3",
                        "serve:88",
                        "handle:41",
                        "dispatch:19",
                        "view:13",
                        "load_cart:30",
                        "price:9",
                        "tax:4",
                    ],
                    label(2, "load_cart"),
                    2,
                ),
                (
                    &[
                        "<module>:3",
                        "serve:88",
                        "handle:41",
                        "dispatch:19",
                        "view:15",
                        "render:50",
                        "template:77",
                        "escape:5",
                    ],
                    label(4, "render"),
                    // The slow ones escape more.
                    if wall > 200 { 12 } else { 4 },
                ),
                (
                    &[
                        "<module>:3",
                        "serve:88",
                        "handle:41",
                        "dispatch:19",
                        "view:15",
                        "render:50",
                        "template:79",
                        "join:1",
                    ],
                    label(4, "render"),
                    2,
                ),
                (&["<module>:3", "serve:90", "poll:14"], Vec::new(), 2),
            ],
        );
        push_wall(server, &label, request, (n, wall));
        push(
            server,
            "search",
            &[
                (&["main:1", "worker:20", "quote:8", "rank:33", "score:12"], label(5, "POST /quote"), 3),
                (&["main:1", "worker:20", "quote:9", "tokenize:4"], label(5, "POST /quote"), 1),
            ],
        );
    }
    for (service, unit) in [("of a constructor", "constructor"), ("of a prototype", "__proto__"), ("of bytes", "bytes")]
    {
        let mut profile = profile(&[(&["main:1", "worker:20"], &[], 7), (&["main:1"], &[], 1)]);
        for text in &mut profile.string_table {
            if text == "nanoseconds" {
                *text = unit.into();
            }
        }
        assert_eq!(server.push(service, &profile).status, 200);
    }
    assert_eq!(server.trace("checkout", checkout_spans).status, 200);
    assert_eq!(server.trace("search", search_spans).status, 200);
}

/// All time of the spans of a request; the slow ones wait for a lock.
fn push_wall(
    server: &Server,
    label: &impl Fn(u64, &str) -> Vec<(String, String)>,
    request: &str,
    (n, wall): (u64, u64),
) {
    let labels = [label(1, request), label(2, "load_cart"), label(4, "render")];
    let labels: Vec<Vec<(&str, &str)>> =
        labels.iter().map(|labels| labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect()).collect();
    let ms = |part: u64| wall_i(wall / part);
    let lock = if wall > 200 { ms(4) } else { 1 };
    let rows: [common::WallRow<'_>; 8] = [
        (&["<module>:3", "serve:88", "handle:41", "dispatch:19", "view:12", "validate:7"], &labels[0], "cpu", 0, 10),
        (
            &["<module>:3", "serve:88", "handle:41", "dispatch:19", "view:12", "(waits for the GIL):0"],
            &labels[0],
            "gil",
            40,
            2,
        ),
        (
            &["<module>:3", "serve:88", "handle:41", "view:13", "load_cart:30", "query:9", "recv:1"],
            &labels[1],
            "io",
            2,
            ms(5),
        ),
        (&["<module>:3", "serve:88", "handle:41", "view:13", "load_cart:31", "price:9"], &labels[1], "cpu", 0, 20),
        (&["<module>:3", "serve:88", "render:50", "template:77", "escape:5"], &labels[2], "cpu", 0, ms(8)),
        (&["<module>:3", "serve:88", "render:51", "acquire:8", "pthread_cond_wait:1"], &labels[2], "lock", 1, lock),
        (&["<module>:3", "serve:88", "render:52", "backoff:8", "nanosleep:1"], &labels[2], "sleep", 1, wall_i(n % 7)),
        (&["<module>:3", "serve:88", "render:53", "write_log:8", "fsync:1"], &labels[2], "io", 1, 3),
    ];
    assert_eq!(server.push_as("wall", "checkout", &wall_profile(&rows)).status, 200);
}

fn wall_i(n: u64) -> i64 {
    i64::try_from(n).unwrap()
}

type Owned<'a> = (&'a [&'a str], Vec<(String, String)>, i64);

fn push(server: &Server, service: &str, rows: &[Owned<'_>]) {
    let labels: Vec<Vec<(&str, &str)>> =
        rows.iter().map(|(_, labels, _)| labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect()).collect();
    let rows: Vec<_> =
        rows.iter().zip(&labels).map(|((stack, _, periods), labels)| (*stack, labels.as_slice(), *periods)).collect();
    assert_eq!(server.push(service, &profile(&rows)).status, 200);
}

#[test]
fn a_person_clicks_from_services_to_a_frame() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".into());
    if !Path::new(&chromium).exists() || !folder.join("node_modules").exists() {
        eprintln!("skipped: needs {chromium} (or CHROMIUM) and `npm ci` in viewer/tests/browser");
        return;
    }
    let server = Server::start();
    fill(&server);
    let out = std::env::var_os("SCREENSHOTS")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots"), PathBuf::from);
    let done = Command::new("node")
        .arg(folder.join("run.mjs"))
        .arg(&server.url)
        .arg(&out)
        .env("SERVICE", "checkout")
        .env("SPAN", "render")
        .env("FUNCTION", "escape")
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
