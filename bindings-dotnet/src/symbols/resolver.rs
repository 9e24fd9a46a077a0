//! Words for names. Addresses are turned into these as soon as samples are read, since code moves and goes away; a word
//! means one name for ever.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use spanprof_core::Frame;

use crate::libraries::registry::{self, NativeName};

/// Words begin here: no address is that high.
const FIRST: u64 = 1 << 62;
/// Ends the frames of a sample that is to be asked for again. Neither an address nor a word.
pub(crate) const ASKED: u64 = FIRST - 1;
/// Names that are kept; more are "(other)".
const MAX_NAMES: usize = 200_000;
/// Native addresses whose names are remembered.
const MAX_ADDRESSES: usize = 65_536;

/// Trees, as they grow by small pieces: the reserve of a program without memory has no large ones.
#[derive(Debug, Default)]
struct Words {
    by_name: BTreeMap<(Box<str>, Box<str>), u64>,
    /// By word.
    frames: BTreeMap<u64, Frame>,
    native: BTreeMap<u64, u64>,
}

static WORDS: Mutex<Option<Words>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Words>> {
    WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The word for a function in a file.
pub(crate) fn word_of(function: &str, file: &str) -> u64 {
    lock().get_or_insert_default().word_of(function, file)
}

/// As [`word_of`], for a function without a file; `None` while another thread is at it.
pub(crate) fn try_word_of(function: &str) -> Option<u64> {
    let mut words = match WORDS.try_lock() {
        Ok(words) => words,
        Err(TryLockError::Poisoned(words)) => words.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(words.get_or_insert_default().word_of(function, ""))
}

/// Whether this is a word and no address.
pub(crate) fn is_word(word: u64) -> bool {
    word >= FIRST
}

/// The word for the native function at `pc`; `None` if no library is there.
pub(crate) fn native_word(pc: u64) -> Option<u64> {
    if let Some(word) = lock().get_or_insert_default().native.get(&pc) {
        return Some(*word);
    }
    // Not under the lock: methods that are compiled wait for that.
    let NativeName { path, function, is_final } = registry::native_name(pc)?;
    let library = path.rsplit('/').next().unwrap_or(&path);
    let name = function.map_or_else(|| library.to_owned(), |function| format!("{library}!{function}"));
    let mut words = lock();
    let words = words.get_or_insert_default();
    let word = words.word_of(&name, &path);
    if words.native.len() >= MAX_ADDRESSES {
        words.native.clear();
    }
    if is_final {
        words.native.insert(pc, word);
    }
    Some(word)
}

/// What words mean.
pub(crate) fn resolve(asked: &[u64]) -> Vec<Option<Frame>> {
    let words = lock();
    asked.iter().map(|word| words.as_ref()?.frames.get(word).cloned()).collect()
}

/// Addresses may be those of other libraries now.
pub(crate) fn forget_native() {
    lock().get_or_insert_default().native.clear();
}

impl Words {
    fn word_of(&mut self, function: &str, file: &str) -> u64 {
        if let Some(word) = self.by_name.get(&(function.into(), file.into()) as &(Box<str>, Box<str>)) {
            return *word;
        }
        if self.frames.len() >= MAX_NAMES && function != OTHER {
            return self.word_of(OTHER, "");
        }
        let word = FIRST + self.frames.len() as u64;
        self.frames.insert(word, Frame { function: function.into(), file: file.into(), ..Frame::default() });
        self.by_name.insert((function.into(), file.into()), word);
        word
    }
}

const OTHER: &str = "(other)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_word_and_a_word_one_name() {
        let word = word_of("Shop.Cart.Add", "");
        assert_eq!(word_of("Shop.Cart.Add", ""), word);
        assert_ne!(word_of("Shop.Cart.Add", "other"), word);
        let frames = resolve(&[word, 0x7f00_0000_0000, u64::MAX]);
        assert_eq!(frames[0].as_ref().map(|frame| &*frame.function), Some("Shop.Cart.Add"));
        assert_eq!(frames[1..], [None, None]);
    }

    #[test]
    fn an_exported_function_is_named_with_its_library() {
        registry::refresh();
        registry::read_files();
        let word = native_word(libc::memcmp as *const () as u64);
        // Its implementation for this processor has no exported name; the function that is asked for here has.
        assert!(word.is_some());
        let word = native_word(libc::getppid as *const () as u64 + 1).unwrap();
        let function = resolve(&[word])[0].clone().unwrap().function;
        assert!(function.starts_with("libc.so.6!") && function.contains("getppid"), "{function}");
        assert_eq!(native_word(8), None);
    }
}
