//! How much the process may take, and what it is divided into.

use std::sync::Arc;

use crate::budget::Budget;
use crate::store::StorageLimits;

/// What the process takes beside what is stored, remembered, received and asked: code, threads, connections.
const PROCESS: u64 = 24 << 20;
/// The least that --memory may be.
const LEAST_MEMORY: u64 = 64 << 20;

/// What --memory is divided into, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Of what is stored.
    pub(crate) stored: u64,
    /// Of what whoever inserts remembers of the store, and again of what whoever asks does.
    pub(crate) remembered: usize,
    /// Of all requests that are received.
    pub(crate) requests: usize,
    /// Of the bodies of all questions, while they are read, wait and are worked on.
    pub(crate) questions: usize,
    /// Of an answer while it is made.
    pub(crate) answer: usize,
    /// How many are made at once.
    pub(crate) at_once: usize,
    /// Of answers that are being sent.
    pub(crate) sent: usize,
}

impl Shares {
    /// Divides --memory.
    pub(crate) fn of(memory: u64) -> Self {
        let part = |parts: u64, least: u64, most: u64| (memory / parts).clamp(least << 20, most << 20);
        let (remembered, requests) = (part(16, 4, 16), part(8, 10, 256));
        let (questions, answers, sent) = (part(32, 2, 16), part(8, 6, 256), part(16, 4, 64));
        let at_once = if memory < 256 << 20 { 1 } else { 2 };
        let taken = PROCESS + 2 * remembered + requests + questions + answers + sent;
        let bytes = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
        Self {
            // SQLite keeps some 200 bytes beside each page of 4 KiB.
            stored: memory.saturating_sub(taken) / 16 * 15,
            remembered: bytes(remembered),
            requests: bytes(requests),
            questions: bytes(questions),
            answer: bytes(answers) / at_once,
            at_once,
            sent: bytes(sent),
        }
    }

    /// The limits of all stores together.
    pub(crate) fn limits(&self) -> Arc<StorageLimits> {
        StorageLimits::with(self.stored, self.remembered, self.answer)
    }

    /// What a file takes its bytes from while nothing else is done: the shares of all that is not, and what is free of
    /// what may be stored.
    pub(crate) fn of_file(&self, stored: u64) -> Arc<Budget> {
        let free = usize::try_from(self.stored.saturating_sub(stored)).unwrap_or(usize::MAX);
        let bytes = (self.requests + self.questions + self.answer * self.at_once + self.sent).saturating_add(free);
        Budget::new(bytes, bytes)
    }
}

/// Reads a whole number of bytes with a unit: `64m`, `2g`.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    let allowed = || format!("{text:?} is not a size such as 128m or 2g, of at least 64m");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(allowed)?;
    let bytes = match unit {
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return Err(allowed()),
    };
    let size = number.parse::<u64>().ok().and_then(|number| number.checked_mul(bytes)).ok_or_else(allowed)?;
    if size < LEAST_MEMORY {
        let least = LEAST_MEMORY >> 20;
        let own = least - (Shares::of(LEAST_MEMORY).stored >> 20);
        return Err(format!(
            "{text} is too little: the least is {least}m, of which {own}m are for the program itself and for requests"
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit_and_a_value_and_are_divided_whole() {
        assert_eq!(parse_memory("64m"), Ok(64 << 20));
        for bad in ["", "m", "64", "-1m", "99999999999999g"] {
            assert!(parse_memory(bad).unwrap_err().contains("128m"), "{bad}");
        }
        for little in ["0m", "1k", "63m"] {
            assert!(parse_memory(little).unwrap_err().contains("the least is 64m"), "{little}");
        }
        for memory in [64, 128, 512, 4_096, 65_536] {
            let Shares { stored, remembered, requests, questions, answer, at_once, sent } = Shares::of(memory << 20);
            let taken = 2 * remembered + requests + questions + answer * at_once + sent;
            assert!(stored > 7 << 20 && stored + PROCESS + taken as u64 <= memory << 20, "{memory}");
        }
    }
}
