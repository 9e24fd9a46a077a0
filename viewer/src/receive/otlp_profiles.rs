//! OTLP profiles, as a Collector, the eBPF profiler and async-profiler send them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::HashMap;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use spanprof_core::wire::pprof;

use super::bounds::{Inside, Message, flat};
use super::labels::{Labels, MOST_LABELS};
use super::otlp::{Export, Rejected};
use super::otlp_dictionary::{Dictionary, SERVICE};
use super::otlp_field::Fields;
use super::otlp_fields::PROFILES;
use super::otlp_traces::{RESOURCE, SCOPE, UNKNOWN_SERVICE, VALUE, truncated_service};
use super::pprof::{Reader, SampleLabels, SampleOf, Samples, Tables};
use super::process::{Process, THREAD};
use super::receiver::Receiver;
use super::sample_types::profile_name;
use crate::http::allowed::Allowed;
use crate::http::refusal::{Refusal, invalid};
use crate::ids::{SpanId, TraceId};
use crate::sender::Sender;
use crate::store::{self, Mark};

/// The attribute that a service without a name is called by.
const EXECUTABLE: &str = "process.executable.name";
/// What profilers call CPU time: the eBPF profiler, and async-profiler by what its timer is.
const CPU: [&str; 5] = ["cpu", "on_cpu", "itimer", "ctimer", "perf_events"];
const NANOSECONDS: &str = "nanoseconds";
/// The longest word of a sample type.
const LONGEST_WORD: usize = 256;

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
    const FIELDS: &'static Fields = &PROFILES;

    /// A profile with anything wrong in it is left out and said in the answer.
    fn store(self, receiver: &Receiver, mark: u64, allowed: &mut Allowed) -> Result<Rejected, Refusal> {
        let dictionary = self.dictionary.unwrap_or_default();
        let dictionary = Dictionary::of(&dictionary)?;
        let tables = match dictionary.tables(allowed) {
            // Tables with anything wrong in them are wrong for each profile.
            Err(refusal) if refusal.is_of_content() => Err(refusal),
            read => Ok(read?),
        };
        let request = Request { dictionary, tables, services: dictionary.services(allowed)?, mark };
        let (mut rejected, mut profiles) = (Rejected::default(), Vec::new());
        let mut senders: BTreeMap<Arc<str>, Sender> = BTreeMap::new();
        for resource in &self.resource_profiles {
            let attributes = resource.resource.as_ref().map(|resource| &resource.attributes[..]).unwrap_or_default();
            for scope in resource.scope_profiles.iter().filter(|scope| !scope.profiles.is_empty()) {
                let scope_name = scope.scope.as_ref().map_or("", |scope| scope.name.as_str());
                let of_scope = scope.scope.as_ref().map(|scope| &scope.attributes[..]).unwrap_or_default();
                allowed.step(attributes.len() + of_scope.len())?;
                let texts = dictionary.texts(attributes).and_then(|resource| {
                    let scope = dictionary.texts(of_scope)?;
                    Ok([resource, scope].concat())
                });
                let mut source = texts.map(|texts| Source::of(texts, scope_name));
                let sender = source.as_ref().map_or(Sender::Otlp, |source| source.sender);
                for profile in &scope.profiles {
                    allowed.step(100)?;
                    let service = source.as_ref().map_or(UNKNOWN_SERVICE, |source| source.service.as_ref()).to_owned();
                    let read = match &mut source {
                        Ok(source) => request.read(profile, source, profiles.len(), receiver, allowed),
                        Err(refusal) => Err(refusal.clone()),
                    };
                    match read {
                        Ok(rows) => {
                            let stored = rows.iter().filter(|rows| !rows.parts.is_empty());
                            senders.extend(stored.map(|rows| (Arc::clone(&rows.service), sender)));
                            profiles.extend(rows);
                        }
                        // What no profile may take is no fault of this one.
                        Err(refusal) if !refusal.is_of_content() => return Err(refusal.of_service(&service)),
                        Err(refusal) => rejected.add(refusal.of_service(&service)),
                    }
                }
            }
        }
        receiver.insert_profiles(profiles)?;
        for (service, sender) in senders {
            receiver.note_sender(&service, Some(sender), true)?;
        }
        rejected.tell(receiver, Self::SIGNAL);
        Ok(rejected)
    }
}

/// What all profiles of a request share.
struct Request<'a> {
    dictionary: Dictionary<'a>,
    tables: Result<Tables<'a>, Refusal>,
    /// Which attributes of samples say their service.
    services: HashMap<i32, &'a str>,
    mark: u64,
}

impl<'a> Request<'a> {
    /// Reads a profile: one of each service that its samples are of.
    fn read(
        &self,
        profile: &Profile,
        source: &mut Source<'a>,
        place: usize,
        receiver: &Receiver,
        allowed: &mut Allowed,
    ) -> Result<Vec<store::Profile>, Refusal> {
        let meaning = Meaning::of(self.dictionary, profile)?;
        let tables = self.tables.as_ref().map_err(Refusal::clone)?;
        let mut read = Vec::new();
        allowed.take(profile.samples.len().saturating_mul(size_of::<&Sample>()), "the profile")?;
        for (service, samples) in self.by_service(profile, allowed)? {
            source.read_labels(service, meaning.name, allowed)?;
            let labels = source.labels(service, meaning.name)?;
            let process = source.process.as_ref().map(|process| match service {
                Some(service) => process.of_service(truncated_service(service)),
                None => *process,
            });
            let process = process.as_ref();
            let samples = OfProfile { dictionary: self.dictionary, samples, weight: meaning.weight, process };
            let mut rows = Reader::new(tables, &samples).read(&meaning.head, labels, receiver.times(), allowed)?;
            // A Collector may send it again among others: of one with an id nothing else of the request counts.
            // Profiles of several sample types may share one. Without a time it says too little: some senders have zeros for none.
            let id = &profile.profile_id;
            let has_id = profile.time_unix_nano != 0 && id.iter().any(|byte| *byte != 0);
            rows.mark = Some(if has_id {
                Mark::of(&(&labels.all, &meaning.head.string_table, profile.time_unix_nano, id), true)
            } else {
                Mark::of(&(self.mark, place + read.len()), false)
            });
            read.push(rows);
        }
        allowed.give_back(profile.samples.len().saturating_mul(size_of::<&Sample>()));
        Ok(read)
    }

    /// The samples of each service that they name themselves; of most profilers no sample does.
    fn by_service<'p>(
        &self,
        profile: &'p Profile,
        allowed: &mut Allowed,
    ) -> Result<BTreeMap<Option<&'a str>, Vec<&'p Sample>>, Refusal> {
        let mut services: BTreeMap<Option<&'a str>, Vec<&Sample>> = BTreeMap::new();
        if self.services.is_empty() {
            if !profile.samples.is_empty() {
                services.insert(None, profile.samples.iter().collect());
            }
            return Ok(services);
        }
        for sample in &profile.samples {
            allowed.step(sample.attribute_indices.len())?;
            let service = sample.attribute_indices.iter().find_map(|index| self.services.get(index).copied());
            services.entry(service).or_default().push(sample);
        }
        Ok(services)
    }
}

/// Where profiles come from: a resource and a scope.
struct Source<'a> {
    attributes: Vec<(&'a str, Cow<'a, str>)>,
    service: Cow<'a, str>,
    process: Option<Process>,
    sender: Sender,
    /// By service, where the samples say theirs, and by name.
    labels: HashMap<(Option<String>, &'a str), Labels>,
}

impl<'a> Source<'a> {
    fn of(attributes: Vec<(&'a str, Cow<'a, str>)>, scope: &str) -> Self {
        let find = |key| attributes.iter().find(|(name, text)| *name == key && !text.is_empty());
        let service = match (find(SERVICE), find(EXECUTABLE)) {
            (Some((_, service)), _) => truncated_service(service).to_owned().into(),
            (None, Some((_, name))) => truncated_service(&format!("{UNKNOWN_SERVICE}:{name}")).to_owned().into(),
            (None, None) => UNKNOWN_SERVICE.into(),
        };
        let process = Process::of(attributes.iter().map(|(name, text)| (*name, text.as_ref().into())));
        let sender = Sender::of_otlp(scope, attributes.iter().map(|(name, text)| (*name, text.as_ref())));
        Self { attributes, service, process, sender, labels: HashMap::default() }
    }

    /// Reads the labels of a series: what resource and scope say of themselves, as many as are taken. Of two with one name the first
    /// counts.
    fn read_labels(
        &mut self,
        service: Option<&str>,
        profile_name: &'a str,
        allowed: &mut Allowed,
    ) -> Result<(), Refusal> {
        let key = key(service, profile_name);
        if self.labels.contains_key(&key) {
            return Ok(());
        }
        let own = key.0.as_deref().unwrap_or(&self.service);
        let mut pairs: HashMap<&str, &str> = HashMap::from_iter([("__name__", profile_name), ("service_name", own)]);
        for (name, text) in self.attributes.iter().filter(|(name, text)| *name != SERVICE && !text.is_empty()) {
            // The names that Grafana's data source asks for.
            let name = if *name == "service.namespace" { "service_namespace" } else { name };
            if pairs.len() < MOST_LABELS {
                pairs.entry(name).or_insert(text);
            }
        }
        let labels = Labels::read(pairs)?;
        let bytes = labels.all.iter().map(|(name, value)| name.len() + value.len() + 100).sum::<usize>();
        allowed.take(bytes, "the labels")?;
        self.labels.insert(key, labels);
        Ok(())
    }

    fn labels(&self, service: Option<&str>, profile_name: &'a str) -> Result<&Labels, Refusal> {
        self.labels.get(&key(service, profile_name)).ok_or_else(|| invalid("the labels were not read"))
    }
}

fn key<'a>(service: Option<&str>, profile_name: &'a str) -> (Option<String>, &'a str) {
    (service.map(|service| truncated_service(service).to_owned()), profile_name)
}

/// What the values of a profile mean.
struct Meaning<'a> {
    /// The name of its type.
    name: &'a str,
    /// A pprof without samples that says it.
    head: pprof::Profile,
    /// What values are multiplied by.
    weight: i64,
}

impl<'a> Meaning<'a> {
    fn of(dictionary: Dictionary<'a>, profile: &Profile) -> Result<Self, Refusal> {
        let read = |kind: Option<&ValueType>| {
            let kind = kind.copied().unwrap_or_default();
            let unit = match dictionary.string(kind.unit_strindex)? {
                "ns" => NANOSECONDS,
                unit => unit,
            };
            let kind = dictionary.string(kind.type_strindex)?;
            // They are copied for each profile, and may all refer to one text.
            match kind.len().max(unit.len()) {
                ..=LONGEST_WORD => Ok((kind, unit)),
                bytes => Err(invalid(format!("a sample type has {bytes} bytes: allowed are {LONGEST_WORD}"))),
            }
        };
        let (mut kind, mut unit) = read(profile.sample_type.as_ref())?;
        let (mut period_kind, period_unit) = read(profile.period_type.as_ref())?;
        if kind.is_empty() {
            return Err(invalid("the profile has no sample type"));
        }
        // A count of what is sampled each so many nanoseconds is a time.
        let is_count = unit == "count" && period_unit == NANOSECONDS && profile.period > 0;
        let mut weight = 1;
        if is_count && (kind == "samples" || kind == period_kind) {
            (kind, unit, weight) = (period_kind, period_unit, profile.period);
        }
        for (kind, unit) in [(&mut kind, unit), (&mut period_kind, period_unit)] {
            if unit == NANOSECONDS && CPU.contains(kind) {
                *kind = "cpu";
            }
        }
        let value_type = |r#type, unit| pprof::ValueType { r#type, unit };
        let head = pprof::Profile {
            sample_type: vec![value_type(1, 2)],
            time_nanos: i64::try_from(profile.time_unix_nano).unwrap_or(i64::MAX),
            period_type: Some(value_type(3, 4)),
            period: profile.period,
            string_table: ["", kind, unit, period_kind, period_unit].map(String::from).into(),
            ..pprof::Profile::default()
        };
        Ok(Self { name: profile_name(kind), head, weight })
    }
}

/// Samples of a profile, and what their values are multiplied by.
struct OfProfile<'a> {
    dictionary: Dictionary<'a>,
    samples: Vec<&'a Sample>,
    weight: i64,
    /// Whose they are.
    process: Option<&'a Process>,
}

impl OfProfile<'_> {
    /// The values of a sample, each with its time where that is said: without values each time is one.
    fn values(&self, sample: &Sample) -> impl Iterator<Item = (Option<i64>, i64)> {
        let (times, values) = (&sample.timestamps_unix_nano, &sample.values);
        let is_each = values.is_empty() || values.len() == times.len();
        let of_each = times
            .iter()
            .enumerate()
            .filter(move |_| is_each)
            .map(|(at, time)| (i64::try_from(*time).ok(), values.get(at).copied().unwrap_or(1)));
        let of_all = (!is_each).then(|| (None, values.iter().copied().fold(0, i64::saturating_add)));
        let weight = self.weight;
        of_each.chain(of_all).map(move |(time, value)| (time, value.saturating_mul(weight)))
    }
}

impl<'a> Samples<'a> for OfProfile<'a> {
    type Stack = i32;
    type Labels = (i32, &'a [i32]);

    fn samples(&self) -> impl Iterator<Item = SampleOf<'a, i32, (i32, &'a [i32])>> {
        self.samples.iter().flat_map(|sample| {
            let labels = (sample.link_index, &sample.attribute_indices[..]);
            self.values(sample).map(move |(_, value)| (sample.stack_index, labels, Cow::Owned(vec![value])))
        })
    }

    fn timed(&self) -> impl Iterator<Item = (i32, (i32, &'a [i32]), i64, i64)> {
        let unlinked = self.samples.iter().filter(|sample| self.process.is_some() && sample.link_index == 0);
        unlinked.flat_map(|sample| {
            let labels = (sample.link_index, &sample.attribute_indices[..]);
            self.values(sample).filter_map(move |(time, value)| Some((sample.stack_index, labels, time?, value)))
        })
    }

    fn locations(&self, stack: i32) -> Result<impl Iterator<Item = u64>, Refusal> {
        self.dictionary.stack(stack)
    }

    /// The span and the trace that a sample is linked to, where link 0 is none; and its attributes, if they are texts.
    fn labels(&self, (link, attributes): (i32, &'a [i32])) -> Result<SampleLabels<'a>, Refusal> {
        let mut read = SampleLabels::default();
        if link != 0 {
            let link = self.dictionary.link(link)?;
            (read.span, read.trace) = (SpanId::from_bytes(&link.span_id), TraceId::from_bytes(&link.trace_id));
        }
        for index in attributes {
            if let (key, Some(text)) = self.dictionary.attribute(*index)?
                && key != SERVICE
            {
                read.add(key, text);
            } else if let (Some(process), Some(thread)) = (self.process, self.dictionary.number(*index, THREAD)) {
                read.place = Some(process.place(thread));
            }
        }
        Ok(read)
    }
}
