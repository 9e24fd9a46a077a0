//! The strings by which attributes of Python objects are looked up, and all else that is made once.
//!
//! It is made when the module is imported, not at its first use: `pyo3::intern!` and its kind let the GIL go while they make
//! something, and a fork by another thread at that instant leaves a child in which the first to need it waits for ever.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyString};

use crate::span::record::SpanHandle;
use crate::span::tags::TagSet;
use crate::span::{context_var, current, tags};

macro_rules! names {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// Interned strings.
        #[derive(Debug)]
        pub(crate) struct Names {
            $(pub(crate) $name: Py<PyString>,)*
            /// By how far ids are shifted.
            pub(crate) sixty_four: Py<PyInt>,
        }

        impl Names {
            fn new(py: Python<'_>) -> Self {
                Self {
                    $($name: PyString::intern(py, $text).unbind(),)*
                    sixty_four: PyInt::new(py, 64_u8).unbind(),
                }
            }
        }
    };
}

names! {
    context = "_context",
    handle = "_pyroscope",
    name = "_name",
    parent = "_parent",
}

/// The strings. A load.
#[inline]
pub(crate) fn names(py: Python<'_>) -> &'static Names {
    static NAMES: PyOnceLock<Names> = PyOnceLock::new();
    NAMES.get_or_init(py, || Names::new(py))
}

/// Makes what is made once, while no thread can be at it.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    names(py);
    context_var::token_class(py)?;
    current::variable(py)?;
    tags::variable(py)?;
    py.get_type::<SpanHandle>();
    py.get_type::<TagSet>();
    Ok(())
}
