//! Where CPython keeps what the signal handler reads: one table of offsets a minor version.
//!
//! The wheel is built once, against the stable ABI, which says nothing of frames, code objects and HAMTs; their
//! layout is fixed within a minor version (extension modules compiled for 3.12.0 must run on 3.12.9). The tables are
//! for 64-bit builds with the GIL, where x86-64 and aarch64 agree. Whether the interpreter really is one of these is
//! asked before the first start, first by its version and build flags, then by the sizes of its types, and at last by
//! walking a known stack ([`selftest`](crate::selftest)).

/// Offsets in bytes. Fields are named as in CPython's sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) entry: Entry,
    /// `PyThreadState.context`.
    pub(crate) tstate_context: usize,
    pub(crate) frame: FrameLayout,
    pub(crate) code: CodeLayout,
    /// `sizeof(PyASCIIObject)`: where the characters of an ASCII string are.
    pub(crate) ascii_data: usize,
    /// `sizeof(PyCompactUnicodeObject)`: where those of any other string are.
    pub(crate) compact_data: usize,
}

/// How the newest frame of a thread is found, and so which rules a walk needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// 3.11 and 3.12: `PyThreadState.cframe` names a struct on the C stack, whose frame is for an instant not yet
    /// written. See [`cframe`](crate::stack::cframe).
    CFrame { tstate_cframe: usize, current_frame: usize, previous: usize },
    /// 3.10: `PyThreadState.frame`; 3.13 and later: `PyThreadState.current_frame`, and `datastack_chunk`, by which it is known
    /// whether that frame is still there. See [`chunk`](crate::stack::chunk).
    Frame { tstate_frame: usize, tstate_chunk: Option<usize> },
}

/// `_PyInterpreterFrame`, in 3.10 `PyFrameObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLayout {
    /// `f_code`, from 3.13 `f_executable`, whose lowest bits are a tag from 3.14.
    pub(crate) code: usize,
    /// `previous`, in 3.10 `f_back`.
    pub(crate) previous: usize,
    /// `prev_instr` (the unit before the next one), from 3.13 `instr_ptr` (the current one), in 3.10 `f_lasti`.
    pub(crate) instr: usize,
    /// Whether that is the number of the instruction, in 32 bits, and not its address.
    pub(crate) instr_is_number: bool,
    /// The byte that tells the first frame of an interpreter loop: `is_entry` in 3.11, later `owner`.
    pub(crate) owner: usize,
    /// From which value on it does. A byte has no 256: in 3.10 no frame is told.
    pub(crate) entry_from: u16,
    /// Whether such a frame is a shim without code of the program.
    pub(crate) entry_is_shim: bool,
}

impl FrameLayout {
    /// The aligned word that [`owner`](Self::owner) is in.
    #[inline]
    pub(crate) fn owner_word(&self) -> usize {
        self.owner & !7
    }

    /// Whether a frame is the first of an interpreter loop, by that word.
    #[inline]
    pub(crate) fn is_entry(&self, word: u64) -> bool {
        self.owner(word) >= u64::from(self.entry_from)
    }

    /// Whose a frame is, by that word; 0: the thread's, in a chunk.
    #[inline]
    pub(crate) fn owner(&self, word: u64) -> u64 {
        (word >> (8 * (self.owner & 7))) & 0xFF
    }
}

/// `PyCodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeLayout {
    pub(crate) flags: usize,
    /// Flags of code that is the interpreter's own and no function: from 3.13 on it leaves a frame of such code below
    /// each specialised `__init__`, which `sys._getframe` omits too.
    pub(crate) internal: u32,
    pub(crate) firstlineno: usize,
    pub(crate) filename: usize,
    pub(crate) name: usize,
    /// `co_qualname`. 3.10 has only the name.
    pub(crate) qualname: usize,
    pub(crate) linetable: usize,
    pub(crate) lines: LineTable,
    /// The size of the struct. From 3.11 the instructions follow it (`co_code_adaptive`), and `ob_size` is their number.
    pub(crate) size: usize,
    /// `co_code`, the instructions as a `bytes` object, in 3.10.
    pub(crate) bytecode: Option<usize>,
    /// `co_version`, unique a code object of an interpreter until 2³² were made, then 0. Not before 3.12.
    pub(crate) version: Option<usize>,
}

/// How `co_linetable` is written, see [`lines`](crate::symbols::lines).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineTable {
    /// 3.10.
    Pep626,
    /// 3.11 and later.
    Pep657,
}

/// `ob_type` of every object and `ob_size` of those with a length.
pub(crate) const OB_TYPE: usize = 8;
pub(crate) const OB_SIZE: usize = 16;
/// First byte of a `bytes` object.
pub(crate) const BYTES_DATA: usize = 32;
/// `PyThreadState.interp`.
pub(crate) const TSTATE_INTERP: usize = 16;
/// `PyASCIIObject`: length, cached hash (-1 = none yet) and state bits.
pub(crate) const STR_LENGTH: usize = 16;
pub(crate) const STR_HASH: usize = 24;
pub(crate) const STR_STATE: usize = 32;
/// `PyContext.ctx_vars`, `PyHamtObject.h_root`, `PyContextVar.var_hash`.
pub(crate) const CONTEXT_VARS: usize = 24;
pub(crate) const HAMT_ROOT: usize = 16;
pub(crate) const VAR_HASH: usize = 56;

/// `owner` from which on a frame is the interpreter's own: `FRAME_OWNED_BY_CSTACK`, from 3.14
/// `FRAME_OWNED_BY_INTERPRETER`.
const OWNED_BY_INTERPRETER: u16 = 3;
/// `CO_NO_MONITORING_EVENTS`.
const NO_MONITORING_EVENTS: u32 = 0x0200_0000;

static V3_10: Layout = Layout {
    entry: Entry::Frame { tstate_frame: 24, tstate_chunk: None },
    tstate_context: 240,
    frame: FrameLayout {
        code: 32,
        previous: 24,
        instr: 96,
        instr_is_number: true,
        owner: 96,
        entry_from: 256,
        entry_is_shim: false,
    },
    code: CodeLayout {
        flags: 36,
        internal: 0,
        firstlineno: 40,
        filename: 104,
        name: 112,
        qualname: 112,
        linetable: 120,
        lines: LineTable::Pep626,
        size: 176,
        bytecode: Some(48),
        version: None,
    },
    ascii_data: 48,
    compact_data: 72,
};

static V3_11: Layout = Layout {
    entry: Entry::CFrame { tstate_cframe: 56, current_frame: 8, previous: 16 },
    tstate_context: 224,
    frame: FrameLayout {
        code: 32,
        previous: 48,
        instr: 56,
        instr_is_number: false,
        owner: 68, // is_entry
        entry_from: 1,
        entry_is_shim: false,
    },
    code: CodeLayout {
        flags: 48,
        internal: 0,
        firstlineno: 72,
        filename: 112,
        name: 120,
        qualname: 128,
        linetable: 136,
        lines: LineTable::Pep657,
        size: 184,
        bytecode: None,
        version: None,
    },
    ..V3_10
};

static V3_12: Layout = Layout {
    entry: Entry::CFrame { tstate_cframe: 56, current_frame: 0, previous: 8 },
    tstate_context: 208,
    frame: FrameLayout {
        code: 0,
        previous: 8,
        instr: 56,
        instr_is_number: false,
        owner: 70,
        entry_from: OWNED_BY_INTERPRETER,
        entry_is_shim: true,
    },
    code: CodeLayout { firstlineno: 68, size: 192, version: Some(92), ..V3_11.code },
    ascii_data: 40,
    compact_data: 56,
};

static V3_13: Layout = Layout {
    entry: Entry::Frame { tstate_frame: 72, tstate_chunk: Some(232) },
    code: CodeLayout { internal: NO_MONITORING_EVENTS, size: 200, ..V3_12.code },
    ..V3_12
};

static V3_14: Layout =
    Layout { frame: FrameLayout { owner: 74, ..V3_13.frame }, code: CodeLayout { size: 208, ..V3_13.code }, ..V3_13 };

static V3_15: Layout =
    Layout { entry: Entry::Frame { tstate_frame: 72, tstate_chunk: Some(256) }, tstate_context: 232, ..V3_14 };

/// The tables there are.
pub(crate) static LAYOUTS: [((u8, u8), &Layout); 6] =
    [((3, 10), &V3_10), ((3, 11), &V3_11), ((3, 12), &V3_12), ((3, 13), &V3_13), ((3, 14), &V3_14), ((3, 15), &V3_15)];
