//! The Hash that `Pyroscope.stats` returns.

use magnus::{Error, IntoValue, RHash, Ruby};
use spanprof_core::{Tally, host};

use crate::drain::rings;
use crate::errors::guard;
use crate::stack::unwind;

/// What became of every sample, as a Hash: of the profiler that runs, else of the last one, else zeros.
pub(crate) fn stats(ruby: &Ruby) -> Result<RHash, Error> {
    guard(ruby, || {
        let stats = host::running().map_or_else(host::last, |profiler| profiler.stats());
        let hash = ruby.hash_new();
        for (name, Tally { samples, weight }) in stats.tallies() {
            let entry = ruby.hash_new();
            entry.aset(ruby.to_symbol("samples"), samples)?;
            entry.aset(ruby.to_symbol("weight"), weight)?;
            hash.aset(ruby.to_symbol(name), entry)?;
        }
        let own = [("drain_ns", rings::cpu_ns()), ("stacks_unreadable", unwind::fault_count())];
        for (name, number) in stats.numbers().into_iter().chain(own) {
            hash.aset(ruby.to_symbol(name), number)?;
        }
        hash.aset(ruby.to_symbol("last_error"), stats.last_error.into_value_with(ruby))?;
        Ok(hash)
    })
}
