//! A sampling profiler that knows which OpenTelemetry span each sample belongs to.
//!
//! Every thread of the process gets a timer on its own CPU time, whose signal reads the thread's current span and its stack
//! in the same instant: *span **context** → **sample** → **profile** → **upload***. The profiler's thread sums samples into
//! windows of 15 s at most, encodes each as pprof, and a second thread pushes it to a Pyroscope server or writes a file.
//!
//! A language implements [`Runtime`]: how to walk a stack, and what its frames are called. One that has a context of its
//! own also says where its current span is ([`SpanRecord`]); one that has none calls [`span_start`] and [`span_end`].
//!
//! ```
//! use spanprof_core::{Config, Frame, FrameId, FrameWriter, Profiler, Runtime, ThreadRecord, span_end, span_start, walk_frame_pointers};
//!
//! struct Native;
//!
//! // SAFETY: the walk only loads what may fail, as `needs_safe_load` asks for.
//! unsafe impl Runtime for Native {
//!     fn needs_safe_load(&self) -> bool {
//!         true
//!     }
//!     unsafe fn walk(&self, _: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
//!         unsafe { walk_frame_pointers(ucontext, out) };
//!     }
//!     fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
//!         let frame = |id: &FrameId| Frame { function: format!("{id:#x}").into(), ..Frame::default() };
//!         ids.iter().map(|id| Some(frame(id))).collect()
//!     }
//! }
//!
//! let config = Config { application_name: "shop".into(), server_address: "none".into(), ..Config::default() };
//! let profiler = Profiler::start(config, &Native)?;
//! span_start(0x1234, "GET /cart");
//! span_end();
//! assert!(profiler.stop(std::time::Duration::from_secs(5)));
//! # Ok::<(), spanprof_core::Error>(())
//! ```

// The ground floor: each of these stands on nothing, or on those before it.
mod os;

#[forbid(unsafe_code)]
mod error;
#[forbid(unsafe_code)]
mod messages;
#[forbid(unsafe_code)]
mod profile_type;
#[forbid(unsafe_code)]
mod stats;
#[forbid(unsafe_code)]
mod wait_state;
#[forbid(unsafe_code)]
pub mod wire;

#[forbid(unsafe_code)]
mod config;

// The four stages, in the order in which data moves through them.
mod context;

mod sample;

#[forbid(unsafe_code)]
mod profile;

#[forbid(unsafe_code)]
mod upload;

// What starts, wires and stops them.
#[forbid(unsafe_code)]
mod profiler;

// The one of a process, for languages.
#[forbid(unsafe_code)]
pub mod host;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod fuzzing;

pub use config::{
    Config, Secret, SettingKind, SettingValue, TraceIdLabel, check_tag_name, may_be_a_tag, parse_bool, parse_duration,
    parse_trace_id, resource_labels,
};
pub use context::current::Context;
pub use context::span_names::{is_sampled, span_ended};
pub use context::span_record::{MAX_NAME_BYTES, SpanRecord};
pub use context::span_slot::{SpanContext, span_end, span_start};
pub use context::span_times::SpanTimes;
pub use context::tags::TagSetId;
pub use error::{Error, ErrorKind};
pub use messages::{Level, Message};
pub use os::allocator::Allocator;
pub use os::clock::{monotonic_ns, own_thread_cpu_ns};
pub use os::fork::forked;
pub use os::thread_word::ThreadWord;
pub use profile_type::{ProfileType, ProfileTypeId, SampleClock};
pub use profiler::Profiler;
pub use profiler::process::leave_parent_behind;
pub use sample::due::{sample_due, span_switched};
pub use sample::frame_pointer::walk_frame_pointers;
pub use sample::frames::{Frame, FrameId, FrameWriter, MAX_FRAMES};
pub use sample::handler::{sample_deferred, sample_here};
pub use sample::record::ThreadRecord;
pub use sample::runtime::{Drain, DrainPermit, LockWait, Repair, Runtime, SampleSignal, WaitFrame};
pub use sample::safe_load::{enable_safe_load, may_fault, safe_load, safe_load_faults, safe_load_u32};
pub use sample::threads::{add_thread_tag, describe_thread, for_each_pending_frame, remove_thread_tag, thread_started};
pub use sample::waits::flow::{current_flow, own_flow};
pub use sample::waits::suspensions::{flow_weight, sample_flow};
pub use sample::waits::times::{SpanCpu, add_time, unwant_span_times, want_span_times, wants_span_times};
pub use sample::waits::wrappers::waited_ns;
pub use sample::waits::{
    began_pending as waits_began_pending, function_of as wait_function, measures_waits, own_poll, sample_pending_waits,
};
pub use stats::{Stats, Tally};
pub use upload::outcome::Failure;
pub use upload::probe::Server;
pub use wait_state::State;
