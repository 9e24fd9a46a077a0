//! What the program's logger is to be told.

use std::sync::{Mutex, PoisonError};

use spanprof_core::{Level, Message};

use crate::interface::types::Told;

/// Sentences of this binding, and of profilers that were stopped, until they are asked for.
static WAITING: Mutex<Vec<Message>> = Mutex::new(Vec::new());
/// The least level of messages that the program is told.
static LOG_LEVEL: Mutex<Option<Level>> = Mutex::new(Some(Level::Warning));

/// From here on the program is told messages of this level, and of those above it; `None`: of none.
pub(crate) fn set_level(least: Option<Level>) {
    *LOG_LEVEL.lock().unwrap_or_else(PoisonError::into_inner) = least;
}

/// Keeps a sentence of this binding.
pub(crate) fn tell(level: Level, text: String) {
    keep(vec![Message { level, text }]);
}

/// Keeps sentences until they are asked for.
pub(crate) fn keep(messages: Vec<Message>) {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner).extend(messages);
}

/// What to tell the program: sentences that were kept, then those that `newer` gives.
pub(crate) fn take(newer: impl FnOnce() -> Vec<Message>) -> Vec<Told> {
    let least = *LOG_LEVEL.lock().unwrap_or_else(PoisonError::into_inner);
    let mut messages = std::mem::take(&mut *WAITING.lock().unwrap_or_else(PoisonError::into_inner));
    messages.extend(newer());
    let kept = messages.into_iter().filter(|message| least.is_some_and(|least| message.level >= least));
    kept.map(|message| Told { level: if message.level == Level::Info { 1 } else { 2 }, text: message.text }).collect()
}
