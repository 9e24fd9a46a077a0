//! What there is to choose from: the profile types that occur.

use rusqlite::{Row, params};

use super::connection::StoreError;
use super::database::Store;
use crate::profile_types;
use crate::selection::{CPU, TimeRange};

/// Profile types of a service that are shown, or of all.
const MOST_TYPES: usize = 64;
/// Those that a sentence names.
const MOST_NAMED: usize = 10;

/// A profile type that occurs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct SeenProfileType {
    /// What asks for it: its name, or all five parts where the name means another.
    #[serde(rename = "type")]
    pub(crate) asked: String,
    /// What people call it: `cpu`, `alloc_space`, `block delay`.
    pub(crate) word: String,
    /// Unit of its values.
    pub(crate) unit: String,
    /// Whether its values are averaged over time, and not added.
    #[serde(rename = "averaged")]
    pub(crate) is_snapshot: bool,
    /// The name that may mean it, if any does.
    #[serde(skip)]
    name: Option<String>,
}

impl SeenProfileType {
    /// Of the columns text, name and main of a kind.
    pub(super) fn of_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let text: String = row.get(0)?;
        Ok(Self {
            word: profile_types::word(&text),
            unit: profile_types::unit(&text).into(),
            is_snapshot: profile_types::is_snapshot(&text),
            name: if row.get(2)? { Some(row.get(1)?) } else { None },
            asked: text,
        })
    }

    /// CPU first, and of a name first what the name alone means.
    fn order(&self) -> (bool, &str, bool, (bool, usize, &str)) {
        let (said, sample_type, unit) = profile_types::parts(&self.asked);
        let name = self.name.as_deref().unwrap_or(said);
        (name != CPU, name, self.name.is_none(), profile_types::order(name, sample_type, unit))
    }
}

/// The profile types that occur, as many as may be shown.
#[derive(Debug, Default)]
pub(crate) struct SeenProfileTypes {
    /// CPU first.
    pub(crate) types: Vec<SeenProfileType>,
    /// How many others there are.
    pub(crate) more: usize,
}

impl SeenProfileTypes {
    pub(super) fn has_room(&self) -> bool {
        self.types.len() < MOST_TYPES
    }

    /// What asks for each, in words.
    pub(crate) fn named(&self) -> String {
        let named: Vec<&str> = self.types.iter().take(MOST_NAMED).map(|seen| seen.asked.as_str()).collect();
        let more = self.types.len() - named.len() + self.more;
        if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
    }

    /// Puts them in order. The first of a name is what the name alone means, whatever its period is.
    pub(super) fn sort(&mut self) {
        self.types.sort_by(|a, b| a.order().cmp(&b.order()).then_with(|| a.asked.cmp(&b.asked)));
        let mut meant: Option<(String, String)> = None;
        for seen in &mut self.types {
            let Some(name) = &seen.name else { continue };
            let (_, sample_type, unit) = profile_types::parts(&seen.asked);
            let what = (name.clone(), format!("{sample_type}:{unit}"));
            if meant.as_ref().is_none_or(|meant| meant.0 != *name) {
                meant = Some(what.clone());
            }
            if meant.as_ref() == Some(&what) {
                seen.asked = what.0;
            }
        }
        self.types.dedup_by(|a, b| a.asked == b.asked);
    }
}

impl Store {
    /// The profile types of a service, or of all.
    pub(crate) fn profile_types(
        &self,
        service: Option<&str>,
        time_range: TimeRange,
    ) -> Result<SeenProfileTypes, StoreError> {
        let (from, to) = time_range.bounds();
        self.read(|connection| {
            // Not sorted by SQLite, which would hold all texts.
            let mut statement = connection.prepare_cached(
                "SELECT text, name, main FROM kinds WHERE EXISTS (
                     SELECT 1 FROM series WHERE series.kind = kinds.id
                     AND (?3 IS NULL OR series.service = (SELECT id FROM strings WHERE text = ?3))
                     AND EXISTS (SELECT 1 FROM parts WHERE parts.series = series.id AND parts.time BETWEEN ?1 AND ?2))",
            )?;
            let mut rows = statement.query(params![from, to, service])?;
            let mut found = SeenProfileTypes::default();
            while let Some(row) = rows.next()? {
                if found.has_room() {
                    found.types.push(SeenProfileType::of_row(row)?);
                } else {
                    found.more += 1;
                }
            }
            found.sort();
            Ok(found)
        })
    }

    /// Whether any profile is stored that a selection of this profile type may mean, of whatever service and time.
    pub(crate) fn has_profile_type(&self, asked: &str) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM kinds WHERE text = ?1 OR (name = ?1 AND main))";
        self.read(|connection| connection.prepare_cached(sql)?.query_row(params![asked], |row| row.get(0)))
    }

    /// Whether anything is stored.
    pub(crate) fn is_empty(&self) -> Result<bool, StoreError> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM profiles) AND NOT EXISTS (SELECT 1 FROM spans)";
        self.read(|connection| connection.prepare_cached(sql)?.query_row([], |row| row.get(0)))
    }
}
