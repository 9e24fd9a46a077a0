//! The line of an instruction, from a code object's location table. Called off the handler, once for each place in
//! code that is seen.
//!
//! **PEP 657** (CPython 3.11 and later): a list of entries, each for one to eight instructions. The first byte has bit 7
//! set, a kind in bits 3–6 and the number of instructions less one in bits 0–2. Lines are told as differences to the
//! entry before:
//!
//! | kind | difference | further bytes |
//! |---|---|---|
//! | 0–9 | 0 | 1 (columns) |
//! | 10–12 | kind − 10 | 2 (columns) |
//! | 13 | signed varint | – |
//! | 14 | signed varint | three varints (end line, columns) |
//! | 15 | no line | – |
//!
//! Varints have six bits a byte, lowest first, bit 6 set on all but the last; a signed one keeps its sign in bit 0.
//!
//! **PEP 626** (CPython 3.10): pairs of bytes, how many bytes of code and the signed difference of the line, where −128
//! says that they have no line.

use crate::stack::layout::LineTable;

/// The line of instruction `index` (in code units) of a code object whose table is `table` and whose first line is
/// `first_line`; `None` for code without one and for tables that end too early.
pub(crate) fn line_of(lines: LineTable, table: &[u8], first_line: u32, index: u32) -> Option<u32> {
    match lines {
        LineTable::Pep626 => pep_626(table, first_line, index),
        LineTable::Pep657 => pep_657(table, first_line, index),
    }
}

fn pep_626(table: &[u8], first_line: u32, index: u32) -> Option<u32> {
    let mut line = i64::from(first_line);
    let mut end = 0_u64;
    for &[bytes, difference] in table.as_chunks().0 {
        end += u64::from(bytes);
        let difference = difference.cast_signed();
        let has_line = difference != i8::MIN;
        if has_line {
            line = line.wrapping_add(i64::from(difference));
        }
        if 2 * u64::from(index) < end {
            return if has_line { u32::try_from(line).ok() } else { None };
        }
    }
    None
}

fn pep_657(table: &[u8], first_line: u32, index: u32) -> Option<u32> {
    let mut reader = Reader { bytes: table };
    let mut line = i64::from(first_line);
    let mut end = 0_u64;
    loop {
        let head = reader.byte()?;
        let kind = (head >> 3) & 15;
        let mut has_line = true;
        match kind {
            15 => has_line = false,
            14 => {
                line = line.wrapping_add(reader.signed_varint()?);
                for _ in 0..3 {
                    reader.varint()?;
                }
            }
            13 => line = line.wrapping_add(reader.signed_varint()?),
            10..=12 => {
                line = line.wrapping_add(i64::from(kind - 10));
                reader.byte()?;
                reader.byte()?;
            }
            _ => {
                reader.byte()?;
            }
        }
        end += u64::from(head & 7) + 1;
        if u64::from(index) < end {
            return if has_line { u32::try_from(line).ok() } else { None };
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..60).step_by(6) {
            let byte = self.byte()?;
            value |= u64::from(byte & 63) << shift;
            if byte & 64 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed_varint(&mut self) -> Option<i64> {
        let value = self.varint()?;
        let size = i64::try_from(value >> 1).ok()?;
        Some(if value & 1 == 1 { -size } else { size })
    }
}

#[cfg(test)]
#[expect(clippy::unusual_byte_groupings, reason = "grouped as the table's fields are")]
mod tests {
    use super::*;

    /// One entry of each kind: the line that instructions 0, 1, … have.
    #[test]
    fn pep_657_has_five_kinds_of_entries() {
        let table = [
            0b1_0000_000,
            0x12, // short form, line 100
            0b1_1010_001,
            1,
            2, // two instructions on the same line
            0b1_1100_000,
            1,
            2, // + 2
            0b1_1101_000,
            0b0000_0111, // − 3
            0b1_1110_000,
            0b0100_0000,
            0b0000_0010,
            0,
            0,
            0,            // long form, 128 / 2 = + 64
            0b1_1111_111, // eight without a line
            0b1_0000_000,
            0x12,
        ];
        let lines: Vec<_> = (0..16).map(|index| line_of(LineTable::Pep657, &table, 100, index)).collect();
        let mut expected = vec![Some(100), Some(100), Some(100), Some(102), Some(99), Some(163)];
        expected.extend([None; 8]);
        expected.extend([Some(163), None]);
        assert_eq!(lines, expected);
    }

    #[test]
    fn pep_626_has_pairs() {
        let minus_two = (-2_i8).cast_unsigned();
        let table = [4, 1, 2, 0x80, 0, 100, 2, minus_two];
        let lines: Vec<_> = (0..5).map(|index| line_of(LineTable::Pep626, &table, 10, index)).collect();
        assert_eq!(lines, [Some(11), Some(11), None, Some(109), None]);
        assert_eq!(line_of(LineTable::Pep626, &table, 10, u32::MAX), None, "before the first");
    }

    /// Whatever the bytes, it ends and does not panic.
    #[test]
    fn garbage_is_survived() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..20_000 {
            let mut table = [0_u8; 24];
            for byte in &mut table {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = state.to_be_bytes()[0];
            }
            for index in [0, 7, 1_000, u32::MAX] {
                for lines in [LineTable::Pep626, LineTable::Pep657] {
                    line_of(lines, &table, u32::MAX, index);
                }
            }
        }
    }
}
