//! What is asked of the interpreter before anything of it is read: its version and build, the sizes of its types, the nodes of its
//! contexts, and how it says that it ends.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice};

use crate::stack::hamt::NodeTypes;
use crate::stack::interpreter::{Current, Finalizing};
use crate::stack::layout::{BYTES_DATA, CONTEXT_VARS, HAMT_ROOT, LAYOUTS, Layout, OB_TYPE, VAR_HASH};
use crate::stack::memory::{Memory, Object, Probed};

/// Why an interpreter whose layout is known cannot be sampled on this processor.
///
/// From 3.13 on a loop of the interpreter has its first frame on the C stack and publishes the next one, which names it,
/// before compilers for aarch64 write it: a handler in between would follow what an older call left there. On x86-64 they
/// write it first; tests/interpreters/scan.py looks at the instructions.
fn refusal(processor: &str, minor: (u8, u8)) -> Option<&'static str> {
    (processor == "aarch64" && minor >= (3, 13))
        .then_some("publishes its frames before they are written on aarch64 (3.10 to 3.12 are sampled there)")
}

/// The layout of the interpreter that runs us, or why there is none.
///
/// # Errors
/// A sentence for people: which interpreter this is and what is missing.
pub(super) fn layout(py: Python<'_>) -> PyResult<Result<&'static Layout, String>> {
    let sys = py.import("sys")?;
    let implementation: String = sys.getattr("implementation")?.getattr("name")?.extract()?;
    let version: String = sys.getattr("version")?.extract()?;
    let version = version.split_whitespace().next().unwrap_or_default();
    if implementation != "cpython" {
        return Ok(Err(format!("{implementation} {version} is not CPython")));
    }
    let flags: String = sys.getattr("abiflags")?.extract()?;
    if flags.contains('d') || sys.hasattr("gettotalrefcount")? {
        return Ok(Err(format!("this CPython {version} is a debug build")));
    }
    if flags.contains('t') {
        return Ok(Err(format!("this CPython {version} is a free-threaded build")));
    }
    if cfg!(not(all(target_os = "linux", target_pointer_width = "64"))) {
        return Ok(Err("profiles need 64-bit Linux".to_owned()));
    }
    let minor: (u8, u8) = sys.getattr("version_info")?.get_item(PySlice::new(py, 0, 2, 1))?.extract()?;
    if let Some(why) = refusal(std::env::consts::ARCH, minor) {
        return Ok(Err(format!("CPython {version} {why}")));
    }
    let Some((_, layout)) = LAYOUTS.iter().find(|(known, _)| *known == minor) else {
        return Ok(Err(format!("CPython {version} is not among 3.10 to 3.15")));
    };
    for (module, class, size) in [
        ("types", "CodeType", layout.code.size),
        ("builtins", "str", layout.compact_data + 8),
        ("builtins", "bytes", BYTES_DATA + 1),
        ("contextvars", "ContextVar", VAR_HASH + 8),
    ] {
        let found: usize = py.import(module)?.getattr(class)?.getattr("__basicsize__")?.extract()?;
        if found != size {
            return Ok(Err(format!("CPython {version} has {class} objects of {found} bytes, not {size}")));
        }
    }
    Ok(Ok(layout))
}

/// Reads the types from a context of one variable (its root is a bitmap node) and one of many (an array node).
pub(super) fn node_types(py: Python<'_>) -> PyResult<Option<NodeTypes>> {
    let bitmap = root_type_of_context_with(py, 1)?;
    let array = root_type_of_context_with(py, 64)?;
    Ok(match (bitmap, array) {
        (Some(bitmap), Some(array)) if bitmap != array => Some(NodeTypes { bitmap, array }),
        _ => None,
    })
}

/// The type of the root node of a context that has `variables` variables, `None` if the layout is not as known.
fn root_type_of_context_with(py: Python<'_>, variables: usize) -> PyResult<Option<Object>> {
    let module = py.import("contextvars")?;
    let context = module.call_method0("Context")?;
    let run = context.getattr("run")?;
    // The variables must outlive the look: dead ones would still be keys, but let us not depend on it.
    let keep = PyDict::new(py);
    for number in 0..variables {
        let variable = module.call_method1("ContextVar", (format!("probe{number}"),))?;
        run.call1((variable.getattr("set")?, py.None()))?;
        keep.set_item(number, variable)?;
    }
    let context: Object = context.as_ptr().cast::<c_void>().cast();
    let mut object = Some(context);
    for offset in [CONTEXT_VARS, HAMT_ROOT, OB_TYPE] {
        // SAFETY: the GIL is held, and what this context owns is not unmapped.
        object = object.and_then(|object| unsafe { Probed::pointer(object, offset) });
    }
    Ok(object)
}

/// `Py_IsFinalizing`, by the name that it has here. It is no part of the stable ABI, so it may be missing.
pub(super) fn finalizing() -> Option<Finalizing> {
    const NAMES: [&CStr; 2] = [c"Py_IsFinalizing", c"_Py_IsFinalizing"];
    NAMES.iter().find_map(|name| {
        // SAFETY: a C string, looked up among what the process has loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: CPython declares both as `int (void)`.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, Finalizing>(found) })
    })
}

/// `PyThreadState_GetUnchecked`, by the name that it has here. It is no part of the stable ABI, so it may be missing.
pub(super) fn current() -> Option<Current> {
    const NAMES: [&CStr; 2] = [c"PyThreadState_GetUnchecked", c"_PyThreadState_UncheckedGet"];
    NAMES.iter().find_map(|name| {
        // SAFETY: a C string, looked up among what the process has loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: CPython declares both as `PyThreadState *(void)`.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, Current>(found) })
    })
}

/// Where the static data of the interpreter are, with its locks among them; empty where the symbol does not tell its size.
pub(super) fn runtime() -> Range<u64> {
    unsafe extern "C" {
        fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
    }
    const RTLD_DL_SYMENT: c_int = 1;
    // SAFETY: a C string, looked up among what the process has loaded.
    let start = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_PyRuntime".as_ptr()) };
    // SAFETY: plain bits.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut symbol = std::ptr::null_mut::<c_void>();
    // SAFETY: both are valid to write to.
    let found = !start.is_null() && unsafe { dladdr1(start, &raw mut info, &raw mut symbol, RTLD_DL_SYMENT) } != 0;
    // SAFETY: null, or an entry of the symbol table of a module that stays.
    match unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() } {
        Some(symbol) if found && info.dli_saddr == start => start.addr() as u64..start.addr() as u64 + symbol.st_size,
        _ => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn frames_that_are_published_before_they_are_written_are_not_looked_for() {
        for minor in [(3, 13), (3, 14), (3, 15)] {
            assert!(refusal("aarch64", minor).is_some_and(|why| why.contains("aarch64")), "{minor:?}");
            assert_eq!(refusal("x86_64", minor), None);
        }
        assert_eq!(refusal("aarch64", (3, 12)), None);
    }
}
