//! Stacks with their weights in one blob: sorted by stack, each as three varints (difference to the stack before, value,
//! number of samples). About 7 bytes a stack, where a row of its own with its index takes 50.

use rusqlite::types::Type;

/// A stack, its value and its number of samples.
pub(super) type Entry = (i64, i64, i64);

/// Sorts the entries, adds up those of one stack, and leaves out what came to nothing.
pub(super) fn merge(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by_key(|entry| entry.0);
    entries.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            *kept = (kept.0, kept.1.saturating_add(next.1), kept.2.saturating_add(next.2));
        }
        same
    });
    entries.retain(|(_, value, count)| *value > 0 || *count > 0);
}

/// Value and number of samples of all entries.
pub(super) fn sum(entries: &[Entry]) -> (i64, i64) {
    entries.iter().fold((0, 0), |(value, count), entry| (value.saturating_add(entry.1), count.saturating_add(entry.2)))
}

/// Writes merged entries.
pub(super) fn pack(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * 8);
    let mut before = 0;
    for &(stack, value, count) in entries {
        for number in [stack - before, value, count] {
            put(&mut bytes, number.max(0).cast_unsigned());
        }
        before = stack;
    }
    bytes
}

/// Reads what [`pack`] wrote.
pub(super) fn unpack(mut bytes: &[u8], mut each: impl FnMut(Entry)) -> rusqlite::Result<()> {
    let mut stack = 0_i64;
    while !bytes.is_empty() {
        let mut number = || take(&mut bytes).map(u64::cast_signed).ok_or_else(broken);
        stack = stack.wrapping_add(number()?);
        each((stack, number()?, number()?));
    }
    Ok(())
}

fn broken() -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, "the stacks of a row are cut off".into())
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive() {
        let mut entries = vec![(300, 10_000_000, 1), (2, i64::MAX, 1), (300, 20_000_000, 2), (7, 5, 1), (7, -5, -1)];
        merge(&mut entries);
        assert_eq!(entries, [(2, i64::MAX, 1), (300, 30_000_000, 3)]);
        let mut read = Vec::new();
        unpack(&pack(&entries), |entry| read.push(entry)).unwrap();
        assert_eq!(read, entries);
        assert_eq!(sum(&entries[1..]), (30_000_000, 3));
    }

    #[test]
    fn a_blob_that_is_cut_off_is_an_error() {
        let bytes = pack(&[(1, 10_000_000, 1)]);
        assert!(unpack(&bytes[..bytes.len() - 1], |_| ()).is_err());
        assert!(unpack(&[0xff; 12], |_| ()).is_err());
    }
}
