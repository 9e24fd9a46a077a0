//! Long work on an answer, counted in steps, so that it ends when the time of its request is over or nobody waits for it.

use std::io::{self, Write};

use super::error::ShowError;
use crate::work;

/// Steps, each of them some look-ups, between two looks at the clock.
const BETWEEN: u32 = 4_096;

/// The steps of a loop.
#[derive(Debug, Default)]
pub(crate) struct Steps(u32);

impl Steps {
    /// One more. It is an error where the time of the request is over.
    pub(crate) fn step(&mut self) -> Result<(), ShowError> {
        if self.is_last() { Err(ShowError::over()) } else { Ok(()) }
    }

    /// The same, whether it is over.
    fn is_last(&mut self) -> bool {
        self.0 += 1;
        if self.0 < BETWEEN {
            return false;
        }
        self.0 = 0;
        work::is_over()
    }
}

/// Text that is written by someone else's loop, which ends with an error where the time of the request is over.
#[derive(Debug, Default)]
pub(crate) struct Written {
    bytes: Vec<u8>,
    steps: Steps,
    is_over: bool,
}

impl Written {
    /// What was written, if `done` says that all of it was.
    pub(crate) fn finish<E>(
        self,
        done: Result<(), E>,
        failed: impl FnOnce(E) -> ShowError,
    ) -> Result<Vec<u8>, ShowError> {
        match done {
            Ok(()) => Ok(self.bytes),
            Err(_) if self.is_over => Err(ShowError::over()),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_over = self.is_over || self.steps.is_last();
        if self.is_over {
            return Err(io::Error::other("the time of the request is over"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::{Gone, Haste};

    #[test]
    fn what_is_written_ends_with_the_time_of_its_request() {
        let write = || {
            let mut written = Written::default();
            let done = serde_json::to_writer(&mut written, &vec![0; 10_000]);
            written.finish(done, |error| ShowError::Failed(error.to_string()))
        };
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), write);
        assert!(matches!(over, Err(ShowError::Busy(_))), "{over:?}");
        assert_eq!(write().unwrap().len(), 20_001);
    }
}
