//! What a span processor passes on: a span starts and remembers which span samples carry for it, and tells its name when
//! it ends.

use std::sync::atomic::{AtomicBool, Ordering};

use magnus::rb_sys::AsRawValue;
use magnus::{Error, Ruby, Value};
use rb_sys::VALUE;

use crate::context;
use crate::errors::{guard, quietly};
use crate::profiler;
use crate::value::{Gvl, NIL};

/// Whether samples carry the innermost span, not its local root.
static SCOPE_ALL: AtomicBool = AtomicBool::new(false);

/// Says what samples carry from here on; spans that have started keep what they have.
pub(crate) fn configure(ruby: &Ruby, scope_all: bool, inherit_fibers: bool, names: bool) -> Result<(), Error> {
    guard(ruby, || {
        SCOPE_ALL.store(scope_all, Ordering::Relaxed);
        context::WITH_NAMES.store(names, Ordering::Relaxed);
        if inherit_fibers {
            context::inherit(ruby)?;
        }
        context::INHERITS.store(inherit_fibers, Ordering::Relaxed);
        Ok(())
    })
}

/// A span starts: samples carry its local root, or itself. True if that is itself. Never raises.
///
/// Hot: bench `span`.
pub(crate) fn started(span: Value, parent_context: Value) -> bool {
    quietly(|| {
        profiler::housekeep();
        let Some(names) = context::names() else { return false };
        // SAFETY: called by Ruby.
        let gvl = unsafe { Gvl::held() };
        let span = span.as_raw();
        let mut carried = NIL;
        if !SCOPE_ALL.load(Ordering::Relaxed) {
            // A parent that is remote, invalid or not recorded has none.
            carried = gvl.ivar(context::span_of(gvl, parent_context.as_raw()), names.carried);
        }
        let is_root = carried == NIL;
        if is_root {
            carried = span;
        }
        let set = magnus::rb_sys::protect(|| {
            // SAFETY: an object; it raises if it is frozen, which `protect` catches.
            let _: VALUE = unsafe { rb_sys::rb_ivar_set(span, names.carried, carried) };
            NIL
        });
        is_root && set.is_ok()
    })
}

/// A span has ended: its final name, if samples carry it. Never raises.
///
/// Hot: bench `span`.
pub(crate) fn finished(span: Value) {
    quietly(|| {
        // SAFETY: called by Ruby.
        let gvl = unsafe { Gvl::held() };
        let span_id = context::span_id(gvl, span.as_raw());
        if spanprof_core::is_sampled(span_id) && context::WITH_NAMES.load(Ordering::Relaxed) {
            let name = String::from_utf8_lossy(gvl.bytes(context::name_of(gvl, span.as_raw())));
            spanprof_core::span_ended(span_id, &name);
        }
    });
}
