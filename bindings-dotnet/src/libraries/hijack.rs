//! The function of CoreCLR's that a thread comes back to which is to stop for a collection (`OnHijackTripThread`), and its rows of
//! `.eh_frame`, which are wrong.
//!
//! It is returned to and not called, so what it pushes first is room for the return address that the runtime then writes there. Its
//! description counts that as if there had been one already: the caller's frame is 8 bytes below where it says.

use std::ops::Range;

use crate::libraries::elf::Elf;
use crate::stack::eh_frame::{self, Cfa, Row};

/// push rax, rbp, rbx, r15, r14, r13, r12.
const BEGIN: [u8; 11] = [0x50, 0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54];
/// Then push rcx (from .NET 10 on), and push rdx, rax; mov rdi, rsp.
const PUSH_RCX: u8 = 0x51;
const ARGUMENT: [u8; 5] = [0x52, 0x50, 0x48, 0x89, 0xe7];
/// pop rbx, rbp; ret.
const END: [u8; 3] = [0x5b, 0x5d, 0xc3];
/// What it has at most.
const MAX_BYTES: usize = 128;
const WORD: i32 = 8;

/// Where the function is in the bytes of a section. `None`: it is not there, or not alone.
fn find(code: &[u8]) -> Option<Range<usize>> {
    let mut found = code.windows(BEGIN.len()).enumerate().filter_map(|(at, window)| {
        let rest = window.eq(&BEGIN).then(|| &code[at + BEGIN.len()..])?;
        let rest = rest.strip_prefix(&[PUSH_RCX]).unwrap_or(rest);
        let whole = &code[at..code.len().min(at + MAX_BYTES)];
        let end = whole.windows(END.len()).position(|window| window == END)? + END.len();
        rest.starts_with(&ARGUMENT).then_some(at..at + end)
    });
    found.next().filter(|_| found.next().is_none())
}

/// Corrects the rows of the runtime's library, and returns where the function is. `None`: there is none that is known.
pub(crate) fn correct_elf(rows: &mut Vec<Row>, elf: &Elf<'_>) -> Option<u32> {
    let section = elf.section(b".text")?;
    correct(rows, &elf.bytes(&section)?, section.address)
}

/// Corrects the rows of a library of which this is the code, which will be at `address`. Returns where the function is, `None` where there
/// is none.
fn correct(rows: &mut Vec<Row>, code: &[u8], address: u64) -> Option<u32> {
    let found = find(code)?;
    let place = |at: usize| u32::try_from(address + at as u64).ok();
    let (start, end) = (place(found.start)?, place(found.end)?);
    let first = rows.partition_point(|row| row.pc < start);
    // At its first instruction, as in front of it: the same row may stand for both.
    let begin = eh_frame::find(rows, start).filter(|row| (row.cfa, row.offset) == (Cfa::Rsp, WORD))?;
    // Once it is described as it is there is nothing to correct.
    eh_frame::find(rows, start + 1).filter(|row| (row.cfa, row.offset) == (Cfa::Rsp, 2 * WORD))?;
    if rows.get(first).is_none_or(|row| row.pc != start) {
        rows.insert(first, Row { pc: start, ..begin });
    }
    for row in rows[first..].iter_mut().take_while(|row| row.pc < end) {
        row.offset -= WORD;
    }
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As .NET 8 and 10 have it, what it calls left out.
    fn function(version: u32) -> Vec<u8> {
        let mut code = BEGIN.to_vec();
        let (room, pops): (u8, &[u8]) = if version == 8 { (0x28, &[0x58, 0x5a]) } else { (0x20, &[0x58, 0x5a, 0x59]) };
        code.extend((version != 8).then_some(PUSH_RCX));
        code.extend(ARGUMENT);
        code.extend([0x48, 0x8d, 0x64, 0x24, 0u8.wrapping_sub(room), 0xe8, 0, 0, 0, 0, 0x48, 0x8d, 0x64, 0x24, room]);
        code.extend(pops);
        code.extend([0x41, 0x5c, 0x41, 0x5d, 0x41, 0x5e, 0x41, 0x5f]);
        code.extend(END);
        code
    }

    #[test]
    fn the_callers_frame_is_a_word_below_where_its_description_says() {
        for version in [8, 10] {
            let mut code = vec![0x5a, 0x58, 0xc3];
            code.extend(function(version));
            let end = u32::try_from(0x1000 + code.len()).unwrap();
            code.extend([0x50, 0x55, 0x53, 0xc3]);
            let row = |pc, offset| Row { pc, offset, saved_rbp: 0, cfa: Cfa::Rsp };
            // The last one in front of it holds at its begin, too.
            let mut rows =
                vec![row(0x1000, 24), row(0x1002, 8), row(0x1004, 16), row(0x1010, 120), row(end - 1, 16), row(end, 8)];
            assert_eq!(correct(&mut rows, &code, 0x1000), Some(0x1003));
            let expected = [
                row(0x1000, 24),
                row(0x1002, 8),
                row(0x1003, 0),
                row(0x1004, 8),
                row(0x1010, 112),
                row(end - 1, 8),
                row(end, 8),
            ];
            assert_eq!(rows, expected, "{version}");
        }
    }

    #[test]
    fn where_its_first_push_is_described_as_what_it_is_nothing_is_corrected() {
        let row = |pc, offset| Row { pc, offset, saved_rbp: 0, cfa: Cfa::Rsp };
        let mut rows = vec![row(0x1000, 8), row(0x1002, 16)];
        assert_eq!(correct(&mut rows, &function(10), 0x1000), None);
        assert_eq!(rows, [row(0x1000, 8), row(0x1002, 16)]);
    }

    #[test]
    fn where_it_is_not_or_not_alone_nothing_is_corrected() {
        let row = Row { pc: 0x1000, offset: 8, saved_rbp: 0, cfa: Cfa::Rsp };
        let one = function(8);
        for code in [Vec::new(), one[..20].to_vec(), one[1..].to_vec(), [&one[..], &one[..]].concat()] {
            let mut rows = vec![row];
            assert_eq!(correct(&mut rows, &code, 0x1000), None);
            assert_eq!(rows, [row]);
        }
    }
}
