//! What a user must know, kept until a binding asks for it. The core never prints and never calls the host.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// How much a message matters, in every logging library's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Data is lost or late, or a setting should be changed.
    Warning,
}

/// One sentence for the host's logger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// How much it matters.
    pub level: Level,
    /// The sentence. Never holds credentials.
    pub text: String,
}

/// At most this many wait; then the oldest goes.
const KEPT: usize = 64;

/// The queue of messages. Any thread of the profiler adds, a binding takes.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    queue: Mutex<VecDeque<Message>>,
}

impl Messages {
    pub(crate) fn info(&self, text: impl Into<String>) {
        self.add(Level::Info, text.into());
    }

    pub(crate) fn warn(&self, text: impl Into<String>) {
        self.add(Level::Warning, text.into());
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    fn add(&self, level: Level, text: String) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.iter().any(|waiting| waiting.text == text) {
            return;
        }
        if queue.len() == KEPT {
            queue.pop_front();
        }
        queue.push_back(Message { level, text });
    }
}
