//! A second copy of the engine as a shared library, as two packages in one process have it. A test loads it.

use std::sync::Mutex;

use spanprof_core::{Config, ErrorKind, Frame, FrameId, FrameWriter, Profiler, Runtime, ThreadRecord};

struct NoStacks;

// SAFETY: `walk` does nothing.
unsafe impl Runtime for NoStacks {
    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, _: &mut FrameWriter<'_>) {}

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|_| None).collect()
    }
}

static RUNNING: Mutex<Option<Profiler>> = Mutex::new(None);

/// Starts this copy's profiler: 0 = it runs, 1 = another one does, 2 = it cannot.
#[unsafe(no_mangle)]
pub extern "C" fn engine_copy_start() -> i32 {
    let config = Config { application_name: "copy".into(), server_address: "none".into(), ..Config::default() };
    match Profiler::start(config, &NoStacks) {
        Ok(profiler) => RUNNING.lock().map_or(2, |mut running| {
            *running = Some(profiler);
            0
        }),
        Err(error) if error.kind() == ErrorKind::AlreadyRunning => 1,
        Err(_) => 2,
    }
}
