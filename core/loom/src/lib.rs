//! The engine's two lock-free files, compiled with loom's atomics: `cargo test -p spanprof-loom` tries every order in
//! which two threads may run and see each other's stores. A handler cannot run beside its own thread, so a handler and a
//! reader or a retiring thread are all there is.

#![cfg(test)]

#[allow(dead_code, reason = "only what two threads do at once is tried")]
#[path = "../../src/sample/cursor.rs"]
mod cursor;
#[allow(dead_code, reason = "as above")]
#[path = "../../src/sample/gate.rs"]
mod gate;

/// In the place of the engine's own.
mod os {
    pub(crate) mod atomics {
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    }
}

use cursor::Cursor;
use gate::Gate;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use os::atomics;

/// A ring of two words, whose memory loom watches: two threads in one word at a time are an error.
struct Ring {
    cursor: Cursor,
    words: [UnsafeCell<u64>; 2],
}

// SAFETY: what the test is about; loom finds the orders in which it is wrong.
unsafe impl Sync for Ring {}

impl Ring {
    fn new() -> Self {
        let cursor = Cursor { head: atomics::AtomicU64::new(0), tail: atomics::AtomicU64::new(0) };
        Self { cursor, words: [UnsafeCell::new(0), UnsafeCell::new(0)] }
    }

    /// As `Ring::write` does it: false when there is no room.
    fn write(&self, value: u64) -> bool {
        let (head, tail) = self.cursor.for_writer();
        if head - tail == 2 {
            return false;
        }
        // SAFETY: see above.
        self.words[(head % 2) as usize].with_mut(|word| unsafe { *word = value });
        self.cursor.publish(head + 1);
        true
    }

    fn read(&self, into: &mut Vec<u64>) {
        let (tail, head) = self.cursor.for_reader();
        for at in tail..head {
            // SAFETY: see above.
            into.push(self.words[(at % 2) as usize].with(|word| unsafe { *word }));
        }
        self.cursor.give_back(head);
    }
}

#[test]
fn a_ring_passes_on_in_order_what_was_written_and_no_word_is_read_while_it_is_written() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let writer = Arc::clone(&ring);
        let handler = thread::spawn(move || (1..=4).filter(|value| writer.write(*value)).collect::<Vec<_>>());
        let mut read = Vec::new();
        ring.read(&mut read);
        ring.read(&mut read);
        let written = handler.join().unwrap();
        ring.read(&mut read);
        assert_eq!(read, written);
    });
}

/// A record whose ring loom watches.
struct Record {
    gate: Gate,
    ring: UnsafeCell<u64>,
}

// SAFETY: as above.
unsafe impl Sync for Record {}

#[test]
fn nobody_is_inside_a_record_that_was_retired() {
    loom::model(|| {
        let gate = Gate {
            generation: atomics::AtomicU32::new(0),
            inside: atomics::AtomicU32::new(0),
            live: atomics::AtomicBool::new(false),
        };
        let record = Arc::new(Record { gate, ring: UnsafeCell::new(0) });
        let generation = record.gate.open();
        let late = Arc::clone(&record);
        let handler = thread::spawn(move || {
            if late.gate.enter(generation) {
                // SAFETY: as above.
                late.ring.with_mut(|ring| unsafe { *ring += 1 });
            }
            late.gate.leave();
        });
        record.gate.close();
        while !record.gate.is_empty() {
            thread::yield_now();
        }
        // Its ring is taken away, and the record given to another thread.
        // SAFETY: as above.
        record.ring.with_mut(|ring| unsafe { *ring = 0 });
        assert_ne!(record.gate.open(), generation);
        handler.join().unwrap();
        // SAFETY: as above.
        let seen = record.ring.with(|ring| unsafe { *ring });
        assert_eq!(seen, 0, "a late handler wrote into another thread's ring");
    });
}
