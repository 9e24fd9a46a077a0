//! `/traces`: the slowest or most CPU-hungry traces of a span name.

use maud::{Markup, html};

use super::format::{clock_time, number};
use super::layout;
use crate::api::{OfService, take_trace_sort};
use crate::clock;
use crate::params::Params;
use crate::selection::Selection;
use crate::show::{ShowError, Shown, TraceRow, share};
use crate::store::TraceSort;

/// The page.
pub(super) fn page(shown: &Shown, mut params: Params) -> Result<Markup, ShowError> {
    let of = OfService::take(&mut params)?;
    let name = params.take("name")?;
    let sort = take_trace_sort(&mut params)?;
    params.finish()?;
    let traces = shown.traces(&of.service, name.as_deref(), of.window, sort)?.traces;
    let service = Selection::everything().service(&of.service).window(of.window);
    let selection = match &name {
        Some(name) => service.clone().name(name),
        None => service.clone(),
    };
    let title = name.as_deref().unwrap_or(&of.service);
    let traced = traces.iter().any(|trace| trace.wall_ns.is_some());
    let choice = |this: TraceSort, key: &str, words: &str| {
        html! {
            @if this == sort { span aria-current="true" { (words) } }
            @else { a href={ (selection.link("/traces")) "&sort=" (key) } { (words) } }
        }
    };
    let body = html! {
        div.title {
            h1 { (title) span.aside { "traces, " (of.window.words()) } }
            nav.ranges aria-label="Order" {
                (choice(TraceSort::Wall, "wall", "slowest"))
                (choice(TraceSort::Cpu, "cpu", "most CPU"))
            }
            (layout::ranges(shown, of.window, |window| selection.clone().window(window).link("/traces")))
        }
        p.actions { a href=(selection.link("/flame")) { "Flame graph of all spans of this name" } }
        @if traces.is_empty() {
            p.state {
                "No trace with such a span is here. If the name is known from profiles only, "
                a href=(selection.link("/flame")) { "its flame graph" } " is all there is until the service sends its traces."
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
    let mut way = vec![(of.service.clone(), service.link("/spans"))];
    way.extend(name.as_ref().map(|name| (name.clone(), selection.link("/traces"))));
    Ok(layout::page(title, &way, &body))
}

fn table(traces: &[TraceRow]) -> Markup {
    let longest = traces.iter().filter_map(|trace| trace.wall_ns).max().unwrap_or(0);
    html! {
        div.scroll {
            table {
                thead { tr {
                    th { "trace" } th.n { "started (UTC)" } th { "root span" } th.n { "span wall" } th.n { "trace wall" } th {}
                    th.n { "trace CPU" } th.n { "spans" } th {}
                } }
                tbody {
                    @for trace in traces {
                        tr {
                            th scope="row" { a.id href={ "/trace/" (trace.trace) } { (trace.trace) } }
                            td.n {
                                @if let Some(start) = trace.start_unix_ns {
                                    span title={ (start / clock::MILLISECOND) " Unix ms" } { (clock_time(start)) }
                                }
                            }
                            td.short { (trace.root_name) }
                            td.n { (layout::time(trace.span_wall_ns)) }
                            td.n { (layout::time(trace.wall_ns)) }
                            td.bar { (layout::bar(share(trace.wall_ns.unwrap_or(0), longest))) }
                            td.n { (layout::time(trace.cpu_ns)) }
                            td.n { (number(i64::try_from(trace.spans).unwrap_or(i64::MAX))) }
                            td.go {
                                @if trace.cpu_ns.is_some_and(|cpu| cpu > 0) {
                                    a.flame href=(Selection::of_trace(trace.trace).link("/flame")) { "flame graph" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
