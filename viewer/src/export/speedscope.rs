//! Stacks in the JSON of speedscope, by its published schema: frames that stand once, and a list of them for each stack.

use std::collections::HashMap;

use serde::Serialize;

use crate::show::{ShowError, Steps, Written};
use crate::store::{StackFrame, Stacks};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'a str,
    active_profile_index: u32,
    shared: Shared<'a>,
    profiles: [Profile<'a>; 1],
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile<'a> {
    r#type: &'static str,
    name: &'a str,
    unit: &'static str,
    start_value: i64,
    end_value: i64,
    samples: Vec<Vec<usize>>,
    weights: Vec<i64>,
}

/// Writes them in at most so many bytes; `name` says what they are of.
pub(super) fn speedscope(stacks: &Stacks, name: &str, most: usize) -> Result<Vec<u8>, ShowError> {
    let mut numbers: HashMap<(i64, i64), usize> = HashMap::new();
    let mut frames = Vec::new();
    let mut steps = Steps::default();
    let mut samples = Vec::with_capacity(stacks.sums.len());
    for &(stack, ..) in &stacks.sums {
        let mut sample = Vec::new();
        for StackFrame { function, line, .. } in stacks.frames(stack) {
            steps.step()?;
            sample.push(*numbers.entry((function, line)).or_insert_with(|| {
                let (name, file) = stacks.functions.get(&function).map_or(("", ""), |f| (&*f.name, &*f.file));
                frames.push(Frame { name, file, line: Some(line).filter(|line| *line > 0) });
                frames.len() - 1
            }));
        }
        // Callers first.
        sample.reverse();
        samples.push(sample);
    }
    let unit = match stacks.profile_type.split(':').nth(2) {
        Some("nanoseconds") => "nanoseconds",
        Some("bytes") => "bytes",
        _ => "none",
    };
    let weights: Vec<i64> = stacks.sums.iter().map(|(_, value, _)| *value).collect();
    let end_value = weights.iter().fold(0_i64, |sum, value| sum.saturating_add(*value));
    let profile =
        Profile { r#type: "sampled", name: &stacks.profile_type, unit, start_value: 0, end_value, samples, weights };
    let file = File {
        schema: SCHEMA,
        exporter: concat!("spanprof ", env!("CARGO_PKG_VERSION")),
        name,
        active_profile_index: 0,
        shared: Shared { frames },
        profiles: [profile],
    };
    let mut written = Written::new(most);
    let done = serde_json::to_writer(&mut written, &file);
    written.finish(done, |error| ShowError::Failed(format!("cannot write JSON: {error}")))
}
