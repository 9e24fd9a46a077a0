//! The native half of the .NET binding: `libspanprof.so`, which the package Pyroscope.OpenTelemetry loads by P/Invoke.
//!
//! The hot interface is [`block`]: managed code writes span and tags of a thread into memory that the signal handler
//! reads. The cold one is [`interface`], of which C# is generated. Everything else is private.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the .NET binding samples Linux on x86-64 only");

mod attach;
pub mod block;
mod clr;
pub mod com;
mod events;
pub mod interface;
mod libraries;
mod memory;
mod names;
mod payload;
mod profiler;
mod runtime;
mod stack;
mod symbols;

pub use interface::inventory;
