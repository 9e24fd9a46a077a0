//! The functions that a library exports, by address.
//!
//! Read from its file, not asked of ld.so: that waits while any thread of the program loads a library, whose constructors
//! may take as long as they like.

use crate::libraries::elf::Elf;
use crate::stack::call_frames::number;

/// Functions of one library that are kept.
const MAX_FUNCTIONS: usize = 1 << 16;
/// An `Elf64_Sym`.
const SYMBOL_BYTES: usize = 24;

/// Sorted by address, one an address.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    functions: Vec<Function>,
    names: String,
}

/// Start is relative to where the library is loaded; of the name there are its place and its length.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u32,
    size: u32,
    name: (u32, u32),
}

impl Exports {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { functions: Vec::new(), names: String::new() }
    }

    /// Those of a file; what cannot be read is left out.
    pub(crate) fn of_elf(elf: &Elf<'_>) -> Option<Self> {
        let symbols = elf.bytes(&elf.section(b".dynsym")?)?;
        let texts = elf.bytes(&elf.section(b".dynstr")?)?;
        let symbols = symbols.as_chunks::<SYMBOL_BYTES>().0.iter().filter_map(|symbol| function(symbol, &texts));
        let mut found: Vec<(u32, u32, &str)> = symbols.take(MAX_FUNCTIONS).collect();
        // Of several names for one address the one that is meant for programs: without underscores, then the shortest.
        found.sort_unstable_by_key(|(start, _, name)| (*start, name.starts_with('_'), name.len(), *name));
        found.dedup_by_key(|(start, ..)| *start);
        let mut kept = Self::default();
        for (start, size, name) in found {
            let range = (u32::try_from(kept.names.len()).ok()?, u32::try_from(name.len()).ok()?);
            kept.names.push_str(name);
            kept.functions.push(Function { start, size, name: range });
        }
        kept.functions.shrink_to_fit();
        kept.names.shrink_to_fit();
        Some(kept)
    }

    /// The exported function that `pc` is in. A stripped library's own functions lie between those and have no name.
    pub(crate) fn at(&self, pc: u32) -> Option<&str> {
        let after = self.functions.partition_point(|function| function.start <= pc);
        let Function { start, size, name: (at, length) } = *self.functions.get(after.checked_sub(1)?)?;
        if pc - start >= size {
            return None;
        }
        self.names.get(at as usize..(at + length) as usize)
    }
}

/// Start, size and name of a symbol that is a function of the library's own.
fn function<'a>(symbol: &[u8], texts: &'a [u8]) -> Option<(u32, u32, &'a str)> {
    const FUNCTION: u64 = 2;
    const CHOSEN_AT_START: u64 = 10;
    let kind = number(symbol, 4, 1)? & 0xf;
    let section = number(symbol, 6, 2)?;
    if section == 0 || !matches!(kind, FUNCTION | CHOSEN_AT_START) {
        return None;
    }
    let text = texts.get(usize::try_from(number(symbol, 0, 4)?).ok()?..)?;
    let name = str::from_utf8(&text[..text.iter().position(|byte| *byte == 0)?]).ok()?;
    Some((u32::try_from(number(symbol, 8, 8)?).ok()?, u32::try_from(number(symbol, 16, 8)?).ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::elf::{part_of, testing::libc};

    fn read(file: &[u8]) -> Option<Exports> {
        Exports::of_elf(&Elf::read(&|at, size| part_of(file, at, size))?)
    }

    #[test]
    fn a_function_has_its_name_from_its_first_byte_to_its_last() {
        let symbols = read(&libc()).unwrap();
        assert!(symbols.functions.len() > 1_000, "{}", symbols.functions.len());
        let getppid = symbols.functions.iter().find(|function| symbols.at(function.start) == Some("getppid")).unwrap();
        let (start, end) = (getppid.start, getppid.start + getppid.size);
        assert_eq!([start, end - 1].map(|pc| symbols.at(pc)), [Some("getppid"); 2]);
        assert_ne!(symbols.at(end), Some("getppid"));
        assert_eq!(symbols.at(0), None);
    }

    #[test]
    fn what_is_cut_off_or_garbled_is_read_to_no_harm() {
        let mut file = libc();
        for length in (0..file.len()).step_by(file.len() / 40 + 1) {
            let _ = read(&file[..length]);
        }
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(random >> 20).unwrap() % file.len();
            file[at] = random.to_be_bytes()[0];
        }
        let symbols = read(&file).unwrap_or_default();
        assert!((0..u32::MAX).step_by(4_096).filter_map(|pc| symbols.at(pc)).all(|name| name.len() < file.len()));
    }
}
