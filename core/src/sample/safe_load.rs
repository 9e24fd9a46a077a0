//! Loads of memory that may not be there: a load that faults gives no value instead of a crash.
//!
//! The two naked functions below begin with the load itself, so the address of the function is the address of the only
//! instruction that may fault. A SIGSEGV or SIGBUS at that program counter is answered by going on at `load_failed`,
//! which returns to the caller with "no value"; every other fault goes to the handler that was there before, as if
//! ours did not exist.
//!
//! A library that installs its own handler after us (Python's faulthandler does) would see our faults and end the process
//! over them. So each tick of the profiler checks, and once ours is not the handler any more, loads ask the kernel
//! instead (`process_vm_readv`), at some hundred nanoseconds each. So they do while a sample is taken where a fault would end
//! the process: on a thread that blocks it, or whose alternate stack has no room for it ([`WithoutFaults`]).

use std::cell::UnsafeCell;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A value and whether it was loaded, in the two registers that the C ABI returns.
#[repr(C)]
struct Loaded {
    value: u64,
    ok: u64,
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn load64(_address: *const u64) -> Loaded {
    std::arch::naked_asm!("mov rax, qword ptr [rdi]", "mov edx, 1", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn load32(_address: *const u32) -> Loaded {
    std::arch::naked_asm!("mov eax, dword ptr [rdi]", "mov edx, 1", "ret")
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn load_failed() -> Loaded {
    std::arch::naked_asm!("xor eax, eax", "xor edx, edx", "ret")
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn load64(_address: *const u64) -> Loaded {
    std::arch::naked_asm!("ldr x0, [x0]", "mov x1, #1", "ret")
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn load32(_address: *const u32) -> Loaded {
    std::arch::naked_asm!("ldr w0, [x0]", "mov x1, #1", "ret")
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn load_failed() -> Loaded {
    std::arch::naked_asm!("mov x0, #0", "mov x1, #0", "ret")
}

/// Loads an aligned word, or `None` if it is not mapped. Async-signal-safe. Hot: a call and a load.
///
/// Only after [`enable_safe_load`] is a bad address harmless.
#[inline]
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "a bad address gives no value")]
pub fn safe_load(address: *const u64) -> Option<u64> {
    if NO_FAULTS.load(Ordering::Relaxed) != 0 {
        return ask_kernel(address);
    }
    // SAFETY: if the load faults, `on_fault` makes the call return (0, 0).
    let loaded = unsafe { load64(address) };
    (loaded.ok != 0).then_some(loaded.value)
}

/// As [`safe_load`], for 32 bits.
#[inline]
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "a bad address gives no value")]
pub fn safe_load_u32(address: *const u32) -> Option<u32> {
    if NO_FAULTS.load(Ordering::Relaxed) != 0 {
        return ask_kernel(address);
    }
    // SAFETY: if the load faults, `on_fault` makes the call return (0, 0).
    let loaded = unsafe { load32(address) };
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit load")]
    (loaded.ok != 0).then_some(loaded.value as u32)
}

/// Reads memory of this process by a system call. Async-signal-safe.
#[cold]
fn ask_kernel<T: Copy>(address: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let into = libc::iovec { iov_base: value.as_mut_ptr().cast(), iov_len: size_of::<T>() };
    let from = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: size_of::<T>() };
    // SAFETY: takes nothing and cannot fail.
    let pid = unsafe { libc::getpid() };
    // SAFETY: both are one valid iovec; the kernel checks what they point to.
    let read = unsafe { libc::process_vm_readv(pid, &raw const into, 1, &raw const from, 1, 0) };
    // SAFETY: it was written whole. T is a number, of which every value is valid.
    (read == size_of::<T>().cast_signed()).then(|| unsafe { value.assume_init() })
}

/// How many safe loads found nothing, in this process and those that it was forked from.
pub fn safe_load_faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// The action that was there before ours.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once inside `INSTALL`, before `INSTALLED` is set with Release; read only after an Acquire load of it.
unsafe impl Sync for Previous {}

/// Loads that failed.
static FAULTS: AtomicU64 = AtomicU64::new(0);
static INSTALL: Once = Once::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Why loads ask the kernel: [`REPLACED`], and how many samples are being taken where none may fault.
static NO_FAULTS: AtomicU32 = AtomicU32::new(0);
/// Somebody else's handler came after ours.
const REPLACED: u32 = 1 << 31;
/// The signal whose handler loads; 0 before there is one.
static SAMPLING: AtomicI32 = AtomicI32::new(0);
/// What the kernel puts on a stack to handle a fault, in bytes. Where it does not say, it is one of before it knew longer frames.
static FRAME_BYTES: AtomicUsize = AtomicUsize::new(4_096);
/// And what our handler of it needs below that.
const FAULT_BYTES: usize = 1_024;
static PREVIOUS_SEGV: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static PREVIOUS_BUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));

/// Installs the fault handlers, once a process. They stay: they answer nothing but our own two loads.
pub fn enable_safe_load() {
    INSTALL.call_once(|| {
        install(libc::SIGSEGV, &PREVIOUS_SEGV);
        install(libc::SIGBUS, &PREVIOUS_BUS);
        INSTALLED.store(true, Ordering::Release);
    });
}

/// Names the signal whose handler loads, and asks the kernel what room a fault needs there.
pub(super) fn set_sampling_signal(signal: libc::c_int) {
    // SAFETY: asks for a number; 0 where the kernel does not say.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    if let Some(frame) = usize::try_from(frame).ok().filter(|frame| *frame != 0) {
        FRAME_BYTES.store(frame, Ordering::Relaxed);
    }
    SAMPLING.store(signal, Ordering::Relaxed);
}

/// Checks whether the handlers were installed and are no longer ours, and from then on does without them.
pub(crate) fn is_replaced() -> bool {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    let is_ours = |signal| {
        // SAFETY: a sigaction is plain bits.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: nothing is changed, and `action` is valid.
        unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
        action.sa_sigaction == handler as usize
    };
    let replaced = INSTALLED.load(Ordering::Acquire) && !(is_ours(libc::SIGSEGV) && is_ours(libc::SIGBUS));
    if replaced {
        NO_FAULTS.fetch_or(REPLACED, Ordering::Relaxed);
    } else {
        NO_FAULTS.fetch_and(!REPLACED, Ordering::Relaxed);
    }
    replaced
}

/// In a forked child: the threads that were just taking a sample are not there.
pub(crate) fn forget_others() {
    NO_FAULTS.fetch_and(REPLACED, Ordering::Relaxed);
}

/// Whether a fault of the calling code would reach a handler: the interrupted thread does not block it, and its alternate stack
/// has room for another frame of the kernel's. Otherwise it ends the process. For a runtime that takes faults of its walks by
/// handlers of its own; a few ns, async-signal-safe.
///
/// # Safety
/// `context` is the third argument of the signal handler that runs.
#[inline]
pub unsafe fn may_fault(context: *const libc::ucontext_t) -> bool {
    let here = 0_u8;
    // SAFETY: by the caller's contract.
    let room = unsafe { room_below((&raw const here).addr(), context) };
    // SAFETY: as above.
    unsafe { reaches_handler(context, room) }
}

/// # Safety
/// `context` is the third argument of a signal handler.
#[inline]
unsafe fn reaches_handler(context: *const libc::ucontext_t, room: usize) -> bool {
    // SAFETY: by the caller's contract.
    let mask = unsafe { &raw const (*context).uc_sigmask };
    // SAFETY: the set's first word, which is what the kernel writes.
    let blocked = unsafe { mask.cast::<u64>().read() };
    let faults = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);
    // SAFETY: as above.
    let stack = unsafe { &(*context).uc_stack };
    blocked & faults == 0
        && room >= frame_bytes(FRAME_BYTES.load(Ordering::Relaxed), context.addr(), stack) + FAULT_BYTES
}

/// What another frame of the kernel's takes: as the one with `context`, where that is the first on its alternate stack. `most` has room
/// for registers that nearly no thread may use (AMX: 8 KiB), which is more than many alternate stacks have.
#[inline]
fn frame_bytes(most: usize, context: usize, stack: &libc::stack_t) -> usize {
    let top = stack.ss_sp.addr().wrapping_add(stack.ss_size);
    // Below the context are the signal's description and what the frame is aligned to.
    most.min(top.saturating_sub(context).saturating_add(512))
}

/// Bytes that are left on the stack of a handler below an address of its own: without end where it is no alternate one.
///
/// # Safety
/// `context` is the third argument of the handler.
#[inline]
pub(super) unsafe fn room_below(address: usize, context: *const libc::ucontext_t) -> usize {
    // SAFETY: by the caller's contract.
    let stack = unsafe { &(*context).uc_stack };
    match address.checked_sub(stack.ss_sp.addr()) {
        Some(room) if room < stack.ss_size => room,
        _ => usize::MAX,
    }
}

/// While it lives, loads of all threads ask the kernel.
#[derive(Debug)]
pub(super) struct WithoutFaults(());

impl WithoutFaults {
    /// In a handler, where a fault would end the process: the thread blocks it, or `room` bytes are too few for it.
    /// Async-signal-safe.
    ///
    /// # Safety
    /// `context` is the third argument of a signal handler.
    #[inline]
    pub(super) unsafe fn where_needed(context: *const libc::ucontext_t, room: usize) -> Option<Self> {
        if !INSTALLED.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: by the caller's contract.
        if unsafe { reaches_handler(context, room) } {
            return None;
        }
        NO_FAULTS.fetch_add(1, Ordering::Relaxed);
        Some(Self(()))
    }
}

impl Drop for WithoutFaults {
    fn drop(&mut self) {
        NO_FAULTS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn install(signal: libc::c_int, previous: &Previous) {
    // SAFETY: a sigaction is plain bits; zero is an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    action.sa_sigaction = handler as usize;
    // NODEFER: a fault inside a chained handler must find its way like any other.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: both point to valid memory; nobody reads `previous` before INSTALLED is set.
    unsafe { libc::sigaction(signal, &raw const action, previous.0.get().cast()) };
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid ucontext to an SA_SIGINFO handler.
    let pc = unsafe { program_counter(context.cast()) };
    // SAFETY: as above, and writing it only changes where this thread goes on.
    let at = unsafe { &mut *pc };
    let (load64, load32): (unsafe extern "C" fn(_) -> _, unsafe extern "C" fn(_) -> _) = (load64, load32);
    if *at == load64 as usize as u64 || *at == load32 as usize as u64 {
        let failed: unsafe extern "C" fn() -> Loaded = load_failed;
        *at = failed as usize as u64;
        FAULTS.fetch_add(1, Ordering::Relaxed);
        return;
    }
    chain(signal, info, context);
}

/// Does what would have happened without us.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !INSTALLED.load(Ordering::Acquire) {
        return; // the other thread is just installing; the instruction faults again
    }
    let previous = if signal == libc::SIGBUS { &PREVIOUS_BUS } else { &PREVIOUS_SEGV };
    // SAFETY: INSTALLED says that it is written, and it is never written again.
    let previous = unsafe { &*previous.0.get() };
    // SAFETY: as above.
    let previous = unsafe { previous.assume_init_ref() };
    // SAFETY: an SA_SIGINFO handler gets a valid siginfo_t.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match previous.sa_sigaction {
        // The kernel kills on a fault even where the signal is ignored; one that was sent is ignored.
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // Back to the default; the instruction faults again and the process ends as it would have, core dump and all.
            set_default(signal);
            if was_sent {
                // Nothing faults again. The signal is not blocked here (NODEFER), so this does not return.
                // SAFETY: async-signal-safe, takes a number.
                unsafe { libc::raise(signal) };
            }
        }
        _ => call(previous, signal, info, context),
    }
}

/// Puts the default action in place. By the kernel's own call, as this may be the last of a stack: libc's copies the action.
fn set_default(signal: libc::c_int) {
    /// The kernel's sigaction, all zero: SIG_DFL, no flags, an empty mask.
    static DEFAULT: [u64; 4] = [0; 4];
    // SAFETY: a valid action, whose set is of 8 bytes, and the old one is not asked for.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), ptr::null_mut::<u64>(), size_of::<u64>())
    };
}

/// Calls the handler that was there before, with what it asked for.
#[inline(never)]
fn call(previous: &libc::sigaction, signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = mask_as(previous, signal);
    let handler = previous.sa_sigaction;
    if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: SA_SIGINFO says that the address is a function of this type.
        let handler = unsafe {
            mem::transmute::<usize, extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)>(handler)
        };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO it is a function of this type.
        let handler = unsafe { mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
        handler(signal);
    }
    // SAFETY: the mask that was, of this thread alone.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
}

/// Blocks what the kernel would have blocked for this action, and puts the default in its place where it would have done
/// that; returns the mask from before.
fn mask_as(action: &libc::sigaction, signal: libc::c_int) -> libc::sigset_t {
    let mut mask = action.sa_mask;
    // Our own handler loads what may not be there: it must not run while that fault is blocked, which would end the process.
    let sampling = SAMPLING.load(Ordering::Relaxed);
    if sampling != 0 {
        // SAFETY: a valid set and a signal that exists.
        unsafe { libc::sigaddset(&raw mut mask, sampling) };
    }
    if action.sa_flags & libc::SA_NODEFER == 0 {
        // SAFETY: a valid set and a signal that exists.
        unsafe { libc::sigaddset(&raw mut mask, signal) };
    }
    let mut before = mask;
    // SAFETY: both sets are valid; only this thread's mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, &raw mut before) };
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        // From here on ours is not asked.
        NO_FAULTS.fetch_or(REPLACED, Ordering::Relaxed);
        set_default(signal);
    }
    before
}

/// Where the interrupted thread's program counter is kept.
///
/// # Safety
/// `context` is the third argument of a signal handler.
unsafe fn program_counter(context: *mut libc::ucontext_t) -> *mut u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the caller's contract; REG_RIP is in range.
    unsafe {
        (&raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]).cast()
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: by the caller's contract.
    unsafe {
        (&raw mut (*context).uc_mcontext.pc).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_frame_takes_what_the_first_one_did_and_never_more_than_the_kernel_says() {
        let stack = libc::stack_t { ss_sp: ptr::without_provenance_mut(0x10_0000), ss_flags: 0, ss_size: 16_384 };
        // A thread without AMX on a machine that has it.
        assert_eq!(frame_bytes(11_952, 0x10_4000 - 3_200, &stack), 3_712);
        // In a handler within another.
        assert_eq!(frame_bytes(2_696, 0x10_0800, &stack), 2_696);
    }

    #[test]
    fn a_load_of_nothing_gives_no_value() {
        enable_safe_load();
        let word = 0x1122_3344_5566_7788_u64;
        assert_eq!(safe_load(&raw const word), Some(word));
        assert_eq!(safe_load_u32((&raw const word).cast()), Some(0x5566_7788));
        for bad in [0_usize, 8, 4096, 0x7fff_ffff_f000, 0xdead_0000_0000_0000] {
            assert_eq!(safe_load(ptr::without_provenance(bad)), None, "{bad:#x}");
            assert_eq!(safe_load_u32(ptr::without_provenance(bad)), None, "{bad:#x}");
        }
        assert!(safe_load_faults() >= 10);
    }

    #[test]
    fn where_a_fault_would_end_the_process_the_kernel_is_asked() {
        enable_safe_load();
        std::thread::spawn(|| {
            // SAFETY: a set and a ucontext are plain bits.
            let (mut faults, mut context): (libc::sigset_t, libc::ucontext_t) = unsafe { mem::zeroed() };
            // SAFETY: a valid set and a signal that exists.
            unsafe { libc::sigaddset(&raw mut faults, libc::SIGSEGV) };
            // SAFETY: a valid set; only this thread's mask changes.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const faults, ptr::null_mut()) };
            // SAFETY: as the kernel would fill it.
            let plenty = unsafe { WithoutFaults::where_needed(&raw const context, usize::MAX) };
            assert!(plenty.is_none());
            // SAFETY: as above.
            assert!(unsafe { WithoutFaults::where_needed(&raw const context, 100) }.is_some());
            context.uc_sigmask = faults;
            // SAFETY: as above.
            let blocked = unsafe { WithoutFaults::where_needed(&raw const context, usize::MAX) };
            assert!(blocked.is_some());
            assert_eq!(safe_load(ptr::without_provenance(8)), None, "or the process is gone");
        })
        .join()
        .unwrap();
    }
}
