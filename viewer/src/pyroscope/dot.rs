//! Stacks as a call graph in Graphviz's language, as `go tool pprof -dot` draws one: functions with what they and what they called
//! weigh, calls with what went through them.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::error::QueryError;
use super::labels::too_large;
use crate::format;
use crate::show::Steps;
use crate::store::Stacks;

/// Functions if the client does not say how many, as in Pyroscope; and the most.
const FUNCTIONS: usize = 100;
const MOST_FUNCTIONS: usize = 1_000;
/// What a function or a call takes in the text beside its name, and in what it is made from.
const OF_NODE: usize = 400;

/// What a function weighs itself, and with what it called.
#[derive(Clone, Copy, Default)]
struct Weight {
    own: i64,
    total: i64,
}

/// The graph of at most so many functions, of those that weigh most; empty without a sample.
pub(super) fn graph(stacks: &Stacks, functions: Option<i64>, most: usize) -> Result<String, QueryError> {
    let functions = functions.and_then(|number| usize::try_from(number).ok()).filter(|number| *number > 0);
    let functions = functions.unwrap_or(FUNCTIONS).min(MOST_FUNCTIONS);
    if stacks.sums.is_empty() {
        return Ok(String::new());
    }
    let name = |function: i64| stacks.functions.get(&function).map_or("", |function| &*function.name);
    let mut steps = Steps::default();
    let mut weights: HashMap<&str, Weight> = HashMap::new();
    let mut all = 0_i64;
    for &(stack, value, _) in &stacks.sums {
        all = all.saturating_add(value);
        // One that calls itself is in it once.
        let mut seen = HashSet::new();
        for (depth, frame) in stacks.frames(stack).enumerate() {
            steps.step()?;
            let name = name(frame.function);
            let weight = weights.entry(name).or_default();
            if depth == 0 {
                weight.own = weight.own.saturating_add(value);
            }
            if seen.insert(name) {
                weight.total = weight.total.saturating_add(value);
            }
        }
    }
    let mut chosen: Vec<(&str, Weight)> = weights.into_iter().collect();
    chosen.sort_unstable_by_key(|(name, weight)| (Reverse(weight.total), Reverse(weight.own), *name));
    chosen.truncate(functions);
    let numbers: HashMap<&str, usize> = (1..).zip(&chosen).map(|(number, (name, _))| (*name, number)).collect();

    // By caller and callee: what went through, and whether others are left out in between.
    let mut calls: HashMap<(usize, usize), (i64, bool)> = HashMap::new();
    for &(stack, value, _) in &stacks.sums {
        let (mut callee, mut left_out, mut seen) = (None, false, HashSet::new());
        for frame in stacks.frames(stack) {
            steps.step()?;
            let Some(caller) = numbers.get(name(frame.function)).copied() else {
                left_out = true;
                continue;
            };
            if let Some(callee) = callee
                && seen.insert((caller, callee))
            {
                let call = calls.entry((caller, callee)).or_default();
                *call = (call.0.saturating_add(value), call.1 || left_out);
            }
            (callee, left_out) = (Some(caller), false);
        }
    }
    let names: usize = chosen.iter().map(|(name, _)| name.len() * 2).sum();
    if (chosen.len() + calls.len()).saturating_mul(OF_NODE).saturating_add(names) > most {
        return Err(too_large(most));
    }
    Ok(written(&chosen, calls, all, &stacks.profile_type))
}

fn written(
    functions: &[(&str, Weight)],
    calls: HashMap<(usize, usize), (i64, bool)>,
    all: i64,
    profile_type: &str,
) -> String {
    let unit = profile_type.split(':').nth(2).unwrap_or("");
    let value = |value| format::value(value, unit);
    let share = |value: i64| value as f64 / (all.max(1)) as f64;
    let mut text =
        format!("digraph {} {{\nnode [style=filled fillcolor=\"#f8f8f8\" shape=box]\n", quoted(profile_type));
    // Writing into a string does not fail.
    for (number, (name, Weight { own, total })) in (1..).zip(functions) {
        let label = format!("{name}\n{} of {} ({})", value(*own), value(*total), format::percent(share(*total)));
        let size = 8.0 + 16.0 * share(*own).sqrt();
        let _ = writeln!(text, "N{number} [label={} fontsize={size:.0}]", quoted(&label));
    }
    let mut calls: Vec<_> = calls.into_iter().collect();
    calls.sort_unstable_by_key(|(call, (value, _))| (Reverse(*value), *call));
    for ((caller, callee), (through, left_out)) in calls {
        let style = if left_out { " style=dotted" } else { "" };
        let (weight, label) = (1.0 + 100.0 * share(through), quoted(&format!(" {}", value(through))));
        let _ = writeln!(text, "N{caller} -> N{callee} [label={label} weight={weight:.0}{style}]");
    }
    text.push_str("}\n");
    text
}

/// A text as Graphviz reads it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            letter if letter.is_control() => quoted.push(' '),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
