//! Tags of threads, as programs and runtimes say them, and as handlers see them.

use std::io;
use std::sync::atomic::Ordering;

use super::local::thread_started;
use super::registry::{IS_SAMPLING, Registry, lock};
use super::sampling::Report;
use crate::context::thread_tags::ThreadTags;
use crate::os::fork;
use crate::os::thread_id::tid;
use crate::profile_type::SampleClock;
use crate::sample::record::RECORDS;
use crate::sample::timer;
use crate::wire::labels::{THREAD_ID, THREAD_NAME};

/// Adds a tag to the samples of the calling thread, whatever context it is in; false = no profiler runs. Takes a lock:
/// about 1 µs. Of two values for one name the one added last counts.
pub fn add_thread_tag(name: &str, value: &str) -> bool {
    change_tags(|tags, tid| tags.add(tid, name, value))
}

/// Takes back the last [`add_thread_tag`] of just this pair; false = no profiler runs.
pub fn remove_thread_tag(name: &str, value: &str) -> bool {
    change_tags(|tags, tid| tags.remove(tid, name, value))
}

fn change_tags(change: impl FnOnce(&mut ThreadTags, i32)) -> bool {
    thread_started();
    IS_SAMPLING.load(Ordering::Relaxed) && change_tags_of(tid(), change)
}

/// Says which tags describe a thread, by the kernel's id, where [`Config::report_thread_id`](crate::Config) or
/// `report_thread_name` asks for them. A thread of which nobody says it has its kernel id and the kernel's name for it.
pub fn describe_thread(tid: i32, description: Vec<(String, String)>) {
    if IS_SAMPLING.load(Ordering::Relaxed) && !fork::forked() {
        change_tags_of(tid, |tags, tid| tags.describe(tid, description));
    }
}

fn change_tags_of(tid: i32, change: impl FnOnce(&mut ThreadTags, i32)) -> bool {
    // One that has ended would keep its tags, and its number's next owner would have them.
    if timer::now(SampleClock::Cpu, tid).is_none() {
        return false;
    }
    let mut registry = lock();
    let Some(registry) = registry.as_mut() else { return false };
    change(&mut registry.tags, tid);
    registry.show_tags(tid);
    true
}

impl Registry {
    /// Makes the handler see the tags of a thread.
    fn show_tags(&self, tid: i32) {
        if let Some(record) = self.by_tid.get(&tid).and_then(|thread| RECORDS.get(thread.index as usize)) {
            record.thread_tags.store(self.tags.of(tid).0, Ordering::Relaxed);
        }
    }

    /// Describes a thread of which the runtime said nothing, as the kernel knows it.
    pub(super) fn describe(&mut self, tid: i32, report: Report) {
        if self.tags.is_described(tid) || !self.by_tid.contains_key(&tid) {
            return;
        }
        let comm = |tid| std::fs::read(format!("/proc/self/task/{tid}/comm"));
        // The next sweep tries again: of a process without a descriptor left no thread would ever have a name.
        let Ok(description) = description(tid, report, comm) else { return };
        self.tags.describe(tid, description);
        self.show_tags(tid);
    }
}

/// What describes a thread as the kernel knows it; the error is why its name could not be read.
fn description(
    tid: i32,
    report: Report,
    comm: impl Fn(i32) -> io::Result<Vec<u8>>,
) -> io::Result<Vec<(String, String)>> {
    let mut description = Vec::new();
    if report.id {
        description.push((THREAD_ID.to_owned(), tid.to_string()));
    }
    if report.name {
        let name = comm(tid)?;
        description.push((THREAD_NAME.to_owned(), String::from_utf8_lossy(&name).trim_end().to_owned()));
    }
    Ok(description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_name_cannot_be_read_is_not_described_as_one_without_a_name() {
        let report = Report { id: true, name: true };
        let no_descriptor = |_| Err(io::Error::from_raw_os_error(libc::EMFILE));
        assert!(description(7, report, no_descriptor).is_err());
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let described = description(7, report, |_| Ok(b"worker\n".to_vec())).expect("a name");
        assert_eq!(described, [pair("thread_id", "7"), pair("thread_name", "worker")]);
        // Where only the id is asked for nothing is read.
        let described = description(7, Report { id: true, name: false }, no_descriptor).expect("an id");
        assert_eq!(described, [pair("thread_id", "7")]);
    }
}
