//! Threads of `threading` tell the sampler that they begin, so that one of a millisecond is sampled too.
//!
//! `Thread._bootstrap` is the first Python function of every such thread. Its place on the class is taken by a native
//! descriptor, so that stacks get no frame more. Threads by other means are found by the core's sweep.

use pyo3::intern;
use pyo3::prelude::*;

use crate::errors::guard;

/// `Thread._bootstrap` while a profiler runs.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct Bootstrap {
    original: Py<PyAny>,
}

#[pymethods]
impl Bootstrap {
    fn __get__(slf: &Bound<'_, Self>, thread: &Bound<'_, PyAny>, _class: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if thread.is_none() {
            return Ok(slf.get().original.clone_ref(py));
        }
        let bound = BoundBootstrap { original: slf.get().original.clone_ref(py), thread: thread.clone().unbind() };
        Ok(Py::new(py, bound)?.into_any())
    }
}

/// `thread._bootstrap`, called once, on the new thread.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct BoundBootstrap {
    original: Py<PyAny>,
    thread: Py<PyAny>,
}

#[pymethods]
impl BoundBootstrap {
    fn __call__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        // If it cannot be told, the sweep finds the thread.
        drop(guard(|| {
            spanprof_core::thread_started();
            Ok(())
        }));
        self.original.call1(py, (&self.thread,))
    }
}

/// Takes the place of `Thread._bootstrap`, once.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let class = py.import("threading")?.getattr("Thread")?;
    let original = class.getattr("__dict__")?.get_item(intern!(py, "_bootstrap"))?;
    if original.is_instance_of::<Bootstrap>() {
        return Ok(());
    }
    class.setattr(intern!(py, "_bootstrap"), Bootstrap { original: original.unbind() }.into_pyobject(py)?)
}

/// Gives `Thread._bootstrap` back, if nobody else has wrapped it meanwhile.
pub(crate) fn uninstall(py: Python<'_>) -> PyResult<()> {
    let class = py.import("threading")?.getattr("Thread")?;
    let found = class.getattr("__dict__")?.get_item(intern!(py, "_bootstrap"))?;
    if let Ok(ours) = found.cast::<Bootstrap>() {
        class.setattr(intern!(py, "_bootstrap"), &ours.get().original)?;
    }
    Ok(())
}
