//! Whether anything is stored of a service, of a profile type of it, or of a name of its spans, whenever that came.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::StoreError;
use super::database::Store;
use super::spans::IS_CHILD;

/// The series of a service ?1 that are of a profile type ?2.
const SERIES: &str = "kinds CROSS JOIN series ON series.kind = kinds.id";
const IS_OF: &str = "(kinds.text = ?2 OR (kinds.name = ?2 AND kinds.main)) AND series.service = ?1";

/// What is stored of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Presence {
    /// Profiles of it.
    pub(crate) profiles: bool,
    /// Profiles of the type that was asked for.
    pub(crate) profile_type: bool,
    /// Spans of it, by traces.
    pub(crate) traces: bool,
    /// Of the name that was asked for, if one was.
    pub(crate) name: Option<NamePresence>,
}

/// What is stored of spans of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamePresence {
    /// Samples that are labelled with them, of whatever profile type.
    pub(crate) samples: bool,
    /// Themselves, by traces.
    pub(crate) traces: bool,
    /// One that entered the service from outside; not asked where there are samples.
    pub(crate) entry: bool,
}

impl Store {
    /// What is stored of a service, of profiles of this type, and of spans of this name.
    pub(crate) fn presence(
        &self,
        service: &str,
        profile_type: &str,
        name: Option<&str>,
    ) -> Result<Presence, StoreError> {
        self.read(|connection| {
            let Some(service) = number(connection, service)? else {
                return Ok(Presence { name: name.map(|_| NamePresence::default()), ..Presence::default() });
            };
            let has_part = "EXISTS (SELECT 1 FROM parts WHERE parts.series = series.id)";
            let profiles = format!("SELECT 1 FROM series WHERE service = ?1 AND {has_part}");
            let of_type = format!("SELECT 1 FROM {SERIES} WHERE {IS_OF} AND {has_part}");
            let one = |sql: &str| exists(connection, sql, params![service]);
            Ok(Presence {
                profiles: one(&profiles)?,
                profile_type: exists(connection, &of_type, params![service, profile_type])?,
                traces: one("SELECT 1 FROM spans WHERE service = ?1")?,
                name: name.map(|name| of_name(connection, service, name)).transpose()?,
            })
        })
    }
}

impl Store {
    /// Whether any sample of spans of this name is of a service's profiles of this type.
    pub(crate) fn has_samples_of(&self, service: &str, profile_type: &str, name: &str) -> Result<bool, StoreError> {
        self.read(|connection| {
            let (Some(service), Some(name)) = (number(connection, service)?, number(connection, name)?) else {
                return Ok(false);
            };
            let samples = format!(
                "SELECT 1 FROM {SERIES} CROSS JOIN stack_sums ON stack_sums.series = series.id
                 WHERE {IS_OF} AND stack_sums.name = ?3"
            );
            exists(connection, &samples, params![service, profile_type, name])
        })
    }
}

fn of_name(connection: &Connection, service: i64, name: &str) -> rusqlite::Result<NamePresence> {
    let Some(name) = number(connection, name)? else { return Ok(NamePresence::default()) };
    let of_spans = "SELECT 1 FROM spans s WHERE s.service = ?1 AND s.name = ?2";
    let samples = "SELECT 1 FROM series CROSS JOIN stack_sums ON stack_sums.series = series.id
                   WHERE series.service = ?1 AND stack_sums.name = ?2";
    let one = |sql: &str| exists(connection, sql, params![service, name]);
    let (samples, traces) = (one(samples)?, one(of_spans)?);
    // All its spans are asked for their parents.
    let entry = !samples && traces && one(&format!("{of_spans} AND NOT {IS_CHILD}"))?;
    Ok(NamePresence { samples, traces, entry })
}

/// The number of a text, if it is stored.
fn number(connection: &Connection, text: &str) -> rusqlite::Result<Option<i64>> {
    let mut find = connection.prepare_cached("SELECT id FROM strings WHERE text = ?1")?;
    find.query_row(params![text], |row| row.get(0)).optional()
}

fn exists(connection: &Connection, rows: &str, values: impl rusqlite::Params) -> rusqlite::Result<bool> {
    connection.prepare_cached(&format!("SELECT EXISTS ({rows})"))?.query_row(values, |row| row.get(0))
}
