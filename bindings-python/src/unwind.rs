//! CPython as the sampler sees it: span, tags and stack of the interrupted thread, read in the signal handler.
//!
//! **Functions called in the handler:** `PyGILState_GetThisThreadState` alone. It reads a thread-specific value
//! (`pthread_getspecific`, which only loads) and compares a static; it names the thread state that *this* thread runs,
//! is null before one exists and after it is deleted, and so is right in subinterpreters, in threads of C code and
//! while the GIL is released. There are no lists of threads to keep.
//!
//! Whose memory is read: the handler runs on the thread whose frames these are, so every frame of its own chain is
//! alive, and each owns its code object. Nothing is counted, as another thread may hold the GIL.
//!
//! **3.11 and 3.12** publish a struct on the C stack (`tstate->cframe`) one store before its `current_frame` is
//! written; for that instant it holds what the stack held before. Two rules make a walk safe then:
//! 1. the first frame of the interpreter loop that is reached from `cframe->current_frame` must hang below
//!    `cframe->previous->current_frame`; if not, the walk starts at the latter, as the new frame was not entered yet.
//!    What is read to find that out goes through guarded loads.
//! 2. strings and tables of code objects go through guarded loads too; a frame whose parts are not mapped is left out.
//!
//! 3.13 publishes frames whole: neither rule is needed.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::ucontext_t;
use spanprof_core::{Context, Drain, Frame, FrameWriter, Runtime, SpanRecord, TagSetId, ThreadRecord};

use crate::definition_ring::Record;
use crate::definitions::{DEFINITIONS, NATIVE_THREAD_WORD, NO_PYTHON_FRAME_WORD};
use crate::hamt::{Key, NodeTypes, Object, pointer_at};
use crate::layout::{BYTES_DATA, Entry, Layout, OB_SIZE, OB_TYPE, STR_HASH, STR_LENGTH, STR_STATE};
use crate::memory::{Guarded, Memory, Plain};

unsafe extern "C" {
    /// In the stable ABI since 3.2, though pyo3 does not declare it.
    fn PyGILState_GetThisThreadState() -> *const c_void;
}

/// More frames than any chain has: a bound on what a walk over old memory can cost.
const MAX_STEPS: usize = 20_000;

/// Bits of `PyASCIIObject.state`.
const KIND_SHIFT: u32 = 2;
const COMPACT: u32 = 1 << 5;
const ASCII: u32 = 1 << 6;

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
    /// The type of code objects.
    pub(crate) code_type: Object,
    pub(crate) nodes: NodeTypes,
    /// The variable of [`SpanHandle`](crate::span::SpanHandle)s.
    pub(crate) span: Published,
    /// The variable of [`TagSet`](crate::tags::TagSet)s.
    pub(crate) tags: Published,
}

// SAFETY: addresses of objects that are never freed, and numbers.
unsafe impl Send for CPython {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for CPython {}

/// The interpreter that this process runs, once it is known to be what we take it for.
pub(crate) static CPYTHON: OnceLock<CPython> = OnceLock::new();

/// Whether spans are followed: false once the last span processor was shut down, as contexts keep their last value.
pub(crate) static SPANS_FOLLOWED: AtomicBool = AtomicBool::new(false);
/// Whether any tags were ever set, so that programs without tags do not pay for looking.
pub(crate) static TAGS_USED: AtomicBool = AtomicBool::new(false);

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
        // SAFETY: called on the sampled thread, whose own thread state this is.
        unsafe { self.context_of(thread_state()) }
    }

    #[inline]
    unsafe fn walk(&self, _thread: &ThreadRecord, _ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: as above.
        unsafe { self.walk_from(thread_state(), out) };
    }

    fn resolve(&self, words: &[u64]) -> Vec<Option<Frame>> {
        DEFINITIONS.resolve(words)
    }

    fn request_drain(&self) -> Drain {
        crate::profiler::tick();
        DEFINITIONS.collect();
        Drain::Now
    }
}

impl CPython {
    /// The span and tags that are current in the context of `tstate`.
    ///
    /// Hot: 4 to 9 ns.
    ///
    /// # Safety
    /// `tstate` must be null or the calling thread's own thread state.
    #[inline]
    pub(crate) unsafe fn context_of(&self, tstate: Object) -> Context {
        if tstate.is_null() {
            return Context::NONE;
        }
        // SAFETY: it is this thread's, so it is alive.
        let context = unsafe { pointer_at(tstate, self.layout.tstate_context) };
        let mut found = Context::NONE;
        if SPANS_FOLLOWED.load(Ordering::Relaxed) {
            // SAFETY: the context that a thread runs in is alive and no other thread's.
            found.span = unsafe { self.published(context, self.span) }.cast::<SpanRecord>();
        }
        if TAGS_USED.load(Ordering::Relaxed) {
            // SAFETY: as above.
            let tags = unsafe { self.published(context, self.tags) }.cast::<TagSetId>();
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
    unsafe fn published(&self, context: Object, published: Published) -> Object {
        // SAFETY: the caller's promise.
        let value = unsafe { self.nodes.find(context, published.key) };
        if value.is_null() {
            return ptr::null();
        }
        // SAFETY: values of a live context are alive.
        let class = unsafe { pointer_at(value, OB_TYPE) };
        if class == published.class { value.wrapping_add(published.offset) } else { ptr::null() }
    }

    /// Pushes the frames of the calling thread, leaf first.
    ///
    /// Hot: 57 frames in about 0.3 µs.
    ///
    /// # Safety
    /// `tstate` must be null or the calling thread's own thread state; the definitions' memory must be mapped, and on
    /// 3.11 and 3.12 safe loads enabled.
    #[inline]
    pub(crate) unsafe fn walk_from(&self, tstate: Object, out: &mut FrameWriter<'_>) {
        if tstate.is_null() {
            out.push(NATIVE_THREAD_WORD);
            return;
        }
        match self.layout.entry {
            Entry::Frame { tstate_current_frame } => {
                // SAFETY: the thread state is alive, and in 3.13 its chain of frames is whole at any instant.
                let frame = unsafe { pointer_at(tstate, tstate_current_frame) };
                // SAFETY: as above.
                unsafe { self.push_frames::<Plain>(frame, out) };
            }
            Entry::CFrame { tstate_cframe, current_frame, previous } => {
                // SAFETY: the thread state is alive and always names a live cframe.
                let cframe = unsafe { pointer_at(tstate, tstate_cframe) };
                if !cframe.is_null() {
                    // SAFETY: as above.
                    let newest = unsafe { pointer_at(cframe, current_frame) };
                    // SAFETY: as above; `previous` is written before the cframe is published.
                    let outer = unsafe { pointer_at(cframe, previous) };
                    let below = if outer.is_null() {
                        ptr::null()
                    } else {
                        // SAFETY: a cframe's previous one is alive, and its frame was written long ago.
                        unsafe { pointer_at(outer, current_frame) }
                    };
                    // SAFETY: guarded loads are enabled.
                    let whole = outer.is_null() || unsafe { self.hangs_below(newest, below) };
                    // SAFETY: the chain is this thread's own, by the rule above.
                    unsafe { self.push_frames::<Guarded>(if whole { newest } else { below }, out) };
                }
            }
        }
        if out.frames() == 0 {
            out.push(NO_PYTHON_FRAME_WORD);
        }
    }

    /// Whether the interpreter loop that `frame` belongs to was entered from `below`: rule 1 above.
    ///
    /// # Safety
    /// Safe loads must be enabled; `frame` may be any address.
    unsafe fn hangs_below(&self, mut frame: Object, below: Object) -> bool {
        let layout = &self.layout.frame;
        for _ in 0..MAX_STEPS {
            if frame.is_null() {
                return false;
            }
            // SAFETY: guarded.
            let Some(code) = (unsafe { Guarded::pointer(frame, layout.code) }) else {
                return false;
            };
            // SAFETY: guarded.
            if unsafe { Guarded::pointer(code, OB_TYPE) } != Some(self.code_type) {
                return false;
            }
            // SAFETY: guarded.
            let Some(previous) = (unsafe { Guarded::pointer(frame, layout.previous) }) else {
                return false;
            };
            // SAFETY: guarded.
            match unsafe { is_entry::<Guarded>(layout, frame) } {
                Some(true) => return previous == below,
                Some(false) => frame = previous,
                None => return false,
            }
        }
        // So many frames that look whole are no accident.
        true
    }

    /// # Safety
    /// The chain from `frame` must be the calling thread's own.
    #[inline]
    unsafe fn push_frames<M: Memory>(&self, mut frame: Object, out: &mut FrameWriter<'_>) {
        let layout = self.layout;
        let mut definer = DEFINITIONS.definer();
        for _ in 0..MAX_STEPS {
            if frame.is_null() {
                return;
            }
            // SAFETY: frames of the thread's own chain are alive.
            let code = unsafe { pointer_at(frame, layout.frame.code) };
            // SAFETY: as above.
            let instr = unsafe { pointer_at(frame, layout.frame.instr) };
            // SAFETY: as above.
            if !unsafe { self.is_shim(frame, code) } {
                let first = code.addr().wrapping_add(layout.code.instructions);
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "no function has 2³² instructions; -1 before the first"
                )]
                let index = (instr.addr().wrapping_sub(first).cast_signed() >> 1) as u32;
                // SAFETY: is_shim() said that it is a code object, owned by a live frame.
                let key = unsafe { self.key_of::<M>(code) };
                // SAFETY: the caller mapped the definitions; the code object is alive.
                let word = unsafe { definer.word(key, index, |record| self.describe::<M>(code, record)) };
                if !out.push(word) {
                    return;
                }
            }
            // SAFETY: as above.
            frame = unsafe { pointer_at(frame, layout.frame.previous) };
        }
    }

    /// Whether a frame is the interpreter's own and no function of the program.
    ///
    /// # Safety
    /// `frame` must be alive, and `code` what it names.
    #[inline]
    unsafe fn is_shim(&self, frame: Object, code: Object) -> bool {
        if code.is_null() {
            return true;
        }
        // SAFETY: what a frame names is an object, kept alive by it.
        if unsafe { pointer_at(code, OB_TYPE) } != self.code_type {
            return true;
        }
        let layout = self.layout;
        if layout.code.internal != 0 {
            // SAFETY: it is a code object.
            let flags = unsafe { Plain::half(code, layout.code.flags) };
            return flags.is_some_and(|flags| flags & layout.code.internal != 0);
        }
        // SAFETY: the frame is alive.
        layout.frame.entry_is_shim && unsafe { is_entry::<Plain>(&layout.frame, frame) } == Some(true)
    }

    /// What tells this code object from every other, and from one that had its address before.
    ///
    /// # Safety
    /// `code` must be a live code object.
    #[inline]
    unsafe fn key_of<M: Memory>(&self, code: Object) -> u64 {
        let layout = &self.layout.code;
        // SAFETY: it is a code object; the field is of 32 bits.
        let line = unsafe { Plain::half(code, layout.firstlineno) }.unwrap_or(0);
        let version = match layout.version {
            // SAFETY: as above.
            Some(offset) => unsafe { Plain::half(code, offset) }.unwrap_or(0),
            None => 0,
        };
        // Addresses, versions and lines all count up together, so mix: a plain xor of them collides within one program.
        let origin = u64::from(version) << 32 | u64::from(line);
        let mut key = (code as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ origin.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if version == 0 {
            for name in [layout.name, layout.filename] {
                // SAFETY: the pointer is a field of the code object, what it points to is read as M says.
                let hash = unsafe { pointer_at(code, name) };
                // SAFETY: strings of a live code object are alive; on 3.11 the load is guarded.
                let hash = unsafe { M::word(hash, STR_HASH) }.unwrap_or(0);
                key = (key ^ hash).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
            }
        }
        key
    }

    /// Copies what people want to know of a code object. False: some of it is not there.
    #[cold]
    fn describe<M: Memory>(&self, code: Object, record: &mut Record<'_>) -> bool {
        let layout = &self.layout.code;
        // SAFETY: called by push_frames() for a live code object.
        let field = |offset| unsafe { M::pointer(code, offset) };
        // SAFETY: as above.
        let first_line = unsafe { M::half(code, layout.firstlineno) };
        let (Some(first_line), Some(name), Some(file), Some(table)) =
            (first_line, field(layout.qualname), field(layout.filename), field(layout.linetable))
        else {
            return false;
        };
        record.set_first_line(first_line);
        // SAFETY: the strings of a live code object are alive and never change.
        let (Some(name), Some(file)) = (unsafe { self.text::<M>(name) }, unsafe { self.text::<M>(file) }) else {
            return false;
        };
        // SAFETY: a bytes object has its length there.
        let Some(length) = (unsafe { M::word(table, OB_SIZE) }) else {
            return false;
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // SAFETY: text() found these characters; the ring gives room for what it asks.
        record.set_name(name.length, name.kind, |to, bytes| unsafe { M::copy(name.data, 0, to, bytes) })
            // SAFETY: as above.
            && record.set_file(file.length, file.kind, |to, bytes| unsafe { M::copy(file.data, 0, to, bytes) })
            // SAFETY: a bytes object's content follows its header.
            && record.set_table(length, |to, bytes| unsafe { M::copy(table, BYTES_DATA, to, bytes) })
    }

    /// Where the characters of a string are.
    ///
    /// # Safety
    /// `string` must be a live str, or safe loads must be enabled and M guarded.
    unsafe fn text<M: Memory>(&self, string: Object) -> Option<Characters> {
        // SAFETY: every str has its length there.
        let length = unsafe { M::word(string, STR_LENGTH) }?;
        // SAFETY: and its state there.
        let state = unsafe { M::half(string, STR_STATE) }?;
        let kind = (state >> KIND_SHIFT) & 7;
        if state & COMPACT == 0 || !matches!(kind, 1 | 2 | 4) {
            return None;
        }
        let data = if state & ASCII != 0 { self.layout.ascii_data } else { self.layout.compact_data };
        #[expect(clippy::cast_possible_truncation, reason = "1, 2 or 4")]
        let kind = kind as u8;
        Some(Characters { data: string.wrapping_add(data), length: usize::try_from(length).ok()?, kind })
    }
}

#[derive(Clone, Copy, Debug)]
struct Characters {
    data: Object,
    length: usize,
    /// Bytes a character.
    kind: u8,
}

/// Whether a frame is the first of an interpreter loop.
///
/// # Safety
/// As for [`Memory::word`].
#[inline]
unsafe fn is_entry<M: Memory>(layout: &crate::layout::FrameLayout, frame: Object) -> Option<bool> {
    let skip = layout.entry_flag & 7;
    // SAFETY: the caller's promise; the byte lies in this aligned word of the frame.
    let word = unsafe { M::word(frame, layout.entry_flag - skip) }?;
    Some(word.to_le_bytes().get(skip).copied() == Some(layout.entry_value))
}
