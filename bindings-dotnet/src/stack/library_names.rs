//! Names of libraries that may be closed by the time a sample is read: what ld.so calls them goes along with it.
//!
//! A word that says from which frame on and how many bytes, then these bytes; without bytes the frames from there on are of a library that stays.

use std::ffi::{CStr, c_char};
use std::ptr;

use spanprof_core::FrameWriter;

/// Changes from one library to another in one stack; those beyond have no name.
const MAX_NAMES: usize = 8;
/// Bytes of a name, its end.
const MAX_BYTES: usize = 56;

/// The libraries that a walk came through, innermost first.
pub(crate) struct LibraryNames {
    names: [(usize, *const c_char); MAX_NAMES],
    count: usize,
}

impl LibraryNames {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { names: [(0, ptr::null()); MAX_NAMES], count: 0 }
    }

    /// The frame is of the library of which this is the name's place; null: of one that stays.
    #[inline]
    pub(crate) fn note(&mut self, frame: usize, name: *const c_char) {
        let last = self.count.checked_sub(1).map_or(ptr::null(), |last| self.names[last].1);
        if name != last
            && let Some(place) = self.names.get_mut(self.count)
        {
            *place = (frame, name);
            self.count += 1;
        }
    }

    /// Puts them behind what is there of the sample.
    ///
    /// # Safety
    /// The libraries are loaded.
    #[inline]
    pub(crate) unsafe fn push(&self, out: &mut FrameWriter<'_>) {
        for (frame, name) in &self.names[..self.count] {
            let mut path: &[u8] = &[];
            if !name.is_null() {
                // SAFETY: the caller's promise; a path that ends with a zero.
                path = unsafe { CStr::from_ptr(*name) }.to_bytes();
            }
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
            let name = &name[name.len().saturating_sub(MAX_BYTES)..];
            out.push_extra(*frame as u64 | (name.len() as u64) << 32);
            for part in name.chunks(8) {
                let mut bytes = [0; 8];
                bytes[..part.len()].copy_from_slice(part);
                out.push_extra(u64::from_le_bytes(bytes));
            }
        }
    }
}

/// The name that a frame's library had; `None`: it stays. `words`: what [`LibraryNames::push`] left.
pub(crate) fn name_at<'a>(words: &[u64], frame: usize, into: &'a mut [u8; MAX_BYTES]) -> Option<&'a str> {
    let (mut rest, mut length) = (words, 0);
    while let [head, after @ ..] = rest
        && ((*head & 0xffff) as usize) <= frame
    {
        length = ((head >> 32) as usize).min(MAX_BYTES);
        let count = length.div_ceil(8).min(after.len());
        for (place, word) in into.chunks_mut(8).zip(&after[..count]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        rest = &after[count..];
    }
    str::from_utf8(&into[..length]).ok().filter(|name| !name.is_empty())
}

/// Room for a name.
pub(crate) const NO_NAME: [u8; MAX_BYTES] = [0; MAX_BYTES];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_the_name_of_its_library() {
        let mut names = LibraryNames::new();
        let long = format!("/{}.so\0", "x".repeat(100));
        let long = CStr::from_bytes_with_nul(long.as_bytes()).unwrap();
        for (frame, name) in [(1, c"/opt/liba.so"), (2, c"/opt/liba.so"), (4, long)] {
            names.note(frame, name.as_ptr());
            names.note(frame + 1, if frame == 1 { name.as_ptr() } else { ptr::null() });
        }
        let mut words = [0; 64];
        let mut out = FrameWriter::new(&mut words);
        // SAFETY: literals, and what lives until here.
        unsafe { names.push(&mut out) };
        let count = out.extra();
        let name = |frame| name_at(&words[..count], frame, &mut NO_NAME.clone()).map(str::to_owned);
        assert_eq!(name(0), None);
        assert_eq!([1, 2].map(name), [const { Some("liba.so") }; 2].map(|name| name.map(str::to_owned)));
        assert_eq!([name(3), name(5), name(6)], [None, None, None]);
        let end = format!("{}.so", "x".repeat(MAX_BYTES - 3));
        assert_eq!(name(4), Some(end));
    }
}
