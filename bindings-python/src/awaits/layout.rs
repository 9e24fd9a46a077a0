//! Where CPython keeps what is read of coroutines, and of types whose functions are replaced. As [`stack::layout`](crate::stack::layout)
//! for the rest: fixed within a minor version, and looked at by the self-test before anything is believed.

use crate::stack::memory::{Memory, Object};

/// A coroutine, as asynchronous generators and generators too: they begin alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoroutineLayout {
    /// `coroutine.__basicsize__`.
    pub(crate) size: usize,
    /// Where its code object is, for as long as it lives: `gi_code`, from 3.12 on that of its frame.
    pub(crate) code: usize,
    pub(crate) frame: FrameAt,
    /// Where the frame's variables begin. Their lowest bits are a tag from 3.14.
    pub(crate) locals: usize,
    /// Four bytes that belong to nobody, between `gi_frame_state` and the frame.
    pub(crate) padding: Option<usize>,
    /// Whether a coroutine that another one awaits is not called, but continued by the interpreter's loop.
    pub(crate) is_continued: bool,
    /// `PyThreadState.exc_info` and `PyThreadState.exc_state`: the first points to the second where no generator and no coroutine runs.
    pub(crate) exceptions: [usize; 2],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameAt {
    /// 3.10: a pointer to it, null when it is over.
    Pointer(usize),
    /// Within. The byte `state` is `created` until it is run first, and its instruction is known while that is below `executing`.
    Inside { frame: usize, state: usize, created: i8, executing: i8 },
}

/// 3.10: `f_lasti` of a frame, and what it is until the frame is run first.
const LAST_INSTRUCTION: usize = 96;
const NONE_YET: u32 = u32::MAX;

impl CoroutineLayout {
    /// Whether a coroutine was run before.
    ///
    /// # Safety
    /// It must be one, and `M` be allowed to read it.
    pub(crate) unsafe fn has_begun<M: Memory>(&self, coroutine: Object) -> bool {
        match self.frame {
            FrameAt::Pointer(at) => {
                // SAFETY: the caller's promise.
                let frame = unsafe { M::pointer(coroutine, at) }.filter(|frame| !frame.is_null());
                // SAFETY: as above.
                frame.is_none_or(|frame| unsafe { M::half(frame, LAST_INSTRUCTION) } != Some(NONE_YET))
            }
            FrameAt::Inside { state, created, .. } => {
                // SAFETY: as above.
                let word = unsafe { M::word(coroutine, state & !7) };
                word.is_none_or(|word| word.to_le_bytes()[state & 7].cast_signed() != created)
            }
        }
    }
}

const V3_10: CoroutineLayout = CoroutineLayout {
    size: 96,
    code: 24,
    frame: FrameAt::Pointer(16),
    locals: 352,
    padding: None,
    is_continued: false,
    exceptions: [144, 112],
};

const V3_11: CoroutineLayout = CoroutineLayout {
    size: 152,
    code: 16,
    frame: FrameAt::Inside { frame: 80, state: 75, created: -2, executing: 0 },
    locals: 72,
    padding: Some(76),
    is_continued: false,
    exceptions: [120, 320],
};

const V3_12: CoroutineLayout = CoroutineLayout {
    size: 144,
    code: 72,
    frame: FrameAt::Inside { frame: 72, state: 67, created: -2, executing: 0 },
    locals: 72,
    padding: Some(68),
    is_continued: true,
    exceptions: [104, 256],
};

const V3_13: CoroutineLayout = CoroutineLayout {
    frame: FrameAt::Inside { frame: 72, state: 67, created: -3, executing: 0 },
    exceptions: [120, 256],
    ..V3_12
};

const V3_14: CoroutineLayout = CoroutineLayout { size: 152, locals: 80, ..V3_13 };

const V3_15: CoroutineLayout = CoroutineLayout {
    frame: FrameAt::Inside { frame: 72, state: 67, created: 0, executing: 4 },
    exceptions: [144, 288],
    ..V3_14
};

/// The layout of this minor version of Python 3.
pub(crate) fn coroutine_of(minor: u8) -> Option<CoroutineLayout> {
    Some(match minor {
        10 => V3_10,
        11 => V3_11,
        12 => V3_12,
        13 => V3_13,
        14 => V3_14,
        15 => V3_15,
        _ => return None,
    })
}

/// `PyTypeObject`, the same in 3.10 to 3.15.
pub(crate) const TP_AS_ASYNC: usize = 80;
pub(crate) const TP_METHODS: usize = 232;
pub(crate) const TP_GETSET: usize = 248;
pub(crate) const TP_FINALIZE: usize = 392;
/// `PyAsyncMethods.am_send`.
pub(crate) const AM_SEND: usize = 24;
/// `PyMethodDef`: its size, and where function and flags are. The name comes first.
pub(crate) const METHOD_SIZE: usize = 32;
pub(crate) const ML_METH: usize = 8;
pub(crate) const ML_FLAGS: usize = 16;
/// `PyGetSetDef`: its size, and where the getter is. The name comes first.
pub(crate) const GETSET_SIZE: usize = 40;
pub(crate) const GETSET_GET: usize = 8;
/// `PyMemberDescrObject.d_member`, and `PyMemberDef.offset`.
pub(crate) const D_MEMBER: usize = 40;
pub(crate) const MEMBER_OFFSET: usize = 16;
/// `PyFloatObject.ob_fval`.
pub(crate) const FLOAT_VALUE: usize = 16;
/// What awaitables of the interpreter and of `_asyncio` wait for, in each that has one: `ags_gen`, `agt_gen`, `cw_coroutine`,
/// `wrapped`, `future`.
pub(crate) const AWAITED: usize = 16;
