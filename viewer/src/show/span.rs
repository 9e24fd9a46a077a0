//! One span, beside its flame graph.

use super::error::ShowError;
use super::shown::Shown;
use crate::ids::SpanId;
use crate::store::{Sampling, StoredSpan};

/// A span, and where to look if it has no samples of its own.
#[derive(Debug)]
pub(crate) struct SpanDetail {
    /// The span.
    pub(crate) stored: StoredSpan,
    /// Which spans its service's samples are labelled with.
    pub(crate) sampled_by: Sampling,
    /// The span that entered the service and has this one below it, if it is another.
    pub(crate) root: Option<SpanId>,
    /// Whether there are spans below it.
    pub(crate) has_below: bool,
}

impl Shown {
    /// A span; none if only samples know its id, and nothing of it.
    pub(crate) fn span(&self, id: SpanId) -> Result<Option<SpanDetail>, ShowError> {
        let Some(stored) = self.store.span(id)? else {
            return Ok(None);
        };
        let sampled_by = self.store.sampling(&stored.span.service)?;
        let spans = self.store.trace(stored.span.trace)?;
        let mut root = None;
        let mut at = &stored;
        // A ring of parents, which only a broken sender makes, ends with the number of spans.
        for _ in 0..spans.len() {
            let parent = at.span.parent.filter(|_| at.child);
            let Some(next) = parent.and_then(|parent| spans.iter().find(|span| span.span.span == parent)) else {
                break;
            };
            root = Some(next.span.span);
            at = next;
        }
        let has_below = spans.iter().any(|span| span.span.parent == Some(id));
        Ok(Some(SpanDetail { stored, sampled_by, root, has_below }))
    }
}
