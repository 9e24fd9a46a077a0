//! What runs in the signal handler: the walk, and the tables that it searches. All else of this library fills these tables or
//! reads what the walk wrote, and nothing here uses any of it.

pub(crate) mod call_frames;
pub(crate) mod call_sites;
pub(crate) mod eh_frame;
pub(crate) mod hijack;
pub(crate) mod library_names;
pub(crate) mod loader;
pub(crate) mod modules;
pub(crate) mod own_stack;
pub(crate) mod range_set;
pub(crate) mod sample_header;
pub(crate) mod static_tls;
pub(crate) mod unwind;
pub(crate) mod wait_calls;
