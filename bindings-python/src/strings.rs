//! The strings by which attributes of Python objects are looked up.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyString};

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
    gevent_hub = "gevent.hub",
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
