//! Where an interpreter says that it collects garbage: learnt by looking at it within a collection and outside of one.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

use crate::selftest::interpreter;
use crate::stack::interpreter::Collecting;
use crate::stack::memory::{Memory, Object, PAGE, Plain, Probed};

/// How much of an interpreter is looked at. In 3.10 to 3.15 it is in its first 8 KiB.
const LOOKED_AT: usize = 8 * PAGE;
/// Numbers that happen to be 1 in one collection are told apart by several.
const COLLECTIONS: usize = 3;

/// How it is seen that an interpreter collects; `None` where that is not found. Collects the youngest generation some times.
pub(super) fn learn(py: Python<'_>, main: Object) -> PyResult<Option<Collecting>> {
    let Some(current) = interpreter::current() else { return Ok(None) };
    let looks = Arc::new(Mutex::new(Vec::new()));
    let main = main.addr();
    let look = PyCFunction::new_closure(py, None, None, {
        let looks = looks.clone();
        move |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            looks.lock().unwrap_or_else(PoisonError::into_inner).push(numbers(main as Object));
        }
    })?;
    let seen = || std::mem::take(&mut *looks.lock().unwrap_or_else(PoisonError::into_inner));
    let gc = py.import("gc")?;
    let callbacks = gc.getattr("callbacks")?;
    let (mut outside, mut inside) = (Vec::new(), Vec::new());
    for _ in 0..COLLECTIONS {
        look.call0()?;
        outside.append(&mut seen());
        callbacks.call_method1("append", (&look,))?;
        let collected = gc.call_method1("collect", (0,));
        callbacks.call_method1("remove", (&look,))?;
        collected?;
        inside.append(&mut seen());
    }
    // It tells when a collection begins and when it ends.
    if inside.len() < 2 * COLLECTIONS {
        return Ok(None);
    }
    let has = |looks: &[Vec<u32>], at: usize, number| looks.iter().all(|look| look.get(at) == Some(&number));
    let mut found = (0..LOOKED_AT / 4).filter(|&at| has(&inside, at, 1) && has(&outside, at, 0));
    let flag = found.next().filter(|_| found.next().is_none());
    Ok(flag.map(|at| Collecting { flag: 4 * at, current }))
}

/// The beginning of an interpreter, as 32-bit numbers, as far as it is mapped.
fn numbers(interpreter: Object) -> Vec<u32> {
    let mut numbers = vec![0_u32; LOOKED_AT / 4];
    let mut length = 0;
    while length < LOOKED_AT {
        let to = numbers[length / 4..].as_mut_ptr().cast();
        // To the end of the page first, as the next one may be another's.
        let part = (PAGE - (interpreter.addr() + length) % PAGE).min(LOOKED_AT - length);
        // SAFETY: the GIL is held, so nobody unmaps the interpreter.
        if unsafe { Probed::half(interpreter, length) }.is_none() {
            break;
        }
        // SAFETY: as above, and that page is mapped; there is room for that much.
        unsafe { Plain::copy(interpreter, length, to, part) };
        length += part;
    }
    numbers.truncate(length / 4);
    numbers
}
