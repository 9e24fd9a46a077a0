//! What kind of sender each service has, as its uploads said last.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::strings::truncated;
use crate::sender::Sender;

/// Services that are remembered; names are anyone's to choose.
const MOST_SERVICES: usize = 2_000;
/// Longer names are remembered up to so many bytes.
const LONGEST_SERVICE: usize = 200;

/// The senders of all tenants.
#[derive(Debug, Default)]
pub(super) struct Senders(Mutex<BTreeMap<(u64, String), Said>>);

/// What the profiles of a service say, and what its traces do. A profiler knows itself better than an SDK that it stands beside.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    by_profiles: Option<Sender>,
    by_traces: Option<Sender>,
}

impl Senders {
    /// Takes note of what a service's profiles, or else its traces, were sent with.
    pub(super) fn note(&self, tenant: u64, service: &str, sender: Sender, is_of_profiles: bool) {
        let key = (tenant, truncated(service, LONGEST_SERVICE).to_owned());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_SERVICES && !known.contains_key(&key) {
            return;
        }
        let said = known.entry(key).or_default();
        let place = if is_of_profiles { &mut said.by_profiles } else { &mut said.by_traces };
        // Whoever samples all of a machine samples services too that have a profiler of their own.
        if !(is_of_profiles && place.is_some() && sender.is_beside()) {
            *place = Some(sender);
        }
    }

    /// What a service is sent with.
    pub(super) fn of(&self, tenant: u64, service: &str) -> Option<Sender> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = known.get(&(tenant, truncated(service, LONGEST_SERVICE).to_owned()))?;
        said.by_profiles.or(said.by_traces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Sender = Sender::Ours(None);

    #[test]
    fn what_profiles_say_counts_before_what_traces_say_and_tenants_are_apart() {
        let senders = Senders::default();
        senders.note(1, "shop", OURS, false);
        assert_eq!(senders.of(1, "shop"), Some(OURS));
        senders.note(1, "shop", Sender::DotnetOfGrafana, true);
        senders.note(1, "shop", OURS, false);
        assert_eq!((senders.of(1, "shop"), senders.of(2, "shop")), (Some(Sender::DotnetOfGrafana), None));
    }

    #[test]
    fn a_profiler_of_the_whole_machine_says_nothing_where_a_service_has_one_of_its_own() {
        let senders = Senders::default();
        senders.note(1, "shop", Sender::Native, true);
        assert_eq!(senders.of(1, "shop"), Some(Sender::Native));
        senders.note(1, "shop", OURS, true);
        senders.note(1, "shop", Sender::Native, true);
        assert_eq!(senders.of(1, "shop"), Some(OURS));
    }

    #[test]
    fn names_without_end_take_no_room_without_end() {
        let senders = Senders::default();
        (0..3_000).for_each(|number| senders.note(1, &format!("service {number}"), Sender::Go, true));
        assert_eq!(senders.0.lock().unwrap().len(), MOST_SERVICES);
    }
}
