//! Profiles that say what there was at an instant, such as goroutines or the live heap: over a time they are averaged. The average
//! of a service is that of its profiles; of several services it is the sum of theirs.

use ahash::{HashMap, HashSet};
use rusqlite::Connection;

use super::sample_query::SampleQuery;

/// Averages are added up in such parts of their unit: a value of 1 in one of ten thousand profiles is still a hundred of them, and 8 TiB
/// are not too many.
const PARTS: i64 = 1 << 20;

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

/// Whole numbers made of parts, one after the other: what rounding leaves of one is the next one's, so that all of them, and any number of
/// the first, are together the whole of their parts.
#[derive(Default)]
pub(super) struct Whole {
    parts: i128,
    given: i64,
}

impl Whole {
    /// The whole of these parts, with what is left of those before.
    pub(super) fn of(&mut self, parts: i64) -> i64 {
        self.add(parts);
        self.take(0)
    }

    /// Leaves these parts to what comes next.
    pub(super) fn add(&mut self, parts: i64) {
        self.parts += i128::from(parts);
    }

    /// The whole of what is left, and at least so much of what comes yet.
    pub(super) fn take(&mut self, least: i64) -> i64 {
        let parts = i128::from(PARTS);
        let whole = i64::try_from((self.parts + parts / 2) / parts).unwrap_or(i64::MAX);
        let more = whole.saturating_sub(self.given).max(least);
        self.given = self.given.saturating_add(more);
        more
    }
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
            assert_eq!(Whole::default().of(sum), value, "{profiles} profiles");
        }
    }

    #[test]
    fn what_is_made_whole_adds_up_however_far_it_is_read() {
        let mut whole = Whole::default();
        let quarters: Vec<i64> = (0..8).map(|_| whole.of(PARTS / 4)).collect();
        assert_eq!(quarters, [0, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!(whole.of(3 * PARTS), 3);
        // What is given beforehand is not given again.
        let mut whole = Whole::default();
        let mut take = |parts, least| {
            whole.add(parts);
            whole.take(least)
        };
        assert_eq!([take(PARTS / 4, 1), take(PARTS / 2, 0), take(PARTS, 0)], [1, 0, 1]);
    }
}
