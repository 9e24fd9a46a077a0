//! What Grafana's agent sends beside a recording: the texts of what its events have numbers for, and sets of labels.

use std::collections::HashMap;

use crate::http::allowed::Allowed;
use crate::http::body;
use crate::http::refusal::{Reason, Refusal, invalid};
use crate::receive::bounds::{self, Inside, Message};
use crate::receive::labels::MOST_LABELS;

/// Bytes that an entry takes in a map.
const ENTRY: usize = 48;

/// The message; maps of protobuf are lists of their entries.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SnapshotMessage {
    #[prost(message, repeated, tag = "1")]
    contexts: Vec<ContextEntry>,
    #[prost(message, repeated, tag = "2")]
    strings: Vec<StringEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContextEntry {
    #[prost(int64, tag = "1")]
    number: i64,
    #[prost(message, optional, tag = "2")]
    context: Option<ContextMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContextMessage {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelEntry>,
}

/// The numbers of two strings.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct LabelEntry {
    #[prost(int64, tag = "1")]
    name: i64,
    #[prost(int64, tag = "2")]
    value: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StringEntry {
    #[prost(int64, tag = "1")]
    number: i64,
    #[prost(string, tag = "2")]
    text: String,
}

static MESSAGE: Message = Message {
    size: size_of::<SnapshotMessage>(),
    fields: &[(1, Inside::Message(&CONTEXT_ENTRY)), (2, Inside::Message(&STRING_ENTRY))],
};
static CONTEXT_ENTRY: Message = Message { size: size_of::<ContextEntry>(), fields: &[(2, Inside::One(&CONTEXT))] };
static CONTEXT: Message =
    Message { size: size_of::<ContextMessage>(), fields: &[(1, Inside::Flat(size_of::<LabelEntry>()))] };
static STRING_ENTRY: Message = bounds::flat::<StringEntry>();

impl SnapshotMessage {
    /// Decodes it, plain or gzip; what is empty says nothing.
    pub(super) fn decode(raw: &[u8], allowed: &mut Allowed) -> Result<Self, Refusal> {
        const WHAT: &str = "the snapshot of labels";
        let mut unpacked = Vec::new();
        let bytes = if body::is_gzip(raw) {
            unpacked = body::gunzip(raw, allowed.most_profile(), WHAT, allowed)?;
            &unpacked
        } else {
            raw
        };
        allowed.take(bounds::weigh_protobuf(bytes, &MESSAGE, WHAT, allowed.most())?, WHAT)?;
        let decoded = Self::decode_bytes(bytes);
        allowed.give_back(unpacked.capacity());
        decoded
    }

    fn decode_bytes(bytes: &[u8]) -> Result<Self, Refusal> {
        <Self as prost::Message>::decode(bytes)
            .map_err(|error| invalid(format!("the snapshot of labels cannot be read: {error}")))
    }
}

/// The same by number.
#[derive(Debug)]
pub(super) struct Snapshot<'a> {
    contexts: HashMap<i64, &'a [LabelEntry]>,
    strings: HashMap<i64, &'a str>,
}

impl<'a> Snapshot<'a> {
    pub(super) fn new(message: &'a SnapshotMessage, allowed: &mut Allowed) -> Result<Self, Refusal> {
        let entries = message.contexts.len().saturating_add(message.strings.len());
        allowed.take(entries.saturating_mul(ENTRY), "the snapshot of labels")?;
        let strings = message.strings.iter().map(|entry| (entry.number, entry.text.as_str())).collect();
        let mut contexts = HashMap::new();
        for entry in &message.contexts {
            let labels = entry.context.as_ref().map_or(&[][..], |context| &context.labels);
            if labels.len() > MOST_LABELS {
                let sentence = format!("a context of the recording has more than {MOST_LABELS} labels");
                return Err(Refusal::new(Reason::TooLarge, sentence));
            }
            contexts.insert(entry.number, labels);
        }
        Ok(Self { contexts, strings })
    }

    /// The text of a number, empty if it has none.
    pub(super) fn text(&self, number: i64) -> &'a str {
        self.strings.get(&number).copied().unwrap_or("")
    }

    /// Names and values of a context's labels.
    pub(super) fn labels(&self, context: i64) -> impl Iterator<Item = (&'a str, &'a str)> {
        let labels = self.contexts.get(&context).copied().unwrap_or_default();
        labels.iter().map(|label| (self.text(label.name), self.text(label.value)))
    }
}
