//! Sections of ELF files. What a file says is not trusted: no more is read than its reader gives.

use crate::stack::call_frames::number;

/// Reads so many bytes from an offset on, or `None`.
pub(crate) type Part<'a> = &'a dyn Fn(usize, usize) -> Option<Vec<u8>>;

/// An ELF file of 64 bits, of which parts are read: what is looked at is a tenth of a large library.
pub(crate) struct Elf<'a> {
    part: Part<'a>,
    /// The table of sections, and their names.
    sections: Vec<u8>,
    names: Vec<u8>,
}

/// Where a section is in the file, and in memory relative to where the file is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) address: u64,
    at: usize,
    size: usize,
}

const SECTION_BYTES: usize = 64;

impl<'a> Elf<'a> {
    /// `None`: it is no such file.
    pub(crate) fn read(part: Part<'a>) -> Option<Self> {
        let header = part(0, 64)?;
        if header.get(..4)? != b"\x7fELF" {
            return None;
        }
        let (at, count) = (usize::try_from(number(&header, 0x28, 8)?).ok()?, number(&header, 0x3c, 2)?);
        let sections = part(at, usize::try_from(count).ok()? * SECTION_BYTES)?;
        let mut elf = Self { part, sections, names: Vec::new() };
        let names = elf.numbered(usize::try_from(number(&header, 0x3e, 2)?).ok()?)?;
        elf.names = elf.bytes(&names)?;
        Some(elf)
    }

    /// The first section of this name.
    pub(crate) fn section(&self, name: &[u8]) -> Option<Section> {
        (0..self.sections.len() / SECTION_BYTES).find_map(|index| {
            let at = usize::try_from(number(&self.sections, index * SECTION_BYTES, 4)?).ok()?;
            let rest = self.names.get(at..)?.strip_prefix(name)?;
            if rest.first() == Some(&0) { self.numbered(index) } else { None }
        })
    }

    /// What is in a section.
    pub(crate) fn bytes(&self, section: &Section) -> Option<Vec<u8>> {
        (self.part)(section.at, section.size)
    }

    fn numbered(&self, index: usize) -> Option<Section> {
        let word = |offset: usize| number(&self.sections, index.checked_mul(SECTION_BYTES)? + offset, 8);
        Some(Section {
            address: word(16)?,
            at: usize::try_from(word(24)?).ok()?,
            size: usize::try_from(word(32)?).ok()?,
        })
    }
}

/// A part of what is in memory.
pub(crate) fn part_of(data: &[u8], at: usize, size: usize) -> Option<Vec<u8>> {
    data.get(at..at.checked_add(size)?).map(<[u8]>::to_vec)
}

#[cfg(test)]
pub(crate) mod testing {
    /// The bytes of the C library that this process has.
    pub(crate) fn libc() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path =
            maps.lines().find_map(|line| Some(&line[line.find('/')?..]).filter(|path| path.contains("/libc.so")));
        std::fs::read(path.unwrap()).unwrap()
    }
}
