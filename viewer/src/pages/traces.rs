//! `/traces`: the slowest or most CPU-hungry traces of a span name.

use maud::{Markup, html};

use super::layout::{self, Page};
use super::{filter, flame};
use crate::format::number;
use crate::http::request::{ServiceRequest, take_trace_sort};
use crate::params::Params;
use crate::selection::{Selection, link};
use crate::show::{ShowError, Shown, TraceRow, share};
use crate::store::TraceSort;

/// The page.
pub(super) fn page(shown: &Shown, mut params: Params) -> Result<Page, ShowError> {
    let sort = take_trace_sort(&mut params)?;
    let ServiceRequest { service, selection } = ServiceRequest::take(&mut params)?;
    params.finish()?;
    let traces = shown.traces(&selection, sort)?.traces;
    let title = selection.name.as_deref().unwrap_or(&service);
    let by_cpu = [("sort".to_owned(), "cpu".to_owned())];
    let also = if sort == TraceSort::Cpu { &by_cpu[..] } else { &[] };
    let slow = match flame::slow_waits(&selection).filter(|_| traces.len() > 1) {
        Some(link) => shown.store.has_states(Some(&service), selection.time_range)?.then_some(link),
        None => None,
    };
    let traced = traces.iter().any(|trace| trace.wall_ns.is_some());
    let pairs = |selection: &Selection, also: &[(String, String)]| [selection.pairs(), also.to_vec()].concat();
    let choice = |this: TraceSort, also: &[(String, String)], words: &str| {
        html! {
            @if this == sort { span aria-current="true" { (words) } }
            @else { a href=(link("traces", &pairs(&selection, also))) { (words) } }
        }
    };
    let body = html! {
        div.title {
            h1 { (title) span.aside { "traces, " (selection.time_range.words()) } }
            nav.ranges aria-label="Order" {
                (choice(TraceSort::Wall, &[], "slowest"))
                (choice(TraceSort::Cpu, &by_cpu, "most CPU"))
            }
            (layout::ranges(shown, selection.time_range, "traces", |range| pairs(&selection.clone().time_range(range), also)))
        }
        (filter::form("traces", &selection, also, false))
        p.actions {
            a href=(selection.link("flame")) { @if selection.name.is_some() { "Flame graph of all these spans" } @else { "Flame graph of the service" } }
            @if let Some(slow) = slow { a href=(slow) { (flame::SLOW_WAITS) } }
            a href=(link("api/traces", &pairs(&selection, also))) { "JSON" }
        }
        @if traces.is_empty() {
            p.state {
                "No trace with such a span is here"
                @if selection.has_filter() { "; " a href=(selection.clone().without_filter().link("traces")) { "look without the filter" } }
                ". If the name is known from profiles only, "
                a href=(selection.link("flame")) { "its flame graph" } " is all there is until the service sends its traces."
            }
        } @else {
            @if !traced {
                p.state {
                    b { "Profiles but no traces." } " These ids come from samples; wall times are unknown until the service sends its traces."
                }
            }
            (table(&traces))
        }
    };
    let mut way = vec![(service.clone(), Selection { name: None, ..selection.clone() }.link("spans"))];
    way.extend(selection.name.as_ref().map(|name| (name.clone(), selection.link("traces"))));
    Ok(layout::page(title, &way, body))
}

fn table(traces: &[TraceRow]) -> Markup {
    let longest = traces.iter().filter_map(|trace| trace.wall_ns).max().unwrap_or(0);
    html! {
        div.scroll {
            table {
                thead { tr {
                    th { "trace" } th.n { "started" } th { "root span" } th.n { "span wall" } th.n { "trace wall" } th {}
                    th.n { "trace CPU" } th.n { "spans" } th {}
                } }
                tbody {
                    @for trace in traces {
                        tr {
                            th scope="row" { a.id href={ "trace/" (trace.trace) } { (trace.trace) } }
                            td.n {
                                @if let Some(start) = trace.start_unix_ns { (layout::instant(start)) }
                            }
                            td.short { (trace.root_name) }
                            td.n { (layout::time(trace.span_wall_ns)) }
                            td.n { (layout::time(trace.wall_ns)) }
                            td.bar { (layout::bar(share(trace.wall_ns.unwrap_or(0), longest))) }
                            td.n { (layout::time(trace.cpu_ns)) }
                            td.n { (number(i64::try_from(trace.spans).unwrap_or(i64::MAX))) }
                            td.go {
                                @if trace.cpu_ns.is_some_and(|cpu| cpu > 0) {
                                    a.flame href=(Selection::of_trace(trace.trace).link("flame")) { "flame graph" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
