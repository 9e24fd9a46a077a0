//! What runs in the signal handler, and nothing else but what switches it on and off.
//!
//! Called there, beside what `core/src/sample/handler.rs` lists: `ruby_native_thread_p` (a thread-local read;
//! `pthread_getspecific` before Ruby 3.3), `rb_during_gc` and `rb_profile_frames` (they read only, the latter behind
//! `shim/guard.c`, which adds `__sigsetjmp` and `siglongjmp`), where native threads are shared `rb_thread_current` (behind
//! the same) and `rb_internal_thread_specific_get`, and for the stress test `sigaddset`. When a wait is over also
//! `rb_frame_this_func` and `rb_current_receiver` (behind the same, they read only) and `pthread_self`, and in a span of a thread that
//! has switched fibers `rb_fiber_current` (likewise). Nothing is walked while garbage is
//! collected: a compacting collection moves what frames refer to and takes SIGSEGV for itself.
//!
//! Of other folders it reads what a thread publishes of itself: [`record`](crate::span::record) and [`saved`](crate::span::saved).

pub(crate) mod collection;
pub(crate) mod frame_id;
pub(crate) mod guard;
pub(crate) mod gvl;
pub(crate) mod method;
pub(crate) mod unwind;
pub(crate) mod wall_clock;
