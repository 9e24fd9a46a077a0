//! What runs in the signal handler: span, tags and stack of the interrupted thread. Nothing here knows Python's C API but the two
//! functions that [`interpreter`] lists.
//!
//! [`layout`] says where the interpreter keeps what is read, [`memory`] how it is read. [`context`] finds span and tags by looking
//! variables up ([`hamt`]). [`unwind`] walks the frames: [`cframe`] finds where a walk may begin, with the help of [`registers`];
//! [`code_object`] reads what a frame runs, [`code_table`] turns that into a word ([`frame_id`]) and tells through
//! [`definition_ring`] what it means.

pub(crate) mod cframe;
pub(crate) mod code_object;
pub(crate) mod code_table;
pub(crate) mod context;
pub(crate) mod definition_ring;
pub(crate) mod frame_id;
pub(crate) mod hamt;
pub(crate) mod interpreter;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod registers;
pub(crate) mod unwind;

#[cfg(test)]
mod tests {
    use std::fs;

    /// What a handler may use; what may allocate, lock or call the interpreter is none of it.
    const MAY_USE: [&str; 9] = [
        "std::ffi::",
        "std::io;", // last_os_error(), of the loads that only the self-test makes
        "std::ptr;",
        "std::sync::atomic::",
        "libc::",
        "spanprof_core::{Context, ",
        "spanprof_core::FrameWriter;",
        "crate::span::published::",
        "crate::stack::",
    ];

    #[test]
    fn nothing_else_is_used() {
        let mut files = 0;
        for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/stack")).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let shipped = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in shipped.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
                if let Some(used) = line.strip_prefix("use ") {
                    assert!(MAY_USE.iter().any(|known| used.starts_with(known)), "{}: {line}", path.display());
                } else {
                    let outside = line.replace("crate::stack::", "");
                    assert!(!outside.contains("crate::") && !outside.contains("pyo3"), "{}: {line}", path.display());
                }
            }
            files += 1;
        }
        assert!(files > 10, "{files} files");
    }
}
