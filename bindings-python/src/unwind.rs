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
//! **3.11 and 3.12** publish a struct on the C stack (`tstate->cframe`) some instructions before they write it; until
//! then its `current_frame` and its `previous` are what an earlier call left there. Two rules make a walk safe:
//! 1. a cframe is *sound* if the first frame of the interpreter loop that is reached from its `current_frame` hangs
//!    below the `current_frame` of the cframe before it. If the newest one is not, the function that is being entered
//!    is not on the stack yet, and the walk begins at the cframe before it, which is still in a register. If none there
//!    is sound (a greenlet is just moving stacks), the stack counts as unreadable.
//! 2. frames, and what code objects point to, are read by guarded loads. If one faults the walk ends there.
//!
//! 3.13 publishes frames whole: neither rule is needed.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::ucontext_t;
use spanprof_core::{Context, Drain, Frame, FrameWriter, Runtime, SpanRecord, TagSetId, ThreadRecord};

use crate::definition_ring::Record;
use crate::definitions::{DEFINITIONS, NATIVE_THREAD_WORD, NO_PYTHON_FRAME_WORD, UNREADABLE_WORD};
use crate::hamt::{Key, NodeTypes, Object, pointer_at};
use crate::layout::{BYTES_DATA, Entry, FrameLayout, Layout, OB_SIZE, OB_TYPE, STR_HASH, STR_LENGTH, STR_STATE};
use crate::memory::{Guarded, Memory, Plain};
use crate::registers;

unsafe extern "C" {
    /// In the stable ABI since 3.2, though pyo3 does not declare it.
    fn PyGILState_GetThisThreadState() -> *const c_void;
}

/// Frames looked at to find out whether they hang together.
const MAX_STEPS: usize = 4_096;

/// Frames looked at for those that are kept: each loop of the interpreter has one of its own.
const MAX_SEEN: usize = 2 * spanprof_core::MAX_FRAMES;
/// How far above the newest cframe the one before it may lie: a C stack's usual length.
const MAX_STACK: usize = 8 << 20;

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
    unsafe fn walk(&self, _thread: &ThreadRecord, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: as above.
        unsafe { self.walk_from(thread_state(), ucontext, out) };
    }

    fn resolve(&self, words: &[u64]) -> Vec<Option<Frame>> {
        // A definition goes out before the sample that needs it, so what is collected now tells every word of samples
        // that were read by now; what was collected before they were read may not.
        DEFINITIONS.collect();
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
    /// `tstate` must be null or the calling thread's own thread state, `ucontext` null or what the running handler got;
    /// the definitions' memory must be mapped, and on 3.11 and 3.12 safe loads enabled.
    #[inline]
    pub(crate) unsafe fn walk_from(&self, tstate: Object, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
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
            Entry::CFrame { tstate_cframe, .. } => {
                // SAFETY: the thread state is alive and names a cframe on this thread's stack.
                let cframe = unsafe { pointer_at(tstate, tstate_cframe) };
                // SAFETY: the caller enabled safe loads.
                match unsafe { self.first_frame(cframe, ucontext) } {
                    // SAFETY: as above.
                    Some(frame) => unsafe { self.push_frames::<Guarded>(frame, out) },
                    None => {
                        out.push(UNREADABLE_WORD);
                    }
                }
            }
        }
        if out.frames() == 0 {
            out.push(NO_PYTHON_FRAME_WORD);
        }
    }

    /// The frame at which a walk may begin: rule 1 above. `None`: the stack cannot be read.
    ///
    /// # Safety
    /// Safe loads must be enabled; `ucontext` as for [`walk_from`](Self::walk_from).
    unsafe fn first_frame(&self, newest: Object, ucontext: *const ucontext_t) -> Option<Object> {
        let mut steps = MAX_STEPS;
        // SAFETY: guarded.
        let (current, previous) = unsafe { self.cframe(newest) }?;
        // The thread state's own has none before it, and then nothing runs.
        // SAFETY: guarded.
        if previous.is_null() || unsafe { self.is_sound(newest, current, previous, &mut steps) } {
            return Some(current);
        }
        // Nothing is true of the newest one yet, but the interpreter holds the one before it in a register to write it.
        // SAFETY: guarded, and the caller's promise.
        let before = unsafe { self.cframe_in_registers(newest, ucontext, &mut steps) };
        // A greenlet that is being left has its frames linked past those of the interpreter loops, up to the end.
        // SAFETY: guarded.
        before.or_else(|| unsafe { self.ends(current, &mut steps) }.then_some(current))
    }

    /// The frame of the sound cframe next above `newest` that a register of the interrupted thread names.
    ///
    /// # Safety
    /// As for [`first_frame`](Self::first_frame).
    #[cold]
    unsafe fn cframe_in_registers(
        &self,
        newest: Object,
        ucontext: *const ucontext_t,
        steps: &mut usize,
    ) -> Option<Object> {
        if ucontext.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let registers = unsafe { registers::words(ucontext) };
        let mut nearest = MAX_STACK;
        let mut frame = None;
        for word in registers {
            let cframe = word as Object;
            let distance = cframe.addr().wrapping_sub(newest.addr());
            if distance == 0 || distance >= nearest || word % 8 != 0 {
                continue;
            }
            // SAFETY: guarded.
            let Some((current, previous)) = (unsafe { self.cframe(cframe) }) else {
                continue;
            };
            // SAFETY: guarded.
            if !previous.is_null() && unsafe { self.is_sound(cframe, current, previous, steps) } {
                (nearest, frame) = (distance, Some(current));
            }
        }
        frame
    }

    /// Whether a cframe is what it seems, going by the one before it.
    ///
    /// cframes lie on the stack, older ones above newer ones, up to the one in the thread state, which has none before
    /// it. Where a greenlet begins or ends it stands on a copy of its maker's cframe, below the thread state's own.
    ///
    /// # Safety
    /// Safe loads must be enabled; the addresses may be any.
    #[inline]
    unsafe fn is_sound(&self, cframe: Object, current: Object, previous: Object, steps: &mut usize) -> bool {
        // SAFETY: guarded.
        let Some((below, next)) = (unsafe { self.cframe(previous) }) else {
            return false;
        };
        if !next.is_null() && previous <= cframe {
            return false;
        }
        // SAFETY: guarded.
        let hangs = unsafe { self.hangs_below(current, below, steps) };
        // SAFETY: guarded.
        hangs || (next.is_null() && unsafe { self.ends(current, steps) })
    }

    /// Whether the chain from `frame` has an end.
    ///
    /// # Safety
    /// Safe loads must be enabled; `frame` may be any address.
    unsafe fn ends(&self, mut frame: Object, steps: &mut usize) -> bool {
        while *steps > 0 && !frame.is_null() {
            *steps -= 1;
            // SAFETY: guarded.
            match unsafe { self.behind(frame) } {
                Some((previous, _)) => frame = previous,
                None => return false,
            }
        }
        frame.is_null()
    }

    /// `current_frame` and `previous` of a cframe.
    ///
    /// # Safety
    /// Safe loads must be enabled.
    #[inline]
    unsafe fn cframe(&self, cframe: Object) -> Option<(Object, Object)> {
        let Entry::CFrame { current_frame, previous, .. } = self.layout.entry else {
            return None;
        };
        // SAFETY: guarded.
        let [current, previous] = unsafe { Guarded::words(cframe, [current_frame, previous]) }?;
        Some((current as Object, previous as Object))
    }

    /// Whether the interpreter loop that `frame` belongs to was entered from `below`.
    ///
    /// # Safety
    /// Safe loads must be enabled; `frame` may be any address.
    unsafe fn hangs_below(&self, mut frame: Object, below: Object, steps: &mut usize) -> bool {
        while *steps > 0 {
            *steps -= 1;
            // SAFETY: guarded.
            let Some((previous, entry)) = (unsafe { self.behind(frame) }) else {
                return false;
            };
            if is_entry(&self.layout.frame, entry) {
                return previous == below;
            }
            frame = previous;
        }
        // So many frames that look like frames are no accident.
        true
    }

    /// The frame behind one and the word with its flag, if it looks like a frame: it must name a code object. Without
    /// that a stray pointer may lead through all objects of the garbage collector, which are linked in the same place.
    ///
    /// # Safety
    /// Safe loads must be enabled; `frame` may be any address.
    #[inline]
    unsafe fn behind(&self, frame: Object) -> Option<(Object, u64)> {
        if frame.is_null() {
            return None;
        }
        let layout = &self.layout.frame;
        // SAFETY: guarded.
        let [code, previous, entry] =
            unsafe { Guarded::words(frame, [layout.code, layout.previous, layout.entry_word]) }?;
        // SAFETY: guarded.
        let class = unsafe { Guarded::pointer(code as Object, OB_TYPE) }?;
        (class == self.code_type).then_some((previous as Object, entry))
    }

    /// # Safety
    /// The chain from `frame` must be the calling thread's own, or safe loads enabled and M guarded.
    #[inline]
    unsafe fn push_frames<M: Memory>(&self, mut frame: Object, out: &mut FrameWriter<'_>) {
        let layout = self.layout;
        let fields = [layout.frame.code, layout.frame.previous, layout.frame.instr, layout.frame.entry_word];
        let mut definer = DEFINITIONS.definer();
        let mut last_file = (ptr::null(), 0);
        for _ in 0..MAX_SEEN {
            if frame.is_null() {
                return;
            }
            // SAFETY: frames of the thread's own chain are alive; elsewhere loads are guarded.
            let Some([code, previous, instr, entry]) = (unsafe { M::words(frame, fields) }) else {
                return;
            };
            let code = code as Object;
            let is_shim = layout.frame.entry_is_shim && is_entry(&layout.frame, entry);
            // SAFETY: what a live frame names is an object; elsewhere loads are guarded.
            if !is_shim && unsafe { self.is_function::<M>(code) } {
                let first = code.addr().wrapping_add(layout.code.instructions) as u64;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "no function has 2³² instructions; -1 before the first"
                )]
                let index = (instr.wrapping_sub(first).cast_signed() >> 1).cast_unsigned() as u32;
                // SAFETY: is_function() said that it is a code object, and its frame owns it.
                let key = unsafe { self.key_of::<M>(code, &mut last_file) };
                // SAFETY: the caller mapped the definitions.
                let word = unsafe { definer.word(key, index, |record| self.describe::<M>(code, record)) };
                if !out.push(word) {
                    return;
                }
            }
            frame = previous as Object;
        }
    }

    /// Whether what a frame runs is a function of the program: a code object that is not the interpreter's own.
    ///
    /// # Safety
    /// `code` must be null or an object, or safe loads enabled and M guarded.
    #[inline]
    unsafe fn is_function<M: Memory>(&self, code: Object) -> bool {
        if code.is_null() {
            return false;
        }
        // SAFETY: the caller's promise.
        if unsafe { M::pointer(code, OB_TYPE) } != Some(self.code_type) {
            return false;
        }
        let layout = &self.layout.code;
        // SAFETY: it is a code object.
        layout.internal == 0 || unsafe { M::half(code, layout.flags) }.is_some_and(|flags| flags & layout.internal == 0)
    }

    /// What tells this code object from every other, and from one that had its address before.
    ///
    /// # Safety
    /// `code` must be a live code object.
    #[inline]
    unsafe fn key_of<M: Memory>(&self, code: Object, last_file: &mut (Object, u64)) -> u64 {
        let layout = &self.layout.code;
        // SAFETY: it is a code object; the field is of 32 bits.
        let line = unsafe { Plain::half(code, layout.firstlineno) }.unwrap_or(0);
        let version = match layout.version {
            // SAFETY: as above.
            Some(offset) => unsafe { Plain::half(code, offset) }.unwrap_or(0),
            None => 0,
        };
        // Spread apart before they are joined: addresses and versions both grow in small steps, and two sums of small
        // steps are soon equal.
        let about = (u64::from(version) << 32) | u64::from(line);
        let key = (code as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ about.wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(32);
        if version != 0 {
            return key;
        }
        // SAFETY: a field of the code object.
        let file = unsafe { pointer_at(code, layout.filename) };
        if file != last_file.0 {
            // SAFETY: strings of a live code object are alive; on 3.11 the load is guarded.
            *last_file = (file, unsafe { M::word(file, STR_HASH) }.unwrap_or(0));
        }
        // SAFETY: a field of the code object.
        let name = unsafe { pointer_at(code, layout.name) };
        // SAFETY: as above.
        let name = unsafe { M::word(name, STR_HASH) }.unwrap_or(0);
        key ^ name.wrapping_mul(0xA076_1D64_78BD_642F) ^ last_file.1.rotate_left(31)
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

/// Whether a frame is the first of an interpreter loop, by the word with its flag.
#[inline]
fn is_entry(layout: &FrameLayout, word: u64) -> bool {
    (word >> layout.entry_shift) & 0xFF == u64::from(layout.entry_value)
}
