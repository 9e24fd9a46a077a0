//! What a module says of itself in memory: where it is, and which relocations ld.so did for it.

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::{mem, ptr, slice};

use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info};

/// An entry of a module's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// A relocation: what ld.so writes where.
#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_HASH: i64 = 4;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_BIND_NOW: i64 = 24;
const DT_FLAGS: i64 = 30;
const DT_FLAGS_1: i64 = 0x6fff_fffb;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_VERNEED: i64 = 0x6fff_fffe;
const DT_VERNEEDNUM: i64 = 0x6fff_ffff;
const DF_BIND_NOW: usize = 8;
const DF_1_NOW: usize = 1;
const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
pub(super) const R_X86_64_JUMP_SLOT: u32 = 7;

/// A word of a module in which ld.so puts where something of another module is.
pub(super) struct Slot<'a> {
    pub(super) address: usize,
    /// `R_X86_64_JUMP_SLOT`, or one that ld.so writes at once.
    pub(super) kind: u32,
    /// The symbol's number, and its name.
    pub(super) symbol: usize,
    pub(super) name: &'a CStr,
}

/// What a module says of itself.
pub(super) struct Module {
    pub(super) base: usize,
    pub(super) range: Range<usize>,
    /// Read-only once it is relocated.
    pub(super) read_only: Range<usize>,
    tables: [(*const Relocation, usize); 2],
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    pub(super) binds_now: bool,
    /// Its hash tables of names, null where it has none of that kind.
    gnu_hash: *const u32,
    hash: *const u32,
    /// By symbol the number of its version, null where it names none; and which numbers stand for which versions of others'.
    versions: *const u16,
    needs: *const Need,
    need_count: usize,
}

/// `Elf64_Verneed`: what is needed of one library. Distances are in bytes, from here to the first version and to the next library.
#[repr(C)]
struct Need {
    version: u16,
    count: u16,
    file: u32,
    first: u32,
    next: u32,
}

/// `Elf64_Vernaux`: one version of these, with its number and name.
#[repr(C)]
struct Version {
    hash: u32,
    flags: u16,
    number: u16,
    name: u32,
    next: u32,
}

/// What stands before the number of a version that is not the symbol's newest, and numbers up to which it is none.
const HIDDEN: u16 = 0x8000;
const NO_VERSION: u16 = 1;

/// A name, and what tables of names find it by.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) text: &'static CStr,
    gnu_hash: u32,
    hash: u32,
}

impl Name {
    pub(super) fn new(text: &'static CStr) -> Self {
        let mut hashes = (5_381_u32, 0_u32);
        for byte in text.to_bytes() {
            hashes.0 = hashes.0.wrapping_mul(33).wrapping_add(u32::from(*byte));
            hashes.1 = (hashes.1 << 4).wrapping_add(u32::from(*byte));
            let high = hashes.1 & 0xf000_0000;
            hashes.1 = (hashes.1 ^ (high >> 24)) & !high;
        }
        Self { text, gnu_hash: hashes.0, hash: hashes.1 }
    }
}

/// Words of a module's notes that are looked at.
const MOST_NOTES: usize = 256;

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
            gnu_hash: ptr::null(),
            hash: ptr::null(),
            versions: ptr::null(),
            needs: ptr::null(),
            need_count: 0,
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
                DT_GNU_HASH => module.gnu_hash = ptr::with_exposed_provenance(address),
                DT_HASH => module.hash = ptr::with_exposed_provenance(address),
                DT_VERSYM => module.versions = ptr::with_exposed_provenance(address),
                DT_VERNEED => module.needs = ptr::with_exposed_provenance(address),
                DT_VERNEEDNUM => module.need_count = value,
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

    /// The module whose file is loaded from its header on; none at 0.
    ///
    /// # Safety
    /// One is, there, or it is 0.
    pub(super) unsafe fn at(base: usize) -> Option<Self> {
        // SAFETY: the caller's promise.
        let header = unsafe { ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(base).as_ref() }?;
        if header.e_ident[..4] != *b"\x7fELF" {
            return None;
        }
        let headers: *const Elf64_Phdr = ptr::with_exposed_provenance(base + word(header.e_phoff));
        // SAFETY: as its header says, which is loaded with them.
        let loaded = unsafe { slice::from_raw_parts(headers, usize::from(header.e_phnum)) };
        // An executable that may be at one place alone names that.
        let named = loaded
            .iter()
            .filter(|part| part.p_type == libc::PT_LOAD)
            .map(|part| part.p_vaddr & !(part.p_align.max(1) - 1))
            .min()?;
        // SAFETY: plain bits.
        let mut info: dl_phdr_info = unsafe { mem::zeroed() };
        info.dlpi_addr = (base as u64).wrapping_sub(named);
        info.dlpi_phdr = headers;
        info.dlpi_phnum = header.e_phnum;
        // SAFETY: as its header says.
        unsafe { Self::read(&info) }
    }

    /// A number by which a module is known again, from what its file says of its parts and its tables: another file has another one,
    /// but by chance. `module` is what was [read](Self::read).
    ///
    /// # Safety
    /// `info` is that of a loaded module.
    pub(super) unsafe fn print(info: &dl_phdr_info, module: Option<&Self>) -> u64 {
        let mut print = 0_u64;
        let mut add = |word: u64| print = (print.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        // SAFETY: there are so many.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        for header in headers {
            for word in [u64::from(header.p_type), header.p_offset, header.p_vaddr, header.p_filesz, header.p_memsz] {
                add(word);
            }
            // Where it is, its build id is among them.
            let is_loaded = |part: &&Elf64_Phdr| {
                part.p_type == libc::PT_LOAD
                    && part.p_flags & libc::PF_R != 0
                    && part.p_vaddr <= header.p_vaddr
                    && header.p_vaddr.wrapping_add(header.p_filesz) <= part.p_vaddr.wrapping_add(part.p_filesz)
            };
            if header.p_type == libc::PT_NOTE && header.p_vaddr % 4 == 0 && headers.iter().any(|part| is_loaded(&part))
            {
                let notes: *const u32 = ptr::with_exposed_provenance(word(info.dlpi_addr.wrapping_add(header.p_vaddr)));
                let count = word(header.p_filesz / 4).min(MOST_NOTES);
                // SAFETY: in a part that is loaded and can be read; aligned, as modules are by pages.
                let words = unsafe { slice::from_raw_parts(notes, count) };
                words.iter().for_each(|word| add(u64::from(*word)));
            }
        }
        if let Some(module) = module {
            let [first, second] = module.tables;
            let tables =
                [first.0.addr(), first.1, second.0.addr(), second.1, module.symbols.addr(), module.strings.addr()];
            tables.into_iter().for_each(|address| add(address as u64));
        }
        print
    }

    /// The slots by which it finds what it has not itself.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        let tables = self.tables.into_iter().filter(|(table, _)| !table.is_null());
        // SAFETY: the module says that a table has so many.
        tables.flat_map(|(table, count)| unsafe { slice::from_raw_parts(table, count) }).filter_map(|relocation| {
            let kind = (relocation.info & 0xffff_ffff) as u32;
            let is_slot = matches!(kind, R_X86_64_JUMP_SLOT | R_X86_64_GLOB_DAT)
                || (kind == R_X86_64_64 && relocation.addend == 0);
            if !is_slot {
                return None;
            }
            let number = word(relocation.info >> 32);
            // SAFETY: relocations name symbols of the module's table.
            let symbol = unsafe { self.symbols.wrapping_add(number).read() };
            // SAFETY: symbols name strings of the module's table.
            let name = || unsafe { CStr::from_ptr(self.strings.wrapping_add(symbol.st_name as usize)) };
            (symbol.st_shndx == 0).then(|| Slot {
                address: self.base + relocation.offset,
                kind,
                symbol: number,
                name: name(),
            })
        })
    }

    /// Whether the module itself has a function of this name for others to call.
    pub(super) fn defines(&self, name: &Name) -> bool {
        self.find(name).is_some()
    }

    /// What the module itself has of this name.
    pub(super) fn find(&self, name: &Name) -> Option<Elf64_Sym> {
        self.find_where(name, |_, _| true)
    }

    /// Where what the module itself has of this name is, in the version that who names none is linked with.
    pub(super) fn newest(&self, name: &Name) -> Option<usize> {
        let is_newest = |number: usize, _: &Elf64_Sym| {
            // SAFETY: the table has a number for each symbol.
            self.versions.is_null() || unsafe { self.versions.wrapping_add(number).read() } & HIDDEN == 0
        };
        self.find_where(name, is_newest).map(|symbol| self.base + word(symbol.st_value))
    }

    /// Whether the module itself has something of this name elsewhere than there, in another version.
    pub(super) fn has_other(&self, name: &Name, there: usize) -> bool {
        self.find_where(name, |_, symbol| self.base + word(symbol.st_value) != there).is_some()
    }

    /// What the module itself has of this name, of which this is so, which is told a symbol's number as well.
    fn find_where(&self, name: &Name, is_so: impl Fn(usize, &Elf64_Sym) -> bool) -> Option<Elf64_Sym> {
        if !self.gnu_hash.is_null() {
            self.find_by_gnu_hash(name, is_so)
        } else if !self.hash.is_null() {
            self.find_by_hash(name, is_so)
        } else {
            None
        }
    }

    /// nbuckets, first symbol, words of the filter, shift; the filter; buckets; a hash for each symbol, its last bit set where a chain ends.
    fn find_by_gnu_hash(&self, name: &Name, is_so: impl Fn(usize, &Elf64_Sym) -> bool) -> Option<Elf64_Sym> {
        // SAFETY: the module says that such a table is there; numbers in it are within it.
        let at = |index: usize| unsafe { self.gnu_hash.wrapping_add(index).read() };
        let (buckets, first, words) = (at(0) as usize, at(1) as usize, at(2) as usize);
        if buckets == 0 {
            return None;
        }
        let filter_at = 4 + 2 * ((name.gnu_hash as usize / 64) & words.wrapping_sub(1));
        let filter = u64::from(at(filter_at)) | (u64::from(at(filter_at + 1)) << 32);
        let bits = (1_u64 << (name.gnu_hash % 64)) | (1 << ((name.gnu_hash >> at(3)) % 64));
        if filter & bits != bits {
            return None;
        }
        let chains = 4 + 2 * words + buckets;
        let mut symbol = at(4 + 2 * words + name.gnu_hash as usize % buckets) as usize;
        if symbol < first {
            return None;
        }
        loop {
            let hash = at(chains + symbol - first);
            if hash | 1 == name.gnu_hash | 1
                && let Some(found) = self.definition(symbol, name)
                && is_so(symbol, &found)
            {
                return Some(found);
            }
            if hash & 1 != 0 {
                return None;
            }
            symbol += 1;
        }
    }

    /// nbuckets, nchains; buckets; for each symbol the next one of its chain.
    fn find_by_hash(&self, name: &Name, is_so: impl Fn(usize, &Elf64_Sym) -> bool) -> Option<Elf64_Sym> {
        // SAFETY: as above.
        let at = |index: usize| unsafe { self.hash.wrapping_add(index).read() } as usize;
        let (buckets, chains) = (at(0), at(1));
        let mut symbol = if buckets == 0 { 0 } else { at(2 + name.hash as usize % buckets) };
        while symbol != 0 && symbol < chains {
            if let Some(found) = self.definition(symbol, name)
                && is_so(symbol, &found)
            {
                return Some(found);
            }
            symbol = at(2 + buckets + symbol);
        }
        None
    }

    /// Whether the module asks for this version of one of its symbols. One that names none asks for the `oldest`.
    pub(super) fn asks_for(&self, symbol: usize, oldest: &CStr) -> bool {
        if self.versions.is_null() {
            return true;
        }
        // SAFETY: the table has a number for each symbol.
        let number = unsafe { self.versions.wrapping_add(symbol).read() } & !HIDDEN;
        if number <= NO_VERSION {
            return true;
        }
        let mut need = self.needs;
        for _ in 0..self.need_count {
            // SAFETY: the module says that it has so many.
            let Need { count, first, next, .. } = unsafe { need.read() };
            let mut version = need.wrapping_byte_add(first as usize).cast::<Version>();
            for _ in 0..count {
                // SAFETY: and that each has so many versions.
                let Version { number: own, name, next, .. } = unsafe { version.read() };
                if own & !HIDDEN == number {
                    // SAFETY: versions name strings of the module's table.
                    return unsafe { CStr::from_ptr(self.strings.wrapping_add(name as usize)) } == oldest;
                }
                version = version.wrapping_byte_add(next as usize);
            }
            need = need.wrapping_byte_add(next as usize);
        }
        false
    }

    fn definition(&self, symbol: usize, name: &Name) -> Option<Elf64_Sym> {
        // SAFETY: tables of names hold numbers of symbols.
        let symbol = unsafe { self.symbols.wrapping_add(symbol).read() };
        // SAFETY: symbols name strings of the module's table.
        let is_it = symbol.st_shndx != 0
            && unsafe { CStr::from_ptr(self.strings.wrapping_add(symbol.st_name as usize)) } == name.text;
        is_it.then_some(symbol)
    }
}

/// An address or a number of the tables of a module, which are of the process's own word size.
pub(super) fn word(value: u64) -> usize {
    usize::try_from(value).unwrap_or(0)
}
