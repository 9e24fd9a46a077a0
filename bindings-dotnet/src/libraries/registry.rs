//! The native libraries of the process and its assemblies, and what memory is executable.
//!
//! The profiler's thread looks at /proc/self/maps when it starts and from then on each two seconds, reads the files of what was
//! loaded meanwhile, and shows the handler both ([`modules`](crate::stack::modules)). The place of a library that is unloaded is
//! given to another one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::libraries::exports::Exports;
use crate::libraries::files::{self, Contents};
use crate::libraries::mappings::{self, Mapped};
use crate::stack::modules::{
    ASSEMBLIES, ASSEMBLIES_USED, ASSEMBLY_CODE, EXECUTABLE, MAIN_STACK_END, MODULES, Place, USED,
};

/// What is known of a library. `start` 0: it is gone, and its place is free.
#[derive(Clone, Debug, Default)]
struct Library {
    mapped: Mapped,
    /// `None` while its file is not read.
    exports: Option<&'static Exports>,
}

/// Code that was mapped from files that are no libraries, sorted.
static IMAGES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
/// What is known of the libraries, for names. Index = place in MODULES.
static KNOWN: Mutex<Vec<Library>> = Mutex::new(Vec::new());
/// The same of the assemblies. Index = place in ASSEMBLIES.
static KNOWN_ASSEMBLIES: Mutex<Vec<Library>> = Mutex::new(Vec::new());

impl Library {
    fn is_gone(&self) -> bool {
        self.mapped.start == 0
    }
}

/// Whether `pc` is in the image of an assembly: code that was compiled ahead of time and stays.
pub(crate) fn is_image(pc: u64) -> bool {
    let images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let after = images.partition_point(|(start, _)| *start <= pc);
    after > 0 && images.get(after - 1).is_some_and(|(_, end)| pc < *end)
}

/// The file that `pc` was loaded from.
pub(crate) fn path_of(pc: u64) -> Option<String> {
    lock_known().iter().find(|library| library.mapped.contains(pc)).map(|library| library.mapped.path.clone())
}

/// A native function, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NativeName {
    /// The library's file.
    pub(crate) path: String,
    /// The exported function.
    pub(crate) function: Option<String>,
    /// There is no more to be known once its file was read.
    pub(crate) is_final: bool,
}

/// What `pc` is called, if a library is there. A lock that nobody holds for long.
pub(crate) fn native_name(pc: u64) -> Option<NativeName> {
    let known = lock_known();
    let Library { mapped, exports } = known.iter().find(|library| library.mapped.contains(pc))?;
    let offset = u32::try_from(pc.checked_sub(mapped.base)?).ok();
    let function = exports.and_then(|exports| exports.at(offset?)).map(str::to_owned);
    Some(NativeName { path: mapped.path.clone(), function, is_final: exports.is_some() })
}

fn lock_known() -> MutexGuard<'static, Vec<Library>> {
    lock(&KNOWN)
}

fn lock(known: &'static Mutex<Vec<Library>>) -> MutexGuard<'static, Vec<Library>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a reading of the mappings found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Libraries came or went.
    pub(crate) libraries: bool,
    /// Other memory may be executed than before.
    pub(crate) code: bool,
}

/// Reads what is mapped now. About a millisecond.
pub(crate) fn refresh() -> Changes {
    static CODE: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return Changes::default() };
    let maps = mappings::parse(&maps);
    if let Some(stack) = maps.iter().find(|map| map.path == "[stack]") {
        MAIN_STACK_END.store(stack.end, Ordering::Relaxed);
    }
    let mut changes = Changes::default();
    let code = mappings::merged(maps.iter().filter(|map| map.is_executable));
    let mut before = CODE.lock().unwrap_or_else(PoisonError::into_inner);
    if *before != code {
        EXECUTABLE.replace(&code);
        *before = code;
        changes.code = true;
    }
    let now = mappings::libraries(&maps);
    *IMAGES.lock().unwrap_or_else(PoisonError::into_inner) = mappings::images(&maps, &now);
    changes.libraries = settle(&mut lock_known(), &MODULES, &USED, now);
    let assemblies = mappings::assemblies(&maps);
    ASSEMBLY_CODE.replace(&assemblies.iter().map(|mapped| (mapped.start, mapped.end)).collect::<Vec<_>>());
    settle(&mut lock(&KNOWN_ASSEMBLIES), &ASSEMBLIES, &ASSEMBLIES_USED, assemblies);
    changes
}

/// Gives places to libraries that came, and takes those back of libraries that went. Whether there were any.
fn settle(known: &mut Vec<Library>, places: &[Place], used: &AtomicUsize, now: Vec<Mapped>) -> bool {
    let mut changed = false;
    for (library, place) in known.iter_mut().zip(places) {
        if !library.is_gone() && !now.contains(&library.mapped) {
            place.give_back();
            *library = Library::default();
            changed = true;
        }
    }
    for mapped in now {
        if known.iter().any(|library| library.mapped == mapped) {
            continue;
        }
        let free = known.iter().position(Library::is_gone).unwrap_or(known.len());
        let Some(place) = places.get(free) else { continue };
        place.take(mapped.base, mapped.start..mapped.end, stays(&mapped.path));
        let library = Library { mapped, exports: None };
        match known.get_mut(free) {
            Some(known) => *known = library,
            None => known.push(library),
        }
        used.store(known.len(), Ordering::Release);
        changed = true;
    }
    changed
}

/// Whether a library is never closed: of the runtime's own, and what those are linked with.
fn stays(path: &str) -> bool {
    const STAY: [&str; 13] = [
        "[vdso]",
        "ld-linux-",
        "libSystem.",
        "libc.so",
        "libclrgc",
        "libclrjit.",
        "libcoreclr.",
        "libdl.so",
        "libgcc_s.",
        "libm.so",
        "libpthread.so",
        "libspanprof.",
        "libstdc++.",
    ];
    let name = path.rsplit('/').next().unwrap_or(path);
    STAY.iter().any(|begin| name.starts_with(begin))
}

/// Reads the files of libraries and assemblies that were not read yet. Tens of milliseconds for a whole process, once.
pub(crate) fn read_files() {
    read_files_of(&KNOWN, &MODULES);
    read_files_of(&KNOWN_ASSEMBLIES, &ASSEMBLIES);
}

fn read_files_of(libraries: &'static Mutex<Vec<Library>>, places: &[Place]) {
    let known = lock(libraries).clone();
    for (place, (library, slot)) in known.iter().zip(places).enumerate() {
        if library.is_gone() || library.exports.is_some() {
            continue;
        }
        let Contents { tables, exports } = files::contents_of(&library.mapped);
        // Unless the place became another's meanwhile.
        if let Some(now) = lock(libraries).get_mut(place)
            && now.mapped == library.mapped
        {
            now.exports = Some(exports);
            slot.show(tables);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::stack::eh_frame::{Cfa, Row};
    use crate::stack::loader;
    use crate::stack::modules::{is_executable, main_stack_end, module_of};

    #[test]
    fn a_library_that_comes_and_goes_elsewhere_each_time_needs_one_place() {
        let places = [const { Place::unused() }; 2];
        let (mut known, used) = (Vec::new(), AtomicUsize::new(0));
        let at = |start| Mapped { path: format!("/lib{start}.so"), base: start, start, end: start + 8 };
        for round in 1..100 {
            let (stays, comes) = (at(8), at(16 * round));
            assert!(settle(&mut known, &places, &used, vec![stays.clone(), comes.clone()]));
            assert_eq!([&known[0].mapped, &known[1].mapped], [&stays, &comes]);
            let starts = places.each_ref().map(|place| place.start.load(Ordering::Relaxed));
            assert_eq!((starts, used.load(Ordering::Relaxed)), ([8, 16 * round], 2));
            assert!(settle(&mut known, &places, &used, vec![stays.clone()]));
            assert!(!settle(&mut known, &places, &used, vec![stays]));
            assert_eq!(places[1].start.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn our_own_code_is_found_with_its_rules() {
        refresh();
        read_files();
        let here = our_own_code_is_found_with_its_rules as fn() as usize as u64;
        assert!(is_executable(here) && !is_executable([7_u8].as_ptr() as u64));
        let row = module_of(here).map(|module| module.row(here)).unwrap();
        assert_eq!((row.cfa, row.offset), (Cfa::Rsp, 8), "a function's first instruction");
        assert!(main_stack_end() > 0);
        assert!(path_of(here).unwrap().contains("spanprof"));
    }

    #[test]
    fn ld_so_says_of_a_library_in_memory_what_its_file_says() {
        loader::prepare();
        if !loader::answers() {
            return;
        }
        refresh();
        read_files();
        let rule = |row: Row| (row.cfa, row.offset, row.saved_rbp);
        let start = libc::getppid as *const () as u64;
        for pc in (start..start + 50_000).step_by(3) {
            // SAFETY: the C library stays.
            let (row, name) = unsafe { loader::row_at(pc) }.unwrap();
            assert_eq!(rule(row), rule(module_of(pc).unwrap().row(pc)), "at {:#x}", pc - start);
            // SAFETY: as above.
            assert!(unsafe { CStr::from_ptr(name) }.to_str().unwrap().ends_with("/libc.so.6"));
        }
        let local = 0_u64;
        // SAFETY: no library is there.
        assert_eq!(unsafe { loader::row_at((&raw const local) as u64) }, None);
    }
}
