//! Span-aware sampling: *span context → sample → profile → upload*.

#[forbid(unsafe_code)]
mod config;
mod context;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod messages;
mod os;
#[forbid(unsafe_code)]
mod profile;
#[forbid(unsafe_code)]
mod profile_type;
#[forbid(unsafe_code)]
mod profiler;
mod sample;
#[forbid(unsafe_code)]
mod stats;
#[forbid(unsafe_code)]
mod upload;
pub mod wire;

pub use config::{
    Config, Secret, TraceIdLabel, check_tag_name, parse_bool, parse_duration, parse_trace_id, resource_labels,
};
pub use context::current::Context;
pub use context::names::{is_sampled, span_ended};
pub use context::span_record::{MAX_NAME_BYTES, SpanRecord};
pub use context::span_slot::{SpanContext, span_end, span_start};
pub use context::tags::TagSetId;
pub use error::{Error, ErrorKind};
pub use messages::{Level, Message};
pub use os::fork::forked;
pub use profile_type::{ProfileType, ProfileTypeId, SampleClock};
pub use profiler::Profiler;
pub use profiler::process::leave_parent_behind;
pub use sample::frame_pointer::walk_frame_pointers;
pub use sample::frames::{Frame, FrameWriter, MAX_FRAMES};
pub use sample::handler::{sample_deferred, sample_here};
pub use sample::record::ThreadRecord;
pub use sample::runtime::{Drain, DrainPermit, Repair, Runtime, SampleSignal};
pub use sample::safe_load::{enable_safe_load, safe_load, safe_load_faults, safe_load_u32};
pub use sample::threads::{add_thread_tag, describe_thread, for_each_pending_word, remove_thread_tag, thread_started};
pub use stats::{Stats, Tally};
pub use upload::outcome::Failure;
pub use upload::probe::Server;
