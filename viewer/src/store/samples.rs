//! Samples out: the stacks of a selection, and sums by service and by span name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use super::rows::Function;
use super::{Store, StoreError};
use crate::ids::SpanId;
use crate::selection::{CPU, Selection, Side, Window};

/// The name of spans that samples name by id only and no trace was received of.
pub(crate) const UNNAMED: &str = "(unnamed span)";

/// The samples of a selection, by stack.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// Each stack with its value and its number of samples.
    pub(crate) sums: Vec<(i64, i64, i64)>,
    /// The trie that the stacks are numbers of: parent (0 = empty stack), function, line.
    pub(crate) nodes: HashMap<i64, (i64, i64, i64)>,
    /// The functions that the trie refers to.
    pub(crate) functions: HashMap<i64, Function>,
    /// All five parts of the profile type; empty if there is no sample.
    pub(crate) kind: String,
    /// The largest period that occurs.
    pub(crate) period: i64,
}

/// What a service burnt.
#[derive(Debug)]
pub(crate) struct ServiceSum {
    /// Its name.
    pub(crate) service: String,
    /// CPU.
    pub(crate) cpu: i64,
    /// CPU in spans.
    pub(crate) cpu_in_spans: i64,
    /// Samples of CPU.
    pub(crate) samples: i64,
    /// Spans received.
    pub(crate) spans: i64,
    /// Profiles received.
    pub(crate) profiles: i64,
    /// When the last of them came.
    pub(crate) last_received: Option<i64>,
}

/// Whom samples belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// Spans of a name.
    Name(String),
    /// No span.
    Outside,
}

/// What the spans of a name burnt.
#[derive(Debug)]
pub(crate) struct NameSum {
    /// The spans.
    pub(crate) owner: Owner,
    /// CPU.
    pub(crate) cpu: i64,
    /// Samples of CPU.
    pub(crate) samples: i64,
}

/// A condition on `s` (samples or span_sums), `parts`, `series` and `kinds`.
struct Filter {
    sql: String,
    values: Vec<Value>,
}

/// The tables a [`Filter`] speaks of.
fn tables(of: &str) -> String {
    format!(
        "{of} s JOIN parts ON parts.id = s.part JOIN series ON series.id = parts.series JOIN kinds ON kinds.id = series.kind"
    )
}

/// The final name of a sample's span: its trace knows best, its label is next, 0 is neither.
const SPAN_NAME: &str = "coalesce((SELECT name FROM spans WHERE spans.span = s.span LIMIT 1), series.span_name)";
const IS_INSIDE: &str = "(s.span != 0 OR series.span_name != 0)";

impl Filter {
    fn new(selection: &Selection) -> Self {
        let mut filter = Self { sql: "true".into(), values: Vec::new() };
        let kind = selection.kind.clone();
        if kind.contains(':') {
            filter.and("kinds.text = ?", [kind.into()]);
        } else {
            filter.and("kinds.name = ? AND kinds.main", [kind.into()]);
        }
        if let Some(service) = &selection.service {
            filter.and("series.service = (SELECT id FROM strings WHERE text = ?)", [service.clone().into()]);
        }
        match selection.name.as_deref() {
            None => {}
            Some(UNNAMED) => filter.and(&format!("{SPAN_NAME} = 0 AND s.span != 0"), []),
            Some(name) => {
                filter.and(&format!("{SPAN_NAME} = (SELECT id FROM strings WHERE text = ?)"), [name.to_owned().into()])
            }
        }
        if let Some(trace) = selection.trace {
            let trace = Value::Blob(trace.to_column().into());
            let spans = "SELECT span FROM spans WHERE trace = ? UNION SELECT span FROM sampled_spans WHERE trace = ?";
            filter.and(&format!("s.span != 0 AND s.span IN ({spans})"), [trace.clone(), trace]);
        }
        if let Some(span) = selection.span {
            // The index by span leaves out 0, and is used only where the statement says so.
            filter.and("s.span != 0 AND s.span = ?", [span.to_column().into()]);
        }
        match selection.side {
            Side::Any => {}
            Side::Inside => filter.and(IS_INSIDE, []),
            Side::Outside => filter.and(&format!("NOT {IS_INSIDE}"), []),
        }
        if selection.window != Window::Stored {
            let (from, to) = selection.window.bounds();
            filter.and("parts.time BETWEEN ? AND ?", [from.into(), to.into()]);
        }
        filter
    }

    fn and<const N: usize>(&mut self, sql: &str, values: [Value; N]) {
        self.sql.push_str(" AND ");
        self.sql.push_str(sql);
        self.values.extend(values);
    }
}

impl Store {
    /// The samples of a selection, by stack.
    pub(crate) fn stacks(&self, selection: &Selection) -> Result<Stacks, StoreError> {
        let inner = self.lock();
        let connection = &inner.connection;
        let filter = Filter::new(selection);
        let mut found = Stacks::default();
        let mut statement = connection.prepare_cached(&format!(
            "SELECT s.stack, sum(s.value), sum(s.count), max(kinds.text), max(series.period) FROM {} WHERE {} GROUP BY s.stack",
            tables("samples"),
            filter.sql
        ))?;
        let mut rows = statement.query(params_from_iter(filter.values))?;
        while let Some(row) = rows.next()? {
            found.sums.push((row.get(0)?, row.get(1)?, row.get(2)?));
            found.kind = row.get(3)?;
            found.period = found.period.max(row.get(4)?);
        }
        read_trie(connection, &mut found)?;
        Ok(found)
    }

    /// Every service that sent anything in the window.
    pub(crate) fn services(&self, window: Window) -> Result<Vec<ServiceSum>, StoreError> {
        let inner = self.lock();
        let (from, to) = window.bounds();
        let sql = format!(
            "WITH cpu AS (
                 SELECT series.service, sum(s.value) AS cpu, sum(CASE WHEN {IS_INSIDE} THEN s.value ELSE 0 END) AS inside,
                        sum(s.count) AS samples
                 FROM {} WHERE kinds.name = '{CPU}' AND kinds.main AND parts.time BETWEEN ?1 AND ?2 GROUP BY series.service),
             traced AS (SELECT service, count(*) AS spans FROM spans WHERE start + duration >= ?1 AND start <= ?2 GROUP BY service),
             profiled AS (
                 SELECT service, count(*) AS profiles, max(received) AS last FROM profiles WHERE time BETWEEN ?1 AND ?2 GROUP BY service)
             SELECT strings.text, coalesce(cpu, 0), coalesce(inside, 0), coalesce(samples, 0), coalesce(spans, 0), coalesce(profiles, 0), last
             FROM (SELECT service FROM traced UNION SELECT service FROM profiled) AS known
             JOIN strings ON strings.id = known.service
             LEFT JOIN cpu USING (service) LEFT JOIN traced USING (service) LEFT JOIN profiled USING (service)
             ORDER BY cpu DESC, strings.text",
            tables("span_sums")
        );
        let mut statement = inner.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params![from, to], |row| {
            Ok(ServiceSum {
                service: row.get(0)?,
                cpu: row.get(1)?,
                cpu_in_spans: row.get(2)?,
                samples: row.get(3)?,
                spans: row.get(4)?,
                profiles: row.get(5)?,
                last_received: row.get(6)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// What spans burnt, by name, and what was burnt outside of them.
    pub(crate) fn cpu_by_name(&self, selection: &Selection) -> Result<Vec<NameSum>, StoreError> {
        let inner = self.lock();
        let filter = Filter::new(selection);
        let sql = format!(
            "SELECT grouped.inside, strings.text, grouped.value, grouped.count FROM (
                 SELECT {SPAN_NAME} AS name, {IS_INSIDE} AS inside, sum(s.value) AS value, sum(s.count) AS count
                 FROM {} WHERE {} GROUP BY 1, 2) AS grouped
             LEFT JOIN strings ON strings.id = grouped.name",
            tables("span_sums"),
            filter.sql
        );
        let mut statement = inner.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(filter.values), |row| {
            Ok(NameSum { owner: owner(row)?, cpu: row.get(2)?, samples: row.get(3)? })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// The function with the most own CPU of each span name.
    pub(crate) fn hottest_by_name(&self, selection: &Selection) -> Result<HashMap<Owner, (Function, i64)>, StoreError> {
        let inner = self.lock();
        let filter = Filter::new(selection);
        let sql = format!(
            // A span is named once, and not once a sample.
            "WITH named AS MATERIALIZED (
                 SELECT s.part, s.span, {SPAN_NAME} AS name, {IS_INSIDE} AS inside FROM {} WHERE {})
             SELECT grouped.inside, strings.text, names.text, files.text, grouped.value FROM (
                 SELECT named.name, named.inside, stacks.function, sum(samples.value) AS value
                 FROM named JOIN samples ON samples.part = named.part AND samples.span = named.span
                 JOIN stacks ON stacks.id = samples.stack GROUP BY 1, 2, 3) AS grouped
             LEFT JOIN strings ON strings.id = grouped.name
             JOIN functions ON functions.id = grouped.function
             JOIN strings AS names ON names.id = functions.name JOIN strings AS files ON files.id = functions.file
             ORDER BY grouped.value, names.text DESC",
            tables("span_sums"),
            filter.sql
        );
        let mut statement = inner.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(filter.values), |row| {
            Ok((owner(row)?, (Function { name: row.get(2)?, file: row.get(3)? }, row.get(4)?)))
        })?;
        // Sorted by value, so the last one of a name stays.
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Whether any sample of any type is labelled with the span.
    pub(crate) fn is_sampled(&self, span: SpanId) -> Result<bool, StoreError> {
        let inner = self.lock();
        let sql = "SELECT EXISTS (SELECT 1 FROM span_sums WHERE span != 0 AND span = ?1)";
        Ok(inner.connection.prepare_cached(sql)?.query_row(params![span.to_column()], |row| row.get(0))?)
    }

    /// What each of the spans burnt itself: value and samples of CPU. Spans without samples are left out.
    pub(crate) fn cpu_of_spans(&self, spans: &[SpanId]) -> Result<HashMap<SpanId, (i64, i64)>, StoreError> {
        let inner = self.lock();
        let sql = format!(
            "SELECT sum(s.value), sum(s.count) FROM {} WHERE s.span != 0 AND s.span = ?1 AND kinds.name = '{CPU}' AND kinds.main",
            tables("span_sums")
        );
        let mut statement = inner.connection.prepare_cached(&sql)?;
        let mut found = HashMap::new();
        for span in spans {
            let sums: (Option<i64>, Option<i64>) =
                statement.query_row(params![span.to_column()], |row| Ok((row.get(0)?, row.get(1)?)))?;
            if let (Some(value), Some(count)) = sums {
                found.insert(*span, (value, count));
            }
        }
        Ok(found)
    }
}

fn owner(row: &rusqlite::Row<'_>) -> rusqlite::Result<Owner> {
    let inside: bool = row.get(0)?;
    let name: Option<String> = row.get(1)?;
    Ok(if inside { Owner::Name(name.unwrap_or_else(|| UNNAMED.into())) } else { Owner::Outside })
}

/// Reads the trie from the stacks down to the root, and the functions in it.
fn read_trie(connection: &Connection, found: &mut Stacks) -> rusqlite::Result<()> {
    let mut node = connection.prepare_cached("SELECT parent, function, line FROM stacks WHERE id = ?1")?;
    let mut function = connection.prepare_cached(
        "SELECT names.text, files.text FROM functions
         JOIN strings AS names ON names.id = functions.name JOIN strings AS files ON files.id = functions.file
         WHERE functions.id = ?1",
    )?;
    for &(stack, ..) in &found.sums {
        let mut at = stack;
        while at != 0 && !found.nodes.contains_key(&at) {
            let row: (i64, i64, i64) =
                node.query_row(params![at], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            found.nodes.insert(at, row);
            if let Entry::Vacant(free) = found.functions.entry(row.1) {
                free.insert(
                    function.query_row(params![row.1], |row| Ok(Function { name: row.get(0)?, file: row.get(1)? }))?,
                );
            }
            at = row.0;
        }
    }
    Ok(())
}
