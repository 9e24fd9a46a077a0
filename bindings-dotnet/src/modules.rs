//! The native libraries of the process, with their `.eh_frame` rows and functions, and what memory is executable.
//!
//! The handler searches; the profiler's thread looks at /proc/self/maps when it starts and from then on each two seconds,
//! and reads what was loaded meanwhile. What was read of a file stays for ever, some hundred kilobytes for the largest, and
//! serves each time that the file is loaded; the place of a library that is unloaded is given to another one.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::eh_frame::{self, Cfa, Row};
use crate::elf::{self, Elf};
use crate::range_set::RangeSet;
use crate::symbols::Symbols;

/// Libraries that the handler knows; frames in further ones are found by frame pointers alone.
const MAX_MODULES: usize = 256;
/// Files that are read; those beyond have neither rows nor names of functions.
const MAX_FILES: usize = 1_024;

/// A library, as the handler sees it. `start` 0: none.
#[derive(Debug)]
pub(crate) struct Module {
    start: AtomicU64,
    end: AtomicU64,
    base: AtomicU64,
    /// Null while the file is not read.
    tables: AtomicPtr<Tables>,
}

/// What was read of a file. Never freed: a handler may be at it.
#[derive(Debug, Default)]
struct Tables {
    rows: Vec<Row>,
    symbols: Symbols,
}

static MODULES: [Module; MAX_MODULES] = [const { Module::unused() }; MAX_MODULES];
static USED: AtomicUsize = AtomicUsize::new(0);
/// Memory that may be executed, neighbours merged.
static EXECUTABLE: RangeSet<8_192> = RangeSet::new();
/// The end of the main thread's stack.
static MAIN_STACK_END: AtomicU64 = AtomicU64::new(0);

/// Code that was mapped from files that are no libraries, sorted.
static IMAGES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
/// What is known of the libraries, for names. Index = place in MODULES.
static KNOWN: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapped {
    path: String,
    base: u64,
    start: u64,
    end: u64,
}

impl Module {
    const fn unused() -> Self {
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

    /// Gives the place to a library.
    fn take(&self, module: &Mapped) {
        self.tables.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.base.store(module.base, Ordering::Relaxed);
        self.end.store(module.end, Ordering::Relaxed);
        // Release: a handler that sees the place sees all of it.
        self.start.store(module.start, Ordering::Release);
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

/// Whether `pc` is in the image of an assembly: code that was compiled ahead of time and stays.
pub(crate) fn is_image(pc: u64) -> bool {
    let images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let after = images.partition_point(|(start, _)| *start <= pc);
    after > 0 && images.get(after - 1).is_some_and(|(_, end)| pc < *end)
}

/// Async-signal-safe.
#[inline]
pub(crate) fn main_stack_end() -> u64 {
    MAIN_STACK_END.load(Ordering::Relaxed)
}

/// The file that `pc` was loaded from.
pub(crate) fn path_of(pc: u64) -> Option<String> {
    Some(place_of(pc)?.1.path)
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
    let (place, Mapped { path, .. }) = place_of(pc)?;
    let module = MODULES.get(place)?;
    let tables = module.tables();
    let function = tables.and_then(|tables| tables.symbols.at(module.offset(pc)?)).map(str::to_owned);
    Some(NativeName { path, function, is_final: tables.is_some() })
}

fn place_of(pc: u64) -> Option<(usize, Mapped)> {
    let known = lock_known();
    let (place, module) = known.iter().enumerate().find(|(_, module)| pc >= module.start && pc < module.end)?;
    Some((place, module.clone()))
}

fn lock_known() -> MutexGuard<'static, Vec<Mapped>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a look at the mappings found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Libraries came or went.
    pub(crate) libraries: bool,
    /// Other memory may be executed than before.
    pub(crate) code: bool,
}

/// Looks what is mapped now. About a millisecond.
pub(crate) fn refresh() -> Changes {
    static CODE: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return Changes::default() };
    let maps = parse(&maps);
    if let Some(stack) = maps.iter().find(|map| map.path == "[stack]") {
        MAIN_STACK_END.store(stack.end, Ordering::Relaxed);
    }
    let mut changes = Changes::default();
    let code = merged(maps.iter().filter(|map| map.is_executable));
    let mut before = CODE.lock().unwrap_or_else(PoisonError::into_inner);
    if *before != code {
        EXECUTABLE.replace(&code);
        *before = code;
        changes.code = true;
    }
    let now = libraries(&maps);
    *IMAGES.lock().unwrap_or_else(PoisonError::into_inner) = images(&maps, &now);
    changes.libraries = settle(&mut lock_known(), &MODULES, &USED, now);
    changes
}

/// Gives places to libraries that came, and takes those back of libraries that went. Whether there were any.
fn settle(known: &mut Vec<Mapped>, modules: &[Module], used: &AtomicUsize, now: Vec<Mapped>) -> bool {
    let mut changed = false;
    for (module, place) in known.iter_mut().zip(modules) {
        if module.start != 0 && !now.contains(module) {
            place.start.store(0, Ordering::Release);
            (module.start, module.end) = (0, 0);
            changed = true;
        }
    }
    for module in now {
        if known.contains(&module) {
            continue;
        }
        let free = known.iter().position(|other| other.start == 0).unwrap_or(known.len());
        let Some(place) = modules.get(free) else { continue };
        place.take(&module);
        match known.get_mut(free) {
            Some(known) => *known = module,
            None => known.push(module),
        }
        used.store(known.len(), Ordering::Release);
        changed = true;
    }
    changed
}

/// Reads the files of libraries that were not read yet. Tens of milliseconds for a whole process, once.
pub(crate) fn read_files() {
    let known = lock_known().clone();
    for (place, (module, slot)) in known.iter().zip(&MODULES).enumerate() {
        if module.start == 0 || slot.tables().is_some() {
            continue;
        }
        let tables = tables_of(module);
        // Unless the place became another's meanwhile.
        if lock_known().get(place) == Some(module) {
            // Release: who sees the pointer sees what it points to.
            slot.tables.store(std::ptr::from_ref(tables).cast_mut(), Ordering::Release);
        }
    }
}

/// Which file this is: device, number, size, time of its last change.
type Identity = [u64; 4];

fn tables_of(module: &Mapped) -> &'static Tables {
    static NOTHING: Tables = Tables { rows: Vec::new(), symbols: Symbols::new() };
    static READ: Mutex<BTreeMap<Identity, &'static Tables>> = Mutex::new(BTreeMap::new());
    let read = |tables: Option<Tables>| -> &'static Tables { Box::leak(Box::new(tables.unwrap_or_default())) };
    if module.path == "[vdso]" {
        let mut copy = vec![0; usize::try_from(module.end - module.start).unwrap_or(0)];
        let data = crate::memory::read(module.start, &mut copy);
        // Once a process: it stays where it is.
        return read(Tables::read(&|at, size| elf::part_of(data, at, size)));
    }
    let Ok(file) = File::open(&module.path) else { return &NOTHING };
    let Ok(about) = file.metadata() else { return &NOTHING };
    let identity = [about.dev(), about.ino(), about.len(), about.mtime().cast_unsigned()];
    let mut files = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = files.get(&identity) {
        return known;
    }
    if files.len() >= MAX_FILES {
        return &NOTHING;
    }
    let tables = read(Tables::read(&|at, size| {
        // What a header says may be nonsense; no more is allocated than the file has.
        let is_there = (at as u64).checked_add(size as u64)? <= about.len();
        let mut bytes = vec![0; if is_there { size } else { return None }];
        file.read_exact_at(&mut bytes, at as u64).ok()?;
        Some(bytes)
    }));
    files.insert(identity, tables);
    tables
}

impl Tables {
    fn read(part: elf::Part<'_>) -> Option<Self> {
        let elf = Elf::read(part)?;
        Some(Self {
            rows: eh_frame::rows_of_elf(&elf).unwrap_or_default(),
            symbols: Symbols::of_elf(&elf).unwrap_or_default(),
        })
    }
}

/// A line of /proc/self/maps.
#[derive(Debug)]
struct Map<'a> {
    start: u64,
    end: u64,
    offset: u64,
    is_executable: bool,
    path: &'a str,
}

fn parse(maps: &str) -> Vec<Map<'_>> {
    let line = |line: &'_ str| -> Option<(u64, u64, bool, u64)> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        Some((
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
            access.contains('x'),
            u64::from_str_radix(words.next()?, 16).ok()?,
        ))
    };
    let parsed = maps.lines().filter_map(|text| {
        let (start, end, is_executable, offset) = line(text)?;
        let path = text.find(['/', '[']).map_or("", |at| &text[at..]);
        Some(Map { start, end, offset, is_executable, path })
    });
    parsed.collect()
}

fn merged<'a>(maps: impl Iterator<Item = &'a Map<'a>>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for map in maps {
        match merged.last_mut() {
            Some(last) if last.1 == map.start => last.1 = map.end,
            _ => merged.push((map.start, map.end)),
        }
    }
    merged
}

/// Executable parts of ELF files. Managed assemblies are mapped too, some of them executable, and are none; in a program
/// of a single file they are parts of that, mapped elsewhere.
fn libraries(maps: &[Map<'_>]) -> Vec<Mapped> {
    /// The segments of one ELF file lie as in the file, but for some pages.
    const SHIFT: u64 = 1 << 20;
    let mut found: HashMap<&str, Mapped> = HashMap::new();
    for map in maps.iter().filter(|map| map.is_executable && is_library(map.path)) {
        let first = maps.iter().find(|other| other.path == map.path).map_or(map.start, |first| first.start);
        if map.start.wrapping_sub(map.offset).wrapping_sub(first) > SHIFT {
            continue;
        }
        let new = Mapped { path: map.path.to_owned(), base: first, start: map.start, end: map.end };
        let known = found.entry(map.path).or_insert(new);
        known.end = known.end.max(map.end);
    }
    let mut libraries: Vec<Mapped> = found.into_values().collect();
    libraries.sort_by_key(|module| module.start);
    libraries
}

fn is_library(path: &str) -> bool {
    path == "[vdso]" || is_file(path) && !path.ends_with(".dll")
}

fn is_file(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("/memfd:")
}

fn images(maps: &[Map<'_>], libraries: &[Mapped]) -> Vec<(u64, u64)> {
    let in_library = |map: &Map<'_>| libraries.iter().any(|module| map.start >= module.start && map.start < module.end);
    merged(maps.iter().filter(|map| map.is_executable && is_file(map.path) && !in_library(map)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0000-55e0000 r--p 00000000 fe:00 1 /usr/bin/dotnet
55e0000-55f0000 r-xp 0000f000 fe:00 1 /usr/bin/dotnet
6600000-6610000 r-xp 00100000 fe:00 1 /usr/bin/dotnet
7000000-7100000 r-xp 00000000 00:01 9 /memfd:doublemapper (deleted)
7100000-7200000 r-xp 00000000 fe:00 2 /opt/System.Private.CoreLib.dll
8000000-8100000 rw-p 00000000 00:00 0 [stack]
9000000-9010000 r-xp 00000000 00:00 0 [vdso]
broken line
";

    #[test]
    fn libraries_are_elf_files_and_the_vdso() {
        let maps = parse(MAPS);
        assert_eq!(maps.len(), 7);
        let libraries = libraries(&maps);
        let found: Vec<_> = libraries.iter().map(|module| (module.path.as_str(), module.base, module.start)).collect();
        assert_eq!(found, [("/usr/bin/dotnet", 0x55d_0000, 0x55e_0000), ("[vdso]", 0x900_0000, 0x900_0000)]);
        let code = merged(maps.iter().filter(|map| map.is_executable));
        let expected =
            [(0x55e_0000, 0x55f_0000), (0x660_0000, 0x661_0000), (0x700_0000, 0x720_0000), (0x900_0000, 0x901_0000)];
        assert_eq!(code, expected);
        let images = images(&maps, &libraries);
        assert_eq!(images, [(0x660_0000, 0x661_0000), (0x710_0000, 0x720_0000)], "also those within a single file");
    }

    #[test]
    fn a_library_that_comes_and_goes_elsewhere_each_time_needs_one_place() {
        let modules = [const { Module::unused() }; 2];
        let (mut known, used) = (Vec::new(), AtomicUsize::new(0));
        let at = |start| Mapped { path: format!("/lib{start}.so"), base: start, start, end: start + 8 };
        for round in 1..100 {
            let (stays, comes) = (at(8), at(16 * round));
            assert!(settle(&mut known, &modules, &used, vec![stays.clone(), comes.clone()]));
            assert_eq!(known, [stays.clone(), comes]);
            let starts = modules.each_ref().map(|module| module.start.load(Ordering::Relaxed));
            assert_eq!((starts, used.load(Ordering::Relaxed)), ([8, 16 * round], 2));
            assert!(settle(&mut known, &modules, &used, vec![stays.clone()]));
            assert!(!settle(&mut known, &modules, &used, vec![stays]));
            assert_eq!(modules[1].start.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn our_own_code_is_found_with_its_rules() {
        refresh();
        read_files();
        let here = our_own_code_is_found_with_its_rules as fn() as usize as u64;
        assert!(is_executable(here) && !is_executable(MAPS.as_ptr() as u64));
        let row = module_of(here).and_then(|module| module.row(here)).unwrap();
        assert_eq!((row.cfa, row.offset), (eh_frame::Cfa::Rsp, 8), "a function's first instruction");
        assert!(main_stack_end() > 0);
        assert!(path_of(here).unwrap().contains("spanprof"));
    }
}
