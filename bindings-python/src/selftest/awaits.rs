//! Whether awaits are seen as they are, asked at each start that is to measure them: a probe of three coroutines is suspended and goes on
//! in each way there is, and what is told of its suspensions is compared with what Python says of its frames.
//!
//! Until that is so nothing is sampled, and if it is not no awaits are measured: a wrong chain is worse than none.

use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::exceptions::PyKeyError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyModule, PyTuple};

use crate::awaits::known::{Known, Sleep};
use crate::awaits::layout::{AWAITED, CoroutineLayout, D_MEMBER, FLOAT_VALUE, FrameAt, MEMBER_OFFSET, coroutine_of};
use crate::awaits::{self, Seen};
use crate::selftest::frames_of;
use crate::stack::interpreter::CPython;
use crate::stack::memory::{Memory, Object, Probed};

/// `learn` makes one object of each type that chains are made of, and says what it waits for. `probe` makes the coroutine, `describe` says what Python knows of its chain, innermost first.
const PROBE: &std::ffi::CStr = cr#"
class Loop:
    def get_debug(self):
        return False

class Pause:
    def __await__(self):
        yield

try:
    import asyncio
    from _asyncio import Future, Task
except ImportError:
    asyncio = Future = Task = None

class Following:
    def __init__(self, it):
        self.it = it
    def __anext__(self):
        return self.it

def learn():
    async def generate():
        yield
    async def nothing():
        pass
    generator, coroutine = generate(), nothing()
    send, throw = generator.asend(None), generator.athrow(ValueError())
    following = anext(Following(coroutine), None)
    known = [(coroutine, None), ((x for x in ()), None), (generator, None), (send, generator), (throw, generator),
             (coroutine.__await__(), coroutine), (following, coroutine)]
    for it in (send, throw, coroutine):
        it.close()
    if Future is not None:
        future = Future(loop=Loop())
        known += [(iter(future), future)]
    return known, Task

async def wait(timer):
    await Pause()

def timers():
    if asyncio is None:
        return None
    timer, code = asyncio.TimerHandle(1.5, None, (), Loop()), asyncio.sleep.__code__
    return code, code.co_varnames.index("h"), timer, asyncio.TimerHandle._when, timer.when(), wait(timer)

running = []

def probe():
    async def generate():
        await Pause()
        yield
    async def inner():
        running[:] = [generate()]
        async for _ in running[0]:
            pass
        await Pause()
        try:
            await Pause()
        except KeyError:
            pass
        await (Pause() if Future is None else Future(loop=Loop()))
    async def outer():
        await inner()
    return outer()

def describe(it):
    frames = []
    while True:
        kind = next((kind for kind in ("ag", "cr", "gi") if hasattr(it, kind + "_frame")), None)
        if kind is None:
            return [("(await Future)" if "Future" in type(it).__name__ else "(await)", 0)] + frames[::-1]
        code, frame = getattr(it, kind + "_code"), getattr(it, kind + "_frame")
        frames.append((getattr(code, "co_qualname", code.co_name), frame.f_lasti // 2))
        it = getattr(it, "gi_yieldfrom" if kind == "gi" else kind + "_await")
        if "asend" in type(it).__name__:
            it = running[0]
"#;

/// How long the probe is suspended at a time, and how long a suspension must be seen to be.
const PAUSE: Duration = Duration::from_millis(1);
const LEAST_NS: u64 = 900_000;
const MOST_NS: u64 = 60_000_000_000;
/// Names of functions that a handler was just telling are not known yet.
const TRIES: usize = 5;

/// Begins to measure awaits, if they are seen as they are. The error is a sentence for people without its end.
///
/// An asynchronous generator tells the loop of itself that runs on the thread, and those here are not the loop's.
pub(crate) fn start(py: Python<'_>, runtime: &'static CPython) -> Result<(), String> {
    let failed = |error: PyErr| format!("the self-test raised {error}");
    let sys = py.import("sys").map_err(failed)?;
    let hooks = sys.call_method0("get_asyncgen_hooks").map_err(failed)?;
    sys.call_method1("set_asyncgen_hooks", (py.None(), py.None())).map_err(failed)?;
    let started = start_unseen(py, runtime);
    let restored =
        hooks.cast::<PyTuple>().map_err(PyErr::from).and_then(|hooks| sys.call_method1("set_asyncgen_hooks", hooks));
    started.and(restored.map(drop).map_err(failed))
}

fn start_unseen(py: Python<'_>, runtime: &'static CPython) -> Result<(), String> {
    let failed = |error: PyErr| format!("the self-test raised {error}");
    let module = PyModule::from_code(py, PROBE, c"<pyroscope self-test>", c"pyroscope._selftest").map_err(failed)?;
    let known = known(&module).map_err(failed)?.ok_or("coroutines are not as they are known")?;
    if !awaits::start(known, runtime) {
        return Err("the type of coroutines is not as it is known".to_owned());
    }
    let mut found = Ok(());
    for _ in 0..TRIES {
        found = try_all(&module, known.layout, runtime).map_err(failed).and_then(|found| found);
        if found.is_ok() {
            return found;
        }
    }
    awaits::stop();
    found
}

/// The types, learnt once. They are kept for ever. `None`: something is not where it should be.
fn known(module: &Bound<'_, PyModule>) -> PyResult<Option<&'static Known>> {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(Some(known));
    }
    let Some(layout) = coroutine_of(module.py().version_info().minor) else { return Ok(None) };
    type Learnt<'py> = (Vec<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)>, Option<Bound<'py, PyAny>>);
    let (learnt, task): Learnt<'_> = module.getattr("learn")?.call0()?.extract()?;
    for (object, awaited) in &learnt {
        // SAFETY: the GIL is held, so nobody unmaps the object.
        let found = awaited.is_some().then(|| unsafe { Probed::pointer(address_of(object), AWAITED) });
        if found.is_some_and(|found| found != awaited.as_ref().map(address_of)) {
            return Ok(None);
        }
    }
    let probe = module.getattr("probe")?.call0()?;
    let size: usize = probe.get_type().getattr("__basicsize__")?.extract()?;
    // SAFETY: the GIL is held, so nobody unmaps the object, and Probed asks.
    let has_begun = unsafe { layout.has_begun::<Probed>(address_of(&probe)) };
    if size != layout.size || has_begun || !holds_its_code(&probe, layout)? {
        return Ok(None);
    }
    probe.call_method0("close")?;
    let mut types = [ptr::null(); 8];
    for (class, (object, _)) in types.iter_mut().zip(learnt) {
        *class = object.get_type().into_ptr().cast_const().cast();
    }
    let task = task.map_or(ptr::null(), |task| task.into_ptr().cast_const().cast());
    let sleep = sleep(module, layout).ok().flatten();
    Ok(Known::of(layout, types, task, sleep).map(|known| KNOWN.get_or_init(|| known)))
}

/// `asyncio.sleep`, if timers are as they are known.
fn sleep(module: &Bound<'_, PyModule>, layout: CoroutineLayout) -> PyResult<Option<Sleep>> {
    type Timers<'py> =
        (Bound<'py, PyAny>, usize, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);
    let Some((code, variable, timer, slot, when, wait)) =
        module.getattr("timers")?.call0()?.extract::<Option<Timers<'_>>>()?
    else {
        return Ok(None);
    };
    // SAFETY: the GIL is held, so nobody unmaps objects, and Probed asks.
    let word = |object: Object, offset| unsafe { Probed::word(object, offset) };
    let member = word(address_of(&slot), D_MEMBER).unwrap_or(0) as Object;
    let offset = word(member, MEMBER_OFFSET).and_then(|offset| usize::try_from(offset).ok()).unwrap_or(0);
    let frame = match layout.frame {
        FrameAt::Pointer(at) => word(address_of(&wait), at).unwrap_or(0) as Object,
        FrameAt::Inside { frame, .. } => address_of(&wait).wrapping_add(frame),
    };
    let argument = word(frame, layout.locals).map(|word| (word & !7) as Object);
    let value = word(address_of(&when), FLOAT_VALUE).map(f64::from_bits);
    let is_known = argument == Some(address_of(&timer))
        && word(address_of(&timer), offset) == Some(address_of(&when).addr() as u64)
        && value == Some(1.5);
    wait.call_method0("close")?;
    let class = |object: &Bound<'_, PyAny>| -> Object { object.get_type().into_ptr().cast_const().cast() };
    Ok(is_known.then(|| Sleep {
        code: code.into_ptr().cast_const().cast(),
        variable,
        timer: class(&timer),
        when: offset,
        float: class(&when),
    }))
}

/// Whether code and frame of a coroutine are where the layout says, by loads that cannot fault.
fn holds_its_code(coroutine: &Bound<'_, PyAny>, layout: CoroutineLayout) -> PyResult<bool> {
    // SAFETY: the GIL is held, so nobody unmaps the object.
    let word = |offset| unsafe { Probed::word(address_of(coroutine), offset) };
    let is_at =
        |offset, object: &Bound<'_, PyAny>| word(offset).is_some_and(|word| word & !7 == object.as_ptr().addr() as u64);
    let has_frame = match layout.frame {
        FrameAt::Pointer(offset) => is_at(offset, &coroutine.getattr("cr_frame")?),
        FrameAt::Inside { frame, state, .. } => word(frame).is_some() && word(state & !7).is_some(),
    };
    Ok(has_frame && is_at(layout.code, &coroutine.getattr("cr_code")?))
}

fn address_of(object: &Bound<'_, PyAny>) -> Object {
    object.as_ptr().cast_const().cast()
}

/// A frame's function and the number of its instruction.
type Frames = Vec<(String, u32)>;

/// The probe in each way: `am_send`, `send`, `throw`, `close`, and destroyed while it is suspended.
fn try_all(
    module: &Bound<'_, PyModule>,
    layout: CoroutineLayout,
    runtime: &'static CPython,
) -> PyResult<Result<(), String>> {
    let (told, seen) = awaits::watch(|| drive(module, layout));
    let expected = match told? {
        Ok(expected) => expected,
        Err(what) => return Ok(Err(what.to_owned())),
    };
    let found: Vec<Frames> = seen.iter().map(|seen| frames(runtime, seen)).collect();
    if found != expected {
        return Ok(Err(format!("chains of awaits were read as {found:?}, not {expected:?}")));
    }
    let took = seen.iter().map(|seen| seen.took_ns);
    let wrong = took.into_iter().find(|took| !(LEAST_NS..MOST_NS).contains(took));
    Ok(wrong.map_or(Ok(()), |took| Err(format!("a suspension of a millisecond was seen as one of {took} ns"))))
}

fn frames(runtime: &CPython, seen: &Seen) -> Frames {
    let names = frames_of(runtime, &seen.frames);
    #[expect(clippy::cast_possible_truncation, reason = "the lower 32 bits are the instruction")]
    let frame = |(id, (name, ..)): (&u64, (String, String, u32, u32))| (name, *id as u32);
    seen.frames.iter().zip(names).map(frame).collect()
}

/// What Python says of the chains of all suspensions, each a millisecond long. `Err`: what was not seen.
fn drive(module: &Bound<'_, PyModule>, layout: CoroutineLayout) -> PyResult<Result<Vec<Frames>, &'static str>> {
    let py = module.py();
    let make = module.getattr("probe")?;
    let describe = module.getattr("describe")?;
    let mut expected = Vec::new();
    let mut pause = |coroutine: &Bound<'_, PyAny>| -> PyResult<()> {
        expected.push(describe.call1((coroutine,))?.extract()?);
        py.detach(|| std::thread::sleep(PAUSE));
        Ok(())
    };
    let is_known = |coroutine: &Bound<'_, PyAny>| awaits::is_known(address_of(coroutine));

    let coroutine = make.call0()?;
    step(&coroutine)?;
    // SAFETY: the GIL is held, so nobody unmaps the object, and Probed asks.
    if !is_known(&coroutine) || !unsafe { layout.has_begun::<Probed>(address_of(&coroutine)) } {
        return Ok(Err("a coroutine's first step was not seen"));
    }
    pause(&coroutine)?;
    step(&coroutine)?;
    pause(&coroutine)?;
    coroutine.call_method1("send", (py.None(),))?;
    pause(&coroutine)?;
    coroutine.call_method1("throw", (PyKeyError::new_err(()),))?;
    pause(&coroutine)?;
    if coroutine.call_method1("throw", (PyKeyError::new_err(()),)).is_ok() || is_known(&coroutine) {
        return Ok(Err("a coroutine's end was not seen"));
    }

    let closed = make.call0()?;
    step(&closed)?;
    pause(&closed)?;
    closed.call_method0("close")?;
    if is_known(&closed) {
        return Ok(Err("that a coroutine was closed was not seen"));
    }

    let destroyed = make.call0()?;
    step(&destroyed)?;
    let address = address_of(&destroyed);
    let was_known = awaits::is_known(address);
    drop(destroyed);
    if !was_known || awaits::is_known(address) {
        return Ok(Err("that a coroutine was destroyed was not seen"));
    }
    Ok(Ok(expected))
}

/// A step as a task of asyncio's makes it, by the type's `am_send`.
fn step(coroutine: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = coroutine.py();
    let mut result = ptr::null_mut();
    // SAFETY: two objects and a place of ours, and the GIL is held.
    unsafe { ffi::PyIter_Send(coroutine.as_ptr(), py.None().as_ptr(), &raw mut result) };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, result) }.map(drop)
}
