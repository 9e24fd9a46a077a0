//! Numbers that differ, with nothing secret about them.

use std::hash::{BuildHasher, RandomState};

/// A UUID of version 4.
pub(super) fn uuid() -> String {
    let (high, low) = (random(), random());
    let version = (high & !0xf000) | 0x4000;
    let variant = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        version >> 32,
        (version >> 16) & 0xffff,
        version & 0xffff,
        variant >> 48,
        variant & 0xffff_ffff_ffff
    )
}

/// Random enough to spread requests: the hash map's keys, which the kernel seeds.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_differ_and_look_like_uuids() {
        let (one, other) = (uuid(), uuid());
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert!(one.as_bytes()[14] == b'4' && b"89ab".contains(&one.as_bytes()[19]), "{one}");
    }
}
