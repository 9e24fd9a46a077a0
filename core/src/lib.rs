//! Span-aware sampling: *span context → sample → profile → upload*.

mod clock;
#[forbid(unsafe_code)]
mod config;
mod context;
mod error;
mod messages;
#[forbid(unsafe_code)]
mod profile;
mod sample;
mod stats;
#[forbid(unsafe_code)]
mod upload;
pub mod wire;

pub use config::{Config, Secret, TraceIdLabel, parse_bool, parse_duration};
pub use context::span_slot::{MAX_NAME_BYTES, SpanRecord};
pub use context::tags::TagSetId;
pub use context::threads::ThreadRecord;
pub use error::{Error, ErrorKind};
pub use messages::{Level, Message};
pub use profile::profile_type::{ProfileType, ProfileTypeId};
pub use sample::runtime::{Context, Drain, Frame, FrameWriter, MAX_FRAMES, Repair, Runtime};
pub use stats::{Stats, Tally};
