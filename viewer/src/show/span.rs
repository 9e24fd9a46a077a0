//! One span, beside its flame graph.

use std::collections::HashMap;

use super::error::ShowError;
use super::shown::Shown;
use super::steps::Steps;
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
        let root = entered_by(&stored, &spans)?;
        let has_below = spans.iter().any(|span| span.span.parent == Some(id));
        Ok(Some(SpanDetail { stored, sampled_by, root, has_below }))
    }
}

/// The span above `span` that entered the service, where there is one.
fn entered_by(span: &StoredSpan, spans: &[StoredSpan]) -> Result<Option<SpanId>, ShowError> {
    let mut steps = Steps::default();
    let mut by_id: HashMap<SpanId, &StoredSpan> = HashMap::with_capacity(spans.len());
    for span in spans {
        steps.step()?;
        // Of those that share an id, the first to start.
        by_id.entry(span.span.span).or_insert(span);
    }
    let (mut root, mut at) = (None, span);
    // A ring of parents, which only a broken sender makes, ends with the number of spans.
    for _ in spans {
        steps.step()?;
        let parent = at.span.parent.filter(|_| at.child);
        let Some(next) = parent.and_then(|parent| by_id.get(&parent)) else { break };
        root = Some(next.span.span);
        at = next;
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::TraceId;
    use crate::span_status::Status;
    use crate::store::Span;
    use crate::work::{self, Gone, Haste};

    /// Spans 1, 2, ... of which each is the parent of the next; the parent of the first is `above`.
    fn chain(length: u64, above: u64) -> Vec<StoredSpan> {
        let id = |n: u64| SpanId::from_bytes(&n.to_be_bytes());
        let span = |n: u64| Span {
            trace: TraceId::parse("4bf92f3577b34da6a3ce929d0e0e4736").unwrap(),
            span: id(n).unwrap(),
            parent: id(if n == 1 { above } else { n - 1 }),
            service: "s".into(),
            name: String::new(),
            start: 0,
            duration: 1,
            status: Status::Unset,
            root: None,
            profiled: false,
            attributes: "{}".into(),
            place: None,
        };
        (1..=length).map(|n| StoredSpan { span: span(n), child: n > 1 || above > 0, traced: true }).collect()
    }

    #[test]
    fn a_long_chain_has_one_span_that_entered_the_service() {
        // Looked for one by one, each parent among all spans, it would be some ten billion steps.
        let spans = chain(200_000, 0);
        assert_eq!(entered_by(&spans[199_999], &spans).unwrap(), Some(spans[0].span.span));
        assert_eq!(entered_by(&spans[0], &spans).unwrap(), None);
        let ring = chain(3, 3);
        assert_eq!(entered_by(&ring[0], &ring).unwrap(), Some(ring[0].span.span));
    }

    #[test]
    fn it_ends_with_the_time_of_its_request() {
        let spans = chain(10_000, 0);
        let search = || entered_by(&spans[9_999], &spans);
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), search);
        assert!(matches!(over, Err(ShowError::Busy(_))), "{over:?}");
    }
}
