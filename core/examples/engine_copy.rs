//! A second copy of the engine as a shared library, as two packages in one process have it. A test loads it.

use std::sync::Mutex;

use spanprof_core::{Config, ErrorKind, Frame, FrameId, FrameWriter, Profiler, Runtime, ThreadRecord};

struct NoStacks;

// SAFETY: `walk` does nothing.
unsafe impl Runtime for NoStacks {
    unsafe fn walk(&self, _: &ThreadRecord, _: *const libc::ucontext_t, _: &mut FrameWriter<'_>) {}

    fn measures_waits(&self) -> bool {
        true
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        ids.iter().map(|_| None).collect()
    }
}

static RUNNING: Mutex<Option<Profiler>> = Mutex::new(None);

/// Run by the dynamic linker, with its lock held, as it loads this: tells a test of that, and goes on when that wants it to. The descriptors
/// of two pipes are in the environment.
extern "C" fn loaded() {
    let Ok(pipes) = std::env::var("ENGINE_COPY_LOADED") else { return };
    let mut pipes = pipes.split(' ').filter_map(|pipe| pipe.parse().ok());
    let (Some(tell), Some(go_on)) = (pipes.next(), pipes.next()) else { return };
    let mut byte = 1_u8;
    // SAFETY: a byte of ours.
    unsafe { libc::write(tell, (&raw const byte).cast(), 1) };
    // SAFETY: as above.
    unsafe { libc::read(go_on, (&raw mut byte).cast(), 1) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Starts this copy's profiler: 0 = it runs, 1 = another one does, 2 = it cannot.
#[unsafe(no_mangle)]
pub extern "C" fn engine_copy_start() -> i32 {
    let config =
        Config { application_name: "copy".into(), server_address: "none".into(), wall_time: true, ..Config::default() };
    match Profiler::start(config, &NoStacks) {
        Ok(profiler) => RUNNING.lock().map_or(2, |mut running| {
            *running = Some(profiler);
            0
        }),
        Err(error) if error.kind() == ErrorKind::AlreadyRunning => 1,
        Err(_) => 2,
    }
}

/// Whether it measures waits: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn engine_copy_measures_waits() -> i32 {
    i32::from(spanprof_core::measures_waits())
}
