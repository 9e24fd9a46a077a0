//! `/function`: the callers, callees and lines of one function of a selection.

use maud::{Markup, html};

use super::flame;
use super::layout::{self, Page};
use crate::format::{counted, value};
use crate::http::request::{FunctionRequest, StackRequest};
use crate::params::{Params, encode};
use crate::selection::{Selection, StackDisplay, link};
use crate::show::{FunctionView, Neighbour, Part, ShowError, Shown, share};

/// More neighbours than anyone reads; the API has them all.
const MOST_ROWS: usize = 50;

/// The page.
pub(super) fn page(shown: &Shown, params: Params) -> Result<Page, ShowError> {
    let FunctionRequest { stacks: StackRequest { selection, display }, function, file } =
        FunctionRequest::alone(params)?;
    let view = shown.function(&selection, display, &function, file.as_deref())?;
    let unit = &view.unit;
    let mut pairs = [selection.pairs(), display.pairs()].concat();
    let graph = format!("{}#q={}", link("flame", &pairs), encode(&function));
    pairs.push(("function".into(), function.clone()));
    pairs.extend(file.clone().map(|file| ("file".into(), file)));
    let json = link("api/function", &pairs);
    let all_files: Vec<_> = pairs.iter().filter(|(name, _)| name != "file").cloned().collect();
    let body = html! {
        div.title { h1.code { (function) span.aside { "in " (view.sentence) } } }
        @if let Some(file) = &view.file {
            p.aside { code { (file) } " · " a href=(link("function", &all_files)) { "all functions of this name" } }
        }
        p.sums {
            "own " b { (value(view.own.value, unit)) } ", " (layout::share(view.own.share, view.own.error))
            " · total " b { (value(view.total.value, unit)) } ", " (layout::share(view.total.share, view.total.error))
            span.aside { " of " (counted(view.samples, "sample")) }
        }
        p.actions {
            a href=(graph) { "Show it in the flame graph" }
            span.downloads { a href=(json) { "JSON" } }
        }
        div.sides {
            (neighbours("Callers", "Nothing called it: its stacks begin here.", &view.callers, &view, &selection, display))
            (neighbours("Callees", "It called nothing.", &view.callees, &view, &selection, display))
        }
        h2 { "Lines" }
        (lines(&view))
        p.aside { "A sample counts once for each caller and each callee in it. Bars are parts of this function's total, shares are of the whole selection." }
    };
    let mut way = flame::way(&selection, None);
    way.push((function.clone(), link("function", &pairs)));
    Ok(layout::page(&function, &way, body))
}

fn neighbours(
    title: &str,
    none: &str,
    rows: &[Neighbour],
    view: &FunctionView,
    selection: &Selection,
    display: StackDisplay,
) -> Markup {
    html! {
        section.functions aria-label=(title) {
            h2 { (title) }
            @if rows.is_empty() { p.aside { (none) } }
            @else {
                div.scroll {
                    table {
                        thead { tr { th { "function" } th {} th.n { "value" } th.n { "share" } } }
                        tbody {
                            @for row in rows.iter().take(MOST_ROWS) {
                                tr {
                                    (flame::function(selection, display, &row.function, &row.file, None))
                                    (cells(row.part, view))
                                }
                            }
                        }
                    }
                }
                @if rows.len() > MOST_ROWS { p.aside { "The first " (MOST_ROWS) " of " (rows.len()) "." } }
            }
        }
    }
}

fn cells(part: Part, view: &FunctionView) -> Markup {
    html! {
        td.bar { (layout::bar(share(part.value, view.total.value))) }
        td.n { (value(part.value, &view.unit)) }
        td.n { (layout::share(part.share, part.error)) }
    }
}

fn lines(view: &FunctionView) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { th { "line" } th {} th.n { "own" } th.n { "share" } th.n { "total" } th.n { "share" } } }
                tbody {
                    @for line in view.lines.iter().take(MOST_ROWS) {
                        tr {
                            th.code scope="row" title=(line.file) {
                                (line.file.rsplit('/').next().unwrap_or_default())
                                @if line.line > 0 { ":" (line.line) } @else { " (line unknown)" }
                            }
                            (cells(line.own, view))
                            td.n { (value(line.total.value, &view.unit)) }
                            td.n { (layout::share(line.total.share, line.total.error)) }
                        }
                    }
                }
            }
        }
    }
}
