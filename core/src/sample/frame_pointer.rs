//! Walks native stacks by frame pointers: for hosts that are compiled code themselves.
//!
//! Each frame is one word, the address of the instruction (of the call, for all but the leaf). Code without frame
//! pointers cuts the stack short or skips a caller, it cannot crash: every load may fail.

use super::frames::FrameWriter;
use super::safe_load::safe_load;

/// Frames lie at most this far apart; farther is another stack or no frame at all.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// Pushes the interrupted thread's frames, leaf first. Async-signal-safe; needs [`enable_safe_load`](crate::enable_safe_load).
///
/// # Safety
/// `ucontext` is the third argument of a signal handler on this thread.
pub unsafe fn walk_frame_pointers(ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
    // SAFETY: by the caller's contract.
    let (pc, mut frame) = unsafe { registers(ucontext) };
    if !out.push(pc) {
        return;
    }
    while frame != 0 && frame % 8 == 0 {
        let (Some(next), Some(back)) = (safe_load(frame as *const u64), safe_load((frame + 8) as *const u64)) else {
            return;
        };
        // A return address is behind the call; one byte less is within it.
        if back < 4096 || !out.push(back - 1) || next <= frame || next - frame > MAX_FRAME_BYTES {
            return;
        }
        frame = next;
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn registers(ucontext: *const libc::ucontext_t) -> (u64, u64) {
    // SAFETY: by the contract of `walk_frame_pointers`.
    let registers = unsafe { &(*ucontext).uc_mcontext.gregs };
    (registers[libc::REG_RIP as usize].cast_unsigned(), registers[libc::REG_RBP as usize].cast_unsigned())
}

#[cfg(target_arch = "aarch64")]
unsafe fn registers(ucontext: *const libc::ucontext_t) -> (u64, u64) {
    // SAFETY: by the contract of `walk_frame_pointers`.
    let registers = unsafe { &(*ucontext).uc_mcontext };
    (registers.pc, registers.regs[29])
}
