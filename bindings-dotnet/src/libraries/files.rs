//! The files of native libraries: their `.eh_frame` rows for the walk, and the functions that they export; and those of assemblies, which have
//! rows alone.
//!
//! What was read of a file stays for ever, some hundred kilobytes for the largest, and serves each time that the file is
//! loaded.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, PoisonError};

use crate::libraries::assemblies;
use crate::libraries::call_frames;
use crate::libraries::elf::{self, Elf};
use crate::libraries::exports::Exports;
use crate::libraries::hijack;
use crate::libraries::mappings::Mapped;
use crate::memory;
use crate::stack::modules::Tables;

/// Files that are read; those beyond have neither rows nor names of functions.
const MAX_FILES: usize = 1_024;

/// What was read of a file. Never freed: a handler may be at its tables.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) tables: Tables,
    pub(crate) exports: Exports,
}

/// Which file this is: device, number, size, time of its last change.
type Identity = [u64; 4];

/// What is in the file of a library, read once.
pub(crate) fn contents_of(module: &Mapped) -> &'static Contents {
    static NOTHING: Contents = Contents { tables: Tables { rows: Vec::new(), trap: None }, exports: Exports::new() };
    static READ: Mutex<BTreeMap<Identity, &'static Contents>> = Mutex::new(BTreeMap::new());
    let read = |contents: Option<Contents>| -> &'static Contents { Box::leak(Box::new(contents.unwrap_or_default())) };
    if module.path == "[vdso]" {
        let mut copy = vec![0; usize::try_from(module.end - module.start).unwrap_or(0)];
        let data = memory::read(module.start, &mut copy);
        // Once a process: it stays where it is.
        return read(Contents::read(&|at, size| elf::part_of(data, at, size), false));
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
    let is_runtime = module.path.rsplit('/').next().is_some_and(|name| name.starts_with("libcoreclr."));
    let part = |at, size| {
        // What a header says may be nonsense; no more is allocated than the file has.
        let is_there = (at as u64).checked_add(size as u64)? <= about.len();
        let mut bytes = vec![0; if is_there { size } else { return None }];
        file.read_exact_at(&mut bytes, at as u64).ok()?;
        Some(bytes)
    };
    let contents = read(Contents::read(&part, is_runtime));
    files.insert(identity, contents);
    contents
}

impl Contents {
    /// `is_runtime`: it is CoreCLR's.
    fn read(part: elf::Part<'_>, is_runtime: bool) -> Option<Self> {
        let Some(elf) = Elf::read(part) else {
            let rows = assemblies::rows_of_assembly(part)?;
            return Some(Self { tables: Tables { rows, trap: None }, exports: Exports::new() });
        };
        let mut rows = call_frames::rows_of_elf(&elf).unwrap_or_default();
        let trap = is_runtime.then(|| hijack::correct_elf(&mut rows, &elf)).flatten();
        Some(Self { tables: Tables { rows, trap }, exports: Exports::of_elf(&elf).unwrap_or_default() })
    }
}
