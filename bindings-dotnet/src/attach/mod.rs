//! How this library comes to be a profiler that CoreCLR calls: it asks for that itself, and answers what CoreCLR then calls.

pub mod callbacks;
pub(crate) mod request;
