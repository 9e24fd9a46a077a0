//! Stacks as one pprof profile, for `go tool pprof` and speedscope.

use std::collections::HashMap;

use spanprof_core::wire::pprof::{Function, Line, Location, Profile, Sample, ValueType};

use crate::store::{StackFrame, Stacks};

/// The strings of a profile, each once.
struct Strings<'a> {
    table: Vec<String>,
    numbers: HashMap<&'a str, i64>,
}

impl<'a> Strings<'a> {
    fn number(&mut self, text: &'a str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = i64::try_from(self.table.len()).unwrap_or(0);
        self.table.push(text.into());
        self.numbers.insert(text, number);
        number
    }
}

/// The profile; the same stacks give the same bytes.
pub(crate) fn profile(stacks: &Stacks) -> Profile {
    let mut strings = Strings { table: vec![String::new()], numbers: HashMap::from([("", 0)]) };
    let mut parts = stacks.profile_type.split(':').skip(1).map(|part| strings.number(part));
    let mut value_type = || ValueType { r#type: parts.next().unwrap_or(0), unit: parts.next().unwrap_or(0) };
    let (sample_type, period_type) = (value_type(), value_type());

    let mut profile = Profile {
        sample_type: vec![sample_type],
        period_type: Some(period_type),
        period: stacks.period,
        ..Profile::default()
    };
    let mut functions: HashMap<i64, u64> = HashMap::new();
    let mut locations: HashMap<(i64, i64), u64> = HashMap::new();
    let mut sums = stacks.sums.clone();
    sums.sort_unstable();
    for (stack, value, _) in sums {
        let mut location_id = Vec::new();
        for StackFrame { function, line, .. } in stacks.frames(stack) {
            let next_function = id(profile.function.len());
            let function_id = *functions.entry(function).or_insert_with(|| {
                let (name, file) = stacks.functions.get(&function).map_or(("", ""), |f| (&*f.name, &*f.file));
                let name = strings.number(name);
                let filename = strings.number(file);
                profile.function.push(Function { id: next_function, name, system_name: 0, filename, start_line: 0 });
                next_function
            });
            let next_location = id(profile.location.len());
            location_id.push(*locations.entry((function, line)).or_insert_with(|| {
                let line = vec![Line { function_id, line, column: 0 }];
                profile.location.push(Location { id: next_location, line, ..Location::default() });
                next_location
            }));
        }
        profile.sample.push(Sample { location_id, value: vec![value], label: Vec::new() });
    }
    profile.string_table = strings.table;
    profile
}

/// The id of the entry that comes next; 0 means none in pprof.
fn id(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1)
}
