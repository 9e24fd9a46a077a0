//! What a module says of itself in memory: where it is, and which relocations ld.so did for it.

use std::ffi::c_char;
use std::ops::Range;
use std::{ptr, slice};

use libc::{Elf64_Sym, dl_phdr_info};

/// An entry of a module's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// A relocation: what ld.so writes where.
#[repr(C)]
pub(super) struct Relocation {
    pub(super) offset: usize,
    pub(super) info: u64,
    pub(super) addend: i64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_BIND_NOW: i64 = 24;
const DT_FLAGS: i64 = 30;
const DT_FLAGS_1: i64 = 0x6fff_fffb;
const DF_BIND_NOW: usize = 8;
const DF_1_NOW: usize = 1;
pub(super) const R_X86_64_64: u32 = 1;
pub(super) const R_X86_64_GLOB_DAT: u32 = 6;
pub(super) const R_X86_64_JUMP_SLOT: u32 = 7;

/// What a module says of itself.
pub(super) struct Module {
    pub(super) base: usize,
    pub(super) range: Range<usize>,
    /// Read-only once it is relocated.
    pub(super) read_only: Range<usize>,
    pub(super) tables: [(*const Relocation, usize); 2],
    pub(super) symbols: *const Elf64_Sym,
    pub(super) strings: *const c_char,
    pub(super) binds_now: bool,
}

impl Module {
    /// # Safety
    /// `info` is that of a loaded module.
    pub(super) unsafe fn read(info: &dl_phdr_info) -> Option<Self> {
        let base = word(info.dlpi_addr);
        let (mut first, mut last, mut read_only, mut dynamic) = (usize::MAX, 0, 0..0, ptr::null::<Dynamic>());
        // SAFETY: there are so many.
        for header in unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) } {
            let start = base.wrapping_add(word(header.p_vaddr));
            let end = start.wrapping_add(word(header.p_memsz));
            match header.p_type {
                libc::PT_LOAD => (first, last) = (first.min(start), last.max(end)),
                libc::PT_DYNAMIC => dynamic = ptr::with_exposed_provenance(start),
                libc::PT_GNU_RELRO => read_only = start..end,
                _ => {}
            }
        }
        if dynamic.is_null() {
            return None;
        }
        let mut module = Self {
            base,
            range: first..last,
            read_only,
            tables: [(ptr::null(), 0); 2],
            symbols: ptr::null(),
            strings: ptr::null(),
            binds_now: false,
        };
        loop {
            // SAFETY: the section ends with DT_NULL.
            let Dynamic { tag, value } = unsafe { dynamic.read() };
            // glibc has made these addresses absolute.
            let address = if value < base { value.wrapping_add(base) } else { value };
            match tag {
                DT_NULL => break,
                DT_JMPREL => module.tables[0].0 = ptr::with_exposed_provenance(address),
                DT_PLTRELSZ => module.tables[0].1 = value / size_of::<Relocation>(),
                DT_RELA => module.tables[1].0 = ptr::with_exposed_provenance(address),
                DT_RELASZ => module.tables[1].1 = value / size_of::<Relocation>(),
                DT_SYMTAB => module.symbols = ptr::with_exposed_provenance(address),
                DT_STRTAB => module.strings = ptr::with_exposed_provenance(address),
                DT_BIND_NOW => module.binds_now = true,
                DT_FLAGS => module.binds_now |= value & DF_BIND_NOW != 0,
                DT_FLAGS_1 => module.binds_now |= value & DF_1_NOW != 0,
                _ => {}
            }
            // SAFETY: as above.
            dynamic = unsafe { dynamic.add(1) };
        }
        (!module.symbols.is_null() && !module.strings.is_null()).then_some(module)
    }
}

/// An address or a number of the tables of a module, which are of the process's own word size.
pub(super) fn word(value: u64) -> usize {
    usize::try_from(value).unwrap_or(0)
}
