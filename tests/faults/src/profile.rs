//! The one reader of pprof that tests have. Its messages are another project's: code that reads with what wrote proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use flate2::read::GzDecoder;
use pprof::protos::{self, Message};
use serde::Serialize;

/// A profile, whose parts name each other by their places.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Profile {
    /// The file that it was read from, if it was.
    pub file: String,
    /// Type and unit of each of a sample's values.
    pub sample_types: Vec<(String, String)>,
    /// Type and unit of `period`.
    pub period_type: (String, String),
    /// Between two samples.
    pub period: i64,
    /// When it began.
    pub time_nanos: i64,
    /// How long it lasted.
    pub duration_nanos: i64,
    /// What stacks are made of: function, file, line, the function's first line.
    pub frames: Vec<(String, String, i64, i64)>,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Places in `frames`, leaf first.
    pub stack: Vec<usize>,
    /// In the order of `sample_types`.
    pub values: Vec<i64>,
    /// A label that is there twice, which no server expects, has both values: `a, b`.
    pub labels: BTreeMap<String, String>,
}

/// Reads a profile, gzipped or not. One that points nowhere is an error, not a gap.
pub fn read(bytes: &[u8]) -> Result<Profile, String> {
    let profile = protos::Profile::decode(unzipped(bytes)?.as_slice()).map_err(|error| error.to_string())?;
    let texts = &profile.string_table;
    if texts.first().is_none_or(|first| !first.is_empty()) || texts.iter().collect::<BTreeSet<_>>().len() != texts.len()
    {
        return Err("a string table starts with the empty string and holds each string once".to_owned());
    }
    let text = |at: i64| {
        let known = usize::try_from(at).ok().and_then(|at| texts.get(at));
        known.cloned().ok_or_else(|| format!("there is no string {at}"))
    };
    let pair = |of: &protos::ValueType| Ok::<_, String>((text(of.ty)?, text(of.unit)?));
    let functions: BTreeMap<_, _> = profile.function.iter().map(|function| (function.id, function)).collect();
    let mut frames = Vec::new();
    let mut places = BTreeMap::new();
    for location in &profile.location {
        let first = frames.len();
        for line in &location.line {
            let id = line.function_id;
            let function = functions.get(&id).ok_or_else(|| format!("there is no function {id}"))?;
            frames.push((text(function.name)?, text(function.filename)?, line.line, function.start_line));
        }
        places.insert(location.id, first..frames.len());
    }
    let mut samples = Vec::new();
    for sample in &profile.sample {
        if sample.value.len() != profile.sample_type.len() {
            return Err("a sample has one value for each sample type".to_owned());
        }
        let mut stack = Vec::new();
        for id in &sample.location_id {
            stack.extend(places.get(id).ok_or_else(|| format!("there is no location {id}"))?.clone());
        }
        let mut labels = BTreeMap::<String, String>::new();
        for label in &sample.label {
            let value = text(label.str)?;
            let both = |known: &mut String| *known = format!("{known}, {value}");
            labels.entry(text(label.key)?).and_modify(both).or_insert_with(|| value.clone());
        }
        samples.push(Sample { stack, values: sample.value.clone(), labels });
    }
    Ok(Profile {
        file: String::new(),
        sample_types: profile.sample_type.iter().map(pair).collect::<Result<_, _>>()?,
        period_type: pair(&profile.period_type.unwrap_or_default())?,
        period: profile.period,
        time_nanos: profile.time_nanos,
        duration_nanos: profile.duration_nanos,
        frames,
        samples,
    })
}

/// Bytes that may be gzipped.
pub(crate) fn unzipped(bytes: &[u8]) -> Result<Vec<u8>, String> {
    if !bytes.starts_with(b"\x1f\x8b") {
        return Ok(bytes.to_owned());
    }
    let mut unzipped = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut unzipped).map_err(|error| error.to_string())?;
    Ok(unzipped)
}
