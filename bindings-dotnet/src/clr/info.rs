//! CoreCLR once we are attached: its ICorProfilerInfo12, and which callbacks and events come. What it is asked is in
//! [`code`](super::code) and [`declarations`](super::declarations).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{self, SendError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, ptr};

use crate::clr::com::{Hresult, S_OK, call};

/// Stack snapshots, which must be asked for at once.
const MASK_ALWAYS: u32 = 0x1000_0000;
/// What was compiled, and threads that start.
const MASK_LISTENING: u32 = MASK_ALWAYS | 0x20 | 0x200;
/// EventPipe.
const MASK_HIGH: u32 = 0x80;

/// ICorProfilerInfo12, null before it is attached. CoreCLR keeps it for ever.
static INFO: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Whether callbacks come.
static LISTENING: AtomicBool = AtomicBool::new(false);

/// CoreCLR, once we are attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clr(pub(super) *mut c_void);

// SAFETY: ICorProfilerInfo may be called on any thread.
unsafe impl Send for Clr {}
// SAFETY: as above.
unsafe impl Sync for Clr {}

/// A function to CoreCLR.
pub(crate) type FunctionId = usize;

/// Takes what CoreCLR passes to a profiler that attaches.
///
/// # Safety
/// `info` is an ICorProfilerInfo12.
pub(crate) unsafe fn initialize(info: *mut c_void) -> Hresult {
    let result = Clr(info).set_events(MASK_ALWAYS);
    if result >= 0 {
        // Release: pairs with `attached`.
        INFO.store(info, Ordering::Release);
    }
    result
}

/// CoreCLR, if we are attached.
pub(crate) fn attached() -> Option<Clr> {
    let info = INFO.load(Ordering::Acquire);
    (!info.is_null()).then_some(Clr(info))
}

/// CoreCLR, while it reports what it compiles.
pub(crate) fn listening() -> Option<Clr> {
    attached().filter(|_| LISTENING.load(Ordering::Relaxed))
}

/// Callbacks come from here on. An attached profiler stays, so this is what a start and a stop can do.
pub(crate) fn listen() -> Result<(), String> {
    let clr = attached().ok_or("no profiler is attached")?;
    let begin = move || {
        let _one = lock_mask();
        let result = clr.set_events(MASK_LISTENING);
        LISTENING.store(result >= 0, Ordering::Relaxed);
        result
    };
    match on_native_thread(begin) {
        Some(0..) => Ok(()),
        Some(result) => Err(format!("the runtime refused its callbacks: 0x{result:08x}")),
        None => Err("a thread could not be started".to_owned()),
    }
}

/// No callback comes any more, and a method that is compiled costs nothing. Where that takes longer than `limit`, as a thread does not start
/// while somebody loads a library, it is so a while later, unless callbacks [come again](listen) by then.
pub(crate) fn silence(limit: Duration) {
    if let Some(clr) = listening() {
        LISTENING.store(false, Ordering::Relaxed);
        let end = move || {
            let _one = lock_mask();
            if listening().is_none() {
                clr.set_events(MASK_ALWAYS);
            }
        };
        // Without a thread they go on to come, to nobody.
        let _ = on_native_thread_within(limit, end, drop);
    }
}

/// Held over a change of what comes, as one may come late.
fn lock_mask() -> MutexGuard<'static, ()> {
    static MASK: Mutex<()> = Mutex::new(());
    MASK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that run managed code may not start sessions, nor ask for names.
pub(crate) fn on_native_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("spanprof-clr".into()).spawn_scoped(scope, work).ok()?;
        thread.join().ok()
    })
}

/// The same, for work that may wait for what the caller holds: who has no result within `limit` goes on without, and `late` gets it
/// once it comes, on that thread. An error: there is no thread for it, and nothing was done.
pub(crate) fn on_native_thread_within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> io::Result<Option<T>> {
    // Without room in between: what was sent was received.
    let (sender, receiver) = mpsc::sync_channel(0);
    let run = move || {
        if let Err(SendError(result)) = sender.send(work()) {
            late(result);
        }
    };
    std::thread::Builder::new().name("spanprof-clr".into()).spawn(run)?;
    Ok(receiver.recv_timeout(limit).ok())
}

impl Clr {
    fn set_events(self, low: u32) -> Hresult {
        // SAFETY: SetEventMask2.
        unsafe { call!(self.0, 82, (u32, u32), low, MASK_HIGH) }
    }

    /// Calls `each` with the function and the return address of every managed frame of the calling thread, leaf first, until
    /// that returns false. Not within a signal handler.
    pub(crate) fn snapshot(self, mut each: impl FnMut(FunctionId, u64) -> bool) {
        const STOP: Hresult = 1;
        unsafe extern "system" fn frame<F: FnMut(FunctionId, u64) -> bool>(
            function: FunctionId,
            address: usize,
            _info: usize,
            _size: u32,
            _context: *const u8,
            each: *mut F,
        ) -> Hresult {
            // SAFETY: what `snapshot` passed, whose frame is below this one.
            let each = unsafe { each.as_mut() }.filter(|_| function != 0 && address > 4096);
            if each.is_none_or(|each| each(function, address as u64)) { S_OK } else { STOP }
        }
        fn callback_for<F: FnMut(FunctionId, u64) -> bool>(_: &F) -> *const () {
            frame::<F> as *const ()
        }
        let callback = callback_for(&each);
        // SAFETY: DoStackSnapshot of the calling thread, without its registers; CoreCLR passes the callback its data back.
        unsafe {
            call!(
                self.0,
                36,
                (usize, *const (), u32, *mut c_void, *const u8, u32),
                0,
                callback,
                0,
                (&raw mut each).cast(),
                ptr::null(),
                0
            )
        };
    }

    /// Starts a session whose events come to our callback on the threads that cause them; returns its number.
    pub(crate) fn start_session(self, keywords: u64, level: u32) -> Result<u64, Hresult> {
        #[repr(C)]
        struct Provider {
            name: *const u16,
            keywords: u64,
            level: u32,
            filter: *const u16,
        }
        let name: Vec<u16> = "Microsoft-Windows-DotNETRuntime\0".encode_utf16().collect();
        let provider = Provider { name: name.as_ptr(), keywords, level, filter: ptr::null() };
        let mut session = 0_u64;
        // SAFETY: EventPipeStartSession with one provider, without a rundown.
        let result = unsafe {
            call!(self.0, 101, (u32, *const Provider, i32, *mut u64), 1, &raw const provider, 0, &raw mut session)
        };
        if result < 0 { Err(result) } else { Ok(session) }
    }

    /// Ends a session.
    pub(crate) fn stop_session(self, session: u64) {
        // SAFETY: EventPipeStopSession.
        unsafe { call!(self.0, 103, (u64), session) };
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// The masks that CoreCLR was given.
    pub(crate) static MASKS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

    extern "system" fn refuse() -> Hresult {
        i32::MIN
    }

    extern "system" fn take_mask(_this: *const c_void, low: u32, _high: u32) -> Hresult {
        MASKS.lock().unwrap().push(low);
        S_OK
    }

    /// Whether a session takes long to begin, and whether one is at it.
    pub(crate) static HELD: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

    extern "system" fn refuse_when_let_go() -> Hresult {
        HELD[1].store(true, Ordering::Relaxed);
        while HELD[0].load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        i32::MIN
    }

    #[repr(transparent)]
    struct Functions([*const (); 104]);

    // SAFETY: addresses of functions.
    unsafe impl Sync for Functions {}

    static FUNCTIONS: Functions = {
        let mut functions = [refuse as *const (); 104];
        functions[82] = take_mask as *const ();
        functions[101] = refuse_when_let_go as *const ();
        Functions(functions)
    };

    /// Attaches to a CoreCLR that refuses all but the mask.
    pub(crate) fn attach() {
        static OBJECT: AtomicPtr<Functions> = AtomicPtr::new((&raw const FUNCTIONS).cast_mut());
        // SAFETY: a pointer to a table of functions, none of which looks at more than its arguments.
        assert_eq!(unsafe { initialize(OBJECT.as_ptr().cast()) }, S_OK);
    }
}
