//! The native libraries of the process as the handler knows them, with their `.eh_frame` rows, the assemblies that were compiled ahead of time,
//! with the same of their methods, and what memory is executable.
//!
//! Tables in static memory: the handler searches, and the profiler's thread ([`registry`](crate::libraries::registry)) fills in
//! what it found. That is up to two seconds old, so of a library that may be closed, and of one that is in no table, ld.so is asked
//! ([`loader`]).

use std::ffi::c_char;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

use crate::stack::eh_frame::{self, Cfa, Row};
use crate::stack::hijack;
use crate::stack::loader;
use crate::stack::range_set::RangeSet;

/// Libraries that the handler knows; frames in further ones are found by frame pointers alone.
const MAX_MODULES: usize = 256;
/// Assemblies that the handler knows; in further ones a method without a frame has no caller until it was met once.
const MAX_ASSEMBLIES: usize = 1_024;

/// A library's place, as the handler sees it. `start` 0: it has none.
#[derive(Debug)]
pub(crate) struct Place {
    /// How often it was taken or given back; odd while that is under way.
    changes: AtomicUsize,
    pub(crate) start: AtomicU64,
    end: AtomicU64,
    base: AtomicU64,
    /// It is never closed.
    stays: AtomicBool,
    /// Null while the file is not read.
    tables: AtomicPtr<Tables>,
}

/// A library, as a place had it at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    base: u64,
    stays: bool,
    tables: Option<&'static Tables>,
}

/// What the walk needs of a file. Never freed: a handler may be at it.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) rows: Vec<Row>,
    /// Where the function of [`hijack`] is, relative to where the library is loaded; of CoreCLR.
    pub(crate) trap: Option<u32>,
}

pub(crate) static MODULES: [Place; MAX_MODULES] = [const { Place::unused() }; MAX_MODULES];
pub(crate) static USED: AtomicUsize = AtomicUsize::new(0);
pub(crate) static ASSEMBLIES: [Place; MAX_ASSEMBLIES] = [const { Place::unused() }; MAX_ASSEMBLIES];
pub(crate) static ASSEMBLIES_USED: AtomicUsize = AtomicUsize::new(0);
/// Where the code of these is.
pub(crate) static ASSEMBLY_CODE: RangeSet<MAX_ASSEMBLIES> = RangeSet::new();
/// Memory that may be executed, neighbours merged.
pub(crate) static EXECUTABLE: RangeSet<8_192> = RangeSet::new();
/// The end of the main thread's stack.
pub(crate) static MAIN_STACK_END: AtomicU64 = AtomicU64::new(0);

impl Place {
    /// One that no library has.
    pub(crate) const fn unused() -> Self {
        Self {
            changes: AtomicUsize::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            base: AtomicU64::new(0),
            stays: AtomicBool::new(false),
            tables: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The library that has the place, if `pc` is in it. One that comes or goes meanwhile is none: between two loads the place may have become
    /// another's, and the start of the one with the end of the other are around libraries in between.
    #[inline]
    fn module(&self, pc: u64) -> Option<Module> {
        let changes = self.changes.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        if start == 0 || pc < start || pc >= self.end.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: null or leaked, and never changed once it is here.
        let tables = unsafe { self.tables.load(Ordering::Acquire).as_ref() };
        let module =
            Module { base: self.base.load(Ordering::Relaxed), stays: self.stays.load(Ordering::Relaxed), tables };
        // Acquire: pairs with the fence in `change`.
        fence(Ordering::Acquire);
        (changes.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == changes).then_some(module)
    }

    /// Gives the place to a library: `base` is where it is loaded, `code` its executable part, and `stays`: it is never closed. One caller at
    /// a time, of this and all that change it.
    pub(crate) fn take(&self, base: u64, code: Range<u64>, stays: bool) {
        self.change(|| {
            self.tables.store(std::ptr::null_mut(), Ordering::Relaxed);
            self.base.store(base, Ordering::Relaxed);
            self.stays.store(stays, Ordering::Relaxed);
            self.end.store(code.end, Ordering::Relaxed);
            self.start.store(code.start, Ordering::Relaxed);
        });
    }

    /// Takes the place back.
    pub(crate) fn give_back(&self) {
        self.change(|| self.start.store(0, Ordering::Relaxed));
    }

    fn change(&self, stores: impl FnOnce()) {
        // Odd already in a child that was forked meanwhile.
        let changing = self.changes.load(Ordering::Relaxed) | 1;
        self.changes.store(changing, Ordering::Relaxed);
        // Release: who reads of what is stored from here on sees, by the fence in `module`, that it is being changed.
        fence(Ordering::Release);
        stores();
        // Release: a handler that sees this sees all of it.
        self.changes.store(changing.wrapping_add(1), Ordering::Release);
    }

    /// Shows the handler what was read of the library's file.
    pub(crate) fn show(&self, tables: &'static Tables) {
        if let Some(trap) = tables.trap {
            hijack::set(self.base.load(Ordering::Relaxed) + u64::from(trap));
        }
        // Release: who sees the pointer sees what it points to.
        self.tables.store(std::ptr::from_ref(tables).cast_mut(), Ordering::Release);
    }
}

impl Module {
    /// The rule at `pc`, which is in this library; an unknown one while its file is not read yet. Async-signal-safe.
    #[inline]
    pub(crate) fn row(self, pc: u64) -> Row {
        let none = |cfa| Row { pc: 0, offset: 0, saved_rbp: 0, cfa };
        let Some(tables) = self.tables else { return none(Cfa::Unknown) };
        self.offset(pc).and_then(|pc| eh_frame::find(&tables.rows, pc)).unwrap_or(none(Cfa::Nothing))
    }

    /// Whether what was read of it holds for as long as the process does.
    #[inline]
    fn is_settled(self) -> bool {
        self.stays && self.tables.is_some()
    }

    /// `pc` relative to where the library is loaded.
    #[inline]
    fn offset(self, pc: u64) -> Option<u32> {
        u32::try_from(pc.checked_sub(self.base)?).ok()
    }
}

/// The library that `pc` is in. Async-signal-safe: a scan of the list.
#[inline]
pub(crate) fn module_of(pc: u64) -> Option<Module> {
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
fn find(places: &[Place], used: &AtomicUsize, pc: u64) -> Option<Module> {
    let used = used.load(Ordering::Acquire).min(places.len());
    places[..used].iter().find_map(|place| place.module(pc))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_becomes_anothers_is_taken_for_neither() {
        let (places, used) = ([Place::unused(), Place::unused()], AtomicUsize::new(2));
        places[1].take(50, 50..60, true);
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                for _ in 0..1_000_000 {
                    places[0].take(10, 10..20, false);
                    places[0].give_back();
                    places[0].take(90, 90..99, false);
                    places[0].give_back();
                }
            });
            while !changing.is_finished() {
                let found = find(&places, &used, 55).unwrap();
                assert_eq!((found.base, found.stays), (50, true), "it is between the two");
            }
        });
    }
}
