//! From the frame ids of a stack to functions, files and lines. With the GVL held.
//!
//! A window has a bound; functions beyond it are called "(too many functions)".

use rb_sys::VALUE;
use spanprof_core::{Frame, FrameId};

use crate::stack::frame_id::{COLLECTING, FIBER_WAITS, NATIVE, NO_RUBY_FRAME, UNREADABLE, line_of, object_of};
use crate::stack::unwind::Interpreter;
use crate::symbols::frame::{IMEMO_ISEQ, is_frame, kind_of};
use crate::symbols::functions::{Function, with_names};
use crate::symbols::marking::{Resolving, write_barrier};
use crate::value::{Gvl, NIL};

/// Functions that are pinned in one window.
const MAX_KNOWN: usize = 16_384;

/// Says what frame ids mean.
pub(crate) fn resolve(ids: &[FrameId]) -> Vec<Option<Frame>> {
    // SAFETY: the engine resolves within `Profiler::drain`, which is called with the GVL held.
    let gvl = unsafe { Gvl::held() };
    // They are out of their rings, and each is pinned when its name is known: asking for one may collect the others.
    let resolving = Resolving::new(ids);
    resolving.0.iter().map(|id| Some(resolve_one(gvl, *id))).collect()
}

fn resolve_one(gvl: Gvl, id: FrameId) -> Frame {
    let named = |name: &str| Frame { function: name.into(), ..Frame::default() };
    match id {
        COLLECTING => named("(garbage collection)"),
        NATIVE => named("(native thread)"),
        NO_RUBY_FRAME => named("(no Ruby frame)"),
        UNREADABLE => named("(unreadable stack)"),
        FIBER_WAITS => named("(fiber waits)"),
        _ => match function_of(gvl, object_of(id)) {
            Some(Function { name, file, first_line }) => {
                let line = line_of(id);
                // The leaf's line is not known where YJIT has compiled it.
                Frame { function: name, file, line: if line == 0 { first_line } else { line }, first_line }
            }
            None => named("(unreadable frame)"),
        },
    }
}

fn function_of(gvl: Gvl, object: VALUE) -> Option<Function> {
    let known = with_names(gvl, |names| {
        let known = names.current.get(&object).or_else(|| names.previous.get(&object)).cloned();
        if known.is_none() && names.current.len() >= MAX_KNOWN {
            let name = names.text("(too many functions)");
            return Some((false, Function { file: names.text(""), name, first_line: 0 }));
        }
        Some((!names.current.contains_key(&object), known?))
    });
    let function = match known {
        Some((false, function)) => return Some(function),
        Some((true, function)) => function,
        None if is_frame(object) => ask(gvl, object)?,
        None => return None,
    };
    with_names(gvl, |names| names.current.insert(object, function.clone()));
    // SAFETY: the frame is one of those that `resolve` is at, which are marked, so the object is alive and the same.
    unsafe { write_barrier(object) };
    Some(function)
}

/// Asks Ruby what a frame is called. `None`: no frame is such an object.
fn ask(gvl: Gvl, object: VALUE) -> Option<Function> {
    let call = |of: unsafe extern "C" fn(VALUE) -> VALUE| {
        // SAFETY: it is a frame, and alive; what it raises (no memory) is caught.
        magnus::rb_sys::protect(|| unsafe { of(object) }).unwrap_or(NIL)
    };
    // A method's own code is told as the method. Told as code it is what a frame held before that YJIT of Ruby 3.1 is just
    // pushing: it counts a frame first and fills it then.
    if kind_of(object) == Some(IMEMO_ISEQ) {
        let method = gvl.bytes(call(rb_sys::rb_profile_frame_method_name)).to_vec();
        if !method.is_empty() && gvl.bytes(call(rb_sys::rb_profile_frame_label)) == method {
            return None;
        }
    }
    let label = without_addresses(&String::from_utf8_lossy(gvl.bytes(call(rb_sys::rb_profile_frame_full_label))));
    let path = String::from_utf8_lossy(gvl.bytes(call(rb_sys::rb_profile_frame_path))).into_owned();
    let first_line = call(rb_sys::rb_profile_frame_first_lineno);
    let first_line = if first_line & 1 == 1 { u32::try_from(first_line >> 1).unwrap_or(0) } else { 0 };
    let file = if path == "<cfunc>" { "" } else { &path };
    let name = if label.is_empty() { "(unnamed)" } else { &label };
    with_names(gvl, |names| Some(Function { name: names.text(name), file: names.text(file), first_line }))
}

/// Labels of singleton methods hold their object's address, so that there would be no end of names.
fn without_addresses(label: &str) -> String {
    let mut rest = label;
    let mut kept = String::with_capacity(label.len());
    while let Some(at) = rest.find(":0x") {
        let (before, after) = rest.split_at(at);
        kept.push_str(before);
        rest = after[3..].trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
    }
    kept.push_str(rest);
    kept
}

/// The names of the calling thread's frames and their lines, leaf first: for the self-test.
pub(crate) fn own_stack(gvl: Gvl) -> Vec<(String, u32)> {
    let mut ids = [0; 64];
    let mut out = spanprof_core::FrameWriter::new(&mut ids);
    Interpreter.walk_own(&mut out);
    let depth = out.frames();
    let frame = |id: &FrameId| {
        let frame = if is_frame(object_of(*id)) { ask(gvl, object_of(*id)) } else { None };
        (frame.map_or_else(String::new, |frame| frame.name.to_string()), line_of(*id))
    };
    ids.iter().take(depth).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_left_out_of_labels() {
        assert_eq!(without_addresses("#<Object:0x00007f00aa10>.m"), "#<Object>.m");
        assert_eq!(without_addresses("#<Class:#<Foo:0xabc>>#x"), "#<Class:#<Foo>>#x");
        assert_eq!(without_addresses("Foo#bar"), "Foo#bar");
    }
}
