//! Frame ids for names. Addresses are turned into these as soon as samples are read, since code moves and goes away; a frame id
//! means one name for ever.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use spanprof_core::{Frame, FrameId};

use crate::libraries::registry::{self, NativeName};

/// They begin here: no address is that high.
const FIRST: u64 = 1 << 62;
/// Ends the frames of a sample that is to be asked for again. Neither an address nor a frame id.
pub(crate) const ASKED: u64 = FIRST - 1;
/// Names that are kept; more are "(other)".
const MAX_NAMES: usize = 200_000;
/// Native addresses whose names are remembered.
const MAX_ADDRESSES: usize = 65_536;

/// Trees, as they grow by small pieces: the reserve of a program without memory has no large ones.
#[derive(Debug, Default)]
struct FrameIds {
    by_name: BTreeMap<(Box<str>, Box<str>), FrameId>,
    frames: BTreeMap<FrameId, Frame>,
    native: BTreeMap<u64, FrameId>,
}

static IDS: Mutex<Option<FrameIds>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<FrameIds>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The frame id for a function in a file.
pub(crate) fn id_of(function: &str, file: &str) -> FrameId {
    lock().get_or_insert_default().id_of(function, file)
}

/// As [`id_of`], for a function without a file; `None` while another thread is at it.
pub(crate) fn try_id_of(function: &str) -> Option<FrameId> {
    let mut ids = match IDS.try_lock() {
        Ok(ids) => ids,
        Err(TryLockError::Poisoned(ids)) => ids.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(ids.get_or_insert_default().id_of(function, ""))
}

/// Whether this is a frame id and no address.
pub(crate) fn is_id(id: FrameId) -> bool {
    id >= FIRST
}

/// The frame id for the native function at `pc`; `None` if no library is there.
pub(crate) fn native_id(pc: u64) -> Option<FrameId> {
    if let Some(id) = lock().get_or_insert_default().native.get(&pc) {
        return Some(*id);
    }
    // Not under the lock: methods that are compiled wait for that.
    let NativeName { path, function, is_final } = registry::native_name(pc)?;
    let library = path.rsplit('/').next().unwrap_or(&path);
    let name = function.map_or_else(|| library.to_owned(), |function| format!("{library}!{function}"));
    let mut ids = lock();
    let ids = ids.get_or_insert_default();
    let id = ids.id_of(&name, &path);
    if ids.native.len() >= MAX_ADDRESSES {
        ids.native.clear();
    }
    if is_final {
        ids.native.insert(pc, id);
    }
    Some(id)
}

/// The same for an address in a library that had this name when the sample was taken: by now there may be another one.
pub(crate) fn native_id_in(pc: u64, name: &str) -> FrameId {
    let is_it = registry::path_of(pc).is_some_and(|path| path.rsplit('/').next() == Some(name));
    native_id(pc).filter(|_| is_it).unwrap_or_else(|| id_of(name, ""))
}

/// What frame ids mean.
pub(crate) fn resolve(asked: &[FrameId]) -> Vec<Option<Frame>> {
    let ids = lock();
    asked.iter().map(|id| ids.as_ref()?.frames.get(id).cloned()).collect()
}

/// Addresses may be those of other libraries now.
pub(crate) fn forget_native() {
    lock().get_or_insert_default().native.clear();
}

impl FrameIds {
    fn id_of(&mut self, function: &str, file: &str) -> FrameId {
        if let Some(id) = self.by_name.get(&(function.into(), file.into()) as &(Box<str>, Box<str>)) {
            return *id;
        }
        if self.frames.len() >= MAX_NAMES && function != OTHER {
            return self.id_of(OTHER, "");
        }
        let id = FIRST + self.frames.len() as u64;
        self.frames.insert(id, Frame { function: function.into(), file: file.into(), ..Frame::default() });
        self.by_name.insert((function.into(), file.into()), id);
        id
    }
}

const OTHER: &str = "(other)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_id_and_an_id_one_name() {
        let id = id_of("Shop.Cart.Add", "");
        assert_eq!(id_of("Shop.Cart.Add", ""), id);
        assert_ne!(id_of("Shop.Cart.Add", "other"), id);
        let frames = resolve(&[id, 0x7f00_0000_0000, u64::MAX]);
        assert_eq!(frames[0].as_ref().map(|frame| &*frame.function), Some("Shop.Cart.Add"));
        assert_eq!(frames[1..], [None, None]);
    }

    #[test]
    fn an_exported_function_is_named_with_its_library() {
        registry::refresh();
        registry::read_files();
        let id = native_id(libc::memcmp as *const () as u64);
        // Its implementation for this processor has no exported name; the function that is asked for here has.
        assert!(id.is_some());
        let id = native_id(libc::getppid as *const () as u64 + 1).unwrap();
        let function = resolve(&[id])[0].clone().unwrap().function;
        assert!(function.starts_with("libc.so.6!") && function.contains("getppid"), "{function}");
        assert_eq!(native_id(8), None);
    }
}
