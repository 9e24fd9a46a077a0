//! The whole `.eh_frame` of a file: the rows of [`eh_frame`](crate::stack::eh_frame), in which the walk searches.

use crate::libraries::elf::Elf;
use crate::stack::call_frames;
use crate::stack::eh_frame::{Cfa, Row};

/// The rows of an ELF file's `.eh_frame`, sorted by address. `None`: it has none.
pub(crate) fn rows_of_elf(elf: &Elf<'_>) -> Option<Vec<Row>> {
    let section = elf.section(b".eh_frame")?;
    Some(rows(&elf.bytes(&section)?, section.address))
}

/// The rows of a section's bytes, which will be at `address`.
pub(crate) fn rows(data: &[u8], address: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut at = 0;
    while let Some(next) = call_frames::entry(data, address, at, &mut |row| rows.push(row)) {
        at = next;
    }
    // A function's first row goes before the end of the one in front of it.
    rows.sort_by_key(|row| (row.pc, row.cfa != Cfa::Nothing));
    let mut sorted: Vec<Row> = Vec::with_capacity(rows.len());
    for row in rows {
        match sorted.last_mut() {
            Some(last) if last.pc == row.pc => *last = row,
            Some(last) if Row { pc: row.pc, ..*last } == row => {}
            _ => sorted.push(row),
        }
    }
    sorted.shrink_to_fit();
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::elf::{part_of, testing::libc};
    use crate::stack::eh_frame::find;

    fn rows_of(file: &[u8]) -> Option<Vec<Row>> {
        rows_of_elf(&Elf::read(&|at, size| part_of(file, at, size))?)
    }

    #[test]
    fn libc_has_a_rule_for_each_of_its_functions() {
        let rows = rows_of(&libc()).unwrap();
        assert!(rows.len() > 10_000, "{} rows", rows.len());
        assert!(rows.is_sorted_by(|one, other| one.pc < other.pc));
        let usable = rows.iter().filter(|row| matches!(row.cfa, Cfa::Rsp | Cfa::Rbp)).count();
        let unknown = rows.iter().filter(|row| row.cfa == Cfa::Unknown).count();
        assert!(unknown * 100 < usable, "{unknown} of {usable} rows are not known");
    }

    #[test]
    fn a_function_starts_with_its_return_address_on_top_and_follows_its_pushes() {
        let rows = rows_of(&libc()).unwrap();
        let starts = rows.iter().zip(rows.iter().skip(1)).filter(|(one, _)| one.cfa == Cfa::Nothing);
        let entries: Vec<Row> = starts.map(|(_, next)| *next).collect();
        let plain = entries.iter().filter(|row| row.cfa == Cfa::Rsp && row.offset == 8 && row.saved_rbp == 0).count();
        assert!(plain * 10 > entries.len() * 9, "{plain} of {}", entries.len());
        assert!(rows.iter().any(|row| row.cfa == Cfa::Rsp && row.offset == 16 && row.saved_rbp == -16), "push rbp");
        assert!(rows.iter().any(|row| row.cfa == Cfa::Rbp && row.offset == 16), "mov rbp, rsp");
    }

    /// push rbp; mov rbp, rsp; …; pop rbp; ret, as gcc describes it.
    #[test]
    fn the_rows_of_a_small_function() {
        let mut section =
            vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
        let instructions = [0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x02, 40, 0x0c, 7, 8, 0, 0];
        section.extend(28_u32.to_le_bytes());
        section.extend(28_u32.to_le_bytes());
        section.extend((0x500_i32 - (0x1000 + 32)).to_le_bytes());
        section.extend(46_u32.to_le_bytes());
        section.push(0);
        section.extend(instructions);
        section.extend([0; 4]);
        let row = |pc, cfa, offset, saved_rbp| Row { pc, offset, saved_rbp, cfa };
        let expected = [
            row(0x500, Cfa::Rsp, 8, 0),
            row(0x501, Cfa::Rsp, 16, -16),
            row(0x504, Cfa::Rbp, 16, -16),
            row(0x504 + 40, Cfa::Rsp, 8, -16),
            row(0x500 + 46, Cfa::Nothing, 0, 0),
        ];
        assert_eq!(rows(&section, 0x1000), expected);
        assert_eq!(find(&expected, 0x503), Some(expected[1]));
        assert_eq!(find(&expected, 0x4ff), None);
    }

    #[test]
    fn an_expression_that_is_not_known_is_no_rule() {
        let rule = |expression: &[u8]| {
            let mut section =
                vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
            let length = u8::try_from(expression.len()).unwrap();
            section.extend((15 + u32::from(length)).to_le_bytes());
            section.extend(28_u32.to_le_bytes());
            section.extend((0x500_i32 - (0x1000 + 32)).to_le_bytes());
            section.extend([46, 0, 0, 0, 0, 0x0f, length]);
            section.extend(expression);
            let row = rows(&section, 0x1000)[0];
            (row.cfa, row.offset)
        };
        // rsp + 8 + ((rip & 15) >= 11) * 8, and *(rsp + 152) + 8.
        assert_eq!(rule(&[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22]), (Cfa::Rsp, 8));
        assert_eq!(rule(&[0x77, 0x98, 1, 0x06, 0x23, 8]), (Cfa::Stored, 152));
        // *(rbp - 8), *(rsp + 16) + 64, *(rsp + 8 + r9 * 8) + 8.
        for other in [&[0x76, 0x78, 0x06][..], &[0x77, 16, 0x06, 0x23, 64], &[0x77, 8, 0x79, 0, 0x38, 0x1e, 0x22], &[]]
        {
            assert_eq!(rule(other).0, Cfa::Unknown);
        }
    }

    #[test]
    fn what_is_cut_off_or_garbled_is_read_to_no_harm() {
        let file = libc();
        for length in (0..file.len()).step_by(file.len() / 40 + 1) {
            let _ = rows_of(&file[..length]);
        }
        let mut section = vec![0_u8; 4096];
        let mut random = 1_u64;
        for _ in 0..200 {
            for byte in &mut section {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = random.to_be_bytes()[0];
            }
            section[..8].copy_from_slice(&[20, 0, 0, 0, 0, 0, 0, 0]);
            section[24..28].copy_from_slice(&[100, 0, 0, 0]);
            section[28..32].copy_from_slice(&[28, 0, 0, 0]);
            let _ = rows(&section, 0x1000);
        }
    }
}
