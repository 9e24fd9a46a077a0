//! The native half of the .NET binding: `libspanprof.so`, which the package Pyroscope.OpenTelemetry loads by P/Invoke.
//!
//! The hot interface is [`span`]: managed code writes span and tags of a thread into memory that the signal handler
//! reads, and tells [`events::resumed`] how long nobody ran a span. The cold one is [`interface`], of which C# is generated. Everything else is private:
//!
//! | folder | what it does |
//! |---|---|
//! | `stack` | runs in the signal handler: the walk, and the tables that it searches |
//! | `libraries` | finds the native libraries and reads their files, for these tables and for names |
//! | `clr` | asks CoreCLR |
//! | `symbols` | finds what samples mean, on the profiler's thread |
//! | `events` | takes samples of allocations, lock waits, exceptions and flows that go on |
//! | `attach` | has CoreCLR call this library, and answers |
//! | `profiler` | starts and stops, with `arguments` from C# and `messages` to it |
//! | `runtime` | is what the engine asks; it passes on |

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the .NET binding samples Linux on x86-64 only");

mod arguments;
pub mod attach;
mod clr;
pub mod events;
pub mod interface;
mod libraries;
mod memory;
mod messages;
mod profiler;
mod runtime;
pub mod span;
mod stack;
mod symbols;

pub use interface::inventory;

/// No allocation of ours ends a program that lives on without memory.
#[global_allocator]
static ALLOCATOR: spanprof_core::Allocator = spanprof_core::Allocator;
