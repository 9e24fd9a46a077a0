//! Whether this interpreter is what the tables say: asked once, before the first start, by looking.
//!
//! A known nest of functions is walked and compared with what Python says of its frames, names and lines; a known span
//! is looked up among 1, 20 and 100 variables. If anything differs, nothing is sampled: no profile is better than a
//! wrong one, and a wrong offset is a crash.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyModule};
use spanprof_core::{Frame, FrameWriter};

use crate::context_var::ContextVar;
use crate::definitions::DEFINITIONS;
use crate::hamt::{Key, NodeTypes, Object};
use crate::layout::{self, Entry};
use crate::span::{self, SpanHandle};
use crate::tags::{self, TagSet};
use crate::unwind::{CPYTHON, CPython, Published, thread_state};

/// The nest: a method, a closure, a generator and a class body, over several lines.
const NEST: &std::ffi::CStr = cr#"
def describe(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append((code.co_qualname, code.co_filename, frame.f_lineno, code.co_firstlineno))
        frame = frame.f_back
    return frames

def nest(walk, getframe):
    class Outer:
        def method(self):
            def inner():
                return (walk(),
                        describe(getframe()))
            return [
                inner()
                for _ in (1,)
            ]
        result = property(method)
    def generator():
        yield Outer().result
    return next(generator())[0]
"#;

/// The interpreter as the sampler sees it, or a sentence that says why it cannot be sampled. Asked once.
pub(crate) fn runtime(py: Python<'_>) -> PyResult<Result<&'static CPython, String>> {
    static REFUSED: pyo3::sync::PyOnceLock<String> = pyo3::sync::PyOnceLock::new();
    if let Some(why) = REFUSED.get(py) {
        return Ok(Err(why.clone()));
    }
    if let Some(known) = CPYTHON.get() {
        return Ok(Ok(known));
    }
    match examine(py)? {
        Ok(runtime) => Ok(Ok(CPYTHON.get_or_init(|| runtime))),
        Err(why) => Ok(Err(REFUSED.get_or_init(py, || why).clone())),
    }
}

fn examine(py: Python<'_>) -> PyResult<Result<CPython, String>> {
    let layout = match layout::of_this_interpreter(py)? {
        Ok(layout) => layout,
        Err(why) => return Ok(Err(why)),
    };
    let differs = |what: &str| {
        let version = Python::version_str().split_whitespace().next().unwrap_or_default();
        Ok(Err(format!("CPython {version} differs from what is known of it: {what}")))
    };
    let Some(nodes) = NodeTypes::learn(py)? else {
        return differs("the nodes of contexts are not told apart");
    };
    if let Err(error) = DEFINITIONS.map() {
        return Ok(Err(error.message().to_owned()));
    }
    let handle = Bound::new(py, SpanHandle::probe(1))?;
    let set = Bound::new(py, TagSet { id: spanprof_core::TagSetId::EMPTY })?;
    let offset = |object: Object, data: Object| data.addr().wrapping_sub(object.addr());
    let runtime = CPython {
        layout,
        code_type: py.import("types")?.getattr("CodeType")?.as_ptr().cast_const().cast(),
        nodes,
        span: Published {
            key: key_of(py, span::variable(py)?),
            class: py.get_type::<SpanHandle>().as_ptr().cast_const().cast(),
            offset: offset(handle.as_ptr().cast_const().cast(), (&raw const handle.get().record).cast()),
        },
        tags: Published {
            key: key_of(py, tags::variable(py)?),
            class: py.get_type::<TagSet>().as_ptr().cast_const().cast(),
            offset: offset(set.as_ptr().cast_const().cast(), (&raw const set.get().id).cast()),
        },
    };
    if matches!(layout.entry, Entry::CFrame { .. }) {
        // The walk of these versions reads what may not be mapped. The handlers are chained and answer only for it.
        spanprof_core::enable_safe_load();
    }
    if !finds_spans(py, &runtime)? {
        return differs("a known variable was not found in its context");
    }
    let (walked, expected) = walk_nest(py, &runtime)?;
    if walked != expected {
        return differs(&format!("a known stack was read as {walked:?}"));
    }
    Ok(Ok(runtime))
}

/// The variables live as long as the process: see their functions.
fn key_of(py: Python<'_>, variable: &ContextVar) -> Key {
    // SAFETY: a ContextVar, held in a static; of_this_interpreter() has checked the layout.
    unsafe { Key::of(variable.as_object().bind(py).as_ptr().cast_const().cast()) }
}

/// Looks a span up in contexts of 1, 20 and 100 variables, as the handler would.
fn finds_spans(py: Python<'_>, runtime: &CPython) -> PyResult<bool> {
    let contextvars = py.import("contextvars")?;
    let variable = span::variable(py)?;
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
        // SAFETY: `context` is alive and no thread runs in it.
        let value = unsafe { runtime.nodes.find(context.as_ptr().cast_const().cast(), runtime.span.key) };
        if value != handle.as_ptr().cast_const().cast() {
            return Ok(false);
        }
    }
    Ok(true)
}

type Frames = Vec<(String, String, u32, u32)>;

/// Walks the nest: what the sampler sees of it, and what Python says.
fn walk_nest(py: Python<'_>, runtime: &CPython) -> PyResult<(Frames, Frames)> {
    let module = PyModule::from_code(py, NEST, c"<pyroscope self-test>", c"pyroscope._selftest")?;
    let getframe = py.import("sys")?.getattr("_getframe")?;
    let walk = Walk { frames: std::ptr::from_ref(runtime).addr() };
    let (walked, mut expected): (Frames, Frames) =
        module.getattr("nest")?.call1((Bound::new(py, walk)?, getframe))?.extract()?;
    // Who called us is as it is; the nest is what is known.
    let known = expected.iter().position(|(name, ..)| name == "nest").map_or(0, |at| at + 1);
    expected.truncate(known);
    // `describe()` stands one line below `walk()`.
    if let Some((_, _, line, _)) = expected.first_mut() {
        *line = line.wrapping_sub(1);
    }
    let walked = walked.into_iter().take(known).collect();
    Ok((walked, expected))
}

/// A callable that walks the calling thread.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
struct Walk {
    frames: usize,
}

#[pymethods]
impl Walk {
    fn __call__(&self) -> Frames {
        // SAFETY: examine() makes a Walk for its own runtime and is still running.
        let runtime = unsafe { &*(self.frames as *const CPython) };
        frames_of(&walk_here(runtime))
    }
}

/// The words of the calling thread's stack.
fn walk_here(runtime: &CPython) -> Vec<u64> {
    let mut words = [0; spanprof_core::MAX_FRAMES];
    let mut out = FrameWriter::new(&mut words);
    // SAFETY: this thread's own state; examine() has mapped the definitions and enabled safe loads where needed.
    unsafe { runtime.walk_from(thread_state(), std::ptr::null(), &mut out) };
    let frames = out.frames();
    words[..frames].to_vec()
}

fn frames_of(words: &[u64]) -> Frames {
    DEFINITIONS.collect();
    let frame = |frame: Option<Frame>| {
        let frame = frame.unwrap_or_default();
        (frame.function.to_string(), frame.file.to_string(), frame.line, frame.first_line)
    };
    DEFINITIONS.resolve(words).into_iter().map(frame).collect()
}

/// The calling thread's stack as the sampler sees it, leaf first: (function, file, line, first line). For tests.
/// Frames beyond the first 16 new functions are "" until a later call.
#[pyfunction]
pub(crate) fn walk(py: Python<'_>) -> PyResult<Frames> {
    match runtime(py)? {
        Ok(runtime) => Ok(frames_of(&walk_here(runtime))),
        Err(why) => Err(pyo3::exceptions::PyRuntimeError::new_err(why)),
    }
}

/// The span id that a sample of the calling thread would carry now, 0 outside spans. For tests.
#[pyfunction]
pub(crate) fn current_span_id(py: Python<'_>) -> PyResult<u64> {
    let runtime = match runtime(py)? {
        Ok(runtime) => runtime,
        Err(why) => return Err(pyo3::exceptions::PyRuntimeError::new_err(why)),
    };
    // SAFETY: this thread's own state.
    let context = unsafe { runtime.context_of(thread_state()) };
    // SAFETY: null, or a record that the current context keeps alive.
    Ok(unsafe { context.span.as_ref() }.map_or(0, spanprof_core::SpanRecord::span_id))
}

/// Nanoseconds that one walk of the calling thread takes, with context and all, over `rounds`. For benchmarks.
#[pyfunction]
pub(crate) fn time_walk(py: Python<'_>, rounds: u32) -> PyResult<f64> {
    let runtime = match runtime(py)? {
        Ok(runtime) => runtime,
        Err(why) => return Err(pyo3::exceptions::PyRuntimeError::new_err(why)),
    };
    let mut words = [0; spanprof_core::MAX_FRAMES];
    let started = std::time::Instant::now();
    for _ in 0..rounds {
        let mut out = FrameWriter::new(&mut words);
        // SAFETY: this thread's own state; the definitions are mapped.
        unsafe { runtime.walk_from(thread_state(), std::ptr::null(), &mut out) };
        // SAFETY: as above.
        std::hint::black_box(unsafe { runtime.context_of(thread_state()) });
        std::hint::black_box(&mut words);
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / f64::from(rounds.max(1)))
}

/// The line that an instruction of a code object has, by our decoder: its table, first line and instruction. For tests.
#[pyfunction]
pub(crate) fn line_of(table: &[u8], first_line: u32, index: u32) -> Option<u32> {
    crate::lines::line_of(table, first_line, index)
}
