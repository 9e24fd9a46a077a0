//! The services: what each burnt, sent and is sampled by, within what an answer may take.

use std::collections::BTreeSet;

use ahash::{HashMap, HashSet};
use rusqlite::{Connection, params};

use super::connection::{StoreError, interrupted};
use super::database::Store;
use super::largest::{Largest, Sum};
use super::overview::{SeenProfileType, SeenProfileTypes};
use super::sample_query::SampleQuery;
use super::samples::text;
use super::sampling::{self, Sampling};
use crate::selection::{CPU, DOCTOR, TimeRange};
use crate::work;

/// As many services are added up as an answer has room for at this many bytes each; so they take a fourth of it.
const SERVICE: usize = 1_024;
/// Bytes of a profile type beside its texts.
const KIND: usize = 128;

/// What a service burnt, or several of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServiceSum {
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
    /// The first and the last time that it was heard of, by profiles or spans.
    pub(crate) heard: Option<(i64, i64)>,
}

impl ServiceSum {
    fn widen(&mut self, first: i64, last: i64) {
        self.heard = Some(self.heard.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
    }
}

impl Sum for ServiceSum {
    type Weight = (i64, i64, i64);

    fn weight(&self) -> Self::Weight {
        (self.cpu, self.spans, self.profiles)
    }

    fn add(&mut self, other: Self) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.cpu_in_spans = self.cpu_in_spans.saturating_add(other.cpu_in_spans);
        self.samples = self.samples.saturating_add(other.samples);
        self.spans += other.spans;
        self.profiles += other.profiles;
        self.last_received = self.last_received.max(other.last_received);
        if let Some((first, last)) = other.heard {
            self.widen(first, last);
        }
    }
}

/// A service that has room.
#[derive(Debug)]
pub(crate) struct Service {
    /// Its name.
    pub(crate) name: String,
    /// What it burnt and sent.
    pub(crate) sum: ServiceSum,
    /// The profile types that it sent.
    pub(crate) profile_types: SeenProfileTypes,
    /// Which spans its samples are labelled with.
    pub(crate) sampled_by: Sampling,
}

/// Services, most CPU first, and the doctor's last.
#[derive(Debug)]
pub(crate) struct ServiceSums {
    /// Those that have room.
    pub(crate) services: Vec<Service>,
    /// The smallest together, where they had none.
    pub(crate) rest: Option<ServiceSum>,
}

impl Store {
    /// Every service that sent anything in the time range. A profile is stamped with its start; `longest_profile` bounds
    /// its end. `weigh` says how many bytes of an answer a service takes with its profile types.
    pub(crate) fn services(
        &self,
        time_range: TimeRange,
        longest_profile: i64,
        weigh: impl Fn(&str, &[SeenProfileType]) -> usize,
    ) -> Result<ServiceSums, StoreError> {
        let answer = self.limits.answer();
        self.read(|connection| {
            let sums =
                Largest::read(answer / SERVICE, |sums| add_up(connection, sums, time_range.bounds(), longest_profile))?;
            let (sums, mut rest) = sums.sorted();
            let numbers: HashSet<i64> = sums.iter().map(|(service, _)| *service).collect();
            let kinds = kinds(connection, &numbers, time_range.bounds())?;
            let sampled_by = sampling::of(connection, numbers)?;
            let mut known = Kinds::default();
            let mut left = answer / 4 * 3;
            let mut services = Vec::new();
            let mut sums = sums.into_iter();
            while let Some((number, sum)) = sums.as_slice().first().copied() {
                if work::is_over() {
                    return Err(interrupted());
                }
                let name = text(connection, number)?;
                let mut profile_types = SeenProfileTypes::default();
                for kind in kinds.get(&number).into_iter().flatten() {
                    if profile_types.has_room() {
                        profile_types.types.push(known.get(connection, *kind, answer / 8)?);
                    } else {
                        profile_types.more += 1;
                    }
                }
                profile_types.sort();
                let weight = weigh(&name, &profile_types.types);
                if weight > left {
                    break;
                }
                left -= weight;
                let sampled_by = sampled_by.get(&number).copied().unwrap_or_default();
                services.push(Service { name, sum, profile_types, sampled_by });
                sums.next();
            }
            for (_, sum) in sums {
                rest.get_or_insert_default().add(sum);
            }
            services.sort_by(|a, b| {
                let is_doctor = (a.name == DOCTOR).cmp(&(b.name == DOCTOR));
                is_doctor.then(b.sum.cpu.cmp(&a.sum.cpu)).then_with(|| a.name.cmp(&b.name))
            });
            Ok(ServiceSums { services, rest })
        })
    }
}

fn add_up(
    connection: &Connection,
    sums: &mut Largest<ServiceSum>,
    (from, to): (i64, i64),
    longest_profile: i64,
) -> rusqlite::Result<()> {
    let mut cpu = SampleQuery::within((from, to));
    cpu.and("kinds.name = ? AND kinds.main AND kinds.unit = 'nanoseconds'", [CPU.to_owned().into()]);
    cpu.each(connection, "series.service, s.name, s.value, s.count", |row| {
        let cpu: i64 = row.get(2)?;
        let cpu_in_spans = if row.get::<_, i64>(1)? == 0 { 0 } else { cpu };
        sums.of(row.get(0)?).add(ServiceSum { cpu, cpu_in_spans, samples: row.get(3)?, ..ServiceSum::default() });
        Ok(())
    })?;
    let mut statement = connection.prepare_cached(
        "SELECT service, count(*), max(received), min(time), max(min(max(received, time), time + ?3))
         FROM profiles WHERE time BETWEEN ?1 AND ?2 GROUP BY service",
    )?;
    let mut rows = statement.query(params![from, to, longest_profile])?;
    while let Some(row) = rows.next()? {
        let (profiles, last_received, heard) = (row.get(1)?, row.get(2)?, Some((row.get(3)?, row.get(4)?)));
        sums.of(row.get(0)?).add(ServiceSum { profiles, last_received, heard, ..ServiceSum::default() });
    }
    let mut statement = connection.prepare_cached(
        "SELECT service, count(*), min(start), max(start + duration)
         FROM spans WHERE start + duration >= ?1 AND start <= ?2 GROUP BY service",
    )?;
    let mut rows = statement.query(params![from, to])?;
    while let Some(row) = rows.next()? {
        let heard = Some((row.get(2)?, row.get(3)?));
        sums.of(row.get(0)?).add(ServiceSum { spans: row.get(1)?, heard, ..ServiceSum::default() });
    }
    Ok(())
}

/// The numbers of the profile types of each of the services; all series are looked at once.
fn kinds(
    connection: &Connection,
    services: &HashSet<i64>,
    (from, to): (i64, i64),
) -> rusqlite::Result<HashMap<i64, BTreeSet<i64>>> {
    let mut found: HashMap<i64, BTreeSet<i64>> = HashMap::default();
    let mut all = connection.prepare_cached("SELECT service, kind, id FROM series")?;
    let mut has_parts = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM parts WHERE parts.series = ?1 AND parts.time BETWEEN ?2 AND ?3)",
    )?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let (service, kind, series): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let is_known = || found.get(&service).is_some_and(|kinds| kinds.contains(&kind));
        if services.contains(&service)
            && !is_known()
            && has_parts.query_row(params![series, from, to], |row| row.get(0))?
        {
            found.entry(service).or_default().insert(kind);
        }
    }
    Ok(found)
}

/// Profile types by number, read once as long as there is room.
#[derive(Default)]
struct Kinds {
    known: HashMap<i64, SeenProfileType>,
    bytes: usize,
}

impl Kinds {
    fn get(&mut self, connection: &Connection, kind: i64, most: usize) -> rusqlite::Result<SeenProfileType> {
        if let Some(known) = self.known.get(&kind) {
            return Ok(known.clone());
        }
        let mut find = connection.prepare_cached("SELECT text, name, main FROM kinds WHERE id = ?1")?;
        let found = find.query_row(params![kind], SeenProfileType::of_row)?;
        self.bytes += KIND + found.asked.len() + found.word.len() + found.unit.len();
        if self.bytes <= most {
            self.known.insert(kind, found.clone());
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::rows::{Part, Profile, ProfileType, Sample};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::work::{Gone, Haste};

    /// Services 1, 2, ... with a profile each, which says that each burnt as much as its number, and two profile types.
    fn store_of(services: i64, answer: usize) -> std::sync::Arc<Store> {
        let store = Store::open(None, &StorageLimits::with(u64::MAX, 1 << 20, answer)).unwrap();
        let profile = |number: i64| {
            let mut profile = Profile::of("work");
            profile.service = format!("service {number}").into();
            profile.parts[0].samples = vec![Sample { value: number, count: 1, ..profile.parts[0].samples[0] }];
            let of_memory = ProfileType {
                name: "memory".into(),
                text: "memory:alloc_space:bytes::".into(),
                unit: "bytes".into(),
                main: true,
            };
            let memory =
                Part { profile_type: of_memory.into(), samples: vec![], ..Profile::of("work").parts.remove(0) };
            profile.parts.push(memory);
            profile
        };
        store.insert_profiles(&(1..=services).map(profile).collect::<Vec<_>>()).unwrap();
        store
    }

    #[test]
    fn services_that_have_no_room_are_the_smallest_and_are_added_up() {
        for (answer, row, most) in [(1 << 20, 1, 100), (16 << 10, 1, 16), (16 << 10, 4_000, 3)] {
            let store = store_of(100, answer);
            let found = store.services(TimeRange::Stored, 1, |_, types| row * types.len() / 2).unwrap();
            let names: Vec<_> = found.services.iter().map(|service| service.name.clone()).collect();
            let expected: Vec<_> =
                (1..=100).rev().map(|number| format!("service {number}")).take(names.len()).collect();
            assert!(names.len() > most / 2 && names.len() <= most, "{names:?}");
            assert_eq!(names, expected);
            let all = || found.services.iter().map(|service| &service.sum).chain(&found.rest);
            assert_eq!((all().map(|sum| sum.cpu).sum(), all().map(|sum| sum.samples).sum()), (5_050, 100));
            assert_eq!(all().map(|sum| sum.profiles).sum::<i64>(), 100);
            let words = found.services[0].profile_types.types.iter().map(|seen| seen.word.as_str());
            assert_eq!(words.collect::<Vec<_>>(), ["cpu", "alloc_space"]);
        }
    }

    #[test]
    fn it_ends_with_the_time_of_its_request() {
        let store = store_of(2, 1 << 20);
        let services = || store.services(TimeRange::Stored, 1, |_, _| 1);
        assert!(work::within(Duration::ZERO, Haste::Patient, Gone::default(), services).unwrap_err().is_over());
    }
}
