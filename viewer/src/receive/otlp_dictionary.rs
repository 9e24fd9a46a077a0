//! The tables that all OTLP profiles of a request share: read once, borrowed by each.

use std::borrow::Cow;

use ahash::HashMap;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{Link, ProfilesDictionary};
use spanprof_core::wire::pprof;

use super::labels::LONGEST_VALUE;
use super::otlp_traces::truncated_service;
use super::pprof::Tables;
use super::strings::truncated;
use crate::http::allowed::Allowed;
use crate::http::refusal::{Refusal, invalid};

/// The attribute that says whose samples they are.
pub(super) const SERVICE: &str = "service.name";

/// The dictionary of a request.
#[derive(Clone, Copy)]
pub(super) struct Dictionary<'a>(&'a ProfilesDictionary);

impl<'a> Dictionary<'a> {
    /// Its first string is the empty one, or it has none and is taken to have that.
    pub(super) fn of(dictionary: &'a ProfilesDictionary) -> Result<Self, Refusal> {
        match dictionary.string_table.first() {
            Some(first) if !first.is_empty() => Err(invalid("the dictionary's first string is not empty")),
            _ => Ok(Self(dictionary)),
        }
    }

    pub(super) fn string(self, index: i32) -> Result<&'a str, Refusal> {
        if index == 0 { Ok("") } else { entry(&self.0.string_table, index, "string").map(String::as_str) }
    }

    /// An attribute of samples: its name and, if it is one, its text.
    pub(super) fn attribute(self, index: i32) -> Result<(&'a str, Option<&'a str>), Refusal> {
        let attribute = entry(&self.0.attribute_table, index, "attribute")?;
        let text = match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Value::StringValue(text)) => Some(text.as_str()),
            Some(Value::StringValueStrindex(index)) => Some(self.string(*index)?),
            _ => None,
        };
        Ok((self.string(attribute.key_strindex)?, text))
    }

    /// The whole number that an attribute of samples is, if it has this name.
    pub(super) fn number(self, index: i32, name: &str) -> Option<i64> {
        let attribute = entry(&self.0.attribute_table, index, "attribute").ok()?;
        match attribute.value.as_ref()?.value.as_ref()? {
            Value::IntValue(number) if self.string(attribute.key_strindex).ok()? == name => Some(*number),
            _ => None,
        }
    }

    /// Which attributes of samples say their service, and which.
    pub(super) fn services(self, allowed: &mut Allowed) -> Result<HashMap<i32, &'a str>, Refusal> {
        let mut services = HashMap::default();
        for index in (0..).take(self.0.attribute_table.len()) {
            allowed.step(1)?;
            // What is wrong with one is said where a sample has it.
            if let Ok((SERVICE, Some(service))) = self.attribute(index)
                && !service.is_empty()
            {
                let service = truncated_service(service);
                allowed.take(2 * size_of::<(i32, &str)>(), "the dictionary")?;
                services.insert(index, service);
            }
        }
        Ok(services)
    }

    /// The attributes of a resource or a scope that are texts or whole numbers, in order, cut as labels are: many may refer to one text.
    pub(super) fn texts(self, attributes: &'a [KeyValue]) -> Result<Vec<(&'a str, Cow<'a, str>)>, Refusal> {
        let mut texts = Vec::new();
        for attribute in attributes {
            let key = match attribute.key.as_str() {
                "" => self.string(attribute.key_strindex)?,
                key => key,
            };
            let text = match &attribute.value {
                Some(AnyValue { value: Some(Value::StringValue(text)) }) => truncated(text, LONGEST_VALUE).into(),
                Some(AnyValue { value: Some(Value::StringValueStrindex(index)) }) => {
                    truncated(self.string(*index)?, LONGEST_VALUE).into()
                }
                Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string().into(),
                _ => continue,
            };
            texts.push((key, text));
        }
        Ok(texts)
    }

    pub(super) fn link(self, index: i32) -> Result<&'a Link, Refusal> {
        entry(&self.0.link_table, index, "link")
    }

    /// The locations of a stack, leaf first, as [`tables`](Self::tables) numbers them.
    pub(super) fn stack(self, index: i32) -> Result<impl Iterator<Item = u64>, Refusal> {
        let stacks = &self.0.stack_table;
        // Stack 0 is empty, also where there is no table at all.
        let locations =
            if index == 0 && stacks.is_empty() { &[][..] } else { &entry(stacks, index, "stack")?.location_indices };
        Ok(locations.iter().map(|index| number(*index)))
    }

    /// The tables as pprof's; a number n there is n + 1 here.
    pub(super) fn tables(self, allowed: &mut Allowed) -> Result<Tables<'a>, Refusal> {
        let dictionary = self.0;
        let lines: usize = dictionary.location_table.iter().map(|location| location.lines.len()).sum();
        let sizes = [
            (dictionary.function_table.len(), size_of::<pprof::Function>()),
            (dictionary.location_table.len(), size_of::<pprof::Location>()),
            (dictionary.mapping_table.len(), 32),
            (lines, size_of::<pprof::Line>()),
        ];
        let weight =
            sizes.into_iter().fold(0_usize, |sum, (number, size)| sum.saturating_add(number.saturating_mul(size)));
        allowed.take(weight, "the dictionary")?;
        let functions = (1..).zip(&dictionary.function_table).map(|(id, function)| pprof::Function {
            id,
            name: function.name_strindex.into(),
            system_name: function.system_name_strindex.into(),
            filename: function.filename_strindex.into(),
            start_line: function.start_line,
        });
        let functions: Vec<_> = functions.collect();
        let locations = (1..).zip(&dictionary.location_table).map(|(id, location)| {
            let line = location.lines.iter().map(|line| pprof::Line {
                function_id: number(line.function_index),
                line: line.line,
                column: line.column,
            });
            let line: Vec<_> = line.collect();
            // Entry 0 of each table says "none" and is used by nothing; a location needs a line or an address.
            let address = if line.is_empty() { location.address.max(1) } else { location.address };
            pprof::Location { id, mapping_id: number(location.mapping_index), address, line, is_folded: false }
        });
        let locations: Vec<_> = locations.collect();
        let mappings = (1..).zip(&dictionary.mapping_table);
        let mappings = mappings.map(|(id, mapping)| (id, i64::from(mapping.filename_strindex))).collect();
        let tables = Tables::new(&dictionary.string_table, &mappings, &functions, &locations, allowed);
        allowed.give_back(weight);
        tables
    }
}

fn entry<'a, T>(table: &'a [T], index: i32, what: &str) -> Result<&'a T, Refusal> {
    let found = usize::try_from(index).ok().and_then(|index| table.get(index));
    found.ok_or_else(|| invalid(format!("the dictionary has no {what} {index}")))
}

/// pprof's ids are not 0.
fn number(index: i32) -> u64 {
    u64::try_from(index).map_or(0, |index| index + 1)
}
