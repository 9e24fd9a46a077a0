//! Threads of the small requests. They do nothing else, so that none of them is busy with what takes long, and what the
//! allocator keeps of each thread's memory stays small with them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// A few threads, which end when this is dropped.
#[derive(Debug)]
pub(super) struct Threads(Sender<Work>);

impl Threads {
    /// So many of them.
    pub(super) fn new(count: usize) -> Arc<Self> {
        let (sender, receiver) = channel::<Work>();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..count {
            let receiver = Arc::clone(&receiver);
            std::thread::spawn(move || {
                loop {
                    let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(work) = next else { return };
                    // Who waits for it is told, as its sender is dropped.
                    let _ = catch_unwind(AssertUnwindSafe(work));
                }
            });
        }
        Arc::new(Self(sender))
    }

    /// Runs `work` on one of them; the error says that it panicked.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        let (done, result) = oneshot::channel();
        // Where nobody waits any more, nobody is told; where there are no threads, the answer says so.
        let _ = self.0.send(Box::new(move || drop(done.send(work()))));
        result.await.map_err(|_| "its thread failed".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_no_thread() {
        let threads = Threads::new(1);
        assert_eq!(threads.run(|| 7).await, Ok(7));
        assert!(threads.run(|| assert_eq!(1, 2)).await.is_err());
        assert_eq!(threads.run(|| 8).await, Ok(8));
    }
}
