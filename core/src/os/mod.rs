//! What the engine asks of the operating system and every stage may need: clocks, threads, forks. Knows nothing of the rest.

pub(crate) mod allocator;
pub(crate) mod atomics;
pub(crate) mod background_thread;
pub(crate) mod clock;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod panics;
pub(crate) mod single_instance;
pub(crate) mod switches;
pub(crate) mod thread_id;
pub(crate) mod thread_word;
