//! The native libraries of the process as the handler knows them, with their `.eh_frame` rows, the assemblies that were compiled ahead of time,
//! with the same of their methods, and what memory is executable.
//!
//! Tables in static memory: the handler searches, and the profiler's thread ([`registry`](crate::libraries::registry)) fills in
//! what it found. That is up to two seconds old, so of a library that may be closed, and of one that is in no table, ld.so is asked
//! ([`loader`]).

use std::ffi::c_char;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::stack::eh_frame::{self, Cfa, Row};
use crate::stack::loader;
use crate::stack::range_set::RangeSet;

/// Libraries that the handler knows; frames in further ones are found by frame pointers alone.
const MAX_MODULES: usize = 256;
/// Assemblies that the handler knows; in further ones a method without a frame has no caller until it was met once.
const MAX_ASSEMBLIES: usize = 1_024;

/// A library, as the handler sees it. `start` 0: none.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) start: AtomicU64,
    end: AtomicU64,
    base: AtomicU64,
    /// It is never closed.
    stays: AtomicBool,
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
pub(crate) static ASSEMBLIES: [Module; MAX_ASSEMBLIES] = [const { Module::unused() }; MAX_ASSEMBLIES];
pub(crate) static ASSEMBLIES_USED: AtomicUsize = AtomicUsize::new(0);
/// Where the code of these is.
pub(crate) static ASSEMBLY_CODE: RangeSet<MAX_ASSEMBLIES> = RangeSet::new();
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
            stays: AtomicBool::new(false),
            tables: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The rule at `pc`, which is in this library; an unknown one while its file is not read yet. Async-signal-safe.
    #[inline]
    pub(crate) fn row(&self, pc: u64) -> Row {
        let none = |cfa| Row { pc: 0, offset: 0, saved_rbp: 0, cfa };
        let Some(tables) = self.tables() else { return none(Cfa::Unknown) };
        self.offset(pc).and_then(|pc| eh_frame::find(&tables.rows, pc)).unwrap_or(none(Cfa::Nothing))
    }

    /// Whether what was read of it holds for as long as the process does.
    #[inline]
    fn is_settled(&self) -> bool {
        self.stays.load(Ordering::Relaxed) && self.tables().is_some()
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

    /// Gives the place to a library: `base` is where it is loaded, `code` its executable part, and `stays`: it is never closed.
    pub(crate) fn take(&self, base: u64, code: Range<u64>, stays: bool) {
        self.tables.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.stays.store(stays, Ordering::Relaxed);
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
    find(&MODULES, &USED, pc)
}

/// The rule in the method at `pc` of an assembly that was compiled ahead of time, while it calls another. Async-signal-safe: ten loads where
/// it is in none, else a scan of the list.
#[inline]
pub(crate) fn assembly_row(pc: u64) -> Option<Row> {
    if !ASSEMBLY_CODE.contains(pc) {
        return None;
    }
    find(&ASSEMBLIES, &ASSEMBLIES_USED, pc).map(|module| module.row(pc))
}

#[inline]
fn find(modules: &'static [Module], used: &AtomicUsize, pc: u64) -> Option<&'static Module> {
    let used = used.load(Ordering::Acquire).min(modules.len());
    modules[..used].iter().find(|module| {
        let start = module.start.load(Ordering::Acquire);
        start != 0 && pc >= start && pc < module.end.load(Ordering::Relaxed)
    })
}

/// The rule at `pc`, and where the library's name is if it may be closed. `None`: it is in no library. Async-signal-safe.
///
/// # Safety
/// `is_certain`: `pc` is where the calling thread is, or within a call that it is in.
#[inline]
pub(crate) unsafe fn row_at(pc: u64, is_certain: bool) -> Option<(Row, *const c_char)> {
    let module = module_of(pc);
    match module {
        // SAFETY: the caller's promise.
        _ if is_certain && loader::answers() && !module.is_some_and(Module::is_settled) => unsafe {
            loader::row_at(pc)
        },
        module => module.map(|module| (module.row(pc), ptr::null())),
    }
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
