//! A pprof profile, checked and turned into rows.
//!
//! Sample labels `span_id` (or its old alias `profile_id`) and `trace_id` say what a sample belongs to; any other
//! string label makes a series of its own, as in Pyroscope, but none says whose profile it is. A profile with anything
//! wrong in it is refused whole.
//!
//! Whatever a profile refers to (strings, functions, stacks, label sets) is kept once, and what it may refer to more
//! often than it has bytes is weighed before it is made.

mod reader;
mod samples;
mod tables;

use std::borrow::Cow;

use prost::Message as _;
use spanprof_core::wire::pprof::{
    Function as PprofFunction, Label, Line, Location, Mapping, Profile as Pprof, Sample as PprofSample, ValueType,
};

use super::bounds::{self, Inside, Message};
use super::labels::Labels;
use super::strings::string;
use crate::http::allowed::Allowed;
use crate::http::body::{self, too_large};
use crate::http::refusal::{Refusal, invalid};
use crate::store::Profile;

pub(super) use reader::Reader;
pub(super) use samples::{SampleLabels, SampleOf, Samples};
pub(super) use tables::Tables;

/// What of a profile takes more memory than its bytes.
static PROFILE: Message = Message {
    size: size_of::<Pprof>(),
    fields: &[
        (1, Inside::Flat(size_of::<ValueType>())),
        (2, Inside::Message(&SAMPLE)),
        (3, Inside::Flat(size_of::<Mapping>())),
        (4, Inside::Message(&LOCATION)),
        (5, Inside::Flat(size_of::<PprofFunction>())),
        (13, Inside::Numbers(8)),
    ],
};
static SAMPLE: Message = Message {
    size: size_of::<PprofSample>(),
    fields: &[(1, Inside::Numbers(8)), (2, Inside::Numbers(8)), (3, Inside::Flat(size_of::<Label>()))],
};
static LOCATION: Message = Message { size: size_of::<Location>(), fields: &[(4, Inside::Flat(size_of::<Line>()))] };

/// Decodes and checks a profile, plain or gzip, that must start within `times`.
pub(super) fn read(raw: &[u8], labels: &Labels, times: (i64, i64), allowed: &mut Allowed) -> Result<Profile, Refusal> {
    let rows = rows(&decode(raw, allowed)?, labels, times, allowed);
    allowed.give_back_decoded();
    rows
}

/// Decodes a profile, plain or gzip.
pub(super) fn decode(raw: &[u8], allowed: &mut Allowed) -> Result<Pprof, Refusal> {
    let mut unpacked = Vec::new();
    allowed.expect_profile(body::said_unpacked(raw))?;
    let bytes = if body::is_gzip(raw) {
        unpacked = body::gunzip(raw, allowed.most_profile(), "the profile", allowed)?;
        &unpacked
    } else {
        raw
    };
    if bytes.len() > allowed.most_profile() {
        return Err(too_large("the profile", allowed.most_profile()));
    }
    allowed.take_decoded(bounds::weigh_protobuf(bytes, &PROFILE, "the profile", allowed.most())?)?;
    let decoded = Pprof::decode(bytes).map_err(|error| invalid(format!("the profile is no pprof: {error}")));
    // Of what was unpacked nothing is borrowed.
    allowed.give_back(unpacked.capacity());
    decoded
}

/// Checks a decoded profile, which must start within `times`.
pub(super) fn rows(
    pprof: &Pprof,
    labels: &Labels,
    times: (i64, i64),
    allowed: &mut Allowed,
) -> Result<Profile, Refusal> {
    let mappings = pprof.mapping.iter().map(|mapping| (mapping.id, mapping.filename)).collect();
    let tables = Tables::new(&pprof.string_table, &mappings, &pprof.function, &pprof.location, allowed)?;
    Reader::new(&tables, &Wire(pprof)).read(pprof, labels, times, allowed)
}

/// A pprof's own samples.
struct Wire<'a>(&'a Pprof);

impl<'a> Samples<'a> for Wire<'a> {
    type Stack = &'a [u64];
    type Labels = &'a [Label];

    fn samples(&self) -> impl Iterator<Item = SampleOf<'a, &'a [u64], &'a [Label]>> {
        let samples = self.0.sample.iter();
        samples.map(|sample| (&sample.location_id[..], &sample.label[..], Cow::Borrowed(&sample.value[..])))
    }

    fn locations(&self, stack: &'a [u64]) -> Result<impl Iterator<Item = u64>, Refusal> {
        Ok(stack.iter().copied())
    }

    fn labels(&self, labels: &'a [Label]) -> Result<SampleLabels<'a>, Refusal> {
        let mut read = SampleLabels::default();
        for label in labels {
            let key = string(&self.0.string_table, label.key, "a label's name")?;
            read.add(key, string(&self.0.string_table, label.str, "a label's value")?);
        }
        Ok(read)
    }
}
