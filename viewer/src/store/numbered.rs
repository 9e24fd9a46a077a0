//! The numbers of a profile's functions and stacks. To give them is most of what storing a large profile takes, and nothing shows a
//! name that no sample refers to: so those of a large one are given before its transaction, in pieces between which the store
//! is free for others. What is left of an upload that fails then is forgotten with the names that nothing refers to.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::connection::StoreError;
use super::database::Store;
use super::intern::Interned;
use super::rows::Profile;
use crate::work::{self, Haste};

/// So many functions and stacks of a request are numbered in its transaction.
const FEW: usize = if cfg!(test) { 3 } else { 10_000 };
/// How long a piece is at the connection, and how many are numbered between two looks at the clock.
const PIECE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(200) };
const BETWEEN: usize = if cfg!(test) { 2 } else { 500 };
/// How often numbers are given anew, as names were forgotten meanwhile; after that it is done in the transaction.
const TRIES: usize = 3;
/// So many pieces may wait for others; the rest is done in the transaction, which finds what has a number.
const PIECES: usize = if cfg!(test) { 1_000 } else { 8 };

/// The numbers of a profile's functions and stacks, as far as they were given.
#[derive(Default)]
pub(super) struct Numbered {
    functions: Vec<i64>,
    /// Entry 0 is the empty stack, as in the profile's own numbering.
    stacks: Vec<i64>,
}

impl Numbered {
    /// Of the whole profile.
    pub(super) fn of(connection: &Connection, interned: &mut Interned, profile: &Profile) -> rusqlite::Result<Self> {
        let mut all = Self::default();
        all.number(connection, interned, profile, || true)?;
        Ok(all)
    }

    pub(super) fn stacks(&self) -> &[i64] {
        &self.stacks
    }

    /// Numbers what has no number yet for as long as `goes_on`. Whether all have one.
    fn number(
        &mut self,
        connection: &Connection,
        interned: &mut Interned,
        profile: &Profile,
        mut goes_on: impl FnMut() -> bool,
    ) -> rusqlite::Result<bool> {
        for function in &profile.functions[self.functions.len()..] {
            if !goes_on() {
                return Ok(false);
            }
            self.functions.push(interned.function(connection, function)?);
        }
        if self.stacks.is_empty() {
            self.stacks.reserve_exact(profile.stacks.len() + 1);
            self.stacks.push(0);
        }
        for node in &profile.stacks[self.stacks.len() - 1..] {
            if !goes_on() {
                return Ok(false);
            }
            let (parent, function) = (self.stacks[node.parent], self.functions[node.function]);
            self.stacks.push(interned.stack(connection, parent, function, node.line)?);
        }
        Ok(true)
    }
}

/// What was numbered before the transaction.
#[derive(Default)]
pub(super) struct Ahead {
    profiles: Vec<Numbered>,
    /// How often names had begun to be forgotten when its first number was given: those that are given after that stay.
    sweeps: u64,
}

impl Ahead {
    /// The numbers of a profile of the request, if they are there and still mean the same.
    pub(super) fn of(&self, at: usize, interned: &Interned) -> Option<&Numbered> {
        self.profiles.get(at).filter(|_| self.sweeps == interned.sweeps())
    }
}

impl Store {
    /// Numbers what the profiles of a large request refer to; a small one is done sooner in one transaction. `between` is called
    /// between two pieces.
    pub(super) fn number_ahead(&self, profiles: &[Profile], mut between: impl FnMut()) -> Result<Ahead, StoreError> {
        let mut ahead = Ahead::default();
        let names = profiles.iter().map(|profile| profile.functions.len() + profile.stacks.len()).sum::<usize>();
        if names <= FEW || work::haste() != Some(Haste::Patient) {
            return Ok(ahead);
        }
        let mut tries = 0;
        for _ in 0..PIECES {
            if work::is_over() {
                return Err(StoreError::over());
            }
            let mut inner = self.lock();
            if tries == 0 || ahead.sweeps != inner.interned.sweeps() {
                if tries == TRIES {
                    return Ok(Ahead::default());
                }
                tries += 1;
                ahead = Ahead { profiles: Vec::new(), sweeps: inner.interned.sweeps() };
            }
            // A piece is short, and must not be ended in the middle.
            self.turns.stay();
            let is_done = self.write(&mut inner, |connection, interned| {
                number_piece(connection, interned, profiles, &mut ahead.profiles)
            })?;
            drop(inner);
            if is_done {
                return Ok(ahead);
            }
            between();
        }
        Ok(Ahead::default())
    }
}

/// Whether it was the last piece.
fn number_piece(
    connection: &Connection,
    interned: &mut Interned,
    profiles: &[Profile],
    numbered: &mut Vec<Numbered>,
) -> rusqlite::Result<bool> {
    let (start, mut count) = (Instant::now(), 0);
    let mut goes_on = || {
        count += 1;
        count % BETWEEN != 0 || start.elapsed() < PIECE
    };
    for (at, profile) in profiles.iter().enumerate().skip(numbered.len().saturating_sub(1)) {
        if at == numbered.len() {
            numbered.push(Numbered::default());
        }
        if !numbered[at].number(connection, interned, profile, &mut goes_on)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Function, StackNode};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::selection::{Selection, TimeRange};
    use crate::work::Gone;

    const DEPTH: usize = 20;

    /// A profile of one deep stack.
    fn deep(name: &str) -> Profile {
        let mut profile = Profile { service: "large".into(), ..Profile::of(name) };
        let function = |at| Function { name: format!("{name} {at}").into(), file: "".into() };
        profile.functions = (0..DEPTH).map(function).collect();
        profile.stacks = (0..DEPTH).map(|at| StackNode { parent: at, function: at, line: 1 }).collect();
        profile.parts[0].samples[0].stack = DEPTH;
        profile
    }

    fn as_large<T>(work: impl FnOnce() -> T) -> T {
        work::within(Duration::from_secs(3_600), Haste::Patient, Gone::default(), work)
    }

    /// The functions of the stacks of a service, sorted.
    fn functions(store: &Store, service: &str) -> Vec<String> {
        let selection = Selection { profile_type: "process_cpu".into(), ..Selection::everything() };
        let stacks = store.stacks(&selection.service(service).time_range(TimeRange::Stored)).unwrap();
        let mut names: Vec<_> = stacks.sums.iter().flat_map(|sum| stacks.names(sum.0)).map(str::to_owned).collect();
        names.sort();
        names
    }

    fn of_deep(names: &[&str]) -> Vec<String> {
        let mut all: Vec<_> = names.iter().flat_map(|name| (0..DEPTH).map(move |at| format!("{name} {at}"))).collect();
        all.sort();
        all
    }

    #[test]
    fn small_profiles_are_stored_between_the_pieces_of_a_large_one_which_is_seen_whole_or_not_at_all() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let mut small = 0;
        let between = || {
            small += 1;
            let profile = Profile { service: "small".into(), ..Profile::of(&format!("small {small}")) };
            store.insert_profile(&profile).unwrap();
            assert_eq!(functions(&store, "small").len(), small);
            assert!(functions(&store, "large").is_empty());
        };
        as_large(|| store.insert_profiles_with(&[deep("a"), deep("b")], between)).unwrap();
        assert!(small > 10, "{small}");
        assert_eq!(functions(&store, "large"), of_deep(&["a", "b"]));
    }

    #[test]
    fn names_that_are_forgotten_between_two_pieces_are_numbered_anew() {
        for sweeps in [1, 2, 100] {
            let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
            let mut left = sweeps;
            let between = || {
                if left > 0 {
                    left -= 1;
                    store.forget_names(true).unwrap();
                }
            };
            as_large(|| store.insert_profiles_with(&[deep("a")], between)).unwrap();
            assert_eq!(functions(&store, "large"), of_deep(&["a"]));
        }
    }

    #[test]
    fn an_upload_that_nobody_waits_for_leaves_no_profile_and_its_names_are_forgotten() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let gone = Gone::default();
        let mut waiting = Some(gone.waiting());
        let work = || store.insert_profiles_with(&[deep("a")], || drop(waiting.take()));
        assert!(work::within(Duration::from_secs(3_600), Haste::Patient, gone, work).unwrap_err().is_over());
        assert!(store.is_empty().unwrap());
        let functions = || -> i64 {
            store.lock().connection.query_row("SELECT count(*) FROM functions", [], |row| row.get(0)).unwrap()
        };
        assert!(functions() > 0);
        store.retain(0).unwrap();
        assert_eq!(functions(), 0);
    }
}
