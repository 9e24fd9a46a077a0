//! Whether this interpreter is what the tables say: asked once, before the first start, by looking.
//!
//! The fields of a code object are compared with its attributes; a known nest of functions is walked and compared with
//! what Python says of its frames, names and lines; a known span is looked up among 1, 20 and 100 variables, and as the
//! current one. If anything differs, nothing is sampled: no profile is better than a wrong one, and a wrong offset is a
//! crash. Until then every load asks the kernel first ([`Probed`]), so that a wrong offset is none here.

pub(crate) mod awaits;
mod collection;
mod interpreter;

use std::sync::OnceLock;

use pyo3::exceptions::PyException;
use pyo3::ffi::PyInterpreterState_Get;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyModule, PyTuple};
use spanprof_core::{Frame, FrameId, FrameWriter, SpanRecord};

use crate::span::context_var::ContextVar;
use crate::span::current;
use crate::span::record::SpanHandle;
use crate::span::tags::{self, TagSet};
use crate::stack::hamt::Key;
use crate::stack::interpreter::{CPython, Published, thread_state};
use crate::stack::layout::{Entry, Layout, TSTATE_INTERP};
use crate::stack::memory::{Memory, Object, Probed};
use crate::symbols::definitions;

/// The nest: a method, a closure, a generator, a name that is not ASCII, and an `__init__` that is called so often that
/// the interpreter specialises the call, over several lines.
const NEST: &std::ffi::CStr = cr#"
def describe(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append((name, code.co_filename, frame.f_lineno, code.co_firstlineno))
        frame = frame.f_back
    return frames

def nest(walk, getframe):
    found = []
    class Outer:
        def __init__(self, look):
            if look:
                self.result
        def method(self):
            def inner():
                found.append((walk(),
                              describe(getframe())))
            return [
                inner()
                for _ in (1,)
            ]
        result = property(method)
    def size():
        for look in (False,) * 100 + (True,):
            Outer(
                look
            )
        yield
    # As an identifier it would take the module unicodedata, which may not be there.
    code = size.__code__
    fields = [field for field in ("co_name", "co_qualname") if hasattr(code, field)]
    size.__code__ = code.replace(**dict.fromkeys(fields, "gr\u00f6\u00dfe"))
    next(size())
    return found[0]
"#;

/// The interpreter that this process runs, once it is known to be what we take it for.
static CPYTHON: OnceLock<CPython> = OnceLock::new();

/// Why nothing is sampled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// The interpreter is not known.
    ForGood(String),
    /// There is no memory just now.
    ForNow(String),
}

/// The interpreter as the sampler sees it, or a sentence that says why it cannot be sampled: asked once, unless that may pass.
pub(crate) fn runtime(py: Python<'_>) -> PyResult<Result<&'static CPython, Refusal>> {
    static REFUSED: pyo3::sync::PyOnceLock<String> = pyo3::sync::PyOnceLock::new();
    if let Some(why) = REFUSED.get(py) {
        return Ok(Err(Refusal::ForGood(why.clone())));
    }
    if let Some(known) = CPYTHON.get() {
        return Ok(Ok(known));
    }
    let examined = interpreter::layout(py).and_then(|layout| match layout {
        Ok(layout) => examine(py, layout),
        Err(why) => Ok(Err(Refusal::ForGood(why))),
    });
    let examined = match examined {
        // No file could be opened, or a hook of the program's forbids what is done here.
        Err(error) if error.is_instance_of::<PyException>(py) => {
            Err(Refusal::ForNow(format!("the interpreter could not be looked at: {error}")))
        }
        examined => examined?,
    };
    match examined {
        Ok(runtime) => Ok(Ok(CPYTHON.get_or_init(|| runtime))),
        Err(Refusal::ForGood(why)) => Ok(Err(Refusal::ForGood(REFUSED.get_or_init(py, || why).clone()))),
        Err(for_now) => Ok(Err(for_now)),
    }
}

/// Whether a wait of a millisecond that Python makes is measured: one for no signal, as nobody replaces that function by Python code.
pub(crate) fn measures_waits(py: Python<'_>) -> PyResult<bool> {
    let wait = py.import("_signal")?.getattr("sigtimedwait")?;
    let before = spanprof_core::waited_ns();
    wait.call1((PyTuple::empty(py), 0.001))?;
    Ok(spanprof_core::waited_ns() - before >= 900_000)
}

fn examine(py: Python<'_>, layout: &'static Layout) -> PyResult<Result<CPython, Refusal>> {
    let differs = |what: &str| {
        let version = Python::version_str().split_whitespace().next().unwrap_or_default();
        Ok(Err(Refusal::ForGood(format!("CPython {version} differs from what is known of it: {what}"))))
    };
    let Some(nodes) = interpreter::node_types(py)? else {
        return differs("the nodes of contexts are not told apart");
    };
    if let Err(error) = definitions::map() {
        return Ok(Err(Refusal::ForNow(error.message().to_owned())));
    }
    let handle = Bound::new(py, SpanHandle::probe(1))?;
    let set = Bound::new(py, TagSet::new(spanprof_core::TagSetId::EMPTY))?;
    let offset = |object: Object, data: Object| data.addr().wrapping_sub(object.addr());
    let mut runtime = CPython {
        layout,
        code_type: py.import("types")?.getattr("CodeType")?.as_ptr().cast_const().cast(),
        // SAFETY: the GIL is held.
        main: unsafe { PyInterpreterState_Get() }.cast_const().cast(),
        nodes,
        span: Published {
            key: key_of(py, current::variable(py)?),
            class: py.get_type::<SpanHandle>().as_ptr().cast_const().cast(),
            offset: offset(handle.as_ptr().cast_const().cast(), (&raw const handle.get().span.record).cast()),
        },
        tags: Published {
            key: key_of(py, tags::variable(py)?),
            class: py.get_type::<TagSet>().as_ptr().cast_const().cast(),
            offset: offset(set.as_ptr().cast_const().cast(), (&raw const set.get().id).cast()),
        },
        finalizing: interpreter::finalizing(),
        collecting: None,
        runtime: interpreter::runtime(),
    };
    // SAFETY: the GIL is held, so nobody unmaps what this thread uses.
    if unsafe { Probed::pointer(thread_state(), TSTATE_INTERP) } != Some(runtime.main) {
        return differs("a thread does not name its interpreter");
    }
    if !finds_spans(py, &runtime)? {
        return differs("a known span was not found in its context");
    }
    let nest = PyModule::from_code(py, NEST, c"<pyroscope self-test>", c"pyroscope._selftest")?.getattr("nest")?;
    // Before the walk, which takes the fields of a code object for granted. Those of the functions inside the nest too:
    // of one alone some fields have the same value.
    let code = nest.getattr("__code__")?;
    for code in code.getattr("co_consts")?.try_iter()?.chain([Ok(code)]) {
        if let Some(field) = differing_field(&runtime, &code?)? {
            return differs(&format!("a function's {field} is elsewhere"));
        }
    }
    let Some((walked, expected)) = walk_nest(py, &runtime, &nest)? else {
        return differs("a whole stack looks torn");
    };
    if walked != expected {
        return differs(&format!("a known stack was read as {walked:?}"));
    }
    runtime.collecting = collection::learn(py, runtime.main)?;
    if matches!(layout.entry, Entry::CFrame { .. }) {
        // The walk of these versions reads what may not be mapped. The handlers are chained and answer only for it.
        spanprof_core::enable_safe_load();
    }
    Ok(Ok(runtime))
}

/// The variables live as long as the process: see their functions.
fn key_of(py: Python<'_>, variable: &ContextVar) -> Key {
    // SAFETY: a ContextVar, held in a static; interpreter::layout() has checked the size of these.
    unsafe { Key::of(variable.as_object().bind(py).as_ptr().cast_const().cast()) }
}

/// Looks a span up in contexts of 1, 20 and 100 variables, as the handler would.
fn finds_spans(py: Python<'_>, runtime: &CPython) -> PyResult<bool> {
    let contextvars = py.import("contextvars")?;
    let variable = current::variable(py)?;
    let probe = Bound::new(py, Probe::of(runtime))?;
    for (span_id, others) in [(0x51, 0), (0x52, 19), (0x53, 99)] {
        let context = contextvars.call_method0("Context")?;
        let handle = Bound::new(py, SpanHandle::probe(span_id))?;
        let run = context.getattr("run")?;
        run.call1((variable.as_object().bind(py).getattr("set")?, &handle))?;
        let keep = PyList::empty(py);
        for number in 0..others {
            let other = contextvars.call_method1("ContextVar", (format!("other{number}"),))?;
            run.call1((other.getattr("set")?, number))?;
            keep.append(other)?;
        }
        if run.call1((probe.getattr("span_id")?,))?.extract::<u64>()? != span_id {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first attribute of a code object that is not where the layout says. `co_version` is none.
fn differing_field(runtime: &CPython, code: &Bound<'_, PyAny>) -> PyResult<Option<&'static str>> {
    if code.get_type().as_ptr().cast_const().cast() != runtime.code_type {
        return Ok(None);
    }
    let layout = &runtime.layout.code;
    let object: Object = code.as_ptr().cast_const().cast();
    let qualname = if code.hasattr("co_qualname")? { "co_qualname" } else { "co_name" };
    for (name, offset) in [
        ("co_name", layout.name),
        (qualname, layout.qualname),
        ("co_filename", layout.filename),
        ("co_linetable", layout.linetable),
        ("co_code", layout.bytecode.unwrap_or(0)),
    ] {
        if offset == 0 {
            continue;
        }
        let attribute: Object = code.getattr(name)?.as_ptr().cast_const().cast();
        // SAFETY: the GIL is held, so nobody unmaps the object.
        if unsafe { Probed::pointer(object, offset) } != Some(attribute) {
            return Ok(Some(name));
        }
    }
    for (name, offset) in [("co_flags", layout.flags), ("co_firstlineno", layout.firstlineno)] {
        // SAFETY: as above.
        if unsafe { Probed::half(object, offset) } != Some(code.getattr(name)?.extract()?) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Function, file, line and first line of each frame, leaf first.
pub(crate) type Frames = Vec<(String, String, u32, u32)>;

/// Walks the nest: what the sampler sees of it, and what Python says. `None`: the rules of the walk refuse the stack.
fn walk_nest(py: Python<'_>, runtime: &CPython, nest: &Bound<'_, PyAny>) -> PyResult<Option<(Frames, Frames)>> {
    let getframe = py.import("sys")?.getattr("_getframe")?;
    let walk = Bound::new(py, Probe::of(runtime))?.getattr("walk")?;
    let (walked, mut expected): (Option<Frames>, Frames) = nest.call1((walk, getframe))?.extract()?;
    let Some(mut walked) = walked else {
        return Ok(None);
    };
    // Who called us is as it is; the nest is what is known.
    let known = expected.iter().position(|(name, ..)| name == "nest").map_or(0, |at| at + 1);
    expected.truncate(known);
    // `describe()` stands one line below `walk()`.
    if let Some((_, _, line, _)) = expected.first_mut() {
        *line = line.wrapping_sub(1);
    }
    walked.truncate(known);
    Ok(Some((walked, expected)))
}

/// Looks at the calling thread as the handler would, by loads that cannot fault.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
struct Probe {
    /// The address of a [`CPython`].
    runtime: usize,
}

impl Probe {
    /// `runtime` must outlive the probe.
    fn of(runtime: &CPython) -> Self {
        Self { runtime: std::ptr::from_ref(runtime).addr() }
    }

    fn runtime(&self) -> &CPython {
        // SAFETY: examine() makes probes for its own runtime and keeps none.
        unsafe { &*(self.runtime as *const CPython) }
    }
}

#[pymethods]
impl Probe {
    fn walk(&self) -> Option<Frames> {
        let runtime = self.runtime();
        if let Entry::CFrame { tstate_cframe, .. } = runtime.layout.entry {
            // SAFETY: the GIL is held, so nobody unmaps what this thread uses.
            let cframe = unsafe { Probed::pointer(thread_state(), tstate_cframe) }?;
            // SAFETY: as above.
            if !unsafe { runtime.newest_hangs_together::<Probed>(cframe) } {
                return None;
            }
        }
        // SAFETY: as above.
        if !unsafe { runtime.is_in_newest_chunk::<Probed>(thread_state()) } {
            return None;
        }
        let mut ids = [0; spanprof_core::MAX_FRAMES];
        let mut out = FrameWriter::new(&mut ids);
        // SAFETY: this thread's own state; examine() has mapped the definitions.
        unsafe { runtime.walk_from::<Probed>(thread_state(), std::ptr::null(), &mut out) };
        let frames = out.frames();
        Some(frames_of(runtime, &ids[..frames]))
    }

    fn span_id(&self) -> u64 {
        let runtime = self.runtime();
        // SAFETY: the GIL is held, so nobody unmaps what this thread uses.
        let context = unsafe { Probed::pointer(thread_state(), runtime.layout.tstate_context) };
        // SAFETY: as above.
        let span = context.map(|context| unsafe { runtime.published::<Probed>(context, runtime.span) });
        let span = span.unwrap_or(std::ptr::null()).cast::<SpanRecord>();
        // SAFETY: null, or in an object of our class that the current context keeps alive.
        unsafe { span.as_ref() }.map_or(0, SpanRecord::span_id)
    }
}

/// What the frame ids of a stack mean, told so far.
pub(crate) fn frames_of(runtime: &CPython, ids: &[FrameId]) -> Frames {
    let frame = |frame: Option<Frame>| {
        let frame = frame.unwrap_or_default();
        (frame.function.to_string(), frame.file.to_string(), frame.line, frame.first_line)
    };
    definitions::resolve(ids, runtime.layout.code.lines).into_iter().map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a layout is refused.
    fn refusal(py: Python<'_>, layout: Layout) -> Option<String> {
        // What was told under another layout must not help this one.
        definitions::after_fork();
        examine(py, Box::leak(Box::new(layout))).unwrap().err().map(|refusal| match refusal {
            Refusal::ForGood(why) => why,
            Refusal::ForNow(why) => panic!("{why}"),
        })
    }

    type Field = (&'static str, fn(&mut Layout) -> Option<&mut usize>);

    const FIELDS: [Field; 20] = [
        ("frame or current_frame of a thread", |layout| match &mut layout.entry {
            Entry::Frame { tstate_frame, .. } => Some(tstate_frame),
            Entry::CFrame { .. } => None,
        }),
        ("chunk of a thread", |layout| match &mut layout.entry {
            Entry::Frame { tstate_chunk, .. } => tstate_chunk.as_mut(),
            Entry::CFrame { .. } => None,
        }),
        ("cframe of a thread", |layout| match &mut layout.entry {
            Entry::CFrame { tstate_cframe, .. } => Some(tstate_cframe),
            Entry::Frame { .. } => None,
        }),
        ("current_frame of a cframe", |layout| match &mut layout.entry {
            Entry::CFrame { current_frame, .. } => Some(current_frame),
            Entry::Frame { .. } => None,
        }),
        ("previous of a cframe", |layout| match &mut layout.entry {
            Entry::CFrame { previous, .. } => Some(previous),
            Entry::Frame { .. } => None,
        }),
        ("context of a thread", |layout| Some(&mut layout.tstate_context)),
        ("code of a frame", |layout| Some(&mut layout.frame.code)),
        ("previous of a frame", |layout| Some(&mut layout.frame.previous)),
        ("instr of a frame", |layout| Some(&mut layout.frame.instr)),
        // Told in 3.11 by the rule for torn stacks, in 3.12 by the shims too; from 3.13 on shims have no code.
        ("owner of a frame", |layout| match layout.code.size {
            184..=192 => Some(&mut layout.frame.owner),
            _ => None,
        }),
        ("flags of code", |layout| Some(&mut layout.code.flags)),
        ("first line of code", |layout| Some(&mut layout.code.firstlineno)),
        ("file name of code", |layout| Some(&mut layout.code.filename)),
        ("name of code", |layout| Some(&mut layout.code.name)),
        ("qualified name of code", |layout| Some(&mut layout.code.qualname)),
        ("lines of code", |layout| Some(&mut layout.code.linetable)),
        ("bytecode of code", |layout| layout.code.bytecode.as_mut()),
        ("instructions of code", |layout| (!layout.frame.instr_is_number).then_some(&mut layout.code.size)),
        ("characters of ASCII", |layout| Some(&mut layout.ascii_data)),
        ("other characters", |layout| Some(&mut layout.compact_data)),
    ];

    /// Built for the stable ABI, so ci/test runs it with the library of each version that has one.
    #[test]
    fn a_wrong_layout_is_refused_and_survived() {
        Python::initialize();
        Python::attach(|py| {
            let known = *interpreter::layout(py).unwrap().unwrap();
            assert_eq!(refusal(py, known), None, "{:?}", py.version_info());
            for (name, field) in FIELDS {
                for by in [4_isize, 8, 16, -8, 1 << 14, (1 << 40) + 16, isize::MIN + 16] {
                    let mut layout = known;
                    // A byte is right by chance more often than a word: a whole chunk further on may be that of another frame.
                    let Some(offset) = field(&mut layout).filter(|_| name != "owner of a frame" || by != 1 << 14)
                    else {
                        continue;
                    };
                    *offset = offset.wrapping_add_signed(by);
                    let why = refusal(py, layout).unwrap_or_else(|| panic!("{name} may be {by} bytes off"));
                    assert!(why.starts_with("CPython 3.") && why.contains("differs"), "{why}");
                }
            }
            if known.code.internal != 0 {
                let mut layout = known;
                layout.code.internal = 0;
                assert!(refusal(py, layout).is_some(), "the interpreter's own frames may be shown");
            }
            assert_eq!(refusal(py, known), None, "after all that");
        });
    }
}
