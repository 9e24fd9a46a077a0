//! What the program's logger is to be told, of the levels that it asked for.

use std::sync::{Mutex, PoisonError};

use spanprof_core::{Level, host};

use crate::interface::types::LogMessage;

/// The least level of messages that the program is told.
static LOG_LEVEL: Mutex<Option<Level>> = Mutex::new(Some(Level::Warning));

/// From here on the program is told messages of this level, and of those above it; `None`: of none.
pub(crate) fn set_level(least: Option<Level>) {
    *LOG_LEVEL.lock().unwrap_or_else(PoisonError::into_inner) = least;
}

/// What to tell the program since the last call.
pub(crate) fn take() -> Vec<LogMessage> {
    let least = *LOG_LEVEL.lock().unwrap_or_else(PoisonError::into_inner);
    let messages = host::take_messages();
    let kept = messages.into_iter().filter(|message| least.is_some_and(|least| message.level >= least));
    kept.map(|message| LogMessage { level: if message.level == Level::Info { 1 } else { 2 }, text: message.text })
        .collect()
}
