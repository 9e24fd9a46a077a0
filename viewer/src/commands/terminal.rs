//! Tables for a terminal, made from what the API answers.

use std::io::{self, Write as _};

use serde_json::Value;

use crate::format::{counted, error, percent, time, value};
use crate::profile_types::NANOSECONDS;
use crate::states::{OVER, Part, State, why_over};

/// What shares are of where the wall time of spans is not asked for, or not known.
pub(crate) const OF_SAMPLES: &str = "shares are of these samples";

/// A text without characters that move a terminal's cursor, set its title or turn its direction: names are anyone's.
pub(crate) fn plain(text: &str) -> String {
    let moves = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{61c}' | '\u{feff}')
    };
    text.chars().map(|c| if moves(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Writes a table. Whoever reads no further, as `head` does, has what he wants: the program ends and says nothing.
pub(crate) fn print(text: &str) -> Result<(), String> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| format!("cannot write: {error}")),
    }
}

/// The states of an object of nanoseconds by state, in order.
fn states(object: &Value) -> Vec<(State, i64)> {
    let of = |state: State| Some((state, object[state.label()].as_i64()?));
    State::ALL.into_iter().filter_map(of).collect()
}

/// Where the time of spans went: their states, and what these leave of their wall time.
fn parts(own: &Value) -> Vec<(Part, i64)> {
    let rest = [(Part::ChildSpans, "in_child_spans_ns"), (Part::Unexplained, "unexplained_ns")];
    let rest = rest.into_iter().filter_map(|(part, key)| Some((part, own[key].as_i64().filter(|ns| *ns > 0)?)));
    states(&own["states"]).into_iter().map(|(state, ns)| (Part::In(state), ns)).chain(rest).collect()
}

/// Whether an answer says where the time of spans went, be it without any sample.
pub(crate) fn splits_wall_time(answer: &Value) -> bool {
    !parts(&answer["own"]).is_empty()
}

/// Lines of what time went to. Where spans of a name are known it is theirs, and shares are of their wall time; else it is all that was
/// measured, which `why` says.
fn where_it_went(answer: &Value, unit: &str, why: &str) -> String {
    let of_spans = answer["own"].is_object();
    let parts = parts(if of_spans { &answer["own"] } else { answer });
    let sum = parts.iter().fold(0_i64, |sum, (_, ns)| sum.saturating_add(*ns));
    let of = if of_spans { answer["wall_ns"].as_i64().unwrap_or(sum) } else { sum };
    let share = |ns: i64| percent(if of > 0 { ns as f64 / of as f64 } else { 0.0 });
    let width = parts.iter().map(|(part, _)| part.word().len()).fold(14, usize::max);
    let line =
        |(part, ns): &(Part, i64)| format!("  {:<width$}{:>10}{:>8}\n", part.word(), value(*ns, unit), share(*ns));
    let mut out: String = parts.iter().map(line).collect();
    if of > 0 && sum.saturating_sub(of) > of / OVER {
        let queued = parts.iter().find(|(part, _)| *part == Part::In(State::RunQueue)).map_or(0, |(_, ns)| *ns);
        out.push_str(&format!("  together {} of the wall time: {}\n", share(sum), why_over(sum - of, queued)));
    }
    if !of_spans && !parts.is_empty() && answer["spans"].is_i64() && unit == NANOSECONDS {
        out.push_str(&format!("  ({why})\n"));
    }
    out
}

/// The answer of /api/top as text: a sentence, where its time went if that is known, then its first `most` functions. `why` says why shares
/// are of samples, where they are not of the wall time of spans.
pub(crate) fn top(answer: &Value, most: usize, why: &str) -> String {
    let text = |row: &Value, key: &str| plain(row[key].as_str().unwrap_or_default());
    let unit = text(answer, "unit");
    let number = |row: &Value, key: &str| value(row[key].as_i64().unwrap_or(0), &unit);
    let share = |row: &Value, part: &str, spread: &str| {
        let part = row[part].as_f64().unwrap_or(0.0);
        if part == 0.0 {
            String::new()
        } else {
            format!("{} {}", percent(part), error(row[spread].as_f64().unwrap_or(0.0)))
        }
    };
    let samples = answer["samples"].as_i64().unwrap_or(0);
    let spans = answer["spans"].as_i64().map_or_else(String::new, |spans| {
        format!(" of {} that took {}", counted(spans, "span"), time(answer["wall_ns"].as_i64().unwrap_or(0)))
    });
    let beside = answer["concurrent"]
        .as_i64()
        .map_or_else(String::new, |concurrent| format!(" (of it {} beside the spans)", value(concurrent, &unit)));
    let (sentence, total) = (text(answer, "sentence"), number(answer, "total"));
    let mut out = format!("{sentence}: {total}{beside}, {}{spans}\n", counted(samples, "sample"));
    out.push_str(&where_it_went(answer, &unit, why));
    let functions = answer["functions"].as_array().map_or(&[][..], Vec::as_slice);
    if functions.is_empty() {
        return out;
    }
    // Lines above are the spans' own time, and the functions of all samples.
    if !beside.is_empty() && answer["own"].is_object() {
        out.push_str("  (the functions below have what is beside the spans too; label.flow= leaves it out)\n");
    }
    let has_states = answer["states"].is_object();
    // The state in which most of a function's own time went.
    let mostly = |row: &Value| {
        let largest = states(&row["states"]).into_iter().rev().max_by_key(|(_, own)| *own);
        largest.map_or_else(String::new, |(state, _)| state.word().to_owned())
    };
    let mut rows = vec![["own", "share", "total", "share", "state", "function"].map(str::to_owned)];
    rows.extend(functions.iter().take(most).map(|row| {
        let file = text(row, "file");
        let place = match row["line"].as_i64().filter(|line| *line > 0) {
            Some(line) => format!("{file}:{line}"),
            None => file,
        };
        [
            number(row, "own"),
            share(row, "share", "error"),
            number(row, "total"),
            share(row, "total_share", "total_error"),
            mostly(row),
            format!("{}  {place}", text(row, "function")).trim_end().to_owned(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (widths, of_states) = ([0, 1, 2, 3].map(width), width(4));
    for row in &rows {
        for (cell, width) in row.iter().zip(widths) {
            out.push_str(&format!("{cell:>width$}  "));
        }
        if has_states {
            out.push_str(&format!("{:<of_states$}  ", row[4]));
        }
        out.push_str(&row[5]);
        out.push('\n');
    }
    if functions.len() > most {
        out.push_str(&format!("({} more)\n", functions.len() - most));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_move_the_cursor() {
        let bad = "\u{1b}[2J\u{9b}31m\u{7}\u{202e}x\u{2066}\n";
        let row = serde_json::json!({ "function": bad, "file": bad, "own": 1, "total": 1 });
        let text = top(&serde_json::json!({ "sentence": bad, "unit": bad, "functions": [row] }), 9, "");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            !text.contains(|c: char| (c.is_control() && c != '\n') || c > '\u{2000}' && c < '\u{2070}'),
            "{text:?}"
        );
    }

    #[test]
    fn columns_stand_below_each_other() {
        let row = |name: &str, own: i64, total: i64| {
            serde_json::json!({ "function": name, "file": "shop.py", "own": own * 10_000_000, "total": total * 10_000_000,
                "share": own as f64 / 40.0, "error": 0.068, "total_share": total as f64 / 40.0, "total_error": 0.0 })
        };
        let answer = serde_json::json!({ "sentence": "GET /cart of checkout, last hour", "unit": "nanoseconds", "total": 400_000_000,
            "samples": 40, "functions": [row("read_item", 30, 30), row("main", 0, 40), row("gc", 1, 1)] });
        let expected = "\
GET /cart of checkout, last hour: 400 ms, 40 samples
   own       share   total        share  function
300 ms  75 % ± 6.8  300 ms   75 % ± 0.0  read_item  shop.py
     0              400 ms  100 % ± 0.0  main  shop.py
(1 more)
";
        assert_eq!(top(&answer, 2, ""), expected);
    }
    #[test]
    fn states_are_lines_and_a_column_where_they_are_known() {
        let row = |name: &str, own: i64, states: serde_json::Value| {
            serde_json::json!({ "function": name, "own": own, "total": own, "share": own as f64 / 100e6, "error": 0.0,
                "total_share": own as f64 / 100e6, "total_error": 0.0, "states": states })
        };
        let answer = serde_json::json!({ "sentence": "everything of shop, wall, last hour", "unit": "nanoseconds",
            "total": 100_000_000, "samples": 10, "states": { "cpu": 30_000_000, "io": 70_000_000 },
            "functions": [row("recv", 70_000_000, serde_json::json!({ "cpu": 1, "io": 69_999_999 })),
                row("main", 30_000_000, serde_json::json!({ "cpu": 30_000_000 }))] });
        let expected = "\
everything of shop, wall, last hour: 100 ms, 10 samples
  CPU              30.0 ms    30 %
  I/O              70.0 ms    70 %
    own       share    total       share  state  function
70.0 ms  70 % ± 0.0  70.0 ms  70 % ± 0.0  I/O    recv
30.0 ms  30 % ± 0.0  30.0 ms  30 % ± 0.0  CPU    main
";
        assert_eq!(top(&answer, 9, ""), expected);
    }
}
