//! The list of the process's threads, as the kernel has it.

use std::collections::HashSet;
use std::fs::DirEntry;
use std::io;

use crate::os::background_thread;
use crate::os::thread_id::tid;

/// The threads that there must be: the main one and the caller.
pub(super) fn list_certain() -> HashSet<i32> {
    // SAFETY: getpid takes nothing and cannot fail; it is the id of the main thread.
    let main = unsafe { libc::getpid() };
    let own = background_thread::tids();
    [main, tid()].into_iter().filter(|tid| !own.contains(tid)).collect()
}

/// Kernel ids of the process's threads, ours left out.
pub(super) fn list_threads() -> io::Result<HashSet<i32>> {
    let tasks: Vec<DirEntry> = std::fs::read_dir("/proc/self/task")?.collect::<io::Result<_>>()?;
    let mut threads: HashSet<i32> = tasks.iter().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    for own in background_thread::tids() {
        threads.remove(&own);
    }
    Ok(threads)
}

/// Whether no thread runs but ours. The first one of a process stays on the list when it has ended before the others.
pub(crate) fn is_host_gone() -> bool {
    list_threads().is_ok_and(|threads| !threads.is_empty() && threads.iter().all(|&tid| has_state(tid, 'Z')))
}

/// Whether a thread has a processor, or is ready for one.
pub(super) fn is_running(tid: i32) -> bool {
    has_state(tid, 'R')
}

fn has_state(tid: i32, state: char) -> bool {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state))
}
