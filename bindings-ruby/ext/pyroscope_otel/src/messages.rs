//! What a logger is to be told: kept until Ruby asks, as a logger runs code of the program.

use std::sync::atomic::{AtomicBool, Ordering};

use magnus::{Error, RArray, Ruby};
use spanprof_core::{Level, Message, host};

use crate::errors::guard;
use crate::ractor::is_main_ractor;

/// It is still to be reported that faults do not come to us any more.
static GUARD_IS_LOST: AtomicBool = AtomicBool::new(false);

/// Faults do not come to us any more. For the engine's thread, which a fork may find anywhere: no lock.
pub(crate) fn guard_is_lost() {
    GUARD_IS_LOST.store(true, Ordering::Relaxed);
}

/// What a logger is to be told since the last call.
pub(crate) fn messages(ruby: &Ruby) -> Result<RArray, Error> {
    guard(ruby, || {
        if !is_main_ractor() {
            // The logger is the main one's.
            return Ok(ruby.ary_new());
        }
        if GUARD_IS_LOST.swap(false, Ordering::Relaxed) {
            host::report(
                Level::Warning,
                "Another library replaced the handler of SIGSEGV or SIGBUS, so stacks are not read: samples have spans and no frames.",
            );
        }
        let messages = host::take_messages();
        let list = ruby.ary_new_capa(messages.len());
        for Message { level, text } in messages {
            let level = match level {
                Level::Info => "info",
                Level::Warning => "warning",
            };
            list.push((ruby.to_symbol(level), text))?;
        }
        Ok(list)
    })
}
