//! skeleton
use crate::sample::runtime::Context;
/// A thread, as the sampler knows it.
#[derive(Debug)]
pub struct ThreadRecord {}
impl ThreadRecord {
    pub(crate) fn slot_context(&self) -> Context {
        Context::NONE
    }
}
