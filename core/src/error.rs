//! One error type for the whole engine; a binding maps each kind to one exception class of its language.

use std::fmt;

/// What went wrong, for code; the message says it for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is missing or has a value that is not allowed. Nothing was started.
    InvalidConfig,
    /// A profiler runs in this process already.
    AlreadyRunning,
    /// Profiling is switched off by a setting. Nothing was started.
    Disabled,
    /// This platform or runtime version cannot be sampled. Spans go on working.
    Unsupported,
    /// The kernel refused a timer, a signal or a mapping, or a file could not be written.
    System,
}

/// An error of the engine: its kind, and a message that names the operation, the field and the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// Makes an error; the message is shown to people as it is.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A bad setting: its name, the value it has, in one line, and what is allowed. Credentials must not be passed as `value`.
    pub fn invalid(field: &str, value: impl fmt::Display, allowed: &str) -> Self {
        let value = value.to_string();
        let line = value.chars().fold(String::with_capacity(value.len()), |mut line, c| {
            if c.is_control() {
                line.extend(c.escape_default())
            } else {
                line.push(c)
            }
            line
        });
        Self::new(ErrorKind::InvalidConfig, format!("{field}: {line} is not allowed; allowed: {allowed}"))
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message alone.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
