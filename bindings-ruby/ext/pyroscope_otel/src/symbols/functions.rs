//! The functions that are known by name: those of this window and of the one before. Each is pinned, see
//! [`marking`](crate::symbols::marking).
//!
//! Everything here runs with the GVL held, but [`window_rotated`].

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rb_sys::VALUE;

use crate::value::Gvl;

#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) name: Arc<str>,
    pub(super) file: Arc<str>,
    pub(super) first_line: u32,
}

/// Trees, as they grow by small pieces: the reserve of a program without memory has no large ones.
#[derive(Default)]
pub(super) struct Names {
    /// Pinned: what was drained in this window, and in the one before.
    pub(super) current: BTreeMap<VALUE, Function>,
    pub(super) previous: BTreeMap<VALUE, Function>,
    /// Names repeat.
    texts: BTreeSet<Arc<str>>,
    /// [`ROTATIONS`] when the generations were last rotated.
    rotations: u32,
}

/// Used with the GVL held, and never across a call into Ruby that may collect garbage.
pub(super) struct Shared(pub(super) UnsafeCell<Option<Names>>);

// SAFETY: the GVL keeps all others out, and so does a collection, which stops every Ruby thread.
unsafe impl Sync for Shared {}

pub(super) static NAMES: Shared = Shared(UnsafeCell::new(None));
/// Windows that ended.
static ROTATIONS: AtomicU32 = AtomicU32::new(0);

/// Does `body` with the names.
///
/// `body` calls nothing of Ruby's, so no collection sees them half changed.
pub(super) fn with_names<T>(_: Gvl, body: impl FnOnce(&mut Names) -> T) -> T {
    // SAFETY: the GVL is held, and `body` does not come here again.
    let names = unsafe { &mut *NAMES.0.get() };
    body(names.get_or_insert_default())
}

/// A window was rotated; the next drain lets go of what was pinned for the last but one.
pub(crate) fn window_rotated() {
    ROTATIONS.fetch_add(1, Ordering::Relaxed);
}

/// Lets go of what nobody asks for any more. Before rings are read.
pub(crate) fn rotate_generations(gvl: Gvl) {
    with_names(gvl, |names| {
        let rotations = ROTATIONS.load(Ordering::Relaxed);
        if rotations != names.rotations {
            // Once a drain, however many rotations found nobody to drain: what is read now may repeat what was read last.
            names.previous = std::mem::take(&mut names.current);
            names.texts.retain(|text| Arc::strong_count(text) > 1);
        }
        names.rotations = rotations;
    });
}

impl Names {
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&text));
        text
    }
}

/// In a forked child, whose rings are gone.
pub(crate) fn forget(gvl: Gvl) {
    with_names(gvl, |names| {
        names.current.clear();
        names.previous.clear();
    });
}
