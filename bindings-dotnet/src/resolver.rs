//! Words for names. Addresses are turned into these as soon as samples are read, since code moves and goes away; a word
//! means one name for ever.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use spanprof_core::Frame;

use crate::{code_map, modules};

/// Words begin here: no address is that high.
const FIRST: u64 = 1 << 62;
/// Names that are kept; more are "(other)".
const MAX_NAMES: usize = 200_000;
/// Native addresses whose names are remembered.
const MAX_ADDRESSES: usize = 65_536;
/// Ticks of the profiler's thread between two looks at what is mapped: two seconds.
const TICKS_BETWEEN_LOOKS: u32 = 20;
const MAX_WAIT: u32 = 100;

#[derive(Debug, Default)]
struct Words {
    by_name: HashMap<(Box<str>, Box<str>), u64>,
    frames: Vec<Frame>,
    native: HashMap<u64, u64>,
}

static WORDS: Mutex<Option<Words>> = Mutex::new(None);
static TICK: AtomicU32 = AtomicU32::new(0);
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);
/// Ticks until the next look for what the handler did not know.
static WAIT: AtomicU32 = AtomicU32::new(1);
static UNKNOWN: AtomicBool = AtomicBool::new(false);
/// Samples were read since the last look at what is mapped.
static READ: AtomicBool = AtomicBool::new(false);

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
    let mut words = lock();
    let words = words.get_or_insert_default();
    if let Some(word) = words.native.get(&pc) {
        return Some(*word);
    }
    let path = modules::path_of(pc)?;
    let library = path.rsplit('/').next().unwrap_or(&path);
    let function = symbol(pc).map_or_else(|| library.to_owned(), |symbol| format!("{library}!{symbol}"));
    let word = words.word_of(&function, &path);
    if words.native.len() >= MAX_ADDRESSES {
        words.native.clear();
    }
    words.native.insert(pc, word);
    Some(word)
}

/// What words mean.
pub(crate) fn resolve(asked: &[u64]) -> Vec<Option<Frame>> {
    let words = lock();
    let frame = |word: &u64| {
        let place = usize::try_from(word.checked_sub(FIRST)?).ok()?;
        words.as_ref()?.frames.get(place).cloned()
    };
    asked.iter().map(frame).collect()
}

/// A sample was read.
pub(crate) fn note_sample() {
    READ.store(true, Ordering::Relaxed);
}

/// The handler met an address that is not known to be code. Async-signal-safe.
#[inline]
pub(crate) fn note_unknown_code() {
    UNKNOWN.store(true, Ordering::Relaxed);
}

/// A tick of the profiler's thread, before samples are read: looks for new code and libraries while the program does
/// something, each two seconds or as soon as the handler met what it did not know.
pub(crate) fn tick() {
    modules::load_rows();
    code_map::tick();
    let now = TICK.fetch_add(1, Ordering::Relaxed);
    let since = now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed));
    let wait = WAIT.load(Ordering::Relaxed);
    let unknown = since >= wait && UNKNOWN.swap(false, Ordering::Relaxed);
    if !(unknown || since >= TICKS_BETWEEN_LOOKS && READ.swap(false, Ordering::Relaxed)) {
        return;
    }
    LOOKED_AT.store(now, Ordering::Relaxed);
    let changes = modules::refresh();
    if changes.libraries {
        lock().get_or_insert_default().native.clear();
    }
    // What stays unknown is no code: to look for it again and again would cost more than it tells.
    WAIT.store(if changes.code { 1 } else { (wait * 2).min(MAX_WAIT) }, Ordering::Relaxed);
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
        self.frames.push(Frame { function: function.into(), file: file.into(), ..Frame::default() });
        self.by_name.insert((function.into(), file.into()), word);
        word
    }
}

const OTHER: &str = "(other)";

/// The exported function that `pc` is in. A stripped library's own functions lie between those and have no name.
fn symbol(pc: u64) -> Option<String> {
    // SAFETY: a Dl_info is plain bits.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut symbol: *mut c_void = std::ptr::null_mut();
    #[expect(clippy::cast_possible_truncation, reason = "x86-64 only")]
    let address = std::ptr::without_provenance(pc as usize);
    // SAFETY: any address may be asked for; both results may be written.
    let found = unsafe { dladdr1(address, &raw mut info, &raw mut symbol, RTLD_DL_SYMENT) };
    if found == 0 || info.dli_sname.is_null() || symbol.is_null() {
        return None;
    }
    // SAFETY: RTLD_DL_SYMENT says that it is an entry of the library's symbol table.
    let size = unsafe { (*symbol.cast::<libc::Elf64_Sym>()).st_size };
    if pc >= info.dli_saddr as u64 + size {
        return None;
    }
    // SAFETY: a name in that table.
    unsafe { CStr::from_ptr(info.dli_sname) }.to_str().ok().map(str::to_owned)
}

const RTLD_DL_SYMENT: libc::c_int = 1;

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: libc::c_int,
    ) -> libc::c_int;
}

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
        modules::refresh();
        let word = native_word(libc::memcmp as *const () as u64);
        // Its implementation for this processor has no exported name; the function that is asked for here has.
        assert!(word.is_some());
        let word = native_word(libc::getppid as *const () as u64 + 1).unwrap();
        let function = resolve(&[word])[0].clone().unwrap().function;
        assert!(function.starts_with("libc.so.6!") && function.contains("getppid"), "{function}");
        assert_eq!(native_word(8), None);
    }
}
