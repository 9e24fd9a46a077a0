//! `/trace/{id}`: a trace as a waterfall, CPU beside wall time.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::layout::{self, Page};
use super::{advice, states};
use crate::format::{counted, number, time};
use crate::ids::TraceId;
use crate::selection::{Selection, StackDisplay, WALL};
use crate::show::{ShowError, Shown, Trace, TraceSpan, share};
use crate::span_status::Status;
use crate::states::Part;
use crate::store::Sampling;

/// More spans than anyone reads; the API has them all.
const MOST_ROWS: usize = 1_000;
/// Deeper spans are indented no further.
const MOST_INDENT: usize = 24;

/// The page.
pub(super) fn page(shown: &Shown, id: TraceId) -> Result<Page, ShowError> {
    let trace = shown.trace(id)?;
    let mut services: Vec<&str> = trace.spans.iter().map(|span| span.service.as_str()).collect();
    services.sort_unstable();
    services.dedup();
    let first = trace.spans.first();
    let title = first.map_or("Trace", |span| span.name.as_str());
    let by_root = trace.spans.iter().any(|span| span.sampled_by == Sampling::Root && span.own_cpu_ns.is_none());
    let unprofiled = trace.spans.iter().find(|span| span.sampled_by == Sampling::None);
    let parts: BTreeSet<Part> = trace
        .spans
        .iter()
        .filter_map(|span| span.time.as_ref())
        .flat_map(|time| time.parts().map(|(part, _)| part))
        .collect();
    let says_states = !parts.is_empty();
    let by_cpu = trace.spans.iter().any(|span| span.time.is_none() && span.own_cpu_ns.is_some());
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let body = html! {
        div.title {
            h1 { (title) span.aside { "trace " code { (trace.trace) } } }
        }
        p.sums {
            b { (layout::time(trace.wall_ns)) } " wall, " b { (layout::time(trace.cpu_ns)) } " CPU in " (counted(count(services.len()), "service"))
            ", " (counted(count(trace.spans.len()), "span"))
            @if let Some(start) = trace.start_unix_ns { ", started " (layout::instant(start)) }
        }
        p.actions {
            a href=(Selection::of_trace(trace.trace).link("flame")) { "Flame graph of the whole trace" }
            @if says_states {
                a href=(Selection::of_trace(trace.trace).profile_type(WALL).link("flame")) title="all its time, waits too, by state" { "Where the time went" }
            }
            (layout::downloads(&Selection::of_trace(trace.trace), StackDisplay::default(), &format!("api/trace/{}", trace.trace)))
        }
        @if trace.left_out > 0 {
            p.state { b { (counted(count(trace.left_out), "span")) " left out." } " They have no room in one answer; more --memory makes more." }
        }
        @if trace.wall_ns.is_none() {
            p.state { b { "Profiles but no trace." } " These spans are known from samples only; wall times come with the trace." }
        }
        @if by_root {
            p.state { b { "Sampled by root span." } " What these services' child spans burnt is counted in the span that entered the service." }
        }
        @if let Some(span) = unprofiled {
            p.state {
                @if shown.refusals.profiles_of(&span.service) > 0 {
                    b { "No profile of " (span.service) " could be taken." } " " a href="./#refused" { "What its sender was told" } "."
                } @else {
                    b { "No profile holds a span of " (span.service) "." } " Its CPU is unknown until its profiler runs, under the same service name, and labels spans: "
                    (advice::label_spans(shown.profilers.sender(&span.service)))
                }
            }
        }
        (waterfall(&trace))
        @if says_states {
            (states::legend(parts))
            p.aside {
                "The parts of a bar are shares of the span's wall time, in the order of this list and not in that in which they were. "
                "What is grey is in no state of the span itself."
            }
        }
        @if by_cpu || !says_states {
            p.aside {
                @if says_states { "Of services that say no states: " }
                span.legend-wall {} " wall time  " span.legend-cpu {} " part of it that the span itself was on a CPU, wherever in it that was"
            }
        }
    };
    let mut way = Vec::new();
    if let Some(span) = first {
        let service = Selection::everything().service(&span.service);
        way.push((span.service.clone(), service.link("spans")));
        way.push((span.name.clone(), service.name(&span.name).link("traces")));
    }
    way.push(("trace".into(), format!("trace/{id}")));
    Ok(layout::page(title, &way, body))
}

fn waterfall(trace: &Trace) -> Markup {
    html! {
        div.scroll {
            table.waterfall {
                thead { tr {
                    th { "span" } th { "service" } th.time { div.scale { span { "0" } span { (layout::time(trace.wall_ns)) } } } th.n { "wall" } th.n { "own CPU" }
                    th.n { "inclusive CPU" } th.n { "samples" } th {}
                } }
                tbody { @for span in trace.spans.iter().take(MOST_ROWS) { (row(trace, span)) } }
            }
        }
        @if trace.spans.len() > MOST_ROWS {
            p.state { "The first " (MOST_ROWS) " spans are shown; " a href={ "api/trace/" (trace.trace) } { "all of them as JSON" } "." }
        }
    }
}

fn row(trace: &Trace, span: &TraceSpan) -> Markup {
    let flame = Selection::of_span(span.span).link("flame");
    let below = Selection { below: true, ..Selection::of_span(span.span) };
    let by_root = span.sampled_by == Sampling::Root && span.own_cpu_ns.is_none();
    let cpu = |value: Option<i64>| match value {
        None if by_root => {
            html! { span.unknown title="counted in the root span of the service" { "in root" } }
        }
        value => layout::time(value),
    };
    html! {
        tr.failed[span.status == Status::Error] {
            th scope="row" {
                @for _ in 0..span.depth.min(MOST_INDENT) { i.indent {} }
                a href=(flame) title={ (span.name) "\nspan " (span.span) } { @if span.name.is_empty() { (span.span) } @else { (span.name) } }
                @if span.status == Status::Error { " " span.tag { "error" } }
            }
            td { (span.service) }
            td.time { (bar(trace, span)) }
            td.n { (layout::time(span.wall_ns)) }
            td.n { (cpu(span.own_cpu_ns)) }
            td.n {
                @if span.inclusive_cpu_ns > span.own_cpu_ns {
                    a href=(below.link("flame")) title="flame graph of the span and all below it" { (cpu(span.inclusive_cpu_ns)) }
                } @else { (cpu(span.inclusive_cpu_ns)) }
            }
            td.n { (number(span.samples)) }
            td.go { @if span.samples > 0 { a.flame href=(flame) { "flame graph" } } }
        }
    }
}

fn bar(trace: &Trace, span: &TraceSpan) -> Markup {
    let (Some(first), Some(all), Some(start), Some(wall)) =
        (trace.start_unix_ns, trace.wall_ns, span.start_unix_ns, span.wall_ns)
    else {
        return html! {};
    };
    let percent = |part: i64| format!("{:.3}%", share(part, all.max(1)) * 100.0);
    // The shortest span is still a hair's breadth.
    let (left, width) = (percent(start - first), percent(wall.max(all / 300)));
    // Threads can burn more CPU than there is wall time.
    let cpu = span.own_cpu_ns.unwrap_or(0).min(wall);
    let instants = format!("from {} for {}", time(start - first), time(wall));
    let source = if span.is_by_attributes { ", as its attributes say" } else { "" };
    html! {
        @match &span.time {
            Some(spent) => {
                svg.span role="img" {
                    title { (instants) (source) "\n" (spent.sentence("nanoseconds", "\n")) }
                    rect.wall x=(left) width=(width) height="100%" {}
                    (states::segments(spent, share(start - first, all.max(1)), share(wall, all.max(1))))
                }
            }
            None => {
                svg.span role="img" aria-label=(instants) {
                    rect.wall x=(left) width=(width) height="100%" {}
                    rect.cpu x=(left) width=(percent(cpu)) height="100%" {}
                }
            }
        }
    }
}
