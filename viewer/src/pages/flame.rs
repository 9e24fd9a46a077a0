//! `/flame`: the flame graph of a selection and its functions as a table.

use maud::{Markup, html};

use super::format::{self, counted, percent, value};
use super::layout;
use crate::params::Params;
use crate::selection::{CPU, Selection, Side};
use crate::show::{FEW_SAMPLES, ShowError, Shown, SpanDetail, Top, share};
use crate::store::{Sampling, Status};

/// More functions than anyone reads; the API has them all.
const MOST_FUNCTIONS: usize = 100;

/// The page.
pub(super) fn page(shown: &Shown, mut params: Params) -> Result<Markup, ShowError> {
    let selection = Selection::take(&mut params)?;
    let by_line = params.take_flag("lines")?;
    params.finish()?;
    let top = shown.top(&selection)?;
    let detail = match selection.span {
        Some(span) => shown.span(span)?,
        None => None,
    };
    let detail = detail.as_ref();
    let title = title(&selection, detail);
    let body = html! {
        div.title { h1 { (title) span.aside { (aside(&selection, &title)) } } }
        @if let Some(detail) = detail { (of_span(detail)) }
        p.sums {
            b { (value(top.total_ns, &top.unit)) } @if selection.kind == CPU { " CPU" } ", " b { (counted(top.samples, "sample")) }
        }
        (few(&selection, detail, top.samples))
        @if top.samples > 0 {
            (tools(&selection, by_line))
            div.split {
                (graph(&selection, &top, by_line))
                (table(&top))
            }
        }
    };
    Ok(layout::page(&title, &way(&selection, detail), &body))
}

fn title(selection: &Selection, detail: Option<&SpanDetail>) -> String {
    let of_span = detail.map(|detail| detail.stored.span.name.clone()).filter(|name| !name.is_empty());
    of_span.or_else(|| selection.name.clone()).unwrap_or_else(|| {
        match (selection.span, selection.trace, selection.side) {
            (Some(span), ..) => format!("Span {span}"),
            (None, Some(_), _) => "Trace".into(),
            (None, None, Side::Outside) => "Outside spans".into(),
            (None, None, Side::Inside) => "Inside spans".into(),
            (None, None, Side::Any) => selection.service.clone().unwrap_or_else(|| "Everything".into()),
        }
    })
}

/// The selection in words, without what the title says already.
fn aside(selection: &Selection, title: &str) -> String {
    let sentence = selection.sentence();
    sentence.strip_prefix(title).map_or(sentence.clone(), |rest| rest.trim_start_matches([' ', ',']).to_owned())
}

fn way(selection: &Selection, detail: Option<&SpanDetail>) -> Vec<(String, String)> {
    let mut way = Vec::new();
    let base = Selection::everything().window(match selection.window {
        crate::selection::Window::Stored => Selection::everything().window,
        window => window,
    });
    let span = detail.map(|detail| &detail.stored.span);
    let service = span.map(|span| &span.service).or(selection.service.as_ref());
    let name = span.map(|span| &span.name).or(selection.name.as_ref()).filter(|name| !name.is_empty());
    if let Some(service) = service {
        let of = base.service(service);
        way.push((service.clone(), of.link("/spans")));
        way.extend(name.map(|name| (name.clone(), of.name(name).link("/traces"))));
    }
    let trace = span.map(|span| span.trace).or(selection.trace);
    way.extend(trace.map(|trace| ("trace".into(), format!("/trace/{trace}"))));
    way.push(("flame graph".into(), selection.link("/flame")));
    way
}

/// What is known of a span beside its samples.
fn of_span(detail: &SpanDetail) -> Markup {
    let span = &detail.stored.span;
    let attributes: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&span.attributes).unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    html! {
        dl.facts {
            dt { "service" } dd { (span.service) }
            @if detail.stored.traced {
                dt { "wall" } dd { (format::time(span.duration)) }
                dt { "started" } dd { (format::clock_time(span.start)) " UTC" }
            } @else { dt { "wall" } dd { "unknown: its trace was not received" } }
            @if span.status == Status::Error { dt { "status" } dd { span.tag { "error" } } }
            dt { "trace" } dd { a.id href={ "/trace/" (span.trace) } { (span.trace) } }
        }
        @if !attributes.is_empty() {
            details {
                summary { (counted(i64::try_from(attributes.len()).unwrap_or(i64::MAX), "attribute")) }
                dl.facts.long { @for (name, value) in &attributes { dt { (name) } dd { (text(value)) } } }
            }
        }
    }
}

/// Few or no samples: what that means, and where there are more.
fn few(selection: &Selection, detail: Option<&SpanDetail>, samples: i64) -> Markup {
    if samples >= FEW_SAMPLES {
        return html! {};
    }
    let span = detail.map(|detail| &detail.stored.span).filter(|span| !span.name.is_empty());
    let more = span.map(|span| Selection::everything().service(&span.service).name(&span.name).link("/flame"));
    let root = detail.filter(|detail| detail.sampled_by == Sampling::Root).and_then(|detail| detail.root);
    html! {
        p.state {
            @match (samples, root, &more, detail.map(|detail| detail.sampled_by)) {
                (0, Some(root), ..) => {
                    b { "Sampled by root span." } " What this span burnt is counted in the span that entered its service: "
                    a href=(Selection::of_span(root).link("/flame")) { "look at that one" } "."
                }
                (0, None, _, Some(Sampling::None)) => {
                    b { "No profile holds a span of this service." }
                    " Start the profiler there with its span processor, under the same service name."
                }
                (0, None, Some(more), _) => {
                    b { "No sample was taken in this span." } " It was on a CPU for less than a sample's period: "
                    a href=(more) { "look at all spans of this name" } " instead."
                }
                (0, ..) => {
                    b { "No sample was taken in this selection." } " " a href="/" { "Look at the services" } " to see where there are some."
                }
                (_, _, Some(more), _) => {
                    b { (counted(samples, "sample")) ":" } " " a href=(more) { "look at all spans of this name" } " instead."
                }
                _ if selection.window != crate::selection::Window::Stored => {
                    b { (counted(samples, "sample")) ":" } " shares are rough; wait for more, or take a longer time range."
                }
                _ => { b { (counted(samples, "sample")) ":" } " shares are rough." }
            }
        }
    }
}

fn tools(selection: &Selection, by_line: bool) -> Markup {
    let here = selection.link("/flame");
    let lines = format!("{here}{}lines=1", if here.contains('?') { '&' } else { '?' });
    html! {
        div.tools {
            label.script { "Search " input #search type="search" placeholder="function or file" autocomplete="off" spellcheck="false"; }
            output #matches.script for="search" {}
            button #flip.script type="button" aria-pressed="false" { "root at the bottom" }
            @if by_line { a href=(here) { "merge lines" } } @else { a href=(lines) { "split lines" } }
            span.downloads {
                a href=(selection.link("/flame.svg")) { "SVG" }
                a href=(selection.link("/profile.pb.gz")) { "pprof" }
                a href=(selection.link("/folded")) { "folded" }
                a href=(selection.link("/api/flame")) { "JSON" }
            }
        }
    }
}

fn graph(selection: &Selection, top: &Top, by_line: bool) -> Markup {
    let source = selection.link("/api/flame");
    let source =
        if by_line { format!("{source}{}lines=1", if source.contains('?') { '&' } else { '?' }) } else { source };
    html! {
        section.graph aria-label="Flame graph" {
            nav #crumbs aria-label="Zoom" {}
            div #graph role="tree" aria-label="Functions, callers above what they called" data-source=(source) data-unit=(top.unit)
                data-samples=(top.samples) {
                noscript {
                    p.state { "The graph is drawn by a script. Without it, read the table or the " a href=(selection.link("/flame.svg")) { "SVG" } "." }
                }
            }
            p.aside.script { "Width: share of all samples. Colour: the stronger, the more of it the function burns itself. Click or Enter zooms, Escape goes back, arrow keys walk." }
        }
    }
}

fn table(top: &Top) -> Markup {
    html! {
        section.functions aria-label="Functions" {
            div.scroll {
                table {
                    thead { tr { th { "function" } th.n { "own" } th.n { "share" } th.n { "total" } th.n { "share" } } }
                    tbody {
                        @for function in top.functions.iter().take(MOST_FUNCTIONS) {
                            tr {
                                th scope="row" title={ (function.function) "\n" (function.file) } {
                                    a.function href={ "#q=" (crate::params::encode(&function.function)) } { (function.function) }
                                    @if !function.file.is_empty() { span.file { bdi { (function.file) } } }
                                }
                                td.n { (value(function.own_ns, &top.unit)) }
                                td.n { @if function.own_ns > 0 { (percent(function.share)) " " span.error { (format::error(function.error)) } } }
                                td.n { (value(function.total_ns, &top.unit)) }
                                td.n { (percent(share(function.total_ns, top.total_ns))) }
                            }
                        }
                    }
                }
            }
            @if top.functions.len() > MOST_FUNCTIONS {
                p.aside { "The first " (MOST_FUNCTIONS) " of " (top.functions.len()) " functions." }
            }
        }
    }
}
