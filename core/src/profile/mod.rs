//! Stage 3: sum the samples of a window and encode them.

pub(crate) mod aggregate;
pub(crate) mod profile_type;
pub(crate) mod window;
