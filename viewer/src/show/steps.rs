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

/// Text that is written by someone else's loop, which ends with an error where the time of the request is over, or where it has
/// more bytes than an answer may have.
#[derive(Debug)]
pub(crate) struct Written {
    bytes: Vec<u8>,
    most: usize,
    steps: Steps,
    ended: Option<ShowError>,
}

impl Written {
    /// Nothing yet, of at most so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most, steps: Steps::default(), ended: None }
    }

    /// What was written, if `done` says that all of it was.
    pub(crate) fn finish<E>(
        self,
        done: Result<(), E>,
        failed: impl FnOnce(E) -> ShowError,
    ) -> Result<Vec<u8>, ShowError> {
        match done {
            Ok(()) => Ok(self.bytes),
            Err(error) => Err(self.ended.unwrap_or_else(|| failed(error))),
        }
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.ended.is_none() && self.steps.is_last() {
            self.ended = Some(ShowError::over());
        }
        if self.ended.is_none() && bytes.len() > self.most - self.bytes.len() {
            let most = self.most;
            self.ended =
                Some(ShowError::TooLarge(format!("The answer would have more than {most} bytes; choose less.")));
        }
        if self.ended.is_some() {
            return Err(io::Error::other("it is ended"));
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
        let write = |most: usize| {
            let mut written = Written::new(most);
            let done = serde_json::to_writer(&mut written, &vec![0; 10_000]);
            written.finish(done, |error| ShowError::Failed(error.to_string()))
        };
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || write(1 << 20));
        assert!(matches!(over, Err(ShowError::Busy(_))), "{over:?}");
        assert_eq!(write(20_001).unwrap().len(), 20_001);
        let too_large = write(20_000);
        assert!(
            matches!(&too_large, Err(ShowError::TooLarge(say)) if say.contains("more than 20000 bytes")),
            "{too_large:?}"
        );
    }
}
