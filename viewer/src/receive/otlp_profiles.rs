//! OTLP profiles, as a Collector sends them: tables that all profiles of a request share become a pprof of each.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{Profile, ProfilesDictionary, Sample, ValueType};
use spanprof_core::wire::pprof;
use spanprof_core::wire::push::LabelPair;

use super::Receiver;
use super::bounds::Inside;
use super::labels::{Labels, MOST_LABELS};
use super::otlp::{Export, Rejected};
use super::otlp_traces::service_name;
use super::pprof::rows;
use super::refusal::{Reason, Refusal, invalid};
use super::sample_types::profile_name;
use crate::ids::{SpanId, TraceId};

/// Resources (1) with scopes (2) with profiles (2) with samples (2), and the dictionary (2) with its tables.
const ENTRIES: Inside = Inside::Fields(&[
    (1, Inside::Fields(&[(1, Inside::Flat), (2, Inside::Fields(&[(2, Inside::Fields(&[(2, Inside::Flat)]))]))])),
    (2, Inside::Fields(&[(2, Inside::Flat), (6, Inside::Flat), (7, Inside::Flat)])),
]);

impl Export for ExportProfilesServiceRequest {
    const SIGNAL: &'static str = "profiles";
    const NAME: &'static str = "ExportProfilesServiceRequest";
    const REJECTED: &'static str = "rejectedProfiles";
    const ENTRIES: Inside = ENTRIES;

    /// A profile with anything wrong in it is left out and said in the answer.
    fn store(self, receiver: &Receiver) -> Result<Rejected, Refusal> {
        let tables = Tables::read(self.dictionary.unwrap_or_default())?;
        let mut rejected = Rejected::default();
        for resource in self.resource_profiles {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            for profile in resource.scope_profiles.into_iter().flat_map(|scope| scope.profiles) {
                let read = tables.profile(&profile).and_then(|(name, pprof)| {
                    let labels = Labels::read(&labels(&attributes, &name))?;
                    rows(&pprof, &labels, receiver.times())
                });
                match read {
                    Ok(profile) => receiver
                        .store
                        .insert_profile(&profile)
                        .map_err(|error| Refusal::new(Reason::Store, error.to_string()))?,
                    Err(refusal) => {
                        rejected.add(receiver, Self::SIGNAL, refusal.of_service(&service_name(&attributes)))
                    }
                }
            }
        }
        Ok(rejected)
    }
}

/// The labels of a series: what the resource says of itself in text, as many as are taken.
fn labels(attributes: &[KeyValue], name: &str) -> Vec<LabelPair> {
    let mut pairs = BTreeMap::from([
        ("__name__".to_owned(), name.to_owned()),
        ("service_name".to_owned(), service_name(attributes)),
    ]);
    for attribute in attributes.iter().filter(|attribute| attribute.key != "service.name") {
        if let Some(Value::StringValue(text)) = attribute.value.as_ref().and_then(|value| value.value.as_ref())
            && pairs.len() < MOST_LABELS
        {
            // The names that Grafana's data source asks for.
            let name = if attribute.key == "service.namespace" { "service_namespace" } else { &attribute.key };
            pairs.insert(name.to_owned(), text.clone());
        }
    }
    pairs.into_iter().map(|(name, value)| LabelPair { name, value }).collect()
}

/// The dictionary as pprof's tables; a number n there is n + 1 here.
struct Tables {
    dictionary: ProfilesDictionary,
    functions: Vec<pprof::Function>,
    locations: Vec<pprof::Location>,
}

impl Tables {
    fn read(mut dictionary: ProfilesDictionary) -> Result<Self, Refusal> {
        let function =
            |(at, function): (usize, &opentelemetry_proto::tonic::profiles::v1development::Function)| pprof::Function {
                id: id(at),
                name: function.name_strindex.into(),
                system_name: function.system_name_strindex.into(),
                filename: function.filename_strindex.into(),
                start_line: function.start_line,
            };
        let functions = dictionary.function_table.iter().enumerate().map(function).collect();
        let mut locations = Vec::with_capacity(dictionary.location_table.len());
        for (at, location) in dictionary.location_table.iter().enumerate() {
            let line = location.lines.iter().map(|line| pprof::Line {
                function_id: u64::try_from(line.function_index).map_or(0, |index| index + 1),
                line: line.line,
                column: line.column,
            });
            let line: Vec<_> = line.collect();
            // Entry 0 of each table says "none" and is used by nothing; a location needs a line or an address.
            let address = if line.is_empty() { location.address.max(1) } else { location.address };
            let mapping_id = u64::try_from(location.mapping_index).map_or(0, |index| index + 1);
            locations.push(pprof::Location { id: id(at), mapping_id, address, line, is_folded: false });
        }
        // Each profile's pprof has the strings of all.
        if dictionary.string_table.first().is_none_or(|first| !first.is_empty()) {
            if !dictionary.string_table.is_empty() {
                return Err(invalid("the dictionary's first string is not empty"));
            }
            dictionary.string_table.push(String::new());
        }
        Ok(Self { dictionary, functions, locations })
    }

    /// The name of the profile's type, and the profile.
    fn profile(&self, profile: &Profile) -> Result<(String, pprof::Profile), Refusal> {
        let mut strings = self.dictionary.string_table.clone();
        let mut string = |text: &str| {
            strings.push(text.into());
            i64::try_from(strings.len() - 1).unwrap_or(0)
        };
        let keys = [string("span_id"), string("trace_id")];
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
        let name = profile_name(self.string(sample_type.r#type)?).to_owned();
        let mut samples = Vec::with_capacity(profile.samples.len());
        for sample in &profile.samples {
            let ids = self.ids(sample)?;
            let mut labels = Vec::new();
            for (key, id) in keys.into_iter().zip(ids) {
                labels.extend(id.map(|id| pprof::Label { key, str: string(&id), num: 0, num_unit: 0 }));
            }
            for index in &sample.attribute_indices {
                labels.extend(self.attribute(*index)?.map(|(key, text)| pprof::Label {
                    key: key.into(),
                    str: string(text),
                    num: 0,
                    num_unit: 0,
                }));
            }
            // Without a value each time is one sample.
            let times = i64::try_from(sample.timestamps_unix_nano.len()).unwrap_or(i64::MAX);
            let values = sample.values.iter().copied();
            let value = if sample.values.is_empty() { times } else { values.fold(0, i64::saturating_add) };
            samples.push(pprof::Sample {
                location_id: self.stack(sample.stack_index)?,
                value: vec![value.saturating_mul(weight)],
                label: labels,
            });
        }
        let mapping = |(at, mapping): (usize, &opentelemetry_proto::tonic::profiles::v1development::Mapping)| {
            pprof::Mapping { id: id(at), filename: mapping.filename_strindex.into(), ..pprof::Mapping::default() }
        };
        let pprof = pprof::Profile {
            sample_type: vec![sample_type],
            sample: samples,
            mapping: self.dictionary.mapping_table.iter().enumerate().map(mapping).collect(),
            location: self.locations.clone(),
            function: self.functions.clone(),
            string_table: strings,
            time_nanos: i64::try_from(profile.time_unix_nano).unwrap_or(i64::MAX),
            duration_nanos: i64::try_from(profile.duration_nano).unwrap_or(i64::MAX),
            period_type: Some(period_type),
            period: profile.period,
            ..pprof::Profile::default()
        };
        Ok((name, pprof))
    }

    /// The span and the trace that a sample is linked to; link 0 is none.
    fn ids(&self, sample: &Sample) -> Result<[Option<String>; 2], Refusal> {
        if sample.link_index == 0 {
            return Ok([None, None]);
        }
        let link = entry(&self.dictionary.link_table, sample.link_index, "link")?;
        let (span, trace) = (SpanId::from_bytes(&link.span_id), TraceId::from_bytes(&link.trace_id));
        Ok([span.map(|id| id.to_string()), trace.map(|id| id.to_string())])
    }

    /// A sample's attribute, if it is a text.
    fn attribute(&self, index: i32) -> Result<Option<(i32, &str)>, Refusal> {
        let attribute = entry(&self.dictionary.attribute_table, index, "attribute")?;
        Ok(match &attribute.value {
            Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some((attribute.key_strindex, text)),
            _ => None,
        })
    }

    fn stack(&self, index: i32) -> Result<Vec<u64>, Refusal> {
        // Stack 0 is empty, also where there is no table at all.
        if index == 0 && self.dictionary.stack_table.is_empty() {
            return Ok(Vec::new());
        }
        let stack = entry(&self.dictionary.stack_table, index, "stack")?;
        Ok(stack.location_indices.iter().map(|index| u64::try_from(*index).map_or(0, |index| index + 1)).collect())
    }

    fn string(&self, index: i64) -> Result<&str, Refusal> {
        let found = usize::try_from(index).ok().and_then(|index| self.dictionary.string_table.get(index));
        found.map(String::as_str).ok_or_else(|| invalid(format!("the dictionary has no string {index}")))
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
