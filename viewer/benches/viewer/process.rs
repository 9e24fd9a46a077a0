//! What the kernel says about the server's process.

use std::process::Command;
use std::time::Duration;

/// CPU time of all its threads so far.
pub fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in parentheses may hold anything, spaces too.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // utime and stime, in hundredths of a second on Linux.
    let ticks: u64 = [11, 12].iter().map(|field| fields[*field].parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// A line of /proc/PID/status, in MiB.
pub fn memory(pid: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|found| found.starts_with(line)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib as f64 / 1024.0
}

/// Bytes of the program without what only debuggers read, which is how it is packed.
pub fn stripped_size() -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("spanprof");
    let done = Command::new("strip").arg("-o").arg(&copy).arg(env!("CARGO_BIN_EXE_spanprof")).status();
    assert!(done.is_ok_and(|status| status.success()), "strip (of binutils) is needed");
    std::fs::metadata(copy).unwrap().len() as f64
}
