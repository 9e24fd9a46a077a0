//! Tags: sets of them, which follow the execution context in the thread's block, and those of threads.

use spanprof_core::TagSetId;

use crate::interface::types::{Pair, Pairs};

/// The set `base` with more tags.
pub(crate) fn tag_set(base: u32, tags: &Pairs) -> u32 {
    TagSetId::from_number(base).with(&tuples(&tags.pairs)).number()
}

/// Ends one claim.
pub(crate) fn tag_release(set: u32) {
    TagSetId::from_number(set).release();
}

/// Changes the tags of the calling thread.
pub(crate) fn thread_tags(tags: &Pairs, add: bool) -> bool {
    let change = if add { spanprof_core::add_thread_tag } else { spanprof_core::remove_thread_tag };
    let changed = tags.pairs.iter().filter(|pair| change(&pair.name, &pair.text)).count();
    changed == tags.pairs.len()
}

fn tuples(pairs: &[Pair]) -> Vec<(String, String)> {
    pairs.iter().map(|pair| (pair.name.clone(), pair.text.clone())).collect()
}
