//! Which span is current: the methods put before OpenTelemetry's `Context.attach`, `detach` and `clear`, and what is done
//! when a fiber is switched to.
//!
//! OpenTelemetry keeps a stack of contexts a fiber. `detach` and a switch read its top again, never a copy of ours, so
//! detaching out of order, `throw`, `Timeout` and the like need no case of their own. A span counts if it has the
//! instance variable that [`processor`](crate::span::processor) sets on it: the span that samples carry for it, which is its
//! local root or itself. One without is another's (a remote parent, one that is not recorded), and samples have no span.
//!
//! The methods do no more than call super while nobody follows spans.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Module, Object, RClass, RModule, Ruby, Value};
use rb_sys::{ID, VALUE};

use crate::errors::{quietly, raising};
use crate::fork;
use crate::methods::define;
use crate::ractor::ractor_safely;
use crate::span::record::{self, Ids, Slot};
use crate::span::{saved, times};
use crate::value::{FALSE, Gvl, NIL, id, rb_fiber};

/// What must be known of opentelemetry-api.
#[derive(Debug)]
struct Api {
    /// Under which a Context holds its span.
    current_span: VALUE,
    /// Whether stacks lie in a variable of the Fiber (from 1.5 on), or in `Thread.current[]`.
    is_fiber_variable: bool,
    names: Names,
}

/// Names of what is read.
#[derive(Debug)]
pub(crate) struct Names {
    entries: ID,
    context: ID,
    span_id: ID,
    trace_id: ID,
    name: ID,
    stack: ID,
    /// On a span: the one that samples carry for it.
    pub(crate) carried: ID,
    /// On a span that samples carry: the number of the thread in which it was first current, while waits are measured.
    thread: ID,
    /// On a fiber: the context that was current where it was made.
    inherited: ID,
}

static API: OnceLock<Api> = OnceLock::new();
/// Whether the methods do anything.
static FOLLOWS: AtomicBool = AtomicBool::new(false);
/// Whether a fiber without a context of its own has that of the fiber that made it.
pub(crate) static INHERITS: AtomicBool = AtomicBool::new(false);
/// Whether samples carry names.
pub(crate) static WITH_NAMES: AtomicBool = AtomicBool::new(true);

/// Puts the methods before OpenTelemetry's, once, and follows spans from here on.
pub(crate) fn install(ruby: &Ruby) -> Result<(), Error> {
    if API.get().is_none() {
        let otel: RModule = ruby.class_object().const_get("OpenTelemetry")?;
        let trace: RModule = otel.const_get("Trace")?;
        let current_span: Value = trace.const_get("CURRENT_SPAN_KEY")?;
        // SAFETY: an object that stays; the address of the registration is leaked.
        unsafe { rb_sys::rb_gc_register_address(Box::leak(Box::new(current_span.as_raw()))) };
        let fiber: Value = ruby.class_object().const_get("Fiber")?;
        let is_fiber_variable: bool = fiber.funcall("method_defined?", ("opentelemetry_context",))?;
        let stack = if is_fiber_variable { "@opentelemetry_context" } else { "__opentelemetry_context_storage__" };
        // Ours begin with no @: Ruby shows them to nobody.
        let names = Names {
            entries: id("@entries"),
            context: id("@context"),
            span_id: id("@span_id"),
            trace_id: id("@trace_id"),
            name: id("@name"),
            stack: id(stack),
            carried: id("__pyroscope_carried"),
            thread: id("__pyroscope_thread"),
            inherited: id("__pyroscope_inherited"),
        };
        let _ = API.set(Api { current_span: current_span.as_raw(), is_fiber_variable, names });
        let hooks = native(ruby)?.define_module("ContextHooks")?;
        define(hooks, c"attach", attach);
        define(hooks, c"detach", detach);
        define(hooks, c"clear", clear);
        let context: RClass = otel.const_get("Context")?;
        context.singleton_class()?.prepend_module(hooks)?;
    }
    follow(true);
    Ok(())
}

/// Whether spans are followed from here on. What slots said before does not count any more.
pub(crate) fn follow(on: bool) {
    if API.get().is_some() && FOLLOWS.swap(on, Ordering::Relaxed) != on {
        record::next_follow_generation();
        if on {
            // SAFETY: only called by Ruby methods.
            republish(unsafe { Gvl::held() });
        }
    }
}

/// Whether the methods were ever put there.
pub(crate) fn is_installed() -> bool {
    API.get().is_some()
}

/// Whether spans are followed now.
pub(crate) fn follows() -> bool {
    FOLLOWS.load(Ordering::Relaxed)
}

fn native(ruby: &Ruby) -> Result<RModule, Error> {
    ruby.class_object().const_get::<_, RModule>("Pyroscope")?.const_get("Native")
}

/// Calls super with what the method was given, keywords as keywords, and its block.
///
/// # Safety
/// First thing in a method of arity -1, with its own arguments; nothing with a destructor lives, as it may raise.
#[inline]
unsafe fn call_super(count: c_int, arguments: *const VALUE) -> VALUE {
    // SAFETY: asks the method that runs.
    let has_keywords = unsafe { rb_sys::rb_keyword_given_p() };
    // SAFETY: as the caller promises.
    unsafe { rb_sys::rb_call_super_kw(count, arguments, has_keywords) }
}

// In these three nothing with a destructor lives while super runs: it may raise, which jumps over our frame.

unsafe extern "C" fn attach(count: c_int, arguments: *const VALUE, _class: VALUE) -> VALUE {
    // SAFETY: our own arguments, unchanged.
    let token = unsafe { call_super(count, arguments) };
    if FOLLOWS.load(Ordering::Relaxed) && count > 0 {
        // SAFETY: there is one argument at least.
        let context = unsafe { *arguments };
        // SAFETY: a method called by Ruby.
        let gvl = unsafe { Gvl::held() };
        let publish = || {
            fork::restart_if_forked()?;
            correct_fiber();
            span_switches();
            publish_context(gvl, context);
            Ok(())
        };
        // SAFETY: nothing here has a destructor.
        unsafe { raising(publish) };
    }
    token
}

unsafe extern "C" fn detach(count: c_int, arguments: *const VALUE, _class: VALUE) -> VALUE {
    // SAFETY: our own arguments, unchanged.
    let detached = unsafe { call_super(count, arguments) };
    if FOLLOWS.load(Ordering::Relaxed) {
        // SAFETY: a method called by Ruby.
        quietly(|| republish(unsafe { Gvl::held() }));
    }
    detached
}

unsafe extern "C" fn clear(count: c_int, arguments: *const VALUE, _class: VALUE) -> VALUE {
    // SAFETY: our own arguments, unchanged.
    let cleared = unsafe { call_super(count, arguments) };
    if FOLLOWS.load(Ordering::Relaxed) {
        // SAFETY: a method called by Ruby.
        quietly(|| republish(unsafe { Gvl::held() }));
    }
    cleared
}

/// Reads which span is current to the fiber that runs, and shows it to the handler.
pub(crate) fn republish(gvl: Gvl) {
    let Some(api) = API.get() else { return };
    correct_fiber();
    span_switches();
    publish_context(gvl, api.current_context(gvl));
}

/// Another span begins, or is current again, where a switch may not have been seen.
fn correct_fiber() {
    // Where no switch was seen none was missed.
    if let Some(slot) = record::own().filter(|slot| slot.fiber() != FALSE) {
        slot.set_fiber(rb_fiber());
    }
}

/// The thread is about to go into another span, or out of one, and none of its fibers takes turns with others.
fn span_switches() {
    if record::own().is_none_or(|slot| slot.fiber() == FALSE) {
        // SAFETY: a method of Ruby's, and the slot has the span that is still current.
        unsafe { spanprof_core::span_switched(true) };
    }
}

/// A fiber was switched to.
pub(crate) fn fiber_switched(gvl: Gvl) {
    let Some(api) = API.get() else { return };
    if !FOLLOWS.load(Ordering::Relaxed) {
        return;
    }
    if INHERITS.load(Ordering::Relaxed) && api.stack(gvl) == NIL {
        let inherited = gvl.fiber_ivar(api.names.inherited);
        if inherited == NIL {
            // Made by no `Fiber.new` (an Enumerator's): who switches to it first is who made it.
            api.inherit_from(rb_fiber(), record::own().map_or(FALSE, Slot::context_object));
        }
        publish_context(gvl, gvl.fiber_ivar(api.names.inherited));
    } else {
        publish_context(gvl, api.current_context(gvl));
    }
}

fn publish_context(gvl: Gvl, context: VALUE) {
    let (Some(api), Some(slot)) = (API.get(), record::own_or_claim()) else { return };
    api.publish(gvl, slot, api.span_of(gvl, context));
    if INHERITS.load(Ordering::Relaxed) {
        slot.set_context_object(context);
    }
    saved::save(slot);
}

/// A small Integer: nothing is allocated.
fn fixnum(number: u32) -> VALUE {
    VALUE::from(number) << 1 | 1
}

/// Lets fibers have the context of the fiber that made them: a method is put before `Fiber#initialize`, once.
pub(crate) fn inherit(ruby: &Ruby) -> Result<(), Error> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        let hooks = native(ruby)?.define_module("FiberHooks")?;
        ractor_safely(|| define(hooks, c"initialize", initialize_fiber));
        let fiber: RClass = ruby.class_object().const_get("Fiber")?;
        fiber.prepend_module(hooks)?;
    }
    Ok(())
}

unsafe extern "C" fn initialize_fiber(count: c_int, arguments: *const VALUE, fiber: VALUE) -> VALUE {
    // SAFETY: our own arguments, unchanged.
    let made = unsafe { call_super(count, arguments) };
    if INHERITS.load(Ordering::Relaxed) && FOLLOWS.load(Ordering::Relaxed) {
        quietly(|| {
            if let (Some(api), Some(slot)) = (API.get(), record::own_or_claim()) {
                api.inherit_from(fiber, slot.context_object());
            }
        });
    }
    made
}

/// The span of a Context, nil if it has none.
pub(crate) fn span_of(gvl: Gvl, context: VALUE) -> VALUE {
    API.get().map_or(NIL, |api| api.span_of(gvl, context))
}

/// Names of what is read, once the api is known.
pub(crate) fn names() -> Option<&'static Names> {
    API.get().map(|api| &api.names)
}

/// A span's id, 0 if it is none.
pub(crate) fn span_id(gvl: Gvl, span: VALUE) -> u64 {
    API.get().map_or(0, |api| api.span_id(gvl, gvl.ivar(span, api.names.context)))
}

/// The bytes of a span's name, see [`Gvl::bytes`].
pub(crate) fn name_of(gvl: Gvl, span: VALUE) -> VALUE {
    API.get().map_or(NIL, |api| gvl.ivar(span, api.names.name))
}

impl Api {
    /// Notes that `fiber` has this context until it attaches one; `false` stands for none.
    fn inherit_from(&self, fiber: VALUE, context: VALUE) {
        let context = if context == NIL { FALSE } else { context };
        // SAFETY: an object, as is asked.
        if unsafe { rb_sys::rb_obj_frozen_p(fiber) } == FALSE {
            // SAFETY: a Fiber that is not frozen, so nothing is raised.
            unsafe { rb_sys::rb_ivar_set(fiber, self.names.inherited, context) };
        }
    }

    fn stack(&self, gvl: Gvl) -> VALUE {
        if self.is_fiber_variable { gvl.fiber_ivar(self.names.stack) } else { gvl.fiber_local(self.names.stack) }
    }

    #[inline]
    fn current_context(&self, gvl: Gvl) -> VALUE {
        gvl.last(self.stack(gvl))
    }

    #[inline]
    fn span_of(&self, gvl: Gvl, context: VALUE) -> VALUE {
        gvl.entry(gvl.ivar(context, self.names.entries), self.current_span)
    }

    #[inline]
    fn span_id(&self, gvl: Gvl, span_context: VALUE) -> u64 {
        match gvl.bytes(gvl.ivar(span_context, self.names.span_id)).try_into() {
            Ok(bytes) => u64::from_be_bytes(bytes),
            Err(_) => 0,
        }
    }

    /// Whether a span was current in another thread first. The first one is noted on it.
    #[inline]
    fn is_concurrent(&self, gvl: Gvl, slot: &Slot, carried: VALUE) -> bool {
        if !spanprof_core::measures_waits() {
            return false;
        }
        let (own, first) = (fixnum(slot.thread()), gvl.ivar(carried, self.names.thread));
        if first == NIL {
            gvl.set_ivar(carried, self.names.thread, own);
        }
        first != NIL && first != own
    }

    #[inline]
    fn publish(&self, gvl: Gvl, slot: &Slot, span: VALUE) {
        let mut span_context = gvl.ivar(span, self.names.context);
        let innermost = self.span_id(gvl, span_context);
        let carried = gvl.ivar(span, self.names.carried);
        let span_id = if carried == span {
            innermost
        } else {
            span_context = gvl.ivar(carried, self.names.context);
            self.span_id(gvl, span_context)
        };
        if innermost != 0 && span_id != 0 {
            let trace_id: [u8; 16] =
                gvl.bytes(gvl.ivar(span_context, self.names.trace_id)).try_into().unwrap_or_default();
            let (high, low) = trace_id.split_at(8);
            let half = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap_or_default());
            let named = WITH_NAMES.load(Ordering::Relaxed);
            let name = if named { gvl.bytes(gvl.ivar(carried, self.names.name)) } else { &[] };
            let is_concurrent = self.is_concurrent(gvl, slot, carried);
            let trace_id = [half(high), half(low)];
            let (times, object) = times::enter(gvl, slot, carried, trace_id);
            // Nothing is collected before the slot says so too.
            slot.set_times_object(object);
            slot.publish(Ids { trace_id, span_id, innermost, is_concurrent }, name, times);
        } else if innermost == 0 || slot.span().is_none_or(|(ids, _)| ids.innermost != innermost) {
            times::leave_root(slot);
            slot.clear();
        }
        // Else `untraced` made a span that is not recorded and has its parent's id: it stays where it was.
    }
}
