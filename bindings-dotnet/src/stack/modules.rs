//! The native libraries of the process as the handler knows them, with their `.eh_frame` rows, and what memory is executable.
//!
//! Tables in static memory: the handler searches, and the profiler's thread ([`registry`](crate::libraries::registry)) fills in
//! what it found.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::stack::eh_frame::{self, Cfa, Row};
use crate::stack::range_set::RangeSet;

/// Libraries that the handler knows; frames in further ones are found by frame pointers alone.
const MAX_MODULES: usize = 256;

/// A library, as the handler sees it. `start` 0: none.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) start: AtomicU64,
    end: AtomicU64,
    base: AtomicU64,
    /// Null while the file is not read.
    tables: AtomicPtr<Tables>,
}

/// What the walk needs of a file. Never freed: a handler may be at it.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) rows: Vec<Row>,
}

pub(crate) static MODULES: [Module; MAX_MODULES] = [const { Module::unused() }; MAX_MODULES];
pub(crate) static USED: AtomicUsize = AtomicUsize::new(0);
/// Memory that may be executed, neighbours merged.
pub(crate) static EXECUTABLE: RangeSet<8_192> = RangeSet::new();
/// The end of the main thread's stack.
pub(crate) static MAIN_STACK_END: AtomicU64 = AtomicU64::new(0);

impl Module {
    /// A place that no library has.
    pub(crate) const fn unused() -> Self {
        Self {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            base: AtomicU64::new(0),
            tables: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The rule at `pc`, which is in this library; an unknown one while its file is not read yet. Async-signal-safe.
    ///
    /// A library with a frame on this stack is not unloaded, so its place does not become another's meanwhile; where an
    /// address is none of a frame's, any rule is as good.
    #[inline]
    pub(crate) fn row(&self, pc: u64) -> Option<Row> {
        let Some(tables) = self.tables() else {
            return Some(Row { pc: 0, offset: 0, saved_rbp: 0, cfa: Cfa::Unknown });
        };
        eh_frame::find(&tables.rows, self.offset(pc)?)
    }

    #[inline]
    fn tables(&self) -> Option<&'static Tables> {
        // SAFETY: null or leaked, and never changed once it is here.
        unsafe { self.tables.load(Ordering::Acquire).as_ref() }
    }

    /// `pc` relative to where the library is loaded.
    #[inline]
    fn offset(&self, pc: u64) -> Option<u32> {
        u32::try_from(pc.checked_sub(self.base.load(Ordering::Relaxed))?).ok()
    }

    /// Gives the place to a library: `base` is where it is loaded, `code` its executable part.
    pub(crate) fn take(&self, base: u64, code: Range<u64>) {
        self.tables.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.end.store(code.end, Ordering::Relaxed);
        // Release: a handler that sees the place sees all of it.
        self.start.store(code.start, Ordering::Release);
    }

    /// Takes the place back.
    pub(crate) fn give_back(&self) {
        self.start.store(0, Ordering::Release);
    }

    /// Shows the handler what was read of the library's file.
    pub(crate) fn show(&self, tables: &'static Tables) {
        // Release: who sees the pointer sees what it points to.
        self.tables.store(std::ptr::from_ref(tables).cast_mut(), Ordering::Release);
    }
}

/// The library that `pc` is in. Async-signal-safe: a scan of the list.
#[inline]
pub(crate) fn module_of(pc: u64) -> Option<&'static Module> {
    let used = USED.load(Ordering::Acquire).min(MAX_MODULES);
    MODULES[..used].iter().find(|module| {
        let start = module.start.load(Ordering::Acquire);
        start != 0 && pc >= start && pc < module.end.load(Ordering::Relaxed)
    })
}

/// Whether `pc` may be code. Async-signal-safe.
#[inline]
pub(crate) fn is_executable(pc: u64) -> bool {
    EXECUTABLE.contains(pc)
}

/// Async-signal-safe.
#[inline]
pub(crate) fn main_stack_end() -> u64 {
    MAIN_STACK_END.load(Ordering::Relaxed)
}
