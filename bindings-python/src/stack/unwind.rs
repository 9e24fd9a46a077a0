//! CPython as the sampler sees it: span, tags and stack of the interrupted thread, read in the signal handler.
//!
//! **Functions called in the handler:** `PyGILState_GetThisThreadState`. It reads a thread-specific value
//! (`pthread_getspecific`, which only loads) and compares a static; it names the thread state that *this* thread runs,
//! is null before one exists and after it is deleted, and so is right in subinterpreters, in threads of C code and
//! while the GIL is released. There are no lists of threads to keep. And `Py_IsFinalizing` (`_Py_IsFinalizing` before
//! 3.13), an atomic load: an interpreter that ends frees the states of threads that go on in C code, and theirs is still
//! the one that is named. No timer should be armed then; where one is, the handler does not look at the interpreter.
//!
//! Whose memory is read: the handler runs on the thread whose frames these are, so every frame of its own chain is
//! alive, and each owns its code object. Nothing is counted, as another thread may hold the GIL.
//!
//! 3.11 and 3.12 publish a frame some instructions before it can be read; [`cframe`](crate::stack::cframe) has the rules for
//! that. The other versions publish frames whole, greenlets' too: plain loads are enough.
//!
//! **Subinterpreters.** In 3.12 and later a thread in a subinterpreter runs a thread state of that interpreter: its
//! samples have the stack there, and no span, since our variables belong to the main interpreter (this module refuses to
//! be imported into another). In 3.10 and 3.11 the thread's first state is what is seen: the sample has the stack and the
//! span of the call into the subinterpreter.

use std::ffi::{CStr, c_int, c_void};
use std::mem::{offset_of, transmute};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::ucontext_t;
use spanprof_core::{Context, Drain, Frame, FrameWriter, Runtime, SpanRecord, TagSetId, ThreadRecord};

use crate::span::record::SpanHandle;
use crate::stack::code_object::CodeReader;
use crate::stack::hamt::{Key, NodeTypes, Object};
use crate::stack::layout::{Entry, Layout, OB_TYPE, TSTATE_INTERP};
use crate::stack::memory::{Guarded, Memory, Plain};
use crate::symbols::definitions::DEFINITIONS;
use crate::symbols::resolver::{NATIVE_THREAD_WORD, NO_PYTHON_FRAME_WORD, SWITCHING_WORD, UNREADABLE_WORD};

unsafe extern "C" {
    /// In the stable ABI since 3.2, though pyo3 does not declare it.
    fn PyGILState_GetThisThreadState() -> *const c_void;
}

/// Frames looked at for those that are kept: each loop of the interpreter has one of its own.
const MAX_SEEN: usize = 2 * spanprof_core::MAX_FRAMES;
/// The lowest bits of a frame's code are a tag from 3.14, and 0 before: objects are aligned.
const TAG: u64 = 7;

/// Where the epoch of a handle is, from its record on.
const EPOCH_OF_RECORD: usize = offset_of!(SpanHandle, epoch) - offset_of!(SpanHandle, record);

/// Objects of one of our classes, as the handler finds them in a ContextVar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    /// The variable.
    pub(crate) key: Key,
    /// The class of values that are ours.
    pub(crate) class: Object,
    /// Where in such an object our data is.
    pub(crate) offset: usize,
}

/// All that the handler must know of the interpreter.
#[derive(Debug)]
pub(crate) struct CPython {
    pub(crate) layout: &'static Layout,
    /// The type of code objects, in all interpreters.
    pub(crate) code_type: Object,
    /// The main interpreter.
    pub(crate) main: Object,
    pub(crate) nodes: NodeTypes,
    /// The variable of [`SpanHandle`](crate::span::record::SpanHandle)s.
    pub(crate) span: Published,
    /// The variable of [`TagSet`](crate::span::tags::TagSet)s.
    pub(crate) tags: Published,
    /// Says whether the interpreter ends.
    pub(crate) finalizing: Option<Finalizing>,
}

// SAFETY: addresses of objects that are never freed, and numbers.
unsafe impl Send for CPython {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for CPython {}

/// The interpreter that this process runs, once it is known to be what we take it for.
pub(crate) static CPYTHON: OnceLock<CPython> = OnceLock::new();

/// Which time of following spans this is: a new one begins with the first span processor after there was none. 0: spans
/// are not followed, as contexts keep their last value.
pub(crate) static EPOCH: AtomicU32 = AtomicU32::new(0);
/// Whether any tags were ever set, so that programs without tags do not pay for looking.
pub(crate) static TAGS_USED: AtomicBool = AtomicBool::new(false);

/// `Py_IsFinalizing`: not 0 from the moment on in which the interpreter begins to end.
pub(crate) type Finalizing = unsafe extern "C" fn() -> c_int;

/// That function. It is no part of the stable ABI, so it may be missing.
pub(crate) fn finalizing() -> Option<Finalizing> {
    const NAMES: [&CStr; 2] = [c"Py_IsFinalizing", c"_Py_IsFinalizing"];
    NAMES.iter().find_map(|name| {
        // SAFETY: a C string, looked up among what the process has loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: CPython declares both as `int (void)`.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, Finalizing>(found) })
    })
}

/// The thread state that this thread runs, null without one.
#[inline]
pub(crate) fn thread_state() -> Object {
    // SAFETY: callable at any time, from any thread, without the GIL.
    unsafe { PyGILState_GetThisThreadState() }.cast()
}

// SAFETY: see the module's doc: one listed call, no allocation, no lock (a flag is tried once), every load of memory
// that the running thread keeps alive or that is guarded.
unsafe impl Runtime for CPython {
    fn needs_safe_load(&self) -> bool {
        matches!(self.layout.entry, Entry::CFrame { .. })
    }

    #[inline]
    unsafe fn context(&self, _thread: &ThreadRecord, _ucontext: *const ucontext_t) -> Context {
        if self.is_finalizing() {
            return Context::NONE;
        }
        // SAFETY: called on the sampled thread, whose own thread state this is.
        unsafe { self.context_of::<Plain>(thread_state()) }
    }

    #[inline]
    unsafe fn walk(&self, _thread: &ThreadRecord, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        if self.is_finalizing() {
            out.push(NO_PYTHON_FRAME_WORD);
            return;
        }
        // SAFETY: as above; who starts the profiler mapped the definitions and enabled safe loads.
        unsafe { self.walk_thread(thread_state(), ucontext, out) };
    }

    fn resolve(&self, words: &[u64]) -> Vec<Option<Frame>> {
        // A definition goes out before the sample that needs it, so what is collected now tells every word of samples
        // that were read by now; what was collected before they were read may not.
        DEFINITIONS.collect();
        DEFINITIONS.resolve(words, self.layout.code.lines)
    }

    fn request_drain(&self) -> Drain {
        crate::profiler::tick();
        DEFINITIONS.collect();
        Drain::Now
    }
}

impl CPython {
    /// Whether the interpreter ends: what a thread's state names may be gone.
    #[inline]
    fn is_finalizing(&self) -> bool {
        // SAFETY: callable at any time, from any thread, without the GIL.
        self.finalizing.is_some_and(|finalizing| unsafe { finalizing() } != 0)
    }

    /// The span and tags that are current in the context of `tstate`.
    ///
    /// Hot: 4 to 9 ns.
    ///
    /// # Safety
    /// `tstate` must be null or the calling thread's own thread state.
    #[inline]
    pub(crate) unsafe fn context_of<M: Memory>(&self, tstate: Object) -> Context {
        if tstate.is_null() {
            return Context::NONE;
        }
        // SAFETY: it is this thread's, so it is alive.
        let context = unsafe { M::pointer(tstate, self.layout.tstate_context) }.unwrap_or(ptr::null());
        let mut found = Context::NONE;
        let epoch = EPOCH.load(Ordering::Relaxed);
        if epoch != 0 {
            // SAFETY: the context that a thread runs in is alive and no other thread's.
            let record = unsafe { self.published::<M>(context, self.span) };
            // SAFETY: a record that was found is in a handle, which the context keeps alive, and the handle's epoch is there.
            if !record.is_null() && unsafe { ptr::read(record.wrapping_add(EPOCH_OF_RECORD).cast::<u32>()) } == epoch {
                found.span = record.cast::<SpanRecord>();
            }
        }
        if TAGS_USED.load(Ordering::Relaxed) {
            // SAFETY: as above.
            let tags = unsafe { self.published::<M>(context, self.tags) }.cast::<TagSetId>();
            if !tags.is_null() {
                // SAFETY: the context keeps the object alive, and its id never changes.
                found.tags = unsafe { ptr::read(tags) };
            }
        }
        found
    }

    /// Our data in the object that is the value of a variable of ours, null if there is none.
    ///
    /// # Safety
    /// As for [`NodeTypes::find`].
    #[inline]
    pub(crate) unsafe fn published<M: Memory>(&self, context: Object, published: Published) -> Object {
        // SAFETY: the caller's promise.
        let value = unsafe { self.nodes.find::<M>(context, published.key) };
        if value.is_null() {
            return ptr::null();
        }
        // SAFETY: values of a live context are alive.
        let class = unsafe { M::pointer(value, OB_TYPE) };
        if class == Some(published.class) { value.wrapping_add(published.offset) } else { ptr::null() }
    }

    /// Pushes the frames of the calling thread, leaf first, by the loads that its version needs.
    ///
    /// # Safety
    /// As for [`walk_from`](Self::walk_from); on 3.11 and 3.12 safe loads must be enabled.
    #[inline]
    pub(crate) unsafe fn walk_thread(&self, tstate: Object, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        match self.layout.entry {
            // SAFETY: the caller's promise; the thread state is alive, and its chain of frames whole at any instant.
            Entry::Frame { .. } => unsafe { self.walk_from::<Plain>(tstate, ucontext, out) },
            // SAFETY: the caller's promise.
            Entry::CFrame { .. } => unsafe { self.walk_from::<Guarded>(tstate, ucontext, out) },
        }
    }

    /// Pushes the frames of the calling thread, leaf first.
    ///
    /// Hot: 57 frames in about 0.3 µs.
    ///
    /// # Safety
    /// `tstate` must be null or the calling thread's own thread state, `ucontext` null or what the running handler got;
    /// the definitions' memory must be mapped, and M able to read what this version publishes.
    #[inline]
    pub(crate) unsafe fn walk_from<M: Memory>(
        &self,
        tstate: Object,
        ucontext: *const ucontext_t,
        out: &mut FrameWriter<'_>,
    ) {
        if tstate.is_null() {
            out.push(NATIVE_THREAD_WORD);
            return;
        }
        // SAFETY: the thread state is alive.
        let interpreter = unsafe { M::pointer(tstate, TSTATE_INTERP) };
        let first = match self.layout.entry {
            // SAFETY: as above.
            Entry::Frame { tstate_frame } => unsafe { M::pointer(tstate, tstate_frame) },
            Entry::CFrame { tstate_cframe, .. } => {
                // SAFETY: as above.
                let cframe = unsafe { M::pointer(tstate, tstate_cframe) };
                // SAFETY: it is on this thread's stack, and M can read what it names.
                cframe.and_then(|cframe| unsafe { self.first_frame::<M>(tstate, cframe, ucontext) })
            }
        };
        match first {
            // SAFETY: frames of the thread's own chain are alive, and M can read what is not of it.
            Some(frame) => unsafe { self.push_frames::<M>(frame, interpreter == Some(self.main), out) },
            None => {
                out.push(UNREADABLE_WORD);
            }
        }
        if out.frames() == 0 {
            out.push(NO_PYTHON_FRAME_WORD);
        }
    }

    /// # Safety
    /// The chain from `frame` must be the calling thread's own, or M able to read what is not.
    #[inline]
    unsafe fn push_frames<M: Memory>(&self, mut frame: Object, in_main: bool, out: &mut FrameWriter<'_>) {
        let layout = &self.layout.frame;
        let fields = [layout.code, layout.previous, layout.instr, layout.owner_word()];
        let mut definer = DEFINITIONS.definer();
        let mut reader = CodeReader::new(self.layout, self.code_type, in_main);
        let mut loops = 0;
        for _ in 0..MAX_SEEN {
            if frame.is_null() {
                // A chain without the shims of its loops is that of a greenlet which is being left: it links its frames
                // past them, and the thread's context may be that of the next one already. On 3.12 it may also be that
                // of a generator which was published before its caller was noted.
                if layout.entry_is_shim && loops == 0 && out.frames() > 0 {
                    out.push(SWITCHING_WORD);
                }
                return;
            }
            // SAFETY: the caller's promise.
            let Some([code, previous, instr, owner]) = (unsafe { M::words(frame, fields) }) else {
                return;
            };
            let code = (code & !TAG) as Object;
            let is_shim = layout.entry_is_shim && layout.is_entry(owner);
            loops += u32::from(is_shim);
            // SAFETY: what a live frame names is an object.
            let is_function = if is_shim { Some(false) } else { unsafe { reader.is_function::<M>(code) } };
            // No frame names what is not there. To follow this one would cost some microseconds for each that is none either.
            let Some(is_function) = is_function else { return };
            if is_function {
                // SAFETY: is_function() said that it is a code object, and its frame owns it.
                let key = unsafe { reader.key::<M>(code) };
                let index = self.instruction_number(code, instr);
                // SAFETY: the caller mapped the definitions.
                let word = unsafe { definer.word(key, index, |record| reader.describe::<M>(code, record)) };
                if !out.push(word) {
                    return;
                }
            }
            frame = previous as Object;
        }
    }

    /// The number of an instruction of `code`, in code units; u32::MAX before the first.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no function has 2³² instructions; -1 before the first")]
    fn instruction_number(&self, code: Object, instr: u64) -> u32 {
        if self.layout.frame.instr_is_number {
            return instr as u32;
        }
        let first = code.addr().wrapping_add(self.layout.code.size) as u64;
        (instr.wrapping_sub(first).cast_signed() >> 1).cast_unsigned() as u32
    }
}
