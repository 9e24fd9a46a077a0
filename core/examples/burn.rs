//! Two spans that burn CPU, profiled. `cargo run --example burn [http://localhost:4040 | file:///dir] [seconds]`
//!
//! Without an address it writes to `target/burn` and names the files; `go tool pprof -top -tagfocus span_name=…` reads them.

use std::error::Error;
use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spanprof_core::{
    Config, Frame, FrameId, FrameWriter, Profiler, Runtime, SpanContext, ThreadRecord, span_end, span_start,
    thread_started, walk_frame_pointers,
};

/// How compiled Rust is sampled: by frame pointers, which `.cargo/config.toml` keeps, and named by its debug information.
struct Native;

// SAFETY: `walk` only calls `walk_frame_pointers`, which is made for the handler; `context` is the core's own.
unsafe impl Runtime for Native {
    fn needs_safe_load(&self) -> bool {
        true
    }

    unsafe fn walk(&self, _thread: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the handler passes its third argument.
        unsafe { walk_frame_pointers(ucontext, out) }
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|&id| Some(frame_at(id))).collect()
    }
}

fn frame_at(address: u64) -> Frame {
    let mut frame = Frame { function: Arc::from(format!("{address:#x}")), ..Frame::default() };
    backtrace::resolve(std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or_default()), |symbol| {
        if let Some(name) = symbol.name() {
            frame.function = Arc::from(format!("{name:#}"));
        }
        if let Some(file) = symbol.filename() {
            frame.file = Arc::from(file.to_string_lossy());
        }
        frame.line = symbol.lineno().unwrap_or(0);
    });
    frame
}

#[inline(never)]
fn render_page(until: Instant) -> u64 {
    let mut sum = 0_u64;
    while Instant::now() < until {
        sum = (0..10_000).fold(sum, |sum, n| black_box(sum.wrapping_mul(31).wrapping_add(n)));
    }
    sum
}

#[inline(never)]
fn query_prices(until: Instant) -> u64 {
    let mut sum = 0_u64;
    while Instant::now() < until {
        sum = (0..10_000).fold(sum, |sum, n| black_box(sum.rotate_left(7) ^ n));
    }
    sum
}

fn serve(requests: u64) {
    thread_started();
    for request in 1..=requests {
        span_start(SpanContext { trace_id: [7, request], span_id: 2 * request }, "GET /cart");
        black_box(render_page(Instant::now() + Duration::from_millis(30)));
        span_start(SpanContext { trace_id: [7, request], span_id: 2 * request + 1 }, "SELECT prices");
        black_box(query_prices(Instant::now() + Duration::from_millis(20)));
        span_end();
        span_end();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = match arguments.next() {
        Some(address) => address,
        None => format!("file://{}/target/burn", std::env::current_dir()?.display()),
    };
    let seconds: u64 = arguments.next().map_or(Ok(2), |seconds| seconds.parse())?;

    let config = Config { application_name: "burn".into(), server_address: address.clone(), ..Config::default() };
    let profiler = Profiler::start(config, &Native)?;
    let server = std::thread::spawn(move || serve(seconds * 20));
    server.join().map_err(|_| "the serving thread panicked")?;
    let complete = profiler.stop(Duration::from_secs(5));

    let mut out = std::io::stdout();
    for message in profiler.take_messages() {
        writeln!(out, "{}", message.text)?;
    }
    let stats = profiler.stats();
    writeln!(out, "{} samples, {} ms of CPU, to {address}", stats.taken.samples, stats.taken.weight / 1_000_000)?;
    writeln!(out, "uploaded {}, own CPU {} µs", stats.uploaded.samples, stats.own_cpu_ns / 1_000)?;
    if !complete || stats.pending.samples > 0 {
        return Err(format!("not everything was uploaded: {stats:?}").into());
    }
    Ok(())
}
