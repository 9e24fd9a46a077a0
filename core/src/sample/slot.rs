//! How a slot is written, by which a module calls another one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, ptr};

/// What became of a slot that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    /// Something else is there by now.
    Changed,
    /// What it takes was used up: file descriptors, or the kernel's memory.
    NotNow,
    /// The kernel refuses it.
    Never,
}

/// Writes a slot in which this was found: one may be the program's own pointer, which it changes at any time. What is `memory` is opened
/// where it is needed.
pub(super) fn write(slot: usize, found: usize, value: usize, is_read_only: bool, memory: &mut Option<File>) -> Written {
    let place = ptr::with_exposed_provenance::<AtomicUsize>(slot);
    // What a module says of its pages is not all: a text relocation is in a page that cannot be written, and a module may have
    // protected its table itself.
    if !is_read_only && can_be_written(slot) {
        // SAFETY: a slot of a module that is loaded, aligned; ld.so writes such slots at any time, and either is right.
        let exchanged = unsafe { (*place).compare_exchange(found, value, Ordering::AcqRel, Ordering::Relaxed) };
        return if exchanged.is_ok() { Written::Yes } else { Written::Changed };
    }
    // SAFETY: as above.
    if unsafe { (*place).load(Ordering::Acquire) } != found {
        return Written::Changed;
    }
    match write_protected(slot, value, memory) {
        Ok(()) => Written::Yes,
        Err(error) => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR) => Written::NotNow,
            _ => Written::Never,
        },
    }
}

fn write_protected(slot: usize, value: usize, memory: &mut Option<File>) -> io::Result<()> {
    let memory = match memory {
        Some(memory) => memory,
        None => memory.insert(OpenOptions::new().read(true).write(true).open("/proc/self/mem")?),
    };
    memory.write_all_at(&value.to_ne_bytes(), slot as u64)
}

/// Whether a word can be written: its lower half is added 0 to, by the kernel, which finds that out.
fn can_be_written(slot: usize) -> bool {
    /// `FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)`.
    const ADD_NOTHING: libc::c_int = 1 << 28;
    let unused = 0_u32;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: nobody waits at either; the kernel checks the second address.
    unsafe { libc::syscall(libc::SYS_futex, &raw const unused, operation, 0, 0_usize, slot, ADD_NOTHING) >= 0 }
}
