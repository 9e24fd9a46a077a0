//! `spanprof view` and `spanprof top`, as a person runs them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Output;

use common::{PERIOD, Server, gzip, profile, spanprof, wall};
use prost::Message as _;
use spanprof_core::wire::pprof::{Function, Line, Location, Sample};

/// What profilers write to `file:///folder`: one file a window, named after service and type.
fn write_profiles(folder: &Path) {
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let labels = [("span_id", "00f067aa0ba902b7"), ("trace_id", trace), ("span_name", "GET /cart")];
    let old = |mut profile: spanprof_core::wire::pprof::Profile| {
        profile.time_nanos = 1_600_000_000_000_000_000;
        gzip(&profile.encode_to_vec())
    };
    let cart = old(profile(&[(&["main:1", "cart:2"], &labels, 30), (&["main:1"], &[], 10)]));
    let rank = old(profile(&[(&["serve:1", "rank:2"], &[], 5)]));
    fs::create_dir(folder.join("search")).unwrap();
    fs::write(folder.join("my-shop-process_cpu-1600000000000000000-77-0.pb.gz"), cart).unwrap();
    fs::write(folder.join("search/search-process_cpu-1600000000000000000-78-0.pb.gz"), rank).unwrap();
    fs::write(folder.join(".my-shop-process_cpu-1600000000000000001-77-1.pb.gz.part"), "half").unwrap();
    fs::write(folder.join("notes.txt"), "no profile").unwrap();
}

fn words(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_folder_of_old_profiles_is_shown_whole() {
    let folder = tempfile::tempdir().unwrap();
    write_profiles(folder.path());
    let server = Server::view(&[folder.path()]);
    // The pages show all that is stored, though it is years old.
    let home = server.page("/");
    assert!(home.contains(">my-shop<") && home.contains(">search<") && home.contains("all that is stored"), "{home}");
    assert!(home.contains("kept as long as this runs"));
    assert!(server.page("/spans?service=my-shop").contains("GET /cart"));
    assert_eq!(server.json("/api/flame?service=my-shop")["samples"], 40);
    assert!(server.page("/flame?span=00f067aa0ba902b7").contains("href=\"spans?service=my-shop\""));
}

#[test]
fn once_prints_the_hottest_functions_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    write_profiles(folder.path());
    let (out, errors) = words(&spanprof().args(["view", "--once"]).arg(folder.path()).output().unwrap());
    assert!(out.starts_with("2 profiles of my-shop, search\n"), "{out}{errors}");
    assert!(out.contains("everything of my-shop, all that is stored: 400 ms, 40 samples"), "{out}");
    assert!(out.contains("300 ms  75 % ± 6.8  300 ms   75 % ± 6.8  cart  cart.py\n"), "{out}");
    assert!(out.contains("rank  rank.py"), "{out}");
}

#[test]
fn once_prints_what_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write_profiles(folder.path());
    let rows: [common::WallRow<'_>; 2] = [
        (&["main:1", "cart:2"], &[("span_name", "GET /cart"), ("span_id", "00f067aa0ba902b7")], "cpu", 0, 30),
        (&["main:1", "recv:1"], &[("span_name", "pay"), ("span_id", "00f067aa0ba902b8")], "io", 1, 50),
    ];
    fs::write(folder.path().join("my-shop-wall-1600000000000000000-77-2.pb.gz"), gzip(&wall(&rows).encode_to_vec()))
        .unwrap();
    let once = |more: &[&str]| {
        let done = spanprof().args(["view", "--once"]).args(more).arg(folder.path()).output().unwrap();
        let (out, errors) = words(&done);
        (done.status.success(), out, errors)
    };
    let (_, all, errors) = once(&[]);
    assert!(all.contains("wall, all that is stored: 80.0 ms") && all.contains("400 ms, 40 samples"), "{all}{errors}");
    let (_, wall, errors) = once(&["--service", "my-shop", "--type", "wall", "--span", "pay"]);
    assert!(wall.contains("pay of my-shop, wall, all that is stored: 50.0 ms"), "{wall}{errors}");
    assert!(wall.contains("I/O              50.0 ms   100 %") && wall.contains("recv"), "{wall}");
    assert!(!wall.contains("400 ms") && !wall.contains("rank"), "{wall}");
    let (_, none, errors) = once(&["--service", "my-shop", "--span", "paid"]);
    assert!(none.contains("No span of my-shop is named \"paid\"."), "{none}{errors}");
    let (ended_well, _, errors) = once(&["--service", "shop"]);
    assert!(!ended_well && errors.contains("no service \"shop\"; there are profiles of: my-shop, search"), "{errors}");
    let done = spanprof().args(["view", "--type", "wall"]).arg(folder.path()).output().unwrap();
    assert!(!done.status.success() && words(&done).1.contains("--once"), "{:?}", words(&done));
}

#[test]
fn any_pprof_is_opened_and_what_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut heap = profile(&[(&["main:1", "load:2"], &[], 3)]);
    for (word, other) in [("cpu", "inuse_space"), ("nanoseconds", "bytes")] {
        let at = heap.string_table.iter().position(|known| known == word).unwrap();
        heap.string_table[at] = other.into();
    }
    let file = folder.path().join("heap.pprof");
    fs::write(&file, heap.encode_to_vec()).unwrap();
    let (out, _) = words(&spanprof().args(["view", "--once"]).arg(&file).output().unwrap());
    assert!(out.contains("everything of heap, memory, all that is stored: 28.6 MiB"), "{out}");

    let broken = folder.path().join("broken.pb.gz");
    fs::write(&broken, "hello").unwrap();
    let failed = spanprof().args(["view", "--once"]).arg(&broken).output().unwrap();
    let (_, errors) = words(&failed);
    assert!(!failed.status.success() && errors.contains("cannot open ") && errors.contains("broken.pb.gz"), "{errors}");
    // In a folder it is said, and the others are shown.
    let done = spanprof().args(["view", "--once"]).arg(folder.path()).output().unwrap();
    let (out, errors) = words(&done);
    assert!(
        done.status.success() && out.starts_with("1 profile of heap\n") && errors.contains("broken.pb.gz"),
        "{out}{errors}"
    );

    // Other packed files are counted, and of them too those that are profiles are shown.
    fs::remove_file(&broken).unwrap();
    for name in ["access.log.1.gz", "access.log.2.gz"] {
        fs::write(folder.path().join(name), gzip(b"GET / 200\n")).unwrap();
    }
    fs::write(folder.path().join("packed.gz"), gzip(&heap.encode_to_vec())).unwrap();
    let (out, errors) = words(&spanprof().args(["view", "--once"]).arg(folder.path()).output().unwrap());
    assert!(out.starts_with("2 profiles of heap, packed\n"), "{out}");
    let says = "left out 2 files named .gz that could not be read as a profile; the first: cannot open ";
    assert!(errors.contains(says) && errors.contains("access.log.1.gz: the profile is no "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");

    let empty = tempfile::tempdir().unwrap();
    let (_, errors) = words(&spanprof().arg("view").arg(empty.path()).output().unwrap());
    assert!(errors.contains("holds no profile"), "{errors}");
    let (_, errors) = words(&spanprof().args(["view", "/nowhere/at/all"]).output().unwrap());
    assert!(errors.contains("cannot open /nowhere/at/all"), "{errors}");
}

#[test]
fn what_view_serves_is_all_that_was_read_unless_a_time_range_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut old = profile(&[(&["main:1"], &[], 3)]);
    old.time_nanos -= 3 * 86_400_000_000_000;
    fs::write(folder.path().join("shop.pprof"), old.encode_to_vec()).unwrap();
    let server = Server::view(&[folder.path()]);
    let total = 3 * common::PERIOD;
    assert_eq!(server.json("/api/services")["services"][0]["service"], "shop");
    assert_eq!(server.json("/api/flame?service=shop")["total"], total);
    assert_eq!(server.json("/api/flame?service=shop&since=1h")["total"], 0);
    assert_eq!(server.json("/api/diff?service=shop&b.since=1h")["a"]["total"], total);
    assert_eq!(server.pprof("service=shop").sample[0].value, [total]);
    let top = spanprof().args(["top", "--url", &server.url, "--service", "shop"]).output().unwrap();
    let (out, errors) = words(&top);
    assert!(out.starts_with("everything of shop, all that is stored: 30.0 ms, 3 samples\n"), "{out}{errors}");
    // Links say every other time range, and lead back.
    for (all, hour) in [("./", "./?since=1h"), ("flame?service=shop", "flame?service=shop&amp;since=1h")] {
        let page = server.page(&format!("/{}", all.trim_start_matches("./")));
        assert!(page.contains("aria-current=\"true\">all<") && page.contains(&format!("href=\"{hour}\"")), "{page}");
        let hour = server.page(&format!("/{}", hour.trim_start_matches("./").replace("&amp;", "&")));
        assert!(hour.contains("aria-current=\"true\">1h<") && hour.contains(&format!("href=\"{all}\">all")), "{hour}");
    }
}

#[test]
fn whoever_reads_no_further_is_told_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_profiles(folder.path());
    let server = Server::start();
    let folder = folder.path().to_str().unwrap();
    for arguments in [["view", "--once", folder], ["top", "--url", &server.url]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = spanprof().args(arguments).stdout(writer).output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn a_large_pprof_is_opened_within_the_memory_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut large = profile(&[(&["main:1"], &[], 0)]);
    // As a Go program has them: functions with long names, deep stacks, megabytes of them.
    let count = 5_000_u64;
    for id in 10..10 + count {
        let name = i64::try_from(large.string_table.len()).unwrap();
        large.string_table.push(format!("example.com/team/project/internal/package/sub.(*Type{id}).Method{id}"));
        large.function.push(Function { id, name, system_name: name, filename: 0, start_line: 7 });
        let line = vec![Line { function_id: id, line: 12, column: 0 }];
        large.location.push(Location { id, mapping_id: 0, address: 0x40_0000 + id * 64, line, is_folded: false });
    }
    for sample in 0..20_000_u64 {
        let frame = |depth: u64| 10 + (sample / 2_u64.pow(25 - u32::try_from(depth / 2).unwrap()) * 31 + depth) % count;
        let location_id = (0..40).rev().map(frame).collect();
        large.sample.push(Sample { location_id, value: vec![PERIOD], label: Vec::new() });
    }
    let bytes = large.encode_to_vec();
    assert!(bytes.len() > 1 << 20, "{}", bytes.len());
    let file = folder.path().join("large.pb.gz");
    fs::write(&file, gzip(&bytes)).unwrap();
    let view = |memory| words(&spanprof().args(["view", "--once", "--memory", memory]).arg(&file).output().unwrap());
    let (out, errors) = view("128m");
    assert!(
        out.contains("all that is stored: 200 s, 20000 samples") || out.contains("20,000 samples"),
        "{out}{errors}"
    );

    // What has no room is said, with the bytes that there are.
    large.sample = [&large.sample[..]; 4].concat();
    fs::write(&file, gzip(&large.encode_to_vec())).unwrap();
    let (_, errors) = view("64m");
    assert!(errors.contains("large.pb.gz") && errors.contains("bytes"), "{errors}");

    // One that is larger than all memory is not even read, and neither is what has no end.
    let huge = folder.path().join("huge.jfr");
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    for file in [&huge, Path::new("/dev/zero")] {
        let (_, errors) = words(&spanprof().args(["view", "--once", "--memory", "64m"]).arg(file).output().unwrap());
        let said = format!("cannot open {}: the file takes more than the ", file.display());
        assert!(errors.contains(&said), "{errors}");
    }
}

#[test]
fn top_asks_a_running_viewer() {
    let server = Server::start();
    let labels = [("span_id", "00f067aa0ba902b7"), ("span_name", "GET /cart")];
    let rows: [common::Row<'_>; 2] = [(&["main:1", "cart:2"], &labels, 30), (&["main:1", "idle:1"], &[], 10)];
    assert_eq!(server.push("shop", &profile(&rows)).status, 200);
    let top = |arguments: &[&str]| spanprof().args(["top", "--url", &server.url]).args(arguments).output().unwrap();
    let (out, errors) = words(&top(&["--service", "shop", "--span", "GET /cart"]));
    assert!(out.starts_with("GET /cart of shop, last hour: 300 ms, 30 samples\n"), "{out}{errors}");
    assert!(out.contains("100 % ± 0.0  cart  cart.py") && !out.contains("idle"), "{out}");
    let (out, _) = words(&top(&["--service", "shop", "--lines", "--limit", "1", "outside=1"]));
    assert!(out.contains("idle  idle.py:1\n(1 more)"), "{out}");
    // As profilers take the address of their server.
    let (out, errors) = words(&spanprof().args(["top", "--url", &server.url["http://".len()..]]).output().unwrap());
    assert!(out.starts_with("everything, last hour: 400 ms, 40 samples\n"), "{out}{errors}");
    // What there is none of is an error, as a script sees.
    for (arguments, says) in [
        (["--service", "shop", "--span", "nowhere"], "no span of shop is named \"nowhere\"; there are: GET /cart\n"),
        (
            ["--service", "shpo", "--span", "GET /cart"],
            "there is no service \"shpo\"; there are profiles of: shop (process_cpu)\n",
        ),
        (["--service", "", "--span", "GET /cart"], "a value is required for '--service <SERVICE>'"),
    ] {
        let refused = top(&arguments);
        let (out, errors) = words(&refused);
        assert!(!refused.status.success() && out.is_empty() && errors.contains(says), "{out}{errors}");
    }
    let (out, _) = words(&top(&["--service", "shop", "label.region=eu"]));
    assert!(
        out.ends_with("There are profiles of: shop (process_cpu). Try --since all, another --span or --type.\n"),
        "{out}"
    );
    let refused = top(&["--type", "bogus"]);
    let (_, errors) = words(&refused);
    let says = "\"bogus\": is no profile type that is stored; allowed are process_cpu";
    assert!(!refused.status.success() && errors.contains(says), "{errors}");
    let refused = top(&["--service", "shop", "dur>fast"]);
    let (_, errors) = words(&refused);
    assert!(!refused.status.success() && errors.contains("\"dur>\" = \"fast\""), "{errors}");
    let (_, errors) = words(&spanprof().args(["top", "--url", "http://127.0.0.1:1"]).output().unwrap());
    assert!(errors.contains("cannot ask http://127.0.0.1:1") && errors.contains("--url"), "{errors}");
}

#[test]
fn top_of_a_viewer_that_received_nothing_says_so() {
    let server = Server::start();
    let (out, _) = words(&spanprof().args(["top", "--url", &server.url]).output().unwrap());
    let says = format!("No profiles are stored; {} says how to send some.\n", server.url);
    assert!(out.ends_with(&says), "{out}");
}

#[test]
fn a_flag_that_is_not_understood_is_named_with_its_value_and_what_is_allowed() {
    for (arguments, allowed) in [
        (&["serve", "--retain", "0s"][..], "90s, 15m, 1h or 2d, of at least 1s"),
        (&["--retain", "x"], "90s, 15m, 1h or 2d, of at least 1s"),
        (&["--memory", "3"], "128m or 2g, of at least 64m"),
        (&["--listen", "localhost:4040"], "an IP address with a port, such as 127.0.0.1:4040 or [::1]:4040"),
        (&["--listen-otlp", "4318"], "[::1]:4040, or none"),
        (&["--basic-auth", "me"], "me:/etc/spanprof-password"),
        (&["top", "--limit", "x"], "a whole number from 1 on"),
        (&["top", "--limit", "0"], "a whole number from 1 on"),
        (&["top", "--url", "ftp://localhost:4040"], "an address such as http://127.0.0.1:4040 or localhost:4040"),
    ] {
        let (_, errors) = words(&spanprof().args(arguments).output().unwrap());
        let [.., flag, value] = arguments else { continue };
        assert!(
            errors.contains(flag) && errors.contains(&format!("{value:?}")) && errors.contains(allowed),
            "{errors}"
        );
    }
}

/// Answers each request so, as what is no spanprof does.
fn stranger(answer: String) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut request);
            let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
        }
    });
    url
}

#[test]
fn who_asks_another_server_is_told_what_it_answers() {
    let none = |status: &str| {
        format!("what answers at URL ({status}) has no pages of spanprof: say by --url where these are\n")
    };
    for (status, of, body, says) in [
        ("404 Not Found", "text/html", "", none("404 Not Found")),
        ("404 Not Found", "application/json", r#"{"detail":"Not Found"}"#, none("404 Not Found")),
        ("404 Not Found", "application/json", r#"{"error":{"type":"no_index"},"status":404}"#, none("404 Not Found")),
        ("200 OK", "application/json", "{}", none("200 OK")),
        ("200 OK", "application/json", "[]", none("200 OK")),
        ("200 OK", "text/plain", "hello", none("200 OK")),
        (
            "404 Not Found",
            "application/json",
            r#"{"message":"Not found"}"#,
            "URL answers 404 Not Found: Not found\n".into(),
        ),
        (
            "403 Forbidden",
            "text/plain; charset=utf-8",
            "not to this name\nmore",
            "URL answers 403 Forbidden: not to this name\n".into(),
        ),
        (
            "502 Bad Gateway",
            "text/html",
            "<html>",
            "URL answers 502 Bad Gateway; say by --url where spanprof listens\n".into(),
        ),
    ] {
        let length = body.len();
        let url = stranger(format!(
            "HTTP/1.1 {status}\r\ncontent-type: {of}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ));
        let refused = spanprof().args(["top", "--url", &url]).output().unwrap();
        let (out, errors) = words(&refused);
        assert!(!refused.status.success() && out.is_empty(), "{status} {body}: {out}");
        assert!(errors.replace(&url, "URL").ends_with(&says), "{status} {body}: {errors}");
    }
}

#[test]
fn view_takes_a_download_with_all_its_label_sets() {
    let server = Server::start();
    let names: Vec<String> = (0..1_200).map(|number| format!("GET /{number}")).collect();
    let states = ["cpu", "io", "lock", "gil", "await"];
    // The server itself takes 5,000 of a profile.
    for names in names.chunks(600) {
        let labels: Vec<[(&str, &str); 1]> = names.iter().map(|name| [("span_name", name.as_str())]).collect();
        let rows: Vec<common::WallRow<'_>> =
            labels.iter().flat_map(|labels| states.map(|state| (&["main:1"][..], &labels[..], state, 1, 10))).collect();
        assert_eq!(server.push_as("wall", "shop", &wall(&rows)).status, 200);
    }
    let file = tempfile::Builder::new().suffix(".pb.gz").tempfile().unwrap();
    fs::write(file.path(), server.get("/profile.pb.gz?service=shop&type=wall").body).unwrap();
    let (out, errors) = words(&spanprof().args(["view", "--once"]).arg(file.path()).output().unwrap());
    assert!(out.contains("6,000 samples") && out.contains("  lock              12.0 s    20 %\n"), "{out}{errors}");
}
