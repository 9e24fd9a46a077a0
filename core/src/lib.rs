//! Span-aware sampling: *span context → sample → profile → upload*.

mod clock;
mod config;
mod context;
mod error;
mod messages;
mod profile;
mod sample;
mod stats;
pub mod wire;

pub use config::{Config, Secret, TraceIdLabel};
pub use context::span_record::{MAX_NAME_BYTES, SpanRecord};
pub use context::tags::TagSetId;
pub use context::threads::ThreadRecord;
pub use error::{Error, ErrorKind};
pub use messages::{Level, Message};
pub use profile::profile_type::{ProfileType, ProfileTypeId};
pub use sample::runtime::{Context, Drain, Frame, FrameWriter, MAX_FRAMES, Repair, Runtime};
pub use stats::{Stats, Tally};
