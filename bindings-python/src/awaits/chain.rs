//! The chain of awaits of a coroutine that is suspended, down to the innermost thing that is awaited.
//!
//! What a coroutine waits for is asked of the interpreter, by the functions behind `cr_await`, `ag_await` and `gi_yieldfrom`. They run no
//! code of the program, and what they return is held by the one before it, so nothing dies here.

use std::ptr;

use pyo3::ffi::{self, PyObject};
use spanprof_core::{FrameId, FrameWriter};

use crate::awaits::known::Known;
use crate::awaits::layout::{AWAITED, FLOAT_VALUE, FrameAt};
use crate::stack::code_object::CodeReader;
use crate::stack::code_table::{DEFINITIONS, Definer};
use crate::stack::frame_id::{AWAIT, AWAIT_FUTURE, AWAIT_TASK};
use crate::stack::interpreter::CPython;
use crate::stack::layout::OB_TYPE;
use crate::stack::memory::{Memory, Object, Plain};

/// Frames of a chain that are kept; longer ones lose those nearest to the root.
const MAX_FRAMES: usize = 256;
/// Objects of a chain that are looked at.
const MAX_LINKS: usize = 4 * MAX_FRAMES;
/// The number of no instruction: the line is the function's first.
const NO_INSTRUCTION: u32 = u32::MAX;

/// A chain as frame ids.
#[derive(Debug)]
pub(super) struct Chain {
    /// Outermost first, round and round.
    ids: [FrameId; MAX_FRAMES],
    frames: usize,
    /// What the innermost one waits for.
    pub(super) leaf: FrameId,
    /// When the innermost one was due, by CLOCK_MONOTONIC, where that is known: it slept.
    pub(super) due: Option<u64>,
}

impl Chain {
    /// Pushes the frames without the leaf, innermost first.
    pub(super) fn push_to(&self, out: &mut FrameWriter<'_>) {
        let from = self.frames.saturating_sub(MAX_FRAMES);
        for number in (from..self.frames).rev() {
            out.push(self.ids[number % MAX_FRAMES]);
        }
    }

    fn push(&mut self, id: FrameId) {
        self.ids[self.frames % MAX_FRAMES] = id;
        self.frames += 1;
    }

    /// The chain from `root` on.
    ///
    /// # Safety
    /// `root` must be a coroutine that is suspended, and the GIL of the main interpreter be held.
    pub(super) unsafe fn of(root: Object, known: &Known, runtime: &CPython) -> Self {
        let mut chain = Self { ids: [0; MAX_FRAMES], frames: 0, leaf: AWAIT, due: None };
        let mut walk = Walk::new(known, runtime);
        let mut link = Link { object: root, is_owned: false };
        for _ in 0..MAX_LINKS {
            // SAFETY: the chain holds what is in it.
            let class = unsafe { class_of(link.object) };
            if known.frames.iter().any(|(frame, _)| *frame == class) {
                // SAFETY: an object of one of the three types.
                chain.push(unsafe { walk.frame_of(link.object, true) });
                // SAFETY: as above.
                chain.due = unsafe { walk.due_of(link.object) };
            } else if class == known.future_iter {
                // SAFETY: these have what they wait for there, or null.
                let future = unsafe { Plain::pointer(link.object, AWAITED) }.unwrap_or(ptr::null());
                // SAFETY: null or a future that its iterator holds.
                chain.leaf = unsafe { walk.push_future(future, &mut chain) };
            }
            // SAFETY: the chain holds what is in it, and the GIL is held.
            match unsafe { awaited_by(link.object, class, known) } {
                Some(next) => link = next,
                None => break,
            }
        }
        chain
    }
}

/// When what a coroutine waits for is due, as [`Chain::due`].
///
/// # Safety
/// As for [`Chain::of`].
pub(super) unsafe fn due_of(root: Object, known: &Known, runtime: &CPython) -> Option<u64> {
    let walk = Walk::new(known, runtime);
    let mut link = Link { object: root, is_owned: false };
    let mut due = None;
    for _ in 0..MAX_LINKS {
        // SAFETY: the chain holds what is in it.
        let class = unsafe { class_of(link.object) };
        if known.frames.iter().any(|(frame, _)| *frame == class) {
            // SAFETY: an object of one of the three types.
            due = unsafe { walk.due_of(link.object) };
        }
        // SAFETY: as above.
        match unsafe { awaited_by(link.object, class, known) } {
            Some(next) => link = next,
            None => break,
        }
    }
    due
}

/// What an object of a chain waits for, if that is one of a chain too.
///
/// # Safety
/// An object that is alive, of this class, and the GIL is held.
unsafe fn awaited_by(object: Object, class: Object, known: &Known) -> Option<Link> {
    if let Some((_, get)) = known.frames.iter().find(|(frame, _)| *frame == class) {
        // SAFETY: the getter of its type, and the GIL is held.
        let awaited = unsafe { get(object, ptr::null_mut()) };
        // SAFETY: what a getter returns.
        unsafe { Link::owned(awaited) }
    } else if known.holders.contains(&class) {
        // SAFETY: these have what they wait for there, or null.
        let awaited = unsafe { Plain::pointer(object, AWAITED) }.unwrap_or(ptr::null());
        // SAFETY: which holds it.
        unsafe { Link::borrowed(awaited) }
    } else {
        None
    }
}

/// The frame of one coroutine alone.
///
/// # Safety
/// As for [`Chain::of`], of one that may be over.
#[cold]
pub(super) unsafe fn frame_alone(coroutine: Object, known: &Known, runtime: &CPython) -> FrameId {
    // SAFETY: the caller's promise.
    unsafe { Walk::new(known, runtime).frame_of(coroutine, false) }
}

/// An object of a chain, and whether a reference to it is ours.
struct Link {
    object: Object,
    is_owned: bool,
}

impl Link {
    /// What a getter returned; `None` for None, and for an error.
    ///
    /// # Safety
    /// A new reference, or null with an exception set.
    unsafe fn owned(object: *mut u8) -> Option<Self> {
        if object.is_null() {
            // SAFETY: the GIL is held.
            unsafe { ffi::PyErr_Clear() };
            return None;
        }
        let link = Self { object, is_owned: true };
        // SAFETY: None is there as long as the interpreter.
        (object.cast() != unsafe { ffi::Py_None() }).then_some(link)
    }

    /// # Safety
    /// Null, or an object that is alive.
    unsafe fn borrowed(object: Object) -> Option<Self> {
        if object.is_null() {
            return None;
        }
        // SAFETY: an object that is alive, and the GIL is held.
        unsafe { ffi::Py_INCREF(object.cast_mut().cast()) };
        Some(Self { object, is_owned: true })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_owned {
            // SAFETY: a reference of ours, never the last one, and the GIL is held.
            unsafe { ffi::Py_DECREF(self.object.cast_mut().cast::<PyObject>()) };
        }
    }
}

/// # Safety
/// An object that is alive.
unsafe fn class_of(object: Object) -> Object {
    // SAFETY: every object has its type there.
    unsafe { Plain::pointer(object, OB_TYPE) }.unwrap_or(ptr::null())
}

struct Walk<'a> {
    known: &'a Known,
    runtime: &'a CPython,
    definer: Definer,
    reader: CodeReader<'a>,
}

impl<'a> Walk<'a> {
    fn new(known: &'a Known, runtime: &'a CPython) -> Self {
        let reader = CodeReader::new(runtime.layout, runtime.code_type, true);
        Self { known, runtime, definer: DEFINITIONS.definer(), reader }
    }

    /// The frame of a coroutine, a generator or an asynchronous one, with the instruction that it is at, if that is wanted and it is
    /// suspended.
    ///
    /// # Safety
    /// It must be one, alive, and the GIL be held.
    unsafe fn frame_of(&mut self, object: Object, with_instruction: bool) -> FrameId {
        // SAFETY: the caller's promise; it has its code until it is freed.
        let code = unsafe { self.runtime.code_at(object, self.known.layout.code) };
        // SAFETY: as above.
        let index = if with_instruction { unsafe { self.instruction_of(object, code) } } else { NO_INSTRUCTION };
        // SAFETY: a code object.
        let key = unsafe { self.reader.key::<Plain>(code) };
        let reader = &self.reader;
        // SAFETY: who starts the profiler mapped the definitions.
        unsafe { self.definer.frame_id(key, index, |record| reader.describe::<Plain>(code, record)) }
    }

    /// # Safety
    /// As for [`frame_of`](Self::frame_of).
    unsafe fn instruction_of(&self, object: Object, code: Object) -> u32 {
        // SAFETY: the caller's promise.
        let Some(frame) = (unsafe { self.frame_at(object) }) else { return NO_INSTRUCTION };
        // SAFETY: a frame that is not over has it.
        let instr = unsafe { Plain::word(frame, self.runtime.layout.frame.instr) }.unwrap_or(0);
        self.runtime.instruction_number(code, instr)
    }

    /// The frame, if it is not over.
    ///
    /// # Safety
    /// As for [`frame_of`](Self::frame_of).
    unsafe fn frame_at(&self, object: Object) -> Option<Object> {
        let frame = match self.known.layout.frame {
            // SAFETY: a field.
            FrameAt::Pointer(at) => unsafe { Plain::pointer(object, at) }.unwrap_or(ptr::null()),
            FrameAt::Inside { frame, state, executing, .. } => {
                // SAFETY: a byte of the object.
                let state = unsafe { ptr::read(object.wrapping_add(state).cast::<i8>()) };
                if state < executing { object.wrapping_add(frame) } else { ptr::null() }
            }
        };
        (!frame.is_null()).then_some(frame)
    }

    /// When the timer of `asyncio.sleep` was due.
    ///
    /// # Safety
    /// As for [`frame_of`](Self::frame_of).
    unsafe fn due_of(&self, object: Object) -> Option<u64> {
        let sleep = self.known.sleep?;
        // SAFETY: the caller's promise.
        if unsafe { self.runtime.code_at(object, self.known.layout.code) } != sleep.code {
            return None;
        }
        // SAFETY: as above.
        let frame = unsafe { self.frame_at(object) }?;
        // SAFETY: this code has a variable of that number, which the frame owns.
        let timer = unsafe { self.runtime.code_at(frame, self.known.layout.locals + 8 * sleep.variable) };
        // SAFETY: null, or an object that is alive.
        if timer.is_null() || unsafe { class_of(timer) } != sleep.timer {
            return None;
        }
        // SAFETY: a slot of its class.
        let when = unsafe { Plain::pointer(timer, sleep.when) }?;
        // SAFETY: as above.
        if when.is_null() || unsafe { class_of(when) } != sleep.float {
            return None;
        }
        // SAFETY: a float has its value there.
        let seconds = f64::from_bits(unsafe { Plain::word(when, FLOAT_VALUE) }?);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "what is out of range is no time of this clock"
        )]
        Some((seconds * 1e9) as u64)
    }

    /// The leaf for a future; the coroutine of a task stands above it.
    ///
    /// # Safety
    /// Null or a future that is alive, and the GIL is held.
    unsafe fn push_future(&mut self, future: Object, chain: &mut Chain) -> FrameId {
        if future.is_null() {
            return AWAIT_FUTURE;
        }
        // SAFETY: the caller's promise.
        let class = unsafe { class_of(future) };
        // SAFETY: two types.
        let is_task = unsafe { ffi::PyType_IsSubtype(class.cast_mut().cast(), self.known.task.cast_mut().cast()) } != 0;
        if !is_task {
            return AWAIT_FUTURE;
        }
        if let Some(get) = self.known.coroutine_of_task {
            // SAFETY: a method of its class without arguments, in C.
            let coroutine = unsafe { get(future, ptr::null_mut()) };
            // SAFETY: what a method returns.
            if let Some(coroutine) = unsafe { Link::owned(coroutine) } {
                // SAFETY: an object that is alive.
                let class = unsafe { class_of(coroutine.object) };
                if self.known.frames.iter().any(|(frame, _)| *frame == class) {
                    // SAFETY: one of the three types. Where it is now is not where it was waited for.
                    chain.push(unsafe { self.frame_of(coroutine.object, false) });
                }
            }
        }
        AWAIT_TASK
    }
}
