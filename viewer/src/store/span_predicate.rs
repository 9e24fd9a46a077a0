//! The spans that a selection chooses by what only traces say of them: attributes, wall time, status.

use rusqlite::params_from_iter;
use rusqlite::types::Value;

use super::connection::StoreError;
use super::database::Store;
use crate::selection::{Bound, Selection, Side, StateChoice, TimeRange};
use crate::states::State;

/// A condition in SQL and its parameters.
pub(super) struct Condition {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
    /// Whether it asks for the span of single samples.
    pub(super) by_span: bool,
}

/// Conditions that all hold.
pub(super) fn all(conditions: Vec<Condition>) -> Condition {
    let mut sql = "true".to_owned();
    let mut values = Vec::new();
    for condition in conditions {
        sql.push_str(" AND ");
        sql.push_str(&condition.sql);
        values.extend(condition.values);
    }
    Condition { sql, values, by_span: false }
}

fn condition<const N: usize>(sql: String, values: [Value; N]) -> Condition {
    Condition { sql, values: values.into(), by_span: false }
}

/// A key of a JSON object has this value, written as text; of the empty one, the object has no such key, or an empty value.
fn json(column: &str, key: &str, value: &str) -> Condition {
    if value.is_empty() {
        let sql = format!("NOT EXISTS (SELECT 1 FROM json_each({column}) WHERE key = ? AND value != '')");
        return condition(sql, [key.to_owned().into()]);
    }
    let text = "CASE type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(value AS TEXT) END";
    let sql = format!("EXISTS (SELECT 1 FROM json_each({column}) WHERE key = ? AND {text} = ?)");
    condition(sql, [key.to_owned().into(), value.to_owned().into()])
}

/// The label of a series that says the state of its samples.
pub(super) const STATE: &str = "series.labels ->> '$.state'";

/// Whether the samples of a series are the own time of their spans, and not what other threads or tasks spent in them meanwhile: a wall
/// time is only the sum of these.
pub(super) const IS_OWN: &str = "(series.labels ->> '$.flow') IS NOT 'concurrent'";

/// A series is of the chosen states, as [`State::of_label`] reads its label.
fn in_state(choice: StateChoice) -> Option<Condition> {
    let label = |state: State| Value::from(state.label().to_owned());
    let none_of = |is_left_out: fn(&State) -> bool| {
        let left_out = State::ALL.into_iter().filter(|state| *state != State::NotTold && is_left_out(state));
        let values: Vec<Value> = left_out.map(label).collect();
        let sql = format!("{STATE} NOT IN ({})", vec!["?"; values.len()].join(", "));
        Condition { sql, values, by_span: false }
    };
    Some(match choice {
        StateChoice::All => return None,
        StateChoice::Waits => none_of(|state| !state.is_wait()),
        StateChoice::One(State::NotTold) => condition(format!("{STATE} IS NULL"), []),
        StateChoice::One(State::Other) => none_of(|state| *state != State::Other),
        StateChoice::One(state) => condition(format!("{STATE} = ?"), [label(state)]),
    })
}

/// What a selection asks of a row of spans, its time range left out; percentiles are looked up before.
fn spans(selection: &Selection, row: &str) -> Vec<Condition> {
    let mut conditions = Vec::new();
    if let Some(service) = &selection.service {
        let sql = format!("{row}.service = (SELECT id FROM strings WHERE text = ?)");
        conditions.push(condition(sql, [service.clone().into()]));
    }
    if let Some(name) = &selection.name {
        conditions
            .push(condition(format!("{row}.name = (SELECT id FROM strings WHERE text = ?)"), [name.clone().into()]));
    }
    if let Some(part) = &selection.name_part {
        conditions.push(condition(format!("{row}.name IN ({NAMED_LIKE})"), [part.clone().into()]));
    }
    if let Some(trace) = selection.trace {
        conditions.push(condition(format!("{row}.trace = ?"), [Value::Blob(trace.to_column().into())]));
    }
    if let Some(span) = selection.span.filter(|_| !selection.below) {
        conditions.push(condition(format!("{row}.span = ?"), [span.to_column().into()]));
    }
    for (bound, comparison) in [(selection.least, ">="), (selection.most, "<=")] {
        if let Some(Bound::Time(ns)) = bound {
            conditions.push(condition(format!("{row}.duration {comparison} ?"), [ns.into()]));
        }
    }
    if let Some(status) = selection.status {
        conditions.push(condition(format!("{row}.status = ?"), [status.to_column().into()]));
    }
    conditions.extend(selection.attributes.iter().map(|(key, value)| json(&format!("{row}.attributes"), key, value)));
    conditions
}

/// What a selection asks of a row of spans.
pub(super) fn spans_in_time(selection: &Selection, row: &str) -> Condition {
    let mut conditions = spans(selection, row);
    if selection.time_range != TimeRange::Stored {
        let (from, to) = selection.time_range.bounds();
        let sql = format!("{row}.start + {row}.duration >= ? AND {row}.start <= ?");
        conditions.push(condition(sql, [from.into(), to.into()]));
    }
    all(conditions)
}

/// What a selection asks of samples `s` and their `series`, beside name, trace, span, type and time.
pub(super) fn samples(selection: &Selection) -> Vec<Condition> {
    let mut conditions = Vec::new();
    if let Some(part) = &selection.name_part {
        conditions.push(condition(format!("s.name IN ({NAMED_LIKE})"), [part.clone().into()]));
    }
    conditions.extend(selection.labels.iter().map(|(key, value)| json("series.labels", key, value)));
    conditions.extend(in_state(selection.state));
    if selection.reads_spans() {
        let spans = all(spans(selection, "c"));
        let sql = format!("s.span IN (SELECT c.span FROM spans c WHERE {})", spans.sql);
        conditions.push(Condition { sql, values: spans.values, by_span: true });
    }
    if let Some(span) = selection.span.filter(|_| selection.below) {
        let sql = "s.span IN (
             WITH RECURSIVE below (span) AS (
                 SELECT ? UNION
                 SELECT c.span FROM below JOIN spans c ON c.trace = (SELECT trace FROM spans WHERE span = ?) AND c.parent = below.span)
             SELECT span FROM below)";
        let values = [span.to_column().into(), span.to_column().into()];
        conditions.push(Condition { by_span: true, ..condition(sql.into(), values) });
    }
    conditions
}

const NAMED_LIKE: &str = "SELECT id FROM strings WHERE instr(lower(text), lower(?)) > 0";

impl Store {
    /// How many spans a selection chooses; none of what is outside of spans.
    pub(crate) fn count_spans(&self, selection: &Selection) -> Result<i64, StoreError> {
        if selection.side == Side::Outside {
            return Ok(0);
        }
        let predicate = spans_in_time(selection, "c");
        let sql = format!("SELECT count(*) FROM spans c WHERE {}", predicate.sql);
        self.read(|connection| {
            connection.prepare_cached(&sql)?.query_row(params_from_iter(&predicate.values), |row| row.get(0))
        })
    }

    /// How many spans a selection chooses, and nanoseconds of wall time of all of them.
    pub(crate) fn total_wall(&self, selection: &Selection) -> Result<(i64, i64), StoreError> {
        let predicate = spans_in_time(selection, "c");
        // A sum of integers may not fit, one of numbers does.
        let sql = format!("SELECT count(*), CAST(total(c.duration) AS INTEGER) FROM spans c WHERE {}", predicate.sql);
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            statement.query_row(params_from_iter(&predicate.values), |row| Ok((row.get(0)?, row.get(1)?)))
        })
    }

    /// The wall times of the spans that a selection chooses, sorted.
    pub(crate) fn walls(&self, selection: &Selection) -> Result<Vec<i64>, StoreError> {
        let predicate = spans_in_time(selection, "c");
        let sql = format!("SELECT c.duration FROM spans c WHERE {} ORDER BY c.duration", predicate.sql);
        self.read(|connection| {
            connection.prepare_cached(&sql)?.query_map(params_from_iter(&predicate.values), |row| row.get(0))?.collect()
        })
    }
}
