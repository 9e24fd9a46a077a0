//! The engine's own statistics travel with its profiles, and the page of the service shows them.

mod common;

use std::time::Duration;

use common::Server;
use spanprof_core::{Config, Frame, FrameWriter, Profiler, Runtime, ThreadRecord, span_end, span_start};

/// One frame, whatever runs.
#[derive(Debug)]
struct OneFrame;

// SAFETY: `walk` pushes a constant.
unsafe impl Runtime for OneFrame {
    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        out.push(1);
    }

    fn resolve(&self, words: &[u64]) -> Vec<Option<Frame>> {
        words.iter().map(|_| Some(Frame { function: "work".into(), ..Frame::default() })).collect()
    }
}

/// Burns until the profiler has taken `samples`.
fn burn(profiler: &Profiler, samples: u64) {
    while profiler.stats().taken.samples < samples {
        std::hint::black_box((0..10_000_u64).fold(0_u64, |sum, n| sum.wrapping_mul(31).wrapping_add(n)));
    }
}

#[test]
fn the_page_of_a_service_says_how_its_profilers_are() {
    let server = Server::start();
    let config = Config {
        application_name: "shop".into(),
        server_address: server.url.clone(),
        package: ("pyroscope-otel".into(), "2.0.0".into()),
        report_pid: true,
        ..Config::default()
    };
    let profiler = Profiler::start(config, &OneFrame).unwrap();
    span_start(0x1234, "GET /cart");
    for samples in [5, 15] {
        burn(&profiler, samples);
        assert!(profiler.flush(Duration::from_secs(20)), "{:?}", profiler.stats());
    }
    span_end();
    let said = server.json("/api/spans?service=shop");
    let profilers = said["profilers"].as_array().unwrap();
    assert_eq!(profilers.len(), 1, "{said}");
    assert_eq!(profilers[0]["pid"], std::process::id());
    assert_eq!(profilers[0]["package"], "pyroscope-otel 2.0.0");
    let stats = &profilers[0]["stats"];
    let number = |name: &str| stats[name].as_u64().or_else(|| stats[name][0].as_u64()).unwrap();
    assert!(number("taken") >= 15 && number("taken") <= profiler.stats().taken.samples, "{stats}");
    assert!(number("uploaded") >= 5, "what went with the first upload: {stats}");
    assert_eq!(number("threads"), profiler.stats().threads);
    let page = server.page("/spans?service=shop");
    assert!(page.contains("Profilers") && page.contains("pyroscope-otel 2.0.0"), "{page}");
    assert_eq!(server.json("/api/spans?service=shop&since=all")["profilers"], said["profilers"]);
    assert!(profiler.stop(Duration::from_secs(20)));
}
