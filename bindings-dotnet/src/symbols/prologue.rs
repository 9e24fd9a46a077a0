//! Where a managed method keeps its return address at an instruction, from the few shapes that CoreCLR's compiler gives
//! to the beginning and the end of a method on x86-64.
//!
//! Off the handler, on copies of code bytes.

/// What the beginning of a method says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prologue {
    /// Whether rbp is this method's frame once the prologue is done.
    pub(crate) has_frame: bool,
    /// A body that was entered in the middle of a loop, by on-stack replacement: its frame lies on top of another.
    pub(crate) is_osr: bool,
    /// Bytes of the prologue; where that has an instruction that is not known, up to and with its first byte.
    pub(crate) length: u32,
    /// After each of its instructions: the offset in the method, and the bytes between rsp and the return address.
    steps: Vec<(u32, u32)>,
}

/// Bytes of a method that are enough to decode its prologue.
pub(crate) const PROLOGUE_BYTES: usize = 64;
/// Bytes from an instruction on that are enough to decode an epilogue.
pub(crate) const EPILOGUE_BYTES: usize = 32;

impl Prologue {
    /// Decodes the code at a method's start.
    pub(crate) fn decode(code: &[u8]) -> Self {
        // mov rax, [rbp]: the frame of the body that was replaced stays rbp's.
        if code.starts_with(&[0x48, 0x8b, 0x45, 0x00]) {
            return Self { has_frame: true, is_osr: true, length: 0, steps: Vec::new() };
        }
        let (mut at, mut pushed, mut steps, mut has_frame, mut probed) = (0, 0_u32, Vec::new(), false, None);
        while !has_frame && let Some((length, bytes, frame)) = step(code.get(at..).unwrap_or_default(), &mut probed) {
            at += length;
            pushed = pushed.saturating_add(bytes);
            has_frame = frame;
            #[expect(clippy::cast_possible_truncation, reason = "within the 64 bytes that are looked at")]
            steps.push((at as u32, pushed));
        }
        // What is unknown comes between rbp's push and its new value: only methods with a frame push it first of all.
        let is_open = !has_frame && code.starts_with(&[0x55]);
        #[expect(clippy::cast_possible_truncation, reason = "as above")]
        let length = at as u32 + u32::from(is_open);
        Self { has_frame: has_frame || is_open, is_osr: false, length, steps }
    }

    /// Bytes between rsp and the return address at `offset` in the method, where rbp is not its frame: within the prologue,
    /// and in the whole of a method without a frame. `None`: rbp is its frame.
    pub(crate) fn to_return_address(&self, offset: u32) -> Option<u32> {
        if self.has_frame && offset >= self.length {
            return None;
        }
        Some(self.steps.iter().rev().find(|(after, _)| *after <= offset).map_or(0, |(_, pushed)| *pushed))
    }

    /// Bytes between rsp and the return address in a method without a frame, past its prologue.
    pub(crate) fn frameless_bytes(&self) -> Option<u32> {
        (!self.has_frame).then(|| self.steps.last().map_or(0, |(_, pushed)| *pushed))
    }
}

/// The prologue's instruction at the start of `code`: its length, what it pushes, and whether rbp is the frame after it.
/// `probed`: bytes of a large frame whose pages are touched, by a helper, before rsp moves over them.
fn step(code: &[u8], probed: &mut Option<u32>) -> Option<(usize, u32, bool)> {
    Some(match *code {
        // lea r11, [rsp - imm32]; call the helper; mov rsp, r11
        [0x4c, 0x8d, 0x9c, 0x24, a, b, c, d, ..] => {
            *probed = Some(u32::from_le_bytes([a, b, c, d]).wrapping_neg());
            (8, 0, false)
        }
        [0xe8, _, _, _, _, ..] if probed.is_some() => (5, 0, false),
        [0xff, 0x15, _, _, _, _, ..] if probed.is_some() => (6, 0, false),
        [0x49, 0x8b, 0xe3, ..] | [0x4c, 0x89, 0xdc, ..] => (3, probed.take()?, false),
        [0x50..=0x57, ..] => (1, 8, false),                            // push r
        [0x41, 0x50..=0x57, ..] => (2, 8, false),                      // push r8 to r15
        [0x48, 0x83, 0xec, bytes, ..] => (4, u32::from(bytes), false), // sub rsp, imm8
        [0x48, 0x81, 0xec, a, b, c, d, ..] => (7, u32::from_le_bytes([a, b, c, d]), false), // sub rsp, imm32
        [0x48, 0x8b, 0xec, ..] | [0x48, 0x89, 0xe5, ..] => (3, 0, true), // mov rbp, rsp
        [0x48, 0x8d, 0x6c, 0x24, _, ..] => (5, 0, true),               // lea rbp, [rsp + imm8]
        [0x48, 0x8d, 0xac, 0x24, _, _, _, _, ..] => (8, 0, true),      // lea rbp, [rsp + imm32]
        [0x48, 0x8d, 0x6d, _, ..] => (4, 0, true),                     // lea rbp, [rbp + imm8]: a funclet
        [0xc5, 0xf8, 0x77, ..] => (3, 0, false),                       // vzeroupper
        _ => return None,
    })
}

/// What is left of a method whose epilogue has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epilogue {
    /// Bytes between rsp and the return address.
    pub(crate) to_return_address: u32,
    /// The caller's rbp is still on the stack, so rbp is still this method's frame.
    pub(crate) pops_rbp: bool,
}

/// Says whether the code at `offset` of a method of `size` bytes is the rest of an epilogue: pops, then a return or a jump
/// out of the method.
pub(crate) fn epilogue(code: &[u8], offset: u32, size: u32) -> Option<Epilogue> {
    let (mut at, mut pops, mut pops_rbp) = (0_usize, 0_u32, false);
    loop {
        match *code.get(at..)? {
            [0x5c, ..] => break, // pop rsp
            [pop @ 0x58..=0x5f, ..] => {
                pops_rbp |= pop == 0x5d;
                at += 1;
            }
            [0x41, 0x58..=0x5f, ..] => at += 2,
            _ => break,
        }
        pops += 1;
    }
    let ends = match *code.get(at..)? {
        [0xc3, ..] => true,
        [0xe9, a, b, c, d, ..] => {
            let from = i64::from(offset) + 5 + i64::try_from(at).unwrap_or(0);
            let to = from + i64::from(i32::from_le_bytes([a, b, c, d]));
            !(0..i64::from(size)).contains(&to)
        }
        // jmp [rip + x], rex.W jmp [rip + x], rex.W jmp r: tail calls.
        [0xff, 0x25, ..] | [0x48, 0xff, 0x25, ..] | [0x48, 0xff, 0xe0..=0xe7, ..] => true,
        [0xff, 0xe0..=0xe7, ..] => at > 0,
        _ => false,
    };
    ends.then_some(Epilogue { to_return_address: 8 * pops, pops_rbp })
}

/// Offsets behind what may be a call instruction: the return addresses of a method's callees, and some that are none.
pub(crate) fn call_sites(code: &[u8]) -> impl Iterator<Item = u32> {
    let length = |rest: &[u8]| match *rest {
        [0xe8, _, _, _, _, ..] => Some(5),
        [0xff, 0x15, _, _, _, _, ..] => Some(6),          // call [rip + x]
        [0xff, 0xd0..=0xd7, ..] => Some(2),               // call r
        [0xff, 0x50..=0x57, _, ..] => Some(3),            // call [r + imm8]
        [0xff, 0x10..=0x13 | 0x16..=0x17, ..] => Some(2), // call [r]
        _ => None,
    };
    #[expect(clippy::cast_possible_truncation, reason = "code of a method, some kilobytes")]
    (0..code.len()).filter_map(move |at| Some((at + length(&code[at..])?) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// push rbp; push r15; push rbx; sub rsp, 0x20; lea rbp, [rsp + 0x30]; nop
    const FRAMED: &[u8] = &[0x55, 0x41, 0x57, 0x53, 0x48, 0x83, 0xec, 0x20, 0x48, 0x8d, 0x6c, 0x24, 0x30, 0x90, 0x90];
    /// push rbx; sub rsp, 0x110; vzeroupper; nop
    const FRAMELESS: &[u8] = &[0x53, 0x48, 0x81, 0xec, 0x10, 0x01, 0, 0, 0xc5, 0xf8, 0x77, 0x90];

    #[test]
    fn within_a_prologue_the_return_address_is_behind_what_was_pushed() {
        let prologue = Prologue::decode(FRAMED);
        assert!(prologue.has_frame && !prologue.is_osr && prologue.length == 13);
        let offsets = [0, 1, 3, 4, 8, 13, 14].map(|offset| prologue.to_return_address(offset));
        assert_eq!(offsets, [Some(0), Some(8), Some(16), Some(24), Some(56), None, None]);
        assert_eq!(prologue.frameless_bytes(), None);
    }

    #[test]
    fn a_method_without_a_frame_has_one_distance_past_its_prologue() {
        let prologue = Prologue::decode(FRAMELESS);
        assert_eq!(prologue.frameless_bytes(), Some(0x118));
        let offsets = [0, 1, 8, 11, 200].map(|offset| prologue.to_return_address(offset));
        assert_eq!(offsets, [Some(0), Some(8), Some(0x118), Some(0x118), Some(0x118)]);
        assert_eq!(Prologue::decode(&[0x90]).frameless_bytes(), Some(0), "a leaf that pushes nothing");
    }

    #[test]
    fn a_frame_of_pages_is_a_frame() {
        // push rbp; push rbx; lea r11, [rsp - 0x2580]; call [rip + x]; mov rsp, r11; lea rbp, [rsp + 0x2580]; nop
        let code = [
            &[0x55, 0x53, 0x4c, 0x8d, 0x9c, 0x24, 0x80, 0xda, 0xff, 0xff, 0xff, 0x15, 1, 2, 3, 4][..],
            &[0x49, 0x8b, 0xe3, 0x48, 0x8d, 0xac, 0x24, 0x80, 0x25, 0, 0, 0x90],
        ]
        .concat();
        let prologue = Prologue::decode(&code);
        assert_eq!((prologue.has_frame, prologue.length), (true, 27));
        let offsets = [2, 10, 16, 19, 26, 27].map(|offset| prologue.to_return_address(offset));
        assert_eq!(offsets, [Some(16), Some(16), Some(16), Some(0x2590), Some(0x2590), None]);
    }

    #[test]
    fn behind_rbps_push_an_unknown_instruction_hides_no_frame() {
        let prologue = Prologue::decode(&[0x55, 0x53, 0x0f, 0x0b, 0x90, 0x90]);
        assert_eq!(prologue.frameless_bytes(), None);
        assert_eq!([1, 2, 3].map(|offset| prologue.to_return_address(offset)), [Some(8), Some(16), None]);
        // Another register first: rbp is one that is saved among others.
        assert_eq!(Prologue::decode(&[0x41, 0x57, 0x55, 0x0f, 0x0b]).frameless_bytes(), Some(16));
    }

    #[test]
    fn a_replaced_body_begins_with_the_old_frame() {
        let osr = Prologue::decode(&[0x48, 0x8b, 0x45, 0x00, 0x50, 0x53]);
        assert!(osr.is_osr && osr.to_return_address(0).is_none());
    }

    #[test]
    fn epilogues_return_or_jump_out_of_the_method() {
        let found = |code: &[u8]| epilogue(code, 100, 200).map(|end| (end.to_return_address, end.pops_rbp));
        assert_eq!(found(&[0x5b, 0x41, 0x5f, 0x5d, 0xc3]), Some((24, true)));
        assert_eq!(found(&[0x41, 0x5f, 0xc3]), Some((8, false)));
        assert_eq!(found(&[0xc3]), Some((0, false)));
        assert_eq!(found(&[0x5d, 0xe9, 0x00, 0x01, 0, 0]), Some((8, true)), "a jump beyond the method");
        assert_eq!(found(&[0xe9, 0x10, 0, 0, 0]), None, "a jump within it");
        assert_eq!(found(&[0x48, 0xff, 0xe0]), Some((0, false)));
        assert_eq!(found(&[0xff, 0xe0]), None, "a switch's table, not a tail call");
        assert_eq!(found(&[0x5b, 0x90]), None);
        assert_eq!(found(&[0x5b]), None, "cut off");
    }

    #[test]
    fn garbled_code_is_decoded_to_no_harm() {
        let mut random = 7_u64;
        for _ in 0..2_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let code: Vec<u8> = (0..random % 20).map(|n| (random >> (n % 8 * 8)).to_le_bytes()[0]).collect();
            let prologue = Prologue::decode(&code);
            let _ = (prologue.to_return_address(5), epilogue(&code, 3, 9), call_sites(&code).count());
        }
    }
}
