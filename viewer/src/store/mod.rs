//! Where profiles and spans are kept: SQLite, in memory or in a file. The only place with SQL.
//!
//! One connection writes. A file is read by connections of their own, each of which sees the last whole transaction, so
//! neither waits for the other; a store in memory has the one connection, and every statement on it takes milliseconds.
//! What calls this runs on threads that may wait. Rows go in by [`insert`], come out by [`samples`] and [`spans`], and
//! are forgotten by [`retention`].

mod connection;
mod counts;
mod database;
mod gather;
mod insert;
mod intern;
mod joined;
mod known_names;
mod labelled;
mod largest;
mod numbered;
mod overview;
mod presence;
mod profile_traces;
mod readers;
mod retention;
mod rollup;
mod rows;
mod sample_query;
mod samples;
mod sampling;
mod schema;
mod series;
mod services;
mod snapshots;
mod span_names;
mod span_predicate;
mod spans;
mod stack_blob;
mod stacks;
mod storage_limits;
mod sweep;
mod trie;
mod turns;

pub(crate) use connection::StoreError;
pub(crate) use counts::{Forgotten, Inserted};
pub(crate) use database::Store;
pub(crate) use gather::{REST, REST_ID};
pub(crate) use labelled::{Labelled, Origin};
pub(crate) use overview::{SeenProfileType, SeenProfileTypes};
pub(crate) use rows::{
    Function, Mark, Part, Place, Profile, ProfileType, Sample, Span, StackNode, TOLD, TimedSample, TimedSamples,
    shared_text,
};
pub(crate) use sampling::Sampling;
pub(crate) use series::{Choice, Point, SpanPoint, StoredSeries};
pub(crate) use services::Service;
pub(crate) use span_names::{NameSum, Named, OfStates};
pub(crate) use spans::{StoredSpan, TraceSort};
pub(crate) use stacks::{StackFrame, Stacks};
pub(crate) use storage_limits::StorageLimits;
