//! Profiles that say what there was at an instant, such as goroutines or the live heap: over a time they are averaged. The average
//! of a service is that of its profiles; of several services it is the sum of theirs.

use ahash::{HashMap, HashSet};
use rusqlite::Connection;

use super::sample_query::SampleQuery;

/// Averages are added up in such parts of their unit: a value of 1 in one of ten thousand profiles is still a hundred of them, and 8 TiB
/// are not too many.
pub(super) const PARTS: i64 = 1 << 20;

/// How many profiles the average of each series is made from.
#[derive(Debug)]
pub(super) struct Snapshots {
    services: HashMap<i64, i64>,
    profiles: HashMap<i64, HashSet<i64>>,
}

impl Snapshots {
    /// Of what is asked for; none where its values are added.
    pub(super) fn of(connection: &Connection, query: &SampleQuery) -> rusqlite::Result<Option<Self>> {
        if !query.is_of_snapshots() {
            return Ok(None);
        }
        let mut found = Self { services: HashMap::default(), profiles: HashMap::default() };
        query.each_in_profiles(connection, "series.id, series.service, parts.profile", |row| {
            let service = row.get(1)?;
            found.services.insert(row.get(0)?, service);
            found.profiles.entry(service).or_default().insert(row.get(2)?);
            Ok(())
        })?;
        Ok(Some(found))
    }

    /// How many profiles all of it is made from.
    pub(super) fn number(&self) -> i64 {
        self.profiles.values().map(length).fold(0, i64::saturating_add)
    }

    /// What a value of a series adds to the average, in parts.
    pub(super) fn parts(&self, series: i64, value: i64) -> i64 {
        let of_service = self.services.get(&series).and_then(|service| self.profiles.get(service));
        let number = i128::from(of_service.map_or(1, length).max(1));
        let parts = (i128::from(value) * i128::from(PARTS) + number / 2) / number;
        i64::try_from(parts).unwrap_or(i64::MAX)
    }
}

fn length(profiles: &HashSet<i64>) -> i64 {
    i64::try_from(profiles.len()).unwrap_or(i64::MAX)
}

/// The whole of parts.
pub(super) fn whole(parts: i64) -> i64 {
    parts.saturating_add(PARTS / 2) / PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Snapshots {
        /// Of one series, and so many profiles.
        pub(in super::super) fn of_profiles(series: i64, profiles: i64) -> Self {
            Self {
                services: [(series, 1)].into_iter().collect(),
                profiles: [(1, (0..profiles).collect())].into_iter().collect(),
            }
        }
    }

    #[test]
    fn small_values_of_many_profiles_have_their_average() {
        for (profiles, value) in [(2, 1), (1_200, 1), (5_760, 5), (100_000, 1), (4, 1 << 40)] {
            let snapshots = Snapshots::of_profiles(7, profiles);
            let sum = (0..profiles).map(|_| snapshots.parts(7, value)).sum();
            assert_eq!(whole(sum), value, "{profiles} profiles");
        }
    }
}
