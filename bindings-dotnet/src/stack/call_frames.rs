//! The instructions of an `.eh_frame`: from which address on in a function the caller's frame is where.
//!
//! The bytes are not trusted: what cannot be read leaves a hole, and no offset is followed out of them. Read as a whole for the table of a
//! library's file ([`libraries`](crate::libraries)), and by the handler for the one function that a frame is in
//! ([`loader`](super::loader)), so nothing is allocated.

use crate::stack::eh_frame::{Cfa, Row};

const RBP: u64 = 6;
const RSP: u64 = 7;
/// Rules that a function remembers at a time; compilers need two.
const MAX_KEPT: usize = 8;

/// Takes the rows of a function, in order.
type Each<'a> = &'a mut dyn FnMut(Row);

/// Reads the entry at `at` of a section's bytes, which are at `address`, and passes on its rows; returns where the next one is.
pub(crate) fn entry(data: &[u8], address: u64, at: usize, rows: Each<'_>) -> Option<usize> {
    let mut bytes = Bytes { data, at, end: data.len() };
    let length = usize::try_from(bytes.number(4)?).ok()?;
    if length == 0 || length == 0xffff_ffff {
        return None;
    }
    let start = bytes.at;
    let next = start.checked_add(length).filter(|next| *next <= data.len())?;
    let back = usize::try_from(bytes.number(4)?).ok()?;
    if back != 0
        && let Some(common) = start.checked_sub(back).and_then(|at| Common::read(data, address, at))
    {
        bytes.end = next;
        // A function that cannot be read is a hole in the table, no more.
        let _ = function(bytes, &common, address, rows);
    }
    Some(next)
}

/// What the functions of one CIE have in common.
struct Common {
    code_factor: u64,
    data_factor: i64,
    pointers: u8,
    has_length: bool,
    is_signal_frame: bool,
    /// Where its instructions are.
    first: usize,
    end: usize,
}

impl Common {
    fn read(data: &[u8], address: u64, at: usize) -> Option<Self> {
        let mut bytes = Bytes { data, at, end: data.len() };
        let length = usize::try_from(bytes.number(4)?).ok()?;
        let end = bytes.at.checked_add(length).filter(|end| *end <= data.len())?;
        bytes.end = end;
        bytes.number(4)?;
        let version = bytes.number(1)?;
        let text = bytes.at;
        while bytes.number(1)? != 0 {}
        let augmentation = data.get(text..bytes.at - 1)?;
        let (code_factor, data_factor) = (bytes.unsigned()?, bytes.signed()?);
        if version == 1 {
            bytes.number(1)?;
        } else {
            bytes.unsigned()?;
        }
        let has_length = augmentation.first() == Some(&b'z');
        let mut pointers = 0;
        if has_length {
            let length = usize::try_from(bytes.unsigned()?).ok()?;
            let first = bytes.at.checked_add(length)?;
            for letter in &augmentation[1..] {
                match letter {
                    b'R' => pointers = u8::try_from(bytes.number(1)?).ok()?,
                    b'L' => drop(bytes.number(1)?),
                    b'P' => {
                        let encoding = u8::try_from(bytes.number(1)?).ok()?;
                        bytes.pointer(encoding, address)?;
                    }
                    _ => {}
                }
            }
            bytes.at = first;
        }
        let is_signal_frame = augmentation.contains(&b'S');
        Some(Self { code_factor, data_factor, pointers, has_length, is_signal_frame, first: bytes.at, end })
    }
}

/// The rule at one point of a function.
#[derive(Clone, Copy)]
struct Rule {
    cfa: Cfa,
    offset: i64,
    saved_rbp: i64,
}

fn function(mut bytes: Bytes<'_>, common: &Common, address: u64, rows: Each<'_>) -> Option<()> {
    let start = bytes.pointer(common.pointers, address)?;
    let size = bytes.pointer(common.pointers & 0x0f, address)?;
    if common.has_length {
        let length = usize::try_from(bytes.unsigned()?).ok()?;
        bytes.at = bytes.at.checked_add(length)?;
    }
    let rule = Rule { cfa: Cfa::Unknown, offset: 0, saved_rbp: 0 };
    let mut machine = Machine { rule, first: rule, kept: [rule; MAX_KEPT], kept_count: 0, pc: start, common, address };
    machine.run(Bytes { data: bytes.data, at: common.first, end: common.end }, &mut |_| {})?;
    machine.first = machine.rule;
    machine.pc = start;
    let read = machine.run(bytes, rows);
    if read.is_none() {
        machine.rule.cfa = Cfa::Unknown;
    }
    machine.row(rows);
    machine.pc = start.checked_add(size)?;
    machine.rule = Rule { cfa: Cfa::Nothing, offset: 0, saved_rbp: 0 };
    machine.row(rows);
    Some(())
}

/// Executes call frame instructions.
struct Machine<'a> {
    rule: Rule,
    /// After the CIE's instructions: what "restore" restores.
    first: Rule,
    kept: [Rule; MAX_KEPT],
    kept_count: usize,
    pc: u64,
    common: &'a Common,
    address: u64,
}

impl Machine<'_> {
    fn row(&self, rows: Each<'_>) {
        let (Ok(pc), Ok(offset)) = (u32::try_from(self.pc), i32::try_from(self.rule.offset)) else { return };
        let (cfa, saved_rbp) = match i16::try_from(self.rule.saved_rbp) {
            Ok(saved) => (self.rule.cfa, saved),
            Err(_) => (Cfa::Unknown, 0),
        };
        rows(Row { pc, offset, saved_rbp, cfa });
    }

    fn advance(&mut self, by: u64, rows: Each<'_>) {
        if by != 0 {
            self.row(rows);
            self.pc = self.pc.wrapping_add(by);
        }
    }

    fn save(&mut self, register: u64, offset: i64) {
        if register == RBP {
            self.rule.saved_rbp = offset.wrapping_mul(self.common.data_factor);
        }
    }

    fn cfa_register(&mut self, register: u64) {
        self.rule.cfa = match register {
            RSP => Cfa::Rsp,
            RBP => Cfa::Rbp,
            _ => Cfa::Unknown,
        };
    }

    /// `None` where an instruction is unknown or cut off.
    fn run(&mut self, mut bytes: Bytes<'_>, rows: Each<'_>) -> Option<()> {
        let (code, data) = (self.common.code_factor, self.common.data_factor);
        while bytes.at < bytes.end {
            let instruction = bytes.number(1)?;
            let low = instruction & 0x3f;
            match instruction >> 6 {
                1 => self.advance(low.wrapping_mul(code), rows),
                2 => {
                    let offset = bytes.unsigned()?.cast_signed();
                    self.save(low, offset);
                }
                3 if low == RBP => self.rule.saved_rbp = self.first.saved_rbp,
                3 => {}
                _ => match instruction {
                    0x00 => {}
                    0x01 => {
                        let to = bytes.pointer(self.common.pointers, self.address)?;
                        self.advance(to.wrapping_sub(self.pc), rows);
                    }
                    0x02..=0x04 => {
                        let by = bytes.number(1 << (instruction - 2))?;
                        self.advance(by.wrapping_mul(code), rows);
                    }
                    0x05 => {
                        let (register, offset) = (bytes.unsigned()?, bytes.unsigned()?);
                        self.save(register, offset.cast_signed());
                    }
                    0x06 => {
                        if bytes.unsigned()? == RBP {
                            self.rule.saved_rbp = self.first.saved_rbp;
                        }
                    }
                    0x07 | 0x08 | 0x2e => drop(bytes.unsigned()?),
                    0x09 => {
                        bytes.unsigned()?;
                        bytes.unsigned()?;
                    }
                    0x0a => {
                        *self.kept.get_mut(self.kept_count)? = self.rule;
                        self.kept_count += 1;
                    }
                    0x0b => {
                        self.kept_count = self.kept_count.checked_sub(1)?;
                        self.rule = self.kept[self.kept_count];
                    }
                    0x0c => {
                        let (register, offset) = (bytes.unsigned()?, bytes.unsigned()?);
                        self.cfa_register(register);
                        self.rule.offset = offset.cast_signed();
                    }
                    0x0d => {
                        let register = bytes.unsigned()?;
                        self.cfa_register(register);
                    }
                    0x0e => self.rule.offset = bytes.unsigned()?.cast_signed(),
                    0x0f => {
                        let (cfa, offset) = expression(bytes.block()?).unwrap_or((Cfa::Unknown, 0));
                        // A signal frame's is another matter.
                        let cfa = if self.common.is_signal_frame { Cfa::Signal } else { cfa };
                        self.rule = Rule { cfa, offset, ..self.rule };
                    }
                    0x10 | 0x16 => {
                        let register = bytes.unsigned()?;
                        bytes.block()?;
                        if register == RBP && !self.common.is_signal_frame {
                            self.rule.cfa = Cfa::Unknown;
                        }
                    }
                    0x11 => {
                        let (register, offset) = (bytes.unsigned()?, bytes.signed()?);
                        self.save(register, offset);
                    }
                    0x12 => {
                        let (register, offset) = (bytes.unsigned()?, bytes.signed()?);
                        self.cfa_register(register);
                        self.rule.offset = offset.wrapping_mul(data);
                    }
                    0x13 => self.rule.offset = bytes.signed()?.wrapping_mul(data),
                    _ => return None,
                },
            }
        }
        Some(())
    }
}

/// The two expressions for a CFA that are usual.
fn expression(block: Bytes<'_>) -> Option<(Cfa, i64)> {
    const OFFSET_TO_RSP: u64 = 0x77;
    const LOAD_ADD_8: [u64; 3] = [0x06, 0x23, 8];
    let mut bytes = block;
    if bytes.number(1)? != OFFSET_TO_RSP {
        return None;
    }
    let offset = bytes.signed()?;
    let mut rest = bytes;
    if LOAD_ADD_8.iter().all(|expected| rest.number(1) == Some(*expected)) && rest.at == rest.end {
        return Some((Cfa::Stored, offset));
    }
    // The linker's for PLT entries, which asks where rip is: nothing was pushed yet, or one word for a few instructions.
    (offset == 8 && bytes.number(2)? == 0x0080).then_some((Cfa::Rsp, 8))
}

/// Reads numbers from bytes, up to `end`.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
}

impl Bytes<'_> {
    fn number(&mut self, bytes: usize) -> Option<u64> {
        let found = number(self.data.get(..self.end)?, self.at, bytes)?;
        self.at += bytes;
        Some(found)
    }

    fn unsigned(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0_u64, 0_u32);
        loop {
            let byte = self.number(1)?;
            number |= (byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift = shift.saturating_add(7);
            if byte < 0x80 {
                return Some(number);
            }
        }
    }

    fn signed(&mut self) -> Option<i64> {
        let start = self.at;
        let number = self.unsigned()?;
        let bits = u32::try_from((self.at - start) * 7).ok()?.min(64);
        Some((number << (64 - bits)).cast_signed() >> (64 - bits))
    }

    fn block(&mut self) -> Option<Self> {
        let length = usize::try_from(self.unsigned()?).ok()?;
        let start = self.at;
        self.at = start.checked_add(length).filter(|at| *at <= self.end)?;
        Some(Self { at: start, end: self.at, ..*self })
    }

    /// A pointer as DW_EH_PE says, absolute or relative to its own place; the section is at `address`.
    fn pointer(&mut self, encoding: u8, address: u64) -> Option<u64> {
        if encoding == 0xff {
            return Some(0);
        }
        let here = address.wrapping_add(self.at as u64);
        let number = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.number(8)?,
            0x01 => self.unsigned()?,
            0x02 => self.number(2)?,
            0x03 => self.number(4)?,
            0x09 => self.signed()?.cast_unsigned(),
            0x0a => sign_extended(self.number(2)?, 16),
            0x0b => sign_extended(self.number(4)?, 32),
            _ => return None,
        };
        match encoding & 0x70 {
            0x00 => Some(number),
            0x10 => Some(here.wrapping_add(number)),
            _ => None,
        }
    }
}

/// A little-endian number of up to eight bytes.
pub(crate) fn number(data: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let found = data.get(at..at.checked_add(bytes)?)?;
    Some(found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn sign_extended(number: u64, bits: u32) -> u64 {
    ((number << (64 - bits)).cast_signed() >> (64 - bits)).cast_unsigned()
}
