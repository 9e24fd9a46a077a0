//! Tags of samples. Those that follow the execution context lie in a fiber-local variable as the number of an interned
//! set, and the slot has a copy for the handler. Those of threads are kept by the engine.
//!
//! A name that no server takes is left out and told once: what is inside a `tag_wrapper` has to run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use magnus::{Error, RHash, RString, Ruby};
use rb_sys::{ID, VALUE};
use spanprof_core::{Level, TagSetId};

use crate::context;
use crate::errors::{guard, not_allowed};
use crate::profiler::tell;
use crate::value::{Gvl, for_each_pair, id};

/// Whether any tags were ever set, so that programs without tags do not pay for looking.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// Names that were refused and told of; no more than `MAX_TOLD`. Locked with the GVL held, for a look and a push.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MAX_TOLD: usize = 32;

#[inline]
pub(crate) fn are_used() -> bool {
    ARE_USED.load(Ordering::Relaxed)
}

fn variable() -> ID {
    static VARIABLE: OnceLock<ID> = OnceLock::new();
    *VARIABLE.get_or_init(|| id("__pyroscope_tags"))
}

/// The tags of the fiber that runs.
pub(crate) fn of_fiber(gvl: Gvl) -> TagSetId {
    let number: VALUE = gvl.fiber_local(variable());
    // A Fixnum has its lowest bit set and the number above it; nil and what is not ours is no set.
    if number & 1 == 1 { TagSetId::from_number(u32::try_from(number >> 1).unwrap_or(0)) } else { TagSetId::EMPTY }
}

fn make_current(ruby: &Ruby, set: TagSetId) -> Result<(), Error> {
    ARE_USED.store(true, Ordering::Relaxed);
    // Fiber-local, and of the class's own store even if the program has redefined `Thread#[]=`.
    let number = (VALUE::from(set.number()) << 1) | 1;
    magnus::rb_sys::protect(|| {
        // SAFETY: called by a Ruby method on a Ruby thread.
        let thread = unsafe { rb_sys::rb_thread_current() };
        // SAFETY: as above; raises if the thread is frozen, which `protect` catches.
        unsafe { rb_sys::rb_thread_local_aset(thread, variable(), number) }
    })?;
    crate::events::add_for_tags(ruby)?;
    // SAFETY: as above.
    context::republish_tags(unsafe { Gvl::held() });
    Ok(())
}

/// Adds tags to those of the fiber that runs. Returns the set's number, for [`leave`].
pub(crate) fn enter(ruby: &Ruby, tags: RHash) -> Result<u32, Error> {
    guard(ruby, || {
        let mut tags = pairs(ruby, "tag_wrapper", tags)?;
        tags.retain(|(name, _)| may_be_a_tag("tag_wrapper", name));
        // SAFETY: called by Ruby.
        let set = of_fiber(unsafe { Gvl::held() }).with(&tags);
        make_current(ruby, set)?;
        Ok(set.number())
    })
}

/// Lets go of the set `inner`; the fiber that runs has `outer` again.
pub(crate) fn leave(ruby: &Ruby, inner: u32, outer: u32) -> Result<(), Error> {
    guard(ruby, || {
        make_current(ruby, TagSetId::from_number(outer))?;
        TagSetId::from_number(inner).release();
        Ok(())
    })
}

/// The number of the set of the fiber that runs; 0: no tags.
pub(crate) fn current() -> u32 {
    // SAFETY: called by Ruby.
    of_fiber(unsafe { Gvl::held() }).number()
}

/// Adds a tag to the calling thread's samples; false = no profiler runs, or the name is not allowed.
pub(crate) fn add_to_thread(ruby: &Ruby, name: String, value: String) -> Result<bool, Error> {
    guard(ruby, || Ok(may_be_a_tag("_add_tags", &name) && spanprof_core::add_thread_tag(&name, &value)))
}

/// Takes back the last [`add_to_thread`] of the same name and value; false = no profiler runs.
pub(crate) fn remove_from_thread(ruby: &Ruby, name: String, value: String) -> Result<bool, Error> {
    guard(ruby, || Ok(spanprof_core::remove_thread_tag(&name, &value)))
}

/// Whether a tag may have this name; if not, that is told once.
fn may_be_a_tag(field: &str, name: &str) -> bool {
    let Err(error) = spanprof_core::check_tag_name(field, name) else { return true };
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() < MAX_TOLD && !told.iter().any(|known| known == name) {
        told.push(name.to_owned());
        tell(Level::Warning, format!("{}; the tag is left out", error.message()));
    }
    false
}

/// Names and values of a Hash of Strings.
pub(crate) fn pairs(ruby: &Ruby, field: &str, tags: RHash) -> Result<Vec<(String, String)>, Error> {
    let mut pairs = Vec::new();
    for_each_pair(ruby, tags, |name, value| {
        pairs.push((text(ruby, field, name)?, text(ruby, field, value)?));
        Ok(())
    })?;
    Ok(pairs)
}

/// A String as UTF-8, where bytes that are none become U+FFFD.
pub(crate) fn text(ruby: &Ruby, field: &str, value: magnus::Value) -> Result<String, Error> {
    match RString::from_value(value) {
        // SAFETY: the bytes are copied before Ruby runs again.
        Some(text) => Ok(String::from_utf8_lossy(unsafe { text.as_slice() }).into_owned()),
        None => Err(not_allowed(ruby, field, value, "a String")),
    }
}
