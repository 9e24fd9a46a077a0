//! Assemblies that were compiled ahead of time: which of their methods keep no frame, by the table that Windows calls the exception directory
//! (`IMAGE_RUNTIME_FUNCTION_ENTRY`, `UNWIND_INFO`), which they have on each system.
//!
//! What a file says is not trusted: no more is read than its reader gives.

use crate::libraries::elf::Part;
use crate::stack::call_frames::number;
use crate::stack::eh_frame::{Cfa, Row};

/// Start, end and description of a function, relative to the image.
const FUNCTION_BYTES: usize = 12;
const SECTION_BYTES: usize = 40;
/// The bytes of a description with the most instructions, of two bytes each.
const MAX_DESCRIPTION: usize = 4 + 2 * 255;

/// Where each function's caller is while it calls another: so many bytes above rsp, or where rbp says. Sorted by address; functions that follow
/// one another and are alike have one row. `None`: it is no assembly with code.
pub(crate) fn rows_of_assembly(part: Part<'_>) -> Option<Vec<Row>> {
    let header = part(0, 64)?;
    if header.get(..2)? != b"MZ" {
        return None;
    }
    let at = size(number(&header, 0x3c, 4)?)?;
    let pe = part(at, 24)?;
    let (count, optional) = (size(number(&pe, 6, 2)?)?, size(number(&pe, 20, 2)?)?);
    let directories = part(at + 24, optional)?;
    let (exceptions, length) = (number(&directories, 112 + 24, 4)?, size(number(&directories, 112 + 28, 4)?)?);
    let sections = part(at + 24 + optional, count * SECTION_BYTES)?;
    // Where in the file something is, and how much there is of its section from there on.
    let place = |address: u64| {
        sections.as_chunks::<SECTION_BYTES>().0.iter().find_map(|section| {
            let within = address.checked_sub(number(section, 12, 4)?)?;
            let left = number(section, 16, 4)?.checked_sub(within).filter(|left| *left > 0)?;
            Some((size(number(section, 20, 4)? + within)?, size(left)?))
        })
    };
    let (at, left) = place(exceptions)?;
    let functions = part(at, length.min(left))?;
    let functions = functions.as_chunks::<FUNCTION_BYTES>().0;
    // The descriptions lie together.
    let described = |function: &[u8; FUNCTION_BYTES]| number(function, 8, 4);
    let first = functions.iter().filter_map(described).min()?;
    let last = functions.iter().filter_map(described).max()?;
    let (at, left) = place(first)?;
    let descriptions = part(at, left.min(size(last - first)? + MAX_DESCRIPTION))?;
    let mut rows: Vec<Row> = Vec::with_capacity(functions.len());
    // A call is in a function, so what is between them makes no difference.
    let mut add = |pc: u64, (cfa, offset)| {
        if let Ok(pc) = u32::try_from(pc)
            && rows.last().is_none_or(|last| (last.cfa, last.offset) != (cfa, offset))
        {
            rows.push(Row { pc, offset, saved_rbp: 0, cfa });
        }
    };
    for function in functions {
        let rule = described(function).and_then(|at| rule(descriptions.get(size(at - first)?..)?));
        add(number(function, 0, 4)?, rule.unwrap_or((Cfa::Unknown, 0)));
    }
    rows.shrink_to_fit();
    rows.is_sorted_by_key(|row| row.pc).then_some(rows)
}

/// What a description says. The compiler gives rbp to nothing but frames, so who saves it has one.
fn rule(description: &[u8]) -> Option<(Cfa, i32)> {
    const RBP: u8 = 5;
    const CONTINUES_ANOTHER: u8 = 4;
    let [flags, _, count, register, codes @ ..] = description else { return None };
    if (flags >> 3) & CONTINUES_ANOTHER != 0 {
        return None;
    }
    if register & 0xf != 0 {
        return Some((Cfa::Rbp, 0));
    }
    let codes = codes.as_chunks::<2>().0.get(..usize::from(*count))?;
    let word = |at: usize| Some(i32::from(u16::from_le_bytes(*codes.get(at)?)));
    let (mut at, mut bytes) = (0, 8);
    while let Some([_, code]) = codes.get(at) {
        let argument = code >> 4;
        at += match code & 0xf {
            // A register is pushed.
            0 if argument == RBP => return Some((Cfa::Rbp, 0)),
            0 => {
                bytes += 8;
                1
            }
            // Room is made.
            1 if argument == 0 => {
                bytes += word(at + 1)? * 8;
                2
            }
            1 => {
                bytes += word(at + 1)? | word(at + 2)? << 16;
                3
            }
            2 => {
                bytes += i32::from(argument) * 8 + 8;
                1
            }
            // A register is stored.
            4 | 8 => 2,
            5 | 9 => 3,
            _ => return None,
        };
    }
    Some((Cfa::Rsp, bytes))
}

fn size(number: u64) -> Option<usize> {
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_saves_rbp_has_a_frame_and_of_others_the_bytes_are_known() {
        // push rbp; push rbx; sub rsp, 0x18
        assert_eq!(rule(&[1, 6, 3, 0, 6, 0x22, 2, 0x30, 1, 0x50]), Some((Cfa::Rbp, 0)));
        // push rbx; sub rsp, 0x20; and one of 0x1000 bytes, and of a megabyte.
        assert_eq!(rule(&[1, 5, 2, 0, 5, 0x32, 1, 0x30]), Some((Cfa::Rsp, 0x30)));
        assert_eq!(rule(&[1, 8, 3, 0, 8, 0x01, 0, 2, 1, 0x30]), Some((Cfa::Rsp, 0x1010)));
        assert_eq!(rule(&[1, 8, 3, 0, 8, 0x11, 0, 0, 0x10, 0]), Some((Cfa::Rsp, 0x10_0008)));
        assert_eq!(rule(&[1, 0, 0, 0]), Some((Cfa::Rsp, 8)), "a leaf that pushes nothing");
        assert_eq!(rule(&[1, 0, 0, 5]), Some((Cfa::Rbp, 0)), "rbp is named as its frame");
        assert_eq!([rule(&[0x21, 0, 0, 0]), rule(&[1, 0, 9, 0, 1]), rule(&[])], [None; 3]);
    }

    #[test]
    fn what_is_no_assembly_has_no_rows() {
        let part = |bytes: &'static [u8]| move |at: usize, size: usize| Some(bytes.get(at..at + size)?.to_vec());
        assert_eq!(rows_of_assembly(&part(&[0; 64])), None);
        let mut short = [0; 64];
        short[..2].copy_from_slice(b"MZ");
        assert_eq!(rows_of_assembly(&part(Box::leak(Box::new(short)))), None);
    }
}
