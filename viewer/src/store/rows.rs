//! What is put into the store: a decoded and checked profile, a decoded and checked span.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;

use serde::Serializer;

use crate::ids::{SpanId, TraceId};
use crate::span_status::Status;

/// A received profile.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Label service_name.
    pub(crate) service: Arc<str>,
    /// Start of its window.
    pub(crate) time: i64,
    /// Its functions, each once.
    pub(crate) functions: Vec<Function>,
    /// Its stacks as a trie, callers before callees.
    pub(crate) stacks: Vec<StackNode>,
    /// Its samples, by series.
    pub(crate) parts: Vec<Part>,
    /// What tells it from others, if it may be sent again.
    pub(crate) mark: Option<Mark>,
}

/// What a profile is known by when it comes a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Of its bytes and labels.
    pub(crate) hash: i64,
    /// Whether its sender gave it an id, so that it is the same one however late it comes.
    pub(crate) has_id: bool,
}

impl Mark {
    /// The mark of what was sent.
    pub(crate) fn of(sent: &impl Hash, has_id: bool) -> Self {
        // Keyed the same in each process, as marks are kept in files.
        let mut hasher = DefaultHasher::new();
        sent.hash(&mut hasher);
        Self { hash: hasher.finish().cast_signed(), has_id }
    }
}

/// A function in a file. Many functions may have one name or one file, which is kept once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub(crate) struct Function {
    /// Name for people.
    #[serde(serialize_with = "shared_text")]
    pub(crate) name: Arc<str>,
    /// Source file, may be empty.
    #[serde(serialize_with = "shared_text")]
    pub(crate) file: Arc<str>,
}

/// A text that many rows share.
pub(crate) fn shared_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

/// One line of a function on top of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StackNode {
    /// 0 = the empty stack, n = entry n − 1 of the same table.
    pub(crate) parent: usize,
    /// Index into the profile's functions.
    pub(crate) function: usize,
    /// Line, 0 if unknown.
    pub(crate) line: i64,
}

/// What was measured, as Pyroscope names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProfileType {
    /// Label `__name__`, such as process_cpu; that too for CPU time in profiles of others.
    pub(crate) name: String,
    /// name:sample type:unit:period type:period unit.
    pub(crate) text: String,
    /// Unit of the values.
    pub(crate) unit: String,
    /// Whether this sample type is what the bare name means.
    pub(crate) main: bool,
}

/// The samples of a profile that share their labels and their type.
#[derive(Debug)]
pub(crate) struct Part {
    /// Type of the values.
    pub(crate) profile_type: Arc<ProfileType>,
    /// Value of one period, 0 if unknown.
    pub(crate) period: i64,
    /// Label span_name.
    pub(crate) span_name: Option<Arc<str>>,
    /// All labels as a JSON object, sorted by name.
    pub(crate) labels: Arc<str>,
    /// The samples; each pair of span and stack once.
    pub(crate) samples: Vec<Sample>,
    /// The traces of spans that samples name with theirs.
    pub(crate) traces: Vec<(SpanId, TraceId)>,
    /// Those of the samples outside of spans that say when and in which thread they were taken.
    pub(crate) timed: Vec<TimedSamples>,
}

/// The samples of a thread that say when they were taken.
#[derive(Debug)]
pub(crate) struct TimedSamples {
    pub(crate) place: Place,
    pub(crate) samples: Vec<TimedSample>,
}

/// A sample that says when it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedSample {
    pub(crate) time: i64,
    /// As [`StackNode::parent`].
    pub(crate) stack: usize,
    /// In the profile type's unit.
    pub(crate) value: i64,
    /// In periods.
    pub(crate) count: i64,
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The numbers of process and thread as one.
    pub(crate) number: i64,
    /// What else is said of the process, each as a number; 0 = it is not said.
    pub(crate) told: [i64; TOLD],
}

/// What may be said of a process beside its number.
pub(crate) const TOLD: usize = 5;

impl Place {
    /// A thread of a process of which this is said too.
    pub(crate) fn of(process: i64, thread: i64, told: [i64; TOLD]) -> Self {
        Self { number: Mark::of(&(process, thread), false).hash, told }
    }

    /// Whether what is said of another process could be said of this one: something is said of both, and nothing else of one than
    /// of the other. Processes of one service have the same number in each of its containers, so their service, which is told first,
    /// is enough only where neither says where it is.
    pub(super) fn agrees_with(&self, told: &[i64; TOLD]) -> bool {
        let (mut shared, mut places) = (0, 0);
        for (at, (own, other)) in self.told.iter().zip(told).enumerate() {
            if *own != 0 && *other != 0 {
                if own != other {
                    return false;
                }
                shared += 1;
                places += usize::from(at > 0);
            }
        }
        let says_where = |told: &[i64; TOLD]| told[1..].iter().any(|told| *told != 0);
        shared > 0 && (places > 0 || !(says_where(&self.told) || says_where(told)))
    }

    /// What is said, as it is stored.
    pub(super) fn told_bytes(&self) -> Vec<u8> {
        self.told.iter().flat_map(|told| told.to_le_bytes()).collect()
    }
}

/// A stack, its span and its weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// The span it was taken in.
    pub(crate) span: Option<SpanId>,
    /// As [`StackNode::parent`].
    pub(crate) stack: usize,
    /// In the profile type's unit.
    pub(crate) value: i64,
    /// In periods.
    pub(crate) count: i64,
}

/// A span of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// Its trace.
    pub(crate) trace: TraceId,
    /// Its id.
    pub(crate) span: SpanId,
    /// Its parent, in whatever service.
    pub(crate) parent: Option<SpanId>,
    /// Resource attribute service.name.
    pub(crate) service: Arc<str>,
    /// Its final name.
    pub(crate) name: String,
    /// Start.
    pub(crate) start: i64,
    /// Length.
    pub(crate) duration: i64,
    /// How it ended.
    pub(crate) status: Status,
    /// Whether it entered its service from outside, where its sender said so.
    pub(crate) root: Option<bool>,
    /// Whether it carries pyroscope.profile.id.
    pub(crate) profiled: bool,
    /// Attributes as a JSON object.
    pub(crate) attributes: String,
    /// The thread that it was in, where its sender said so.
    pub(crate) place: Option<Place>,
}

#[cfg(test)]
impl Profile {
    /// A profile of a service "shop" with one sample in one function, outside of spans: what the store's tests begin with.
    pub(super) fn of(function: &str) -> Self {
        let profile_type = ProfileType {
            name: "process_cpu".into(),
            text: "process_cpu:cpu:nanoseconds:cpu:nanoseconds".into(),
            unit: "nanoseconds".into(),
            main: true,
        };
        let part = Part {
            profile_type: profile_type.into(),
            period: 10,
            span_name: None,
            labels: "{}".into(),
            samples: vec![Sample { span: None, stack: 1, value: 10, count: 1 }],
            traces: vec![],
            timed: vec![],
        };
        Self {
            service: "shop".into(),
            time: crate::clock::SECOND,
            functions: vec![Function { name: function.into(), file: "shop.py".into() }],
            stacks: vec![StackNode { parent: 0, function: 0, line: 7 }],
            mark: None,
            parts: vec![part],
        }
    }
}
