//! OTLP profiles, as a Collector sends them: tables that all profiles of a request share, which are read once and
//! borrowed by each of them.

use std::borrow::Cow;

use ahash::HashMap;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use spanprof_core::wire::pprof;

use super::bounds::{Inside, Message, flat};
use super::labels::{Labels, MOST_LABELS};
use super::otlp::{Export, Rejected};
use super::otlp_traces::{RESOURCE, SCOPE, VALUE, service_name};
use super::pprof::{Reader, SampleLabels, SampleOf, Samples, Tables};
use super::receiver::Receiver;
use super::sample_types::profile_name;
use crate::http::allowed::Allowed;
use crate::http::refusal::{Refusal, invalid};
use crate::ids::{SpanId, TraceId};
use crate::store::Mark;

static REQUEST: Message = Message {
    size: size_of::<ExportProfilesServiceRequest>(),
    fields: &[(1, Inside::Message(&RESOURCE_PROFILES)), (2, Inside::Message(&DICTIONARY))],
};
static RESOURCE_PROFILES: Message = Message {
    size: size_of::<ResourceProfiles>(),
    fields: &[(1, Inside::One(&RESOURCE)), (2, Inside::Message(&SCOPE_PROFILES))],
};
static SCOPE_PROFILES: Message =
    Message { size: size_of::<ScopeProfiles>(), fields: &[(1, Inside::One(&SCOPE)), (2, Inside::Message(&PROFILE))] };
static PROFILE: Message =
    Message { size: size_of::<Profile>(), fields: &[(2, Inside::Message(&SAMPLE)), (11, Inside::Numbers(4))] };
static SAMPLE: Message = Message {
    size: size_of::<Sample>(),
    fields: &[(2, Inside::Numbers(4)), (4, Inside::Numbers(8)), (5, Inside::Numbers(8))],
};
static DICTIONARY: Message = Message {
    size: size_of::<ProfilesDictionary>(),
    fields: &[
        (1, Inside::Message(&MAPPING)),
        (2, Inside::Message(&LOCATION)),
        (3, Inside::Flat(size_of::<Function>())),
        (4, Inside::Message(&LINK)),
        (6, Inside::Message(&NAMED)),
        (7, Inside::Message(&STACK)),
    ],
};
static MAPPING: Message = Message { size: size_of::<Mapping>(), fields: &[(5, Inside::Numbers(4))] };
static LOCATION: Message =
    Message { size: size_of::<Location>(), fields: &[(3, Inside::Flat(size_of::<Line>())), (4, Inside::Numbers(4))] };
static LINK: Message = flat::<Link>();
static NAMED: Message = Message { size: size_of::<KeyValueAndUnit>(), fields: &[(2, Inside::One(&VALUE))] };
static STACK: Message = Message { size: size_of::<Stack>(), fields: &[(1, Inside::Numbers(4))] };

impl Export for ExportProfilesServiceRequest {
    const SIGNAL: &'static str = "profiles";
    const NAME: &'static str = "ExportProfilesServiceRequest";
    const REJECTED: &'static str = "rejectedProfiles";
    const WEIGHT: &'static Message = &REQUEST;
    const LARGEST: usize = size_of::<Profile>();

    /// A profile with anything wrong in it is left out and said in the answer.
    fn store(self, receiver: &Receiver, mark: u64, allowed: &mut Allowed) -> Result<Rejected, Refusal> {
        let dictionary = self.dictionary.unwrap_or_default();
        let strings = Strings::of(&dictionary)?;
        let tables = match tables(&dictionary, strings.0, allowed) {
            // Tables with anything wrong in them are wrong for each profile.
            Err(refusal) if refusal.is_of_content() => Err(refusal),
            read => Ok(read?),
        };
        let (mut rejected, mut profiles) = (Rejected::default(), Vec::new());
        for resource in &self.resource_profiles {
            let attributes = resource.resource.as_ref().map(|resource| &resource.attributes[..]).unwrap_or_default();
            let service = service_name(attributes);
            let mut labels_by_name: HashMap<&str, Labels> = HashMap::default();
            for profile in resource.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
                allowed.step(100)?;
                let shared = Shared { strings: strings.0, dictionary: &dictionary, profile };
                let read = shared.head().and_then(|(name, head)| {
                    let tables = tables.as_ref().map_err(Refusal::clone)?;
                    if !labels_by_name.contains_key(name) {
                        labels_by_name.insert(name, labels(attributes, &service, name)?);
                    }
                    let weighted = Weighted { weight: head.1, shared };
                    let labels = &labels_by_name[name];
                    let mut rows = Reader::new(tables, &weighted).read(&head.0, labels, receiver.times(), allowed)?;
                    // A Collector may send it again among others: of one with an id nothing else of the request counts.
                    rows.mark = Some(match &profile.profile_id[..] {
                        [] => Mark::of(&(mark, profiles.len()), false),
                        id => Mark::of(&(&labels.all, profile.time_unix_nano, id), true),
                    });
                    Ok(rows)
                });
                match read {
                    Ok(rows) => {
                        profiles.push(rows);
                    }
                    // What no profile may take is no fault of this one.
                    Err(refusal) if !refusal.is_of_content() => return Err(refusal.of_service(&service)),
                    Err(refusal) => rejected.add(refusal.of_service(&service)),
                }
            }
        }
        receiver.insert_profiles(profiles)?;
        rejected.tell(receiver, Self::SIGNAL);
        Ok(rejected)
    }
}

/// The labels of a series: what the resource says of itself in text, as many as are taken.
fn labels(attributes: &[KeyValue], service: &str, profile_name: &str) -> Result<Labels, Refusal> {
    let mut pairs: HashMap<&str, &str> = HashMap::from_iter([("__name__", profile_name), ("service_name", service)]);
    for attribute in attributes.iter().filter(|attribute| attribute.key != "service.name") {
        if let Some(Value::StringValue(text)) = attribute.value.as_ref().and_then(|value| value.value.as_ref())
            && pairs.len() < MOST_LABELS
        {
            // The names that Grafana's data source asks for.
            let name = if attribute.key == "service.namespace" { "service_namespace" } else { &attribute.key };
            if !["__name__", "service_name"].contains(&name) {
                pairs.insert(name, text);
            }
        }
    }
    Labels::read(pairs)
}

/// The dictionary's strings; one that has none is taken to have the empty one.
struct Strings<'a>(&'a [String]);

impl<'a> Strings<'a> {
    fn of(dictionary: &'a ProfilesDictionary) -> Result<Self, Refusal> {
        match dictionary.string_table.first() {
            Some(first) if !first.is_empty() => Err(invalid("the dictionary's first string is not empty")),
            _ => Ok(Self(&dictionary.string_table)),
        }
    }
}

/// The dictionary as pprof's tables; a number n there is n + 1 here.
fn tables<'a>(
    dictionary: &ProfilesDictionary,
    strings: &'a [String],
    allowed: &mut Allowed,
) -> Result<Tables<'a>, Refusal> {
    let lines: usize = dictionary.location_table.iter().map(|location| location.lines.len()).sum();
    let sizes = [
        (dictionary.function_table.len(), size_of::<pprof::Function>()),
        (dictionary.location_table.len(), size_of::<pprof::Location>()),
        (dictionary.mapping_table.len(), 32),
        (lines, size_of::<pprof::Line>()),
    ];
    let weight = sizes.into_iter().fold(0_usize, |sum, (number, size)| sum.saturating_add(number.saturating_mul(size)));
    allowed.take(weight, "the dictionary")?;
    let functions = dictionary.function_table.iter().enumerate().map(|(at, function)| pprof::Function {
        id: id(at),
        name: function.name_strindex.into(),
        system_name: function.system_name_strindex.into(),
        filename: function.filename_strindex.into(),
        start_line: function.start_line,
    });
    let functions: Vec<_> = functions.collect();
    let locations = dictionary.location_table.iter().enumerate().map(|(at, location)| {
        let line = location.lines.iter().map(|line| pprof::Line {
            function_id: u64::try_from(line.function_index).map_or(0, |index| index + 1),
            line: line.line,
            column: line.column,
        });
        let line: Vec<_> = line.collect();
        // Entry 0 of each table says "none" and is used by nothing; a location needs a line or an address.
        let address = if line.is_empty() { location.address.max(1) } else { location.address };
        let mapping_id = u64::try_from(location.mapping_index).map_or(0, |index| index + 1);
        pprof::Location { id: id(at), mapping_id, address, line, is_folded: false }
    });
    let locations: Vec<_> = locations.collect();
    let mappings = dictionary.mapping_table.iter().enumerate();
    let mappings = mappings.map(|(at, mapping)| (id(at), i64::from(mapping.filename_strindex))).collect();
    let tables = Tables::new(strings, &mappings, &functions, &locations, allowed);
    allowed.give_back(weight);
    tables
}

/// A profile and what it shares with the others of its request.
#[derive(Clone, Copy)]
struct Shared<'a> {
    strings: &'a [String],
    dictionary: &'a ProfilesDictionary,
    profile: &'a Profile,
}

/// The same, with what its values are multiplied by.
struct Weighted<'a> {
    shared: Shared<'a>,
    weight: i64,
}

impl<'a> Shared<'a> {
    /// The name of the profile's type, and a pprof without samples that says what its values mean, and their weight.
    fn head(&self) -> Result<(&'a str, (pprof::Profile, i64)), Refusal> {
        let profile = self.profile;
        let value_type =
            |kind: &ValueType| pprof::ValueType { r#type: kind.type_strindex.into(), unit: kind.unit_strindex.into() };
        let mut sample_type = profile.sample_type.as_ref().map(value_type).unwrap_or_default();
        let period_type = profile.period_type.as_ref().map(value_type).unwrap_or_default();
        let said = (self.string(sample_type.r#type)?, self.string(sample_type.unit)?);
        let period = (self.string(period_type.r#type)?, self.string(period_type.unit)?);
        // A count of samples of CPU is CPU.
        let weight = if said == ("samples", "count") && period == ("cpu", "nanoseconds") && profile.period > 0 {
            sample_type = period_type;
            profile.period
        } else {
            1
        };
        let name = profile_name(self.string(sample_type.r#type)?);
        let head = pprof::Profile {
            sample_type: vec![sample_type],
            time_nanos: i64::try_from(profile.time_unix_nano).unwrap_or(i64::MAX),
            period_type: Some(period_type),
            period: profile.period,
            ..pprof::Profile::default()
        };
        Ok((name, (head, weight)))
    }

    fn string(&self, index: i64) -> Result<&'a str, Refusal> {
        if index == 0 {
            return Ok("");
        }
        let found = usize::try_from(index).ok().and_then(|index| self.strings.get(index));
        found.map(String::as_str).ok_or_else(|| invalid(format!("the dictionary has no string {index}")))
    }
}

impl<'a> Samples<'a> for Weighted<'a> {
    type Stack = i32;
    type Labels = (i32, &'a [i32]);

    fn samples(&self) -> impl Iterator<Item = SampleOf<'a, i32, (i32, &'a [i32])>> {
        self.shared.profile.samples.iter().map(|sample| {
            // Without a value each time is one sample.
            let times = i64::try_from(sample.timestamps_unix_nano.len()).unwrap_or(i64::MAX);
            let values = sample.values.iter().copied();
            let value = if sample.values.is_empty() { times } else { values.fold(0, i64::saturating_add) };
            let labels = (sample.link_index, &sample.attribute_indices[..]);
            (sample.stack_index, labels, Cow::Owned(vec![value.saturating_mul(self.weight)]))
        })
    }

    fn locations(&self, stack: i32) -> Result<impl Iterator<Item = u64>, Refusal> {
        let stacks = &self.shared.dictionary.stack_table;
        // Stack 0 is empty, also where there is no table at all.
        let locations =
            if stack == 0 && stacks.is_empty() { &[][..] } else { &entry(stacks, stack, "stack")?.location_indices };
        Ok(locations.iter().map(|index| u64::try_from(*index).map_or(0, |index| index + 1)))
    }

    /// The span and the trace that a sample is linked to, where link 0 is none; and its attributes, if they are texts.
    fn labels(&self, (link, attributes): (i32, &'a [i32])) -> Result<SampleLabels<'a>, Refusal> {
        let dictionary = self.shared.dictionary;
        let mut read = SampleLabels::default();
        if link != 0 {
            let link = entry(&dictionary.link_table, link, "link")?;
            (read.span, read.trace) = (SpanId::from_bytes(&link.span_id), TraceId::from_bytes(&link.trace_id));
        }
        for index in attributes {
            let attribute = entry(&dictionary.attribute_table, *index, "attribute")?;
            if let Some(AnyValue { value: Some(Value::StringValue(text)) }) = &attribute.value {
                read.add(self.shared.string(attribute.key_strindex.into())?, text);
            }
        }
        Ok(read)
    }
}

fn entry<'a, T>(table: &'a [T], index: i32, what: &str) -> Result<&'a T, Refusal> {
    let found = usize::try_from(index).ok().and_then(|index| table.get(index));
    found.ok_or_else(|| invalid(format!("the dictionary has no {what} {index}")))
}

/// pprof's ids are not 0.
fn id(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX - 1) + 1
}
