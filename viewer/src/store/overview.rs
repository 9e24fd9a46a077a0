//! What there is to choose from: profile types, and when each service was heard of.

use rusqlite::params;

use super::connection::StoreError;
use super::database::Store;
use crate::selection::TimeRange;

/// A profile type that occurs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct SeenProfileType {
    /// The service.
    #[serde(skip)]
    pub(crate) service: String,
    /// What asks for it: its name, or all five parts where the name means another.
    #[serde(rename = "type")]
    pub(crate) asked: String,
    /// What people call it: `cpu`, `alloc_space`.
    pub(crate) word: String,
    /// Unit of its values.
    pub(crate) unit: String,
}

impl Store {
    /// The profile types of each service.
    pub(crate) fn profile_types(&self, time_range: TimeRange) -> Result<Vec<SeenProfileType>, StoreError> {
        let (from, to) = time_range.bounds();
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT DISTINCT strings.text, kinds.text, kinds.name, kinds.main FROM series
             JOIN kinds ON kinds.id = series.kind JOIN strings ON strings.id = series.service
             WHERE EXISTS (SELECT 1 FROM parts WHERE parts.series = series.id AND parts.time BETWEEN ?1 AND ?2)
             ORDER BY strings.text, kinds.name != 'process_cpu', kinds.name, NOT kinds.main, kinds.text",
            )?;
            let rows = statement.query_map(params![from, to], |row| {
                let (text, name, main): (String, String, bool) = (row.get(1)?, row.get(2)?, row.get(3)?);
                let unit = text.split(':').nth(2).unwrap_or("").to_owned();
                let word = text.split(':').nth(1).filter(|word| !word.is_empty()).unwrap_or(&name).to_owned();
                Ok(SeenProfileType { service: row.get(0)?, asked: if main { name } else { text }, word, unit })
            })?;
            rows.collect()
        })
    }

    /// Whether anything is stored.
    pub(crate) fn is_empty(&self) -> Result<bool, StoreError> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM profiles) AND NOT EXISTS (SELECT 1 FROM spans)";
        self.read(|connection| connection.prepare_cached(sql)?.query_row([], |row| row.get(0)))
    }
}
