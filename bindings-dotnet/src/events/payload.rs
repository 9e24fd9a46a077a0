//! The payloads of the runtime's events: little-endian fields without gaps, strings in UTF-16 with a zero at their end.

use std::hash::{DefaultHasher, Hasher};

/// What happened, and how much it stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event<'a> {
    /// An object was allocated and chosen: so many objects and bytes, this one's share of all.
    Allocation { objects: u16, bytes: u64, type_name: Utf16<'a> },
    /// A thread has waited for a lock.
    Contention { nanoseconds: u64 },
    /// An exception was thrown.
    Exception { type_name: Utf16<'a> },
}

/// Bytes of allocation between two samples of AllocationSampled, on average.
const SAMPLING_MEAN: f64 = 102_400.0;

const ALLOCATION_TICK: u32 = 10;
const EXCEPTION_THROWN: u32 = 80;
const CONTENTION_STOP: u32 = 91;
const ALLOCATION_SAMPLED: u32 = 303;

/// Reads an event; `None`: it is another one, of an unknown version, or cut off.
pub(crate) fn read(id: u32, version: u32, payload: &[u8]) -> Option<Event<'_>> {
    let mut fields = Fields { payload };
    match (id, version) {
        (ALLOCATION_SAMPLED, _) => {
            let _kind = fields.u32()?;
            let _clr = fields.u16()?;
            let _type = fields.u64()?;
            let type_name = fields.text()?;
            let _address = fields.u64()?;
            let size = fields.u64()?;
            let (objects, bytes) = of_sampled(size);
            Some(Event::Allocation { objects, bytes, type_name })
        }
        (ALLOCATION_TICK, 4..) => {
            let _amount = fields.u32()?;
            let _kind = fields.u32()?;
            let _clr = fields.u16()?;
            let bytes = fields.u64()?;
            let _type = fields.u64()?;
            let type_name = fields.text()?;
            let _heap = fields.u32()?;
            let _address = fields.u64()?;
            let size = fields.u64()?;
            let objects = u16::try_from(bytes / size.max(1)).unwrap_or(u16::MAX).max(1);
            Some(Event::Allocation { objects, bytes, type_name })
        }
        (CONTENTION_STOP, 1..) => {
            let flags = fields.u8()?;
            let _clr = fields.u16()?;
            let nanoseconds = f64::from_bits(fields.u64()?);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "as casts from floats saturate"
            )]
            let nanoseconds = nanoseconds as u64;
            // Other flags are locks of the runtime itself.
            (flags == 0).then_some(Event::Contention { nanoseconds })
        }
        (EXCEPTION_THROWN, 1..) => Some(Event::Exception { type_name: fields.text()? }),
        _ => None,
    }
}

/// What a sampled object of `size` bytes stands for. Each byte is chosen with the same small probability, so an object is
/// with 1 - (1 - p)^size; the inverse of that is how many there were.
fn of_sampled(size: u64) -> (u16, u64) {
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let bytes = size as f64;
    let chosen = -(bytes * (-SAMPLING_MEAN.recip()).ln_1p()).exp_m1();
    let objects = if chosen > 0.0 { chosen.recip() } else { 1.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as casts from floats saturate")]
    let whole = (objects.round() as u16, (objects * bytes).round() as u64);
    whole
}

/// UTF-16 code units, two bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Utf16<'a>(&'a [u8]);

impl Utf16<'_> {
    /// A number for this very text.
    pub(crate) fn hash(self) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(self.0);
        hasher.finish()
    }

    /// The text.
    pub(crate) fn text(self) -> String {
        let units = self.0.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
        char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    }
}

struct Fields<'a> {
    payload: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.payload.split_first_chunk::<N>()?;
        self.payload = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<Utf16<'a>> {
        let length = 2 * self.payload.as_chunks::<2>().0.iter().position(|unit| *unit == [0, 0])?;
        let (text, rest) = self.payload.split_at(length);
        self.payload = &rest[2..];
        Some(Utf16(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
    }

    fn sampled(size: u64) -> Vec<u8> {
        let name = utf16("System.Byte[]");
        [&[0; 4][..], &[1, 0], &[7; 8], &name, &[9; 8], &size.to_le_bytes(), &[0; 8]].concat()
    }

    fn tick() -> Vec<u8> {
        let (amount, size) = (108_000_u64.to_le_bytes(), 1_000_u64.to_le_bytes());
        [&[0; 8][..], &[1, 0], &amount, &[7; 8], &utf16("A.É"), &[0; 4], &[9; 8], &size].concat()
    }

    fn stop(flags: u8) -> Vec<u8> {
        [&[flags][..], &[1, 0], &1_500_000.0_f64.to_le_bytes()].concat()
    }

    #[test]
    fn a_sampled_object_stands_for_all_that_were_not_chosen() {
        assert_eq!(of_sampled(24), (4267, 102_412));
        assert_eq!(of_sampled(102_400), (2, 161_994));
        assert_eq!(of_sampled(10_000_000), (1, 10_000_000), "a large one is always chosen");
        assert_eq!(of_sampled(0), (1, 0));
    }

    #[test]
    fn each_event_has_its_amount_and_type() {
        let payload = sampled(24);
        let Some(Event::Allocation { objects: 4267, bytes: 102_412, type_name }) = read(303, 0, &payload) else {
            panic!("an allocation");
        };
        assert_eq!(type_name.text(), "System.Byte[]");
        let payload = tick();
        let Some(Event::Allocation { objects: 108, bytes: 108_000, type_name }) = read(10, 4, &payload) else {
            panic!("an allocation");
        };
        assert_eq!(type_name.text(), "A.É");
        assert_eq!(read(91, 1, &stop(0)), Some(Event::Contention { nanoseconds: 1_500_000 }));
        assert_eq!(read(91, 1, &stop(1)), None, "a lock of the runtime");
        let payload = [utf16("System.FormatException"), utf16("bad")].concat();
        let Some(Event::Exception { type_name }) = read(80, 1, &payload) else { panic!("an exception") };
        assert_eq!(type_name.text(), "System.FormatException");
        assert_ne!(type_name.hash(), Utf16(&utf16("System.FormatExceptiom")).hash());
    }

    #[test]
    fn what_is_cut_off_or_older_is_no_event() {
        for (id, version, payload) in [(303, 0, sampled(24)), (10, 4, tick()), (91, 1, stop(0))] {
            let needed = if id == 303 { payload.len() - 8 } else { payload.len() };
            for length in 0..needed {
                assert_eq!(read(id, version, &payload[..length]), None, "{id} of {length} bytes");
            }
        }
        assert_eq!(read(80, 1, &[65, 0, 66]), None, "a text without an end");
        assert_eq!(read(10, 3, &tick()), None);
        assert_eq!(read(91, 0, &stop(0)), None);
        assert_eq!(read(1, 1, &stop(0)), None);
    }
}
