//! What the profiler's thread does on each of its ticks, before samples are read: it takes up what callbacks reported, and looks for new
//! code and libraries.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::libraries::registry;
use crate::stack::sample_header;
use crate::symbols::{code_map, resolver};

/// Ticks of the profiler's thread between two checks of what is mapped: two seconds.
const TICKS_BETWEEN_CHECKS: u32 = 20;
const MAX_WAIT: u32 = 100;

static TICK: AtomicU32 = AtomicU32::new(0);
static CHECKED_AT: AtomicU32 = AtomicU32::new(0);
/// Ticks until the next check for what the handler did not know.
static WAIT: AtomicU32 = AtomicU32::new(1);
/// Samples were read since the last check of what is mapped.
static READ: AtomicBool = AtomicBool::new(false);

/// A sample was read.
pub(crate) fn note_sample() {
    READ.store(true, Ordering::Relaxed);
}

/// A tick: looks for new code and libraries while the program does something, each two seconds or as soon as the handler met
/// what it did not know.
pub(crate) fn tick() {
    code_map::tick();
    check();
    registry::read_files();
}

fn check() {
    let now = TICK.fetch_add(1, Ordering::Relaxed);
    let since = now.wrapping_sub(CHECKED_AT.load(Ordering::Relaxed));
    let wait = WAIT.load(Ordering::Relaxed);
    let unknown = since >= wait && sample_header::take_unknown_code();
    if !(unknown || since >= TICKS_BETWEEN_CHECKS && READ.swap(false, Ordering::Relaxed)) {
        return;
    }
    CHECKED_AT.store(now, Ordering::Relaxed);
    let changes = registry::refresh();
    if changes.libraries {
        resolver::forget_native();
    }
    // What stays unknown is no code: to look for it again and again would cost more than it tells.
    WAIT.store(if changes.code { 1 } else { (wait * 2).min(MAX_WAIT) }, Ordering::Relaxed);
}
