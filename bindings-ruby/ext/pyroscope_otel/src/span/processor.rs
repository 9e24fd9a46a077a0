//! What a span processor passes on: a span starts and remembers which span samples carry for it, and tells its name when
//! it ends.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use magnus::{Error, Module, Object, RModule, Ruby};
use rb_sys::VALUE;

use crate::errors::{quietly, raising};
use crate::fork;
use crate::methods;
use crate::span::{current, times};
use crate::value::{FALSE, Gvl, NIL, TRUE};

/// Whether samples carry the innermost span, not its local root.
static SCOPE_ALL: AtomicBool = AtomicBool::new(false);

/// Says what samples carry from here on; spans that have started keep what they have.
pub(crate) fn configure(ruby: &Ruby, scope_all: bool, inherit_fibers: bool, names: bool) -> Result<(), Error> {
    SCOPE_ALL.store(scope_all, Ordering::Relaxed);
    current::WITH_NAMES.store(names, Ordering::Relaxed);
    if inherit_fibers {
        current::inherit(ruby)?;
    }
    current::INHERITS.store(inherit_fibers, Ordering::Relaxed);
    Ok(())
}

/// Defines `span_started` and `span_finished` on the singleton class of `Pyroscope::Native`.
pub(crate) fn define(native: RModule) -> Result<(), Error> {
    let hooks = native.define_module("SpanHooks")?;
    methods::define(hooks, c"span_started", span_started);
    methods::define(hooks, c"span_finished", span_finished);
    native.extend_object(hooks)
}

/// `span_started(span, parent_context)`: samples carry the span's local root, or itself. True if that is itself.
///
/// Hot: bench `span`.
unsafe extern "C" fn span_started(count: c_int, arguments: *const VALUE, _native: VALUE) -> VALUE {
    // SAFETY: Ruby passes as many as it says.
    let is_carried = match unsafe { arguments_of(count, arguments) } {
        // SAFETY: nothing here has a destructor.
        [span, rest @ ..] => unsafe { raising(|| started(*span, rest.first().copied().unwrap_or(NIL))) },
        [] => false,
    };
    if is_carried { TRUE } else { FALSE }
}

/// `span_finished(span)`: tells its final name, if samples carry it.
///
/// Hot: bench `span`.
unsafe extern "C" fn span_finished(count: c_int, arguments: *const VALUE, _native: VALUE) -> VALUE {
    // SAFETY: Ruby passes as many as it says.
    if let [span, ..] = unsafe { arguments_of(count, arguments) } {
        quietly(|| finished(*span));
    }
    NIL
}

/// # Safety
/// There are `count` of them.
unsafe fn arguments_of<'a>(count: c_int, arguments: *const VALUE) -> &'a [VALUE] {
    match usize::try_from(count) {
        // SAFETY: as the caller promises.
        Ok(count @ 1..) => unsafe { std::slice::from_raw_parts(arguments, count) },
        _ => &[],
    }
}

fn started(span: VALUE, parent_context: VALUE) -> Result<bool, Error> {
    fork::restart_if_forked()?;
    let Some(names) = current::names() else { return Ok(false) };
    // SAFETY: called by Ruby.
    let gvl = unsafe { Gvl::held() };
    let (scope_all, with_times) = (SCOPE_ALL.load(Ordering::Relaxed), spanprof_core::wants_span_times());
    let mut parents = NIL;
    // The scope `all` asks no parent, unless who is a local root matters.
    if !scope_all || with_times {
        // A parent that is remote, invalid or not recorded has none.
        parents = gvl.ivar(current::span_of(gvl, parent_context), names.carried);
    }
    let is_local_root = parents == NIL;
    let is_carried = scope_all || is_local_root;
    let is_carried = gvl.set_ivar(span, names.carried, if is_carried { span } else { parents }) && is_carried;
    if is_carried && with_times {
        times::begin(gvl, span, is_local_root)?;
    }
    Ok(is_carried)
}

fn finished(span: VALUE) {
    // SAFETY: called by Ruby.
    let gvl = unsafe { Gvl::held() };
    let span_id = current::span_id(gvl, span);
    if spanprof_core::is_sampled(span_id) && current::WITH_NAMES.load(Ordering::Relaxed) {
        let name = String::from_utf8_lossy(gvl.bytes(current::name_of(gvl, span)));
        spanprof_core::span_ended(span_id, &name);
    }
}
