//! `/spans`: the span names of a service.

use std::cmp::Ordering;

use maud::{Markup, html};

use super::filter;
use super::layout::{self, Page};
use crate::format::{ago, number, percent, time, value};
use crate::http::request::ServiceRequest;
use crate::params::{BadParameter, Params};
use crate::receive::profilers::ProfilerState;
use crate::selection::Look;
use crate::selection::{Selection, Side, link};
use crate::show::{Beside, ShowError, Shown, SpanName, SpanNames, share};
use crate::store::Sampling;

/// What the table can be sorted by: parameter, header, whether it is a number.
const COLUMNS: [(&str, &str); 10] = [
    ("name", "name"),
    ("count", "count"),
    ("err", "err"),
    ("p50", "wall p50"),
    ("p95", "p95"),
    ("p99", "p99"),
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

    fn pairs(self) -> [(String, String); 2] {
        let order = if self.ascending { "asc" } else { "desc" };
        [("sort".into(), self.column.into()), ("order".into(), order.into())]
    }

    fn apply(self, spans: &mut [SpanName]) {
        spans.sort_by(|a, b| {
            let order = match self.column {
                "name" => a.name.cmp(&b.name),
                "count" => a.count.cmp(&b.count),
                "err" => share(a.errors, a.count).total_cmp(&share(b.errors, b.count)),
                "p50" => a.wall_p50_ns.cmp(&b.wall_p50_ns),
                "p95" => a.wall_p95_ns.cmp(&b.wall_p95_ns),
                "p99" => a.wall_p99_ns.cmp(&b.wall_p99_ns),
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
pub(super) fn page(shown: &Shown, mut params: Params) -> Result<Page, ShowError> {
    let sort = Sort::take(&mut params)?;
    let ServiceRequest { service, selection } = ServiceRequest::take(&mut params)?;
    params.finish()?;
    let mut names = shown.span_names(&service, &selection)?;
    let nothing = names.spans.is_empty() && names.rest.is_none() && names.outside.samples == 0;
    if nothing && !selection.has_filter() && selection.name.is_none() {
        let when = selection.time_range.words();
        return Err(ShowError::NotFound(format!("Nothing was received of a service {service:?} ({when}).")));
    }
    sort.apply(&mut names.spans);
    let pairs = |selection: &Selection| [selection.pairs(), sort.pairs().into()].concat();
    let body = html! {
        div.title {
            h1 { (service) span.aside { "span names, " (selection.time_range.words()) } }
            (layout::ranges(shown, selection.time_range, "spans", |range| pairs(&selection.clone().time_range(range))))
        }
        (filter::form("spans", &selection, &sort.pairs(), false))
        (layout::profile_types((&names.profile_types, names.more_profile_types), &selection, "beside CPU", |selection| link("spans", &pairs(selection))))
        @if nothing {
            p.state {
                b { "No span is like this." } " " a href=(selection.clone().without_filter().link("spans")) { "Look without the filter" } "."
            }
        } @else {
            @if !selection.has_filter() { (note(&names)) }
            (table(&names, &selection, sort))
        }
        (profilers(&names.profilers))
        p.actions {
            a href=(selection.link("flame")) { "Flame graph of " @if selection.has_filter() { "these spans" } @else { "the whole service" } }
            a href=(selection.link("traces")) { "Slowest traces" }
            (layout::downloads(&selection, Look::default(), &selection.link("api/spans")))
        }
    };
    let way = [(service.clone(), selection.link("spans"))];
    Ok(layout::page(&service, &way, body))
}

/// What the profilers of the service say of themselves, where they do: the engine's own `stats()`.
fn profilers(profilers: &[ProfilerState]) -> Markup {
    let count = |profiler: &ProfilerState, names: &[&str]| {
        let sum: u64 = names.iter().map(|name| profiler.count(name)).sum();
        number(i64::try_from(sum).unwrap_or(i64::MAX))
    };
    let nanoseconds =
        |profiler: &ProfilerState, name: &str| time(i64::try_from(profiler.count(name)).unwrap_or(i64::MAX));
    html! {
        @if !profilers.is_empty() {
            h2 { "Profilers" }
            div.scroll {
                table {
                    thead { tr {
                        th title="its process id where it reports that, else a random number" { "profiler" } th { "package" } th.n { "samples taken" } th.n title="put off to a later sample, which stands for them" { "deferred" }
                        th.n { "dropped" } th.n { "refused" } th.n { "uploaded" } th.n { "retries" } th.n { "threads" }
                        th.n title="threads that are not sampled" { "unsampled" } th.n title="of its own threads" { "CPU" }
                        th.n { "in handlers" } th.n { "heard" } th { "newest error" }
                    } }
                    tbody {
                        @for profiler in profilers {
                            tr {
                                th scope="row" { @match profiler.pid { Some(pid) => (pid), None => (profiler.instance.get(..6).unwrap_or_default()) } }
                                td { (profiler.package) }
                                td.n { (count(profiler, &["taken"])) }
                                td.n { (count(profiler, &["deferred"])) }
                                td.n { (count(profiler, &["dropped_ring", "dropped_window", "dropped_queue", "dropped_old"])) }
                                td.n { (count(profiler, &["refused"])) }
                                td.n { (count(profiler, &["uploaded"])) }
                                td.n { (count(profiler, &["retries"])) }
                                td.n { (count(profiler, &["threads"])) }
                                td.n { (count(profiler, &["threads_unsampled"])) }
                                td.n { (nanoseconds(profiler, "own_cpu_ns")) }
                                td.n { (nanoseconds(profiler, "handler_ns")) }
                                td.n { (ago(profiler.last_unix_ms)) }
                                td.words { @if profiler.last_error.is_empty() { "none" } @else { (profiler.last_error) } }
                            }
                        }
                    }
                }
            }
            p.aside { "As each said with its last upload but one; all of it is in the JSON." }
        }
    }
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
    let of_spans = names.spans.iter().chain(&names.rest).filter_map(|name| name.cpu_ns);
    let all = of_spans.fold(names.outside.cpu_ns, i64::saturating_add);
    // A filter chooses spans, so nothing outside of them.
    let outside = (!selection.reads_spans() && selection.name_part.is_none() && selection.name.is_none())
        .then(|| selection.clone().side(Side::Outside));
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
                    @if let Some(beside) = &names.beside { th.n { (beside.word) } }
                    th { "hottest function" } th {}
                } }
                tbody {
                    @for name in &names.spans { (row(name, names.beside.as_ref(), Some(&selection.clone().name(&name.name)), all)) }
                    @if let Some(rest) = &names.rest { (row(rest, names.beside.as_ref(), None, all)) }
                    @if let Some(outside) = outside {
                        tr.outside {
                            th scope="row" { a href=(outside.link("flame")) { "(outside spans)" } }
                            td {} td {} td {} td {} td {}
                            td.n { (time(names.outside.cpu_ns)) }
                            td.bar { (layout::bar(share(names.outside.cpu_ns, all))) }
                            td {} td {}
                            td.n { (number(names.outside.samples)) }
                            @if let Some(beside) = &names.beside { td.n { (value(beside.outside, &beside.unit)) } }
                            td {} td.go { a.flame href=(outside.link("flame")) { "flame" } }
                        }
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
    let order = if ascending { "asc" } else { "desc" };
    let mut pairs = selection.pairs();
    pairs.extend([("sort".into(), key.into()), ("order".into(), order.into())]);
    link("spans", &pairs)
}

/// A row with its links; what had no room has none.
fn row(name: &SpanName, beside: Option<&Beside>, selection: Option<&Selection>, all: i64) -> Markup {
    let count = (name.count > 0).then_some(name.count);
    html! {
        tr {
            @match selection {
                Some(selection) => { th scope="row" title=(name.name) { a href=(selection.link("traces")) { (name.name) } } }
                None => { th scope="row" title="the names with the least CPU and the fewest spans; --memory bounds how many are shown" { (name.name) } }
            }
            td.n { (layout::known(count, number)) }
            td.n { @if name.errors > 0 { (percent(share(name.errors, name.count))) } }
            td.n { (layout::time(name.wall_p50_ns)) }
            td.n { (layout::time(name.wall_p95_ns)) }
            td.n { (layout::time(name.wall_p99_ns)) }
            td.n { (layout::time(name.cpu_ns)) }
            td.bar { (layout::bar(share(name.cpu_ns.unwrap_or(0), all))) }
            td.n {
                (layout::time(name.cpu_per_span()))
                @if let Some(cpu) = name.cpu_per_span().filter(|cpu| *cpu > 0) { " " span.error { "± " (time(error(cpu, name.samples))) } }
            }
            td.n { @match name.cpu_per_wall() { Some(ratio) => (percent(ratio)), None => (layout::known(None, number)) } }
            td.n { (number(name.samples)) }
            @if let (Some(beside), Some(sum)) = (beside, name.beside) { td.n { (value(sum, &beside.unit)) } }
            td.short {
                @if let Some(hottest) = &name.hottest {
                    span.error { (percent(hottest.share)) } " " code title={ (hottest.function) "\n" (hottest.file) } { (hottest.function) }
                }
            }
            td.go {
                @if let Some(selection) = selection.filter(|_| name.samples > 0 || name.beside.is_some_and(|sum| sum > 0)) {
                    a.flame href=(selection.link("flame")) { "flame" }
                }
            }
        }
    }
}

/// n samples are √n uncertain.
#[expect(clippy::cast_possible_truncation, reason = "three digits are shown")]
fn error(value: i64, samples: i64) -> i64 {
    (value as f64 / (samples.max(1) as f64).sqrt()) as i64
}
