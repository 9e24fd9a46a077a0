//! The span and the tags that the interrupted thread is in: values of two ContextVars of ours, in the context that it runs.

use std::ptr;
use std::sync::atomic::Ordering;

use spanprof_core::{Context, SpanRecord, TagSetId};

use crate::span::published::{EPOCH_OF_RECORD, PROCESSOR_EPOCH, TAGS_USED};
use crate::stack::interpreter::{CPython, Published, thread_state};
use crate::stack::layout::OB_TYPE;
use crate::stack::memory::{Memory, Object, Plain};

impl CPython {
    /// The span and tags of the interrupted thread. Handler only.
    ///
    /// # Safety
    /// Called on the sampled thread.
    #[inline]
    pub(crate) unsafe fn context_now(&self) -> Context {
        if self.is_finalizing() {
            return Context::NONE;
        }
        // SAFETY: called on the sampled thread, whose own thread state this is.
        unsafe { self.context_of::<Plain>(thread_state()) }
    }

    /// The span and tags that are current in the context of `tstate`.
    ///
    /// Hot: 4 to 9 ns.
    ///
    /// # Safety
    /// `tstate` must be null or the calling thread's own thread state.
    #[inline]
    pub(crate) unsafe fn context_of<M: Memory>(&self, tstate: Object) -> Context {
        if tstate.is_null() {
            return Context::NONE;
        }
        // SAFETY: it is this thread's, so it is alive.
        let context = unsafe { M::pointer(tstate, self.layout.tstate_context) }.unwrap_or(ptr::null());
        let mut found = Context::NONE;
        let epoch = PROCESSOR_EPOCH.load(Ordering::Relaxed);
        if epoch != 0 {
            // SAFETY: the context that a thread runs in is alive and no other thread's.
            let record = unsafe { self.published::<M>(context, self.span) };
            // SAFETY: a record that was found is in a handle, which the context keeps alive, and the handle's epoch is there.
            if !record.is_null() && unsafe { ptr::read(record.wrapping_add(EPOCH_OF_RECORD).cast::<u32>()) } == epoch {
                found.span = record.cast::<SpanRecord>();
            }
        }
        if TAGS_USED.load(Ordering::Relaxed) {
            // SAFETY: as above.
            let tags = unsafe { self.published::<M>(context, self.tags) }.cast::<TagSetId>();
            if !tags.is_null() {
                // SAFETY: the context keeps the object alive, and its id never changes.
                found.tags = unsafe { ptr::read(tags) };
            }
        }
        found
    }

    /// Our data in the object that is the value of a variable of ours, null if there is none.
    ///
    /// # Safety
    /// As for [`NodeTypes::find`](crate::stack::hamt::NodeTypes::find).
    #[inline]
    pub(crate) unsafe fn published<M: Memory>(&self, context: Object, published: Published) -> Object {
        // SAFETY: the caller's promise.
        let value = unsafe { self.nodes.find::<M>(context, published.key) };
        if value.is_null() {
            return ptr::null();
        }
        // SAFETY: values of a live context are alive.
        let class = unsafe { M::pointer(value, OB_TYPE) };
        if class == Some(published.class) { value.wrapping_add(published.offset) } else { ptr::null() }
    }
}
