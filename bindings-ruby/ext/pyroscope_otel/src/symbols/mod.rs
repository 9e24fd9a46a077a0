//! What the frame ids of a stack mean: after the handler, when rings are read.

mod frame;
pub(crate) mod functions;
pub(crate) mod marking;
pub(crate) mod resolver;
