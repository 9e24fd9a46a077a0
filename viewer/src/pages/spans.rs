//! `/spans`: the span names of a service.

use std::cmp::Ordering;

use maud::{Markup, html};

use super::format::{number, percent, time};
use super::layout;
use crate::api::OfService;
use crate::params::{BadParameter, Params};
use crate::selection::{Selection, Side};
use crate::show::{ShowError, Shown, SpanName, SpanNames, share};
use crate::store::Sampling;

/// What the table can be sorted by: parameter, header, whether it is a number.
const COLUMNS: [(&str, &str); 9] = [
    ("name", "name"),
    ("count", "count"),
    ("err", "err"),
    ("p50", "wall p50"),
    ("p95", "wall p95"),
    ("cpu", "CPU total"),
    ("cpu_span", "CPU/span"),
    ("cpu_wall", "CPU/wall"),
    ("samples", "samples"),
];

/// How the table is sorted.
#[derive(Clone, Copy)]
struct Sort {
    column: &'static str,
    ascending: bool,
}

impl Sort {
    fn take(params: &mut Params) -> Result<Self, BadParameter> {
        let column = params.take("sort")?.unwrap_or_else(|| "cpu".into());
        let Some((column, _)) = COLUMNS.iter().find(|(known, _)| *known == column) else {
            let allowed: Vec<&str> = COLUMNS.iter().map(|(known, _)| *known).collect();
            return Err(BadParameter::new("sort", &column, format!("allowed are {}", allowed.join(", "))));
        };
        let ascending = match params.take("order")?.as_deref() {
            None => *column == "name",
            Some("asc") => true,
            Some("desc") => false,
            Some(other) => {
                return Err(BadParameter::new("order", other, "allowed are asc and desc"));
            }
        };
        Ok(Self { column, ascending })
    }

    fn apply(self, spans: &mut [SpanName]) {
        spans.sort_by(|a, b| {
            let order = match self.column {
                "name" => a.name.cmp(&b.name),
                "count" => a.count.cmp(&b.count),
                "err" => share(a.errors, a.count).total_cmp(&share(b.errors, b.count)),
                "p50" => a.wall_p50_ns.cmp(&b.wall_p50_ns),
                "p95" => a.wall_p95_ns.cmp(&b.wall_p95_ns),
                "cpu_span" => a.cpu_per_span().cmp(&b.cpu_per_span()),
                "cpu_wall" => a.cpu_per_wall().partial_cmp(&b.cpu_per_wall()).unwrap_or(Ordering::Equal),
                "samples" => a.samples.cmp(&b.samples),
                _ => a.cpu_ns.cmp(&b.cpu_ns),
            };
            let order = if self.ascending { order } else { order.reverse() };
            order.then_with(|| a.name.cmp(&b.name))
        });
    }
}

/// The page.
pub(super) fn page(shown: &Shown, mut params: Params) -> Result<Markup, ShowError> {
    let of = OfService::take(&mut params)?;
    let sort = Sort::take(&mut params)?;
    params.finish()?;
    let mut names = shown.span_names(&of.service, of.window)?;
    if names.spans.is_empty() && names.outside.samples == 0 {
        let when = of.window.words();
        return Err(ShowError::NotFound(format!("Nothing was received of a service {:?} ({when}).", of.service)));
    }
    sort.apply(&mut names.spans);
    let selection = Selection::everything().service(&of.service).window(of.window);
    let body = html! {
        div.title {
            h1 { (of.service) span.aside { "span names, " (of.window.words()) } }
            (layout::ranges(shown, of.window, |window| selection.clone().window(window).link("/spans")))
        }
        (note(&names))
        (table(&names, &selection, sort))
        p.actions {
            a href=(selection.link("/flame")) { "Flame graph of the whole service" }
            a href=(selection.link("/traces")) { "Slowest traces" }
        }
    };
    let way = [(of.service.clone(), selection.link("/spans"))];
    Ok(layout::page(&of.service, &way, &body))
}

fn note(names: &SpanNames) -> Markup {
    let traced = names.spans.iter().any(|name| name.count > 0);
    let sampled = names.outside.samples > 0 || names.spans.iter().any(|name| name.samples > 0);
    html! {
        @if names.sampled_by == Sampling::Root {
            p.state {
                b { "Sampled by root span." } " Samples carry the span that entered the service; what its children burnt is counted in it, and theirs is unknown. Set "
                code { "OTEL_PYROSCOPE_ROOT_SPAN_ONLY=false" } " in the service to see each span's own."
            }
        } @else if !sampled {
            p.state { b { "Traces but no profiles." } " CPU is unknown until the profiler is started in this service, under the same service name." }
        } @else if !traced {
            p.state { b { "Profiles but no traces." } " Names come from the profiles; counts and wall times are unknown until the service sends its traces." }
        } @else if names.sampled_by == Sampling::None {
            p.state { b { "No sample carries a span." } " Add the profiler's span processor to the tracer provider of this service." }
        }
    }
}

fn table(names: &SpanNames, selection: &Selection, sort: Sort) -> Markup {
    let all = names.spans.iter().filter_map(|name| name.cpu_ns).sum::<i64>() + names.outside.cpu_ns;
    let outside = selection.clone().side(Side::Outside);
    html! {
        div.scroll {
            table {
                thead { tr {
                    @for (key, header) in COLUMNS {
                        th.n[key != "name"] aria-sort=[(key == sort.column).then_some(if sort.ascending { "ascending" } else { "descending" })] {
                            a href=(sort_link(selection, sort, key)) { (header) }
                        }
                        @if key == "cpu" { th {} }
                    }
                    th { "hottest function" } th {}
                } }
                tbody {
                    @for name in &names.spans { (row(name, &selection.clone().name(&name.name), all)) }
                    tr.outside {
                        th scope="row" { a href=(outside.link("/flame")) { "(outside spans)" } }
                        td {} td {} td {} td {}
                        td.n { (time(names.outside.cpu_ns)) }
                        td.bar { (layout::bar(share(names.outside.cpu_ns, all))) }
                        td {} td {}
                        td.n { (number(names.outside.samples)) }
                        td {} td.go { a.flame href=(outside.link("/flame")) { "flame" } }
                    }
                }
            }
        }
    }
}

fn sort_link(selection: &Selection, sort: Sort, key: &str) -> String {
    let again = key == sort.column;
    // A first click sorts names upwards and numbers downwards, a second one turns it round.
    let ascending = if again { !sort.ascending } else { key == "name" };
    format!("{}&sort={key}&order={}", selection.link("/spans"), if ascending { "asc" } else { "desc" })
}

fn row(name: &SpanName, selection: &Selection, all: i64) -> Markup {
    let count = (name.count > 0).then_some(name.count);
    html! {
        tr {
            th scope="row" title=(name.name) { a href=(selection.link("/traces")) { (name.name) } }
            td.n { (layout::known(count, number)) }
            td.n { @if name.errors > 0 { (percent(share(name.errors, name.count))) } }
            td.n { (layout::time(name.wall_p50_ns)) }
            td.n { (layout::time(name.wall_p95_ns)) }
            td.n { (layout::time(name.cpu_ns)) }
            td.bar { (layout::bar(share(name.cpu_ns.unwrap_or(0), all))) }
            td.n {
                (layout::time(name.cpu_per_span()))
                @if let Some(cpu) = name.cpu_per_span().filter(|cpu| *cpu > 0) { " " span.error { "± " (time(error(cpu, name.samples))) } }
            }
            td.n { @match name.cpu_per_wall() { Some(ratio) => (percent(ratio)), None => (layout::known(None, number)) } }
            td.n { (number(name.samples)) }
            td.short {
                @if let Some(hottest) = &name.hottest {
                    code title=(hottest.file) { (hottest.function) } " " span.error { (percent(hottest.share)) }
                }
            }
            td.go { @if name.samples > 0 { a.flame href=(selection.link("/flame")) { "flame" } } }
        }
    }
}

/// n samples are √n uncertain.
#[expect(clippy::cast_possible_truncation, reason = "three digits are shown")]
fn error(value: i64, samples: i64) -> i64 {
    (value as f64 / (samples.max(1) as f64).sqrt()) as i64
}
