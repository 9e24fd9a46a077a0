//! What a user sets, once, before anything starts.
//!
//! A [`Config`] is plain data that bindings fill from arguments and from the environment. `Config::validate`
//! turns it into `Settings`, the one place where every value is known to be usable, so no later stage can fail
//! on a setting: what is wrong is said by `start()`, with the field's name, its value and what is allowed.

mod address;
mod environment;
mod fields;
mod options;
#[cfg(test)]
mod properties;
mod secret;
mod settings;
mod tag_name;

pub(crate) use address::without_credentials;
pub use environment::{parse_bool, parse_duration, parse_trace_id, resource_labels};
pub use fields::{SettingKind, SettingValue};
pub use options::{Config, TraceIdLabel};
pub use secret::Secret;
pub(crate) use settings::{HttpTarget, Settings, Target};
pub use tag_name::{check_tag_name, may_be_a_tag};
