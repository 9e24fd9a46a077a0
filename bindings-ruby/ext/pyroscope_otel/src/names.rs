//! What the words of a stack mean: frames are objects of Ruby's, which are kept alive from the sample on until nobody asks
//! any more what they are called.
//!
//! Two objects of ours are marked by the collector. `rings` marks each word that was sampled and is not drained yet; it has
//! no write barrier, so it is marked in minor collections too, and it counts collections. `known` pins what was drained in
//! this window and the one before. It has a write barrier and grows old. A window has a bound; functions beyond it
//! are called "(too many functions)".
//!
//! Everything here runs with the GVL held, but [`window_cut`].

use std::cell::UnsafeCell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use magnus::Error;
use rb_sys::{VALUE, rb_data_type_t};
use spanprof_core::Frame;

use crate::slot;
use crate::unwind::{
    COLLECTING_WORD, EPOCH, FIRST_OBJECT_WORD, NATIVE_WORD, NO_RUBY_FRAME_WORD, UNREADABLE_WORD, line_of, object_of,
};
use crate::value::{Gvl, NIL};

unsafe extern "C" {
    fn pyroscope_flags(object: VALUE) -> VALUE;
}

/// Functions that are pinned in one window.
const MAX_KNOWN: usize = 16_384;
/// How Ruby marks its internal objects in their flags, and which of them are frames: ment and iseq.
const TYPE_MASK: VALUE = 0x1f;
const T_IMEMO: VALUE = 0x1a;
const IMEMO_SHIFT: u32 = 12;
const IMEMO_MASK: VALUE = 0xf;
const IMEMO_MENT: VALUE = 6;
const IMEMO_ISEQ: VALUE = 7;

#[derive(Clone, Debug)]
struct Function {
    name: Arc<str>,
    file: Arc<str>,
    first_line: u32,
}

#[derive(Default)]
struct Names {
    /// Pinned: what was drained in this window, and in the one before.
    current: HashMap<VALUE, Function>,
    previous: HashMap<VALUE, Function>,
    /// Names repeat.
    texts: HashSet<Arc<str>>,
    /// [`CUTS`] when the windows were last turned.
    cuts: u32,
}

/// Used with the GVL held, and never across a call into Ruby that may collect garbage.
struct Shared(UnsafeCell<Option<Names>>);

// SAFETY: the GVL keeps all others out, and so does a collection, which stops every Ruby thread.
unsafe impl Sync for Shared {}

static NAMES: Shared = Shared(UnsafeCell::new(None));
/// Windows that were cut.
static CUTS: AtomicU32 = AtomicU32::new(0);
/// The words that [`resolve`] is at, while there is a [`Resolving`]; null at other times.
static RESOLVING: AtomicPtr<u64> = AtomicPtr::new(ptr::null_mut());
static RESOLVING_LENGTH: AtomicUsize = AtomicUsize::new(0);
/// The object that pins.
static mut KNOWN: VALUE = NIL;
static mut RINGS: VALUE = NIL;

/// Does `body` with the names.
///
/// `body` calls nothing of Ruby's, so no collection sees them half changed.
fn with_names<T>(_: Gvl, body: impl FnOnce(&mut Names) -> T) -> T {
    // SAFETY: the GVL is held, and `body` does not come here again.
    let names = unsafe { &mut *NAMES.0.get() };
    body(names.get_or_insert_default())
}

/// Types that the collector calls by; they stay.
pub(crate) struct DataType(pub(crate) rb_data_type_t);

// SAFETY: nothing in it changes.
unsafe impl Sync for DataType {}

static RINGS_TYPE: DataType = data_type(c"pyroscope/rings", mark_rings, 0);
static KNOWN_TYPE: DataType =
    data_type(c"pyroscope/names", mark_known, rb_sys::rbimpl_typeddata_flags::RUBY_TYPED_WB_PROTECTED as VALUE);

pub(crate) const fn data_type(
    name: &'static std::ffi::CStr,
    mark: unsafe extern "C" fn(*mut c_void),
    flags: VALUE,
) -> DataType {
    // SAFETY: a struct of pointers and numbers, for which all zero means "none".
    let mut data_type: rb_data_type_t = unsafe { std::mem::zeroed() };
    data_type.wrap_struct_name = name.as_ptr();
    data_type.function.dmark = Some(mark);
    data_type.flags = flags;
    DataType(data_type)
}

/// Makes the two objects, when the extension loads.
pub(crate) fn init() -> Result<(), Error> {
    for (place, data_type) in [(&raw mut RINGS, &RINGS_TYPE), (&raw mut KNOWN, &KNOWN_TYPE)] {
        // SAFETY: a static's address.
        unsafe { rb_sys::rb_gc_register_address(place) };
        let object = magnus::rb_sys::protect(|| {
            // SAFETY: Ruby marks a data object only if it has data: any address that is not null will do.
            let data = ptr::from_ref(data_type).cast_mut().cast();
            // SAFETY: set when Ruby began.
            let class = unsafe { rb_sys::rb_cObject };
            // SAFETY: a class, and a type that stays.
            unsafe { rb_sys::rb_data_typed_object_wrap(class, data, &raw const data_type.0) }
        })?;
        // SAFETY: when the extension loads, one thread runs this.
        unsafe { *place = object };
    }
    Ok(())
}

unsafe extern "C" fn mark_rings(_: *mut c_void) {
    // What a word meant may be another function's from here on, unless it is marked.
    EPOCH.fetch_add(1, Ordering::Relaxed);
    // SAFETY: collections run with the GVL held, and rings are drained with it alone.
    unsafe { spanprof_core::for_each_pending_word(mark_word) };
    let words = RESOLVING.load(Ordering::Relaxed);
    if !words.is_null() {
        // SAFETY: a `Resolving` borrows so many words until its drop clears the pointer; it is on a thread that waits for
        // this collection, or that runs it.
        unsafe { std::slice::from_raw_parts(words, RESOLVING_LENGTH.load(Ordering::Relaxed)) }
            .iter()
            .copied()
            .for_each(mark_word);
    }
    slot::for_each_object(|object| {
        // SAFETY: within marking; what is no object is left alone.
        unsafe { rb_sys::rb_gc_mark_maybe(object) };
    });
}

fn mark_word(word: u64) {
    if word & ((1 << 45) - 1) >= FIRST_OBJECT_WORD {
        // SAFETY: within marking; `maybe` as a torn stack may hold what is no object.
        unsafe { rb_sys::rb_gc_mark_maybe(object_of(word)) };
    }
}

unsafe extern "C" fn mark_known(_: *mut c_void) {
    // SAFETY: a collection runs, so nobody is in `with_names`.
    let names = unsafe { &*NAMES.0.get() };
    for object in names.iter().flat_map(|names| names.current.keys().chain(names.previous.keys())) {
        // SAFETY: within marking; each was checked to be a frame and has been marked ever since.
        unsafe { rb_sys::rb_gc_mark(*object) };
    }
}

/// A window was cut; the next drain lets go of what was pinned for the last but one.
pub(crate) fn window_cut() {
    CUTS.fetch_add(1, Ordering::Relaxed);
}

/// Lets go of what nobody asks for any more. Before rings are read.
pub(crate) fn turn_windows(gvl: Gvl) {
    with_names(gvl, |names| {
        let cuts = CUTS.load(Ordering::Relaxed);
        if cuts != names.cuts {
            // Once a drain, however many cuts found nobody to drain: what is read now may repeat what was read last.
            names.previous = std::mem::take(&mut names.current);
            names.texts.retain(|text| Arc::strong_count(text) > 1);
        }
        names.cuts = cuts;
    });
}

/// Says what words mean.
pub(crate) fn resolve(words: &[u64]) -> Vec<Option<Frame>> {
    // SAFETY: the engine resolves within `Profiler::drain`, which is called with the GVL held.
    let gvl = unsafe { Gvl::held() };
    // They are out of their rings, and each is pinned when its name is known: asking for one may collect the others.
    let resolving = Resolving::new(words);
    resolving.0.iter().map(|word| Some(resolve_word(gvl, *word))).collect()
}

/// Words that collections mark while it lives; a panic ends it too.
struct Resolving<'a>(&'a [u64]);

impl<'a> Resolving<'a> {
    fn new(words: &'a [u64]) -> Self {
        RESOLVING_LENGTH.store(words.len(), Ordering::Relaxed);
        RESOLVING.store(words.as_ptr().cast_mut(), Ordering::Relaxed);
        Resolving(words)
    }
}

impl Drop for Resolving<'_> {
    fn drop(&mut self) {
        RESOLVING.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

fn resolve_word(gvl: Gvl, word: u64) -> Frame {
    let named = |name: &str| Frame { function: name.into(), ..Frame::default() };
    match word {
        COLLECTING_WORD => named("(garbage collection)"),
        NATIVE_WORD => named("(native thread)"),
        NO_RUBY_FRAME_WORD => named("(no Ruby frame)"),
        UNREADABLE_WORD => named("(unreadable stack)"),
        _ => match function_of(gvl, object_of(word)) {
            Some(Function { name, file, first_line }) => {
                let line = line_of(word);
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
    // SAFETY: the word is one of those that `resolve` is at, which are marked, so the object is alive and the same.
    unsafe { write_barrier(object) };
    Some(function)
}

/// # Safety
/// `object` is alive, and the GVL is held.
unsafe fn write_barrier(object: VALUE) {
    // SAFETY: written once, when the extension loaded.
    let known = unsafe { KNOWN };
    // SAFETY: as the caller promises.
    unsafe { rb_sys::rb_gc_writebarrier(known, object) };
}

/// Whether Ruby may be asked about this: it ends the process over anything but a frame.
fn is_frame(object: VALUE) -> bool {
    matches!(kind_of(object), Some(IMEMO_MENT | IMEMO_ISEQ))
}

/// Which of Ruby's internal objects this is, if it is one.
fn kind_of(object: VALUE) -> Option<VALUE> {
    if object < FIRST_OBJECT_WORD << 3 {
        return None;
    }
    // SAFETY: behind the guard; 0 if there is nothing.
    let flags = unsafe { pyroscope_flags(object) };
    (flags & TYPE_MASK == T_IMEMO).then_some((flags >> IMEMO_SHIFT) & IMEMO_MASK)
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

impl Names {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&text));
        text
    }
}

/// The names of the calling thread's frames and their lines, leaf first: for the self-test.
pub(crate) fn own_stack(gvl: Gvl) -> Vec<(String, u32)> {
    let mut words = [0; 64];
    let mut out = spanprof_core::FrameWriter::new(&mut words);
    crate::unwind::RUBY.walk_own(&mut out);
    let depth = out.frames();
    let frame = |word: &u64| {
        let frame = if is_frame(object_of(*word)) { ask(gvl, object_of(*word)) } else { None };
        (frame.map_or_else(String::new, |frame| frame.name.to_string()), line_of(*word))
    };
    words.iter().take(depth).map(frame).collect()
}

/// In a forked child, whose rings are gone.
pub(crate) fn forget(gvl: Gvl) {
    with_names(gvl, |names| {
        names.current.clear();
        names.previous.clear();
    });
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
