//! Which span and tags a thread is in: what the program's own calls do, and what they leave for the handler to read.

pub(crate) mod current;
pub(crate) mod processor;
pub(crate) mod record;
#[cfg(ruby_gte_3_3)]
pub(crate) mod saved;
pub(crate) mod tags;
pub(crate) mod times;

/// Before Ruby 3.3 each Ruby thread has a native one, and nothing is saved.
#[cfg(not(ruby_gte_3_3))]
pub(crate) mod saved {
    pub(crate) fn is_on() -> bool {
        false
    }

    #[inline]
    pub(crate) fn is_switching(_: impl FnOnce() -> Option<rb_sys::VALUE>) -> bool {
        false
    }

    #[inline]
    pub(crate) fn save(_: &super::record::Slot) {}
}
