//! Whether the interrupted thread runs the garbage collector.
//!
//! The interpreter has a flag for it (`gcstate->collecting`), whose place is learnt before the first start
//! ([`selftest`](crate::selftest)). It is one for all threads of an interpreter, so it counts for the one that holds the GIL.
//!
//! **Function called in the handler**, only while the flag is set: `PyThreadState_GetUnchecked` (`_PyThreadState_UncheckedGet`
//! before 3.13), which loads the thread state that holds the GIL, from 3.12 on that of the calling thread by a thread-local: one that
//! Python has set in each thread that has a state, so this is no first touch.

use crate::stack::interpreter::{CPython, thread_state};
use crate::stack::layout::TSTATE_INTERP;
use crate::stack::memory::{Memory, Plain};

impl CPython {
    /// Whether the calling thread is collecting. Handler.
    ///
    /// # Safety
    /// Called on the sampled thread, while the interpreter does not end.
    #[inline]
    pub(crate) unsafe fn is_collecting_now(&self) -> bool {
        let Some(collecting) = &self.collecting else { return false };
        let tstate = thread_state();
        if tstate.is_null() {
            return false;
        }
        // SAFETY: the calling thread's own state, which is alive.
        let interpreter = unsafe { Plain::pointer(tstate, TSTATE_INTERP) };
        // SAFETY: and so is its interpreter.
        let flag = interpreter.and_then(|interpreter| unsafe { Plain::half(interpreter, collecting.flag) });
        // SAFETY: callable at any time, from any thread, without the GIL.
        flag == Some(1) && unsafe { (collecting.current)() }.cast() == tstate
    }
}
