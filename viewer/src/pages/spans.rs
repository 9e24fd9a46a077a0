//! `/spans`: the span names of a service.

use std::cmp::Ordering;

use maud::{Markup, html};

use super::layout::{self, Page};
use super::{advice, filter, flame, states};
use crate::format::{ago, counted, number, percent, time, value};
use crate::http::request::ServiceRequest;
use crate::params::{BadParameter, Params};
use crate::receive::profilers::ProfilerState;
use crate::selection::{Selection, Side, StackDisplay, StateChoice, WALL, link};
use crate::show::{
    Beside, FEW_SAMPLES, Outside, ShowError, Shown, SpanName, SpanNames, UNLABELLED, share, value_error,
};
use crate::states::{State, StateTimes, TimeSpent};
use crate::store::Sampling;

/// What the table can be sorted by: parameter and header.
const COLUMNS: [(&str, &str); 12] = [
    ("name", "name"),
    (WAITS, "where it went"),
    (WALL_TOTAL, "wall total"),
    ("count", "count"),
    ("err", "err"),
    ("p50", "wall p50"),
    ("p95", "p95"),
    ("p99", "p99"),
    ("cpu", "CPU total"),
    ("cpu_span", "CPU/span"),
    (CPU_PER_WALL, "CPU/wall"),
    ("samples", "samples"),
];

/// The columns that are there only where states are known, and the one that they say more than.
const WALL_TOTAL: &str = "wall";
const WAITS: &str = "waits";
const CPU_PER_WALL: &str = "cpu_wall";
/// What a state is called that the table is sorted by, before its name.
const OF_STATE: &str = "in.";

/// What the table is sorted by.
#[derive(Clone, Copy, PartialEq)]
enum Key {
    Column(&'static str),
    State(State),
}

impl Key {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(OF_STATE) {
            Some(state) => State::parse(state).map(Self::State),
            None => COLUMNS.iter().find(|(known, _)| *known == text).map(|(known, _)| Self::Column(known)),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Column(column) => column.into(),
            Self::State(state) => format!("{OF_STATE}{}", state.label()),
        }
    }
}

/// How the table is sorted.
#[derive(Clone, Copy)]
struct Sort {
    key: Key,
    ascending: bool,
}

impl Sort {
    fn take(params: &mut Params) -> Result<Self, BadParameter> {
        let text = params.take("sort")?.unwrap_or_else(|| "cpu".into());
        let Some(key) = Key::parse(&text) else {
            let allowed: Vec<&str> = COLUMNS.iter().map(|(known, _)| *known).collect();
            let allowed = format!("allowed are {}, and {OF_STATE}STATE, such as {OF_STATE}lock", allowed.join(", "));
            return Err(BadParameter::new("sort", &text, allowed));
        };
        let ascending = match params.take("order")?.as_deref() {
            None => key == Key::Column("name"),
            Some("asc") => true,
            Some("desc") => false,
            Some(other) => {
                return Err(BadParameter::new("order", other, "allowed are asc and desc"));
            }
        };
        Ok(Self { key, ascending })
    }

    fn is_by(self, choice: StateChoice) -> bool {
        matches!((self.key, choice), (Key::State(by), StateChoice::One(state)) if by == state)
    }

    fn pairs(self) -> [(String, String); 2] {
        let order = if self.ascending { "asc" } else { "desc" };
        [("sort".into(), self.key.text()), ("order".into(), order.into())]
    }

    fn apply(self, spans: &mut [SpanName]) {
        let in_states =
            |name: &SpanName, sum: &dyn Fn(&StateTimes) -> i64| name.time.as_ref().map(|time| sum(&time.states));
        spans.sort_by(|a, b| {
            let by_states = |sum: &dyn Fn(&StateTimes) -> i64| in_states(a, sum).cmp(&in_states(b, sum));
            let order = match self.key {
                Key::State(state) => by_states(&|times| times.of(state)),
                Key::Column("name") => a.name.cmp(&b.name),
                Key::Column("count") => a.count.cmp(&b.count),
                Key::Column("err") => share(a.errors, a.count).total_cmp(&share(b.errors, b.count)),
                Key::Column("p50") => a.wall_p50_ns.cmp(&b.wall_p50_ns),
                Key::Column("p95") => a.wall_p95_ns.cmp(&b.wall_p95_ns),
                Key::Column("p99") => a.wall_p99_ns.cmp(&b.wall_p99_ns),
                Key::Column(WALL_TOTAL) => a.wall_total_ns.cmp(&b.wall_total_ns),
                Key::Column(WAITS) => by_states(&StateTimes::waits),
                Key::Column("cpu_span") => a.cpu_per_span().cmp(&b.cpu_per_span()),
                Key::Column(CPU_PER_WALL) => a.cpu_per_wall().partial_cmp(&b.cpu_per_wall()).unwrap_or(Ordering::Equal),
                Key::Column("samples") => a.samples.cmp(&b.samples),
                Key::Column(_) => a.cpu_ns.cmp(&b.cpu_ns),
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
    let nothing =
        names.spans.is_empty() && names.rest.is_none() && names.outside.samples == 0 && names.states.is_none();
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
            @if let Some(states) = names.states.as_ref().filter(|states| !states.is_empty()) {
                (states::legend_of(states, "nanoseconds", |choice| sort.is_by(choice), |choice| match choice {
                    StateChoice::One(state) => sort_link(&selection, sort, Key::State(state)),
                    _ => sort_link(&selection, sort, Key::Column(WAITS)),
                }))
            }
            (table(&names, &selection, sort))
            (waits(&names))
        }
        (profilers(&names.profilers))
        p.actions {
            a href=(selection.link("flame")) { "Flame graph of " @if selection.has_filter() { "these spans" } @else { "the whole service" } }
            a href=(selection.link("traces")) { "Slowest traces" }
            (layout::downloads(&selection, StackDisplay::default(), &selection.link("api/spans")))
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
            p.aside { "As each wrote into its last profile, before that was sent; all of it is in the JSON." }
        }
    }
}

fn note(names: &SpanNames) -> Markup {
    let traced = names.spans.iter().any(|name| name.count > 0);
    let sampled =
        names.states.is_some() || names.outside.samples > 0 || names.spans.iter().any(|name| name.samples > 0);
    html! {
        @if names.sampled_by == Sampling::Root {
            p.state {
                b { "Sampled by root span." } " Samples carry the span that entered the service; what its children burnt is counted in it, and theirs is unknown. To see each span's own, "
                (advice::each_span(names.sender)) "."
            }
        } @else if !sampled && names.refused_profiles > 0 {
            p.state { b { "No profile of this service could be taken." } " " a href="./#refused" { "What its sender was told" } "." }
        } @else if !sampled {
            p.state { b { "Traces but no profiles." } " CPU is unknown until the profiler is started in this service, under the same service name." }
        } @else if !traced {
            p.state { b { "Profiles but no traces." } " Names come from the profiles; counts and wall times are unknown until the service sends its traces." }
        } @else if names.sampled_by == Sampling::None && names.states.is_none() {
            p.state { b { (UNLABELLED) } " " (advice::label_spans(names.sender)) }
        }
    }
}

/// What the bars mean; where there are none, how to get them.
fn waits(names: &SpanNames) -> Markup {
    html! {
        @if names.states.is_some() {
            p.aside {
                "A bar is the wall time of all spans of a name, and its parts are shares of it. What is grey was not measured: "
                "no sample and no wait accounts for it, or child spans ran, which have it in their own states."
            }
        } @else if names.measures_no_waits() {
            p.aside { (advice::measure_waits(names.sender)) }
        }
    }
}

fn table(names: &SpanNames, selection: &Selection, sort: Sort) -> Markup {
    let has_states = names.states.is_some();
    let left_out: &[&str] = if has_states { &[CPU_PER_WALL] } else { &[WAITS, WALL_TOTAL] };
    let columns = COLUMNS.iter().filter(|(key, _)| !left_out.contains(key));
    let of_spans = names.spans.iter().chain(&names.rest).filter_map(|name| name.cpu_ns);
    let all = of_spans.fold(names.outside.cpu_ns, i64::saturating_add);
    // A filter chooses spans, so nothing outside of them.
    let outside = (!selection.reads_spans() && selection.name_part.is_none() && selection.name.is_none())
        .then(|| selection.clone().side(Side::Outside));
    html! {
        div.scroll {
            table {
                thead { tr {
                    @for (column, header) in columns {
                        @let key = Key::Column(column);
                        th.n[!["name", WAITS].contains(column)] aria-sort=[(key == sort.key).then_some(if sort.ascending { "ascending" } else { "descending" })] {
                            a href=(sort_link(selection, sort, key)) title=[(*column == WAITS).then_some("sorted by all waits")] { (header) }
                        }
                        @if *column == "cpu" && !has_states { th {} }
                    }
                    @if let Some(beside) = &names.beside { th.n { (beside.word) } }
                    th { "hottest function" } th {}
                } }
                tbody {
                    @for name in &names.spans { (row(name, names, Some(&selection.clone().name(&name.name)), all)) }
                    @if let Some(rest) = &names.rest { (row(rest, names, None, all)) }
                    @if let Some(outside) = outside {
                        @let Outside { cpu_ns, samples, time: spent } = &names.outside;
                        tr.outside {
                            th scope="row" { a href=(outside.link("flame")) { "(outside spans)" } }
                            @if has_states { (spent_cells(None, spent.as_ref())) }
                            td {} td {} td {} td {} td {}
                            td.n { (time(*cpu_ns)) }
                            @if !has_states { td.bar { (layout::bar(share(*cpu_ns, all))) } }
                            td {} @if !has_states { td {} }
                            td.n { (number(*samples)) }
                            @if let Some(beside) = &names.beside { td.n { (value(beside.outside, &beside.unit)) } }
                            td {} td.go { a.flame href=(outside.link("flame")) { "flame" } }
                        }
                    }
                }
            }
        }
    }
}

/// A bar of where it went with the largest part below it, and how long the spans took, which traces alone say.
fn spent_cells(wall: Option<i64>, spent: Option<&TimeSpent>) -> Markup {
    html! {
        td.bar.went {
            @match spent {
                Some(spent) => { (states::bar(spent, "nanoseconds")) span.mostly { (states::mostly(spent)) } }
                None => (layout::known(None, number)),
            }
        }
        td.n { (layout::time(wall)) }
    }
}

fn sort_link(selection: &Selection, sort: Sort, key: Key) -> String {
    let again = key == sort.key;
    // A first click sorts names upwards and numbers downwards, a second one turns it round.
    let ascending = if again { !sort.ascending } else { key == Key::Column("name") };
    let pairs = [selection.pairs(), Sort { key, ascending }.pairs().into()].concat();
    link("spans", &pairs)
}

/// A row with its links; what had no room has none.
fn row(name: &SpanName, names: &SpanNames, selection: Option<&Selection>, all: i64) -> Markup {
    let (beside, has_states): (Option<&Beside>, bool) = (names.beside.as_ref(), names.states.is_some());
    let has_time = name.time.as_ref().is_some_and(|time| !time.states.is_empty());
    // All time has the CPU time too, and what burnt little may have waited.
    let flame = match selection {
        Some(selection) if name.beside.is_some_and(|sum| sum > 0) => Some(selection.clone()),
        Some(selection) if has_time => Some(selection.clone().profile_type(WALL)),
        Some(selection) if name.samples > 0 => Some(selection.clone()),
        _ => None,
    };
    let slow = selection.filter(|_| has_time && name.count > 1).and_then(flame::slow_waits);
    let count = (name.count > 0).then_some(name.count);
    html! {
        tr {
            @match selection {
                Some(selection) => { th scope="row" title=(name.name) { a href=(selection.link("traces")) { (name.name) } } }
                None => { th scope="row" title="the names with the least CPU and the fewest spans; --memory bounds how many are shown" { (name.name) } }
            }
            @if has_states { (spent_cells(name.wall_total_ns, name.time.as_ref())) }
            td.n { (layout::known(count, number)) }
            td.n { @if name.errors > 0 { (percent(share(name.errors, name.count))) } }
            td.n { (layout::time(name.wall_p50_ns)) }
            td.n { (layout::time(name.wall_p95_ns)) }
            td.n { (layout::time(name.wall_p99_ns)) }
            td.n { (layout::time(name.cpu_ns)) }
            @if !has_states { td.bar { (layout::bar(share(name.cpu_ns.unwrap_or(0), all))) } }
            td.n {
                (layout::time(name.cpu_per_span()))
                @if let Some(cpu) = name.cpu_per_span().filter(|cpu| *cpu > 0) { " " span.error { "± " (time(value_error(cpu, name.samples))) } }
            }
            @if !has_states {
                td.n { @match name.cpu_per_wall() { Some(ratio) => (percent(ratio)), None => (layout::known(None, number)) } }
            }
            td.n { (number(name.samples)) }
            @if let (Some(beside), Some(sum)) = (beside, name.beside) { td.n { (value(sum, &beside.unit)) } }
            td.short {
                @if let Some(hottest) = &name.hottest {
                    span.error {
                        (percent(hottest.share))
                        @if name.samples < FEW_SAMPLES { span title="shares of so few samples are rough" { " of " (counted(name.samples, "sample")) } }
                    }
                    " " code title={ (hottest.function) "\n" (hottest.file) } { (hottest.function) }
                }
            }
            td.go {
                @if let Some(flame) = flame { a.flame href=(flame.link("flame")) { "flame" } }
                @if let Some(slow) = slow { " " a href=(slow) title=(flame::SLOW_WAITS) { "slow" } }
            }
        }
    }
}
