//! The native half of the .NET binding: `libspanprof.so`, which the package Pyroscope.OpenTelemetry loads by P/Invoke.
//!
//! The hot interface is [`block`]: managed code writes span and tags of a thread into memory that the signal handler
//! reads. The cold one is [`interface`], of which C# is generated. Everything else is private.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the .NET binding samples Linux on x86-64 only");

mod attach;
pub mod block;
mod call_sites;
mod clr;
mod code_map;
pub mod com;
mod eh_frame;
mod elf;
mod events;
pub mod interface;
mod memory;
mod modules;
mod names;
mod payload;
mod profiler;
mod prologue;
mod range_set;
mod repair;
mod resolver;
mod symbols;
mod unwind;

pub use interface::inventory;
