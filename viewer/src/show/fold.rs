//! Folding: a run of frames that are not the application's own becomes one frame.

use std::collections::HashMap;

use super::error::ShowError;
use super::runtime_frames::is_runtime;
use super::steps::Steps;
use crate::states::State;
use crate::store::{Function, StackFrame, Stacks};

/// What the frame is called.
pub(crate) const FOLDED: &str = "(runtime and libraries)";
/// Its number; the store's are positive.
const FOLDED_ID: i64 = -1;

/// The same samples, with each run of such frames folded.
pub(super) fn fold(stacks: &Stacks) -> Result<Stacks, ShowError> {
    fold_with_places(stacks).map(|(folded, _)| folded)
}

/// The same, and which new stack each old one became.
pub(super) fn fold_with_places(stacks: &Stacks) -> Result<(Stacks, HashMap<i64, i64>), ShowError> {
    let runtime: HashMap<i64, bool> = stacks.functions.iter().map(|(id, f)| (*id, is_runtime(f))).collect();
    let Stacks { period, averaged_over, concurrent, .. } = *stacks;
    let profile_type = stacks.profile_type.clone();
    let mut folded = Stacks { profile_type, period, averaged_over, concurrent, ..Stacks::default() };
    folded.functions =
        stacks.functions.iter().filter(|(id, _)| !runtime[*id]).map(|(id, f)| (*id, f.clone())).collect();
    folded.functions.insert(FOLDED_ID, Function { name: FOLDED.into(), file: "".into() });

    // The empty stack stays.
    let mut places: HashMap<i64, i64> = HashMap::from([(0, 0)]);
    let mut numbers: HashMap<(i64, i64, i64), i64> = HashMap::new();
    let mut sums: HashMap<i64, (i64, i64)> = HashMap::new();
    let mut steps = Steps::default();
    for &(stack, value, count) in &stacks.sums {
        let path: Vec<_> = stacks.frames(stack).take_while(|frame| !places.contains_key(&frame.stack)).collect();
        let known = path.last().map_or(stack, |frame| frame.caller);
        let mut place = places.get(&known).copied().unwrap_or(0);
        for StackFrame { stack, function, line, .. } in path.into_iter().rev() {
            steps.step()?;
            let is_runtime = runtime.get(&function).copied().unwrap_or(false);
            let already = is_runtime && folded.nodes.get(&place).is_some_and(|(_, caller, _)| *caller == FOLDED_ID);
            if !already {
                let node = if is_runtime { (place, FOLDED_ID, 0) } else { (place, function, line) };
                let next = i64::try_from(numbers.len()).unwrap_or(i64::MAX).saturating_add(1);
                place = *numbers.entry(node).or_insert(next);
                folded.nodes.insert(place, node);
            }
            places.insert(stack, place);
        }
        steps.step()?;
        let sum = sums.entry(place).or_default();
        *sum = (sum.0.saturating_add(value), sum.1.saturating_add(count));
    }
    let mut states: HashMap<(i64, State), i64> = HashMap::new();
    for &(stack, state, value) in &stacks.states {
        steps.step()?;
        if let Some(place) = places.get(&stack) {
            let sum = states.entry((*place, state)).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    folded.states = states.into_iter().map(|((stack, state), value)| (stack, state, value)).collect();
    folded.states.sort_unstable();
    folded.sums = sums.into_iter().map(|(stack, (value, count))| (stack, value, count)).collect();
    folded.sums.sort_unstable();
    Ok((folded, places))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::{self, Gone, Haste};

    fn function(name: &str, file: &str) -> Function {
        Function { name: name.into(), file: file.into() }
    }

    #[test]
    fn runs_of_runtime_frames_become_one() {
        let stacks = Stacks {
            // run > bootstrap > cart > dumps > encode, and run > bootstrap > cart
            nodes: HashMap::from([(1, (0, 10, 1)), (2, (1, 11, 2)), (3, (2, 12, 3)), (4, (3, 13, 4)), (5, (4, 14, 5))]),
            functions: HashMap::from([
                (10, function("run", "/usr/lib/python3.13/threading.py")),
                (11, function("bootstrap", "<frozen runpy>")),
                (12, function("cart", "/app/shop.py")),
                (13, function("dumps", "/app/.venv/lib/python3.13/site-packages/simplejson.py")),
                (14, function("encode", "/usr/lib/python3.13/json/encoder.py")),
            ]),
            sums: vec![(5, 30, 3), (4, 10, 1), (3, 20, 2), (2, 5, 1)],
            states: vec![(5, State::Io, 20), (5, State::Cpu, 10), (4, State::Io, 10), (3, State::Cpu, 20)],
            ..Stacks::default()
        };
        let folded = fold(&stacks).unwrap();
        let names = |mut at: i64| {
            let mut names = Vec::new();
            while let Some((parent, function, _)) = folded.nodes.get(&at) {
                names.push(folded.functions[function].name.to_string());
                at = *parent;
            }
            names.join(" < ")
        };
        let mut rows: Vec<_> =
            folded.sums.iter().map(|(stack, value, count)| (names(*stack), *value, *count)).collect();
        rows.sort();
        let inner = format!("{FOLDED} < cart < {FOLDED}");
        let states: Vec<_> =
            folded.states.iter().map(|(stack, state, value)| (names(*stack), *state, *value)).collect();
        let middle = (format!("cart < {FOLDED}"), State::Cpu, 20);
        assert_eq!(states, [middle, (inner.clone(), State::Cpu, 10), (inner.clone(), State::Io, 30)]);
        assert_eq!(rows, [(FOLDED.into(), 5, 1), (inner, 40, 4), (format!("cart < {FOLDED}"), 20, 2)]);
    }

    #[test]
    fn it_ends_with_the_time_of_its_request() {
        let stacks = Stacks {
            nodes: HashMap::from([(1, (0, 1, 1))]),
            functions: HashMap::from([(1, Function { name: "f".into(), file: "".into() })]),
            sums: vec![(1, 1, 1); 10_000],
            ..Stacks::default()
        };
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || fold(&stacks));
        assert!(matches!(over, Err(ShowError::Busy(_))));
    }
}
