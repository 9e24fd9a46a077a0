//! The native half of the .NET binding: `libspanprof.so`, which the package Pyroscope.OpenTelemetry loads by P/Invoke.
//!
//! The hot interface is [`block`]: managed code writes span and tags of a thread into memory that the signal handler
//! reads. The cold one is [`interface`], of which C# is generated. Everything else is private.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the .NET binding samples Linux on x86-64 only");

pub mod block;
mod eh_frame;
pub mod interface;
mod profiler;
mod prologue;
mod unwind;

pub use interface::inventory;
