//! `/flame`: the flame graph of a selection and its functions as a table.

use maud::{Markup, html};

use super::layout::{self, Page};
use super::{advice, filter, states};
use crate::format::{self, counted, value};
use crate::http::request::StackRequest;
use crate::params::Params;
use crate::selection::{Bound, CPU, Pair, Selection, Side, StackDisplay, StateChoice, TimeRange, WALL, link};
use crate::show::{Absence, FEW_SAMPLES, Reason, ShowError, Shown, SpanDetail, Sums, Top, UNLABELLED};
use crate::span_status::Status;
use crate::states::{StateTimes, TimeSpent};
use crate::store::Sampling;

/// More functions than anyone reads; the API has them all.
const MOST_FUNCTIONS: usize = 100;

/// What the comparison of slow spans with fast ones answers.
pub(super) const SLOW_WAITS: &str = "What do slow ones wait for that fast ones do not?";

/// The page.
pub(super) fn page(shown: &Shown, params: Params) -> Result<Page, ShowError> {
    let StackRequest { selection, display } = StackRequest::alone(params)?;
    let top = shown.top(&selection, display)?;
    let detail = match selection.span {
        Some(span) => shown.span(span)?,
        None => None,
    };
    let detail = detail.as_ref();
    let title = title(&selection, detail);
    let service = detail.map(|detail| &*detail.stored.span.service).or(selection.service.as_deref());
    let profile_types = shown.store.profile_types(service, selection.time_range)?;
    let single = selection.span.is_some() || selection.trace.is_some();
    let says_states = shown.store.has_states(service, selection.time_range)?;
    let pairs = |selection: &Selection| [selection.pairs(), display.pairs()].concat();
    let body = html! {
        div.title {
            h1 { (title) span.aside { (aside(&selection, &title)) } }
            @if !single { (layout::ranges(shown, selection.time_range, "flame", |range| pairs(&selection.clone().time_range(range)))) }
        }
        @if let Some(detail) = detail { (of_span(detail)) }
        (sums(shown, &selection, &top.sums, &top.unit)?)
        (below(&selection, detail, |selection| link("flame", &pairs(&selection))))
        @if says_states && selection.profile_type == CPU && selection.side != Side::Outside {
            p.actions {
                a href=(link("flame", &pairs(&selection.clone().profile_type(WALL)))) title="all their time, waits too, by state" { "Where the time went" }
            }
        }
        (layout::profile_types((&profile_types.types, profile_types.more), &selection, "profile", |selection| link("flame", &pairs(selection))))
        @if !single && selection.side != Side::Outside { (filter::form("flame", &selection, &display.pairs(), true)) }
        (of_states(&selection, &top, |state| link("flame", &pairs(&selection.clone().state(state)))))
        @match (&top.absence, top.unsampled()) {
            (Some(absence), _) => { (missing(shown, &selection, absence)) }
            (None, Some(own)) => { (unsampled(own)) }
            (None, None) => { (few(shown, &selection, detail, top.sums.samples)) }
        }
        @if top.sums.samples > 0 {
            (tools(&selection, display))
            div.split {
                (graph(&link("api/flame", &pairs(&selection)), &top.unit, &link("flame.svg", &pairs(&selection)), top.states.is_some()))
                (table(&top, &selection, display))
            }
        }
        (compare(&selection, detail, says_states))
    };
    Ok(layout::page(&title, &way(&selection, detail), body))
}

/// How many spans, how much, how many samples; and what a percentile came to.
pub(super) fn sums(shown: &Shown, selection: &Selection, sums: &Sums, unit: &str) -> Result<Markup, ShowError> {
    let resolved = shown.resolve(selection)?;
    let spans = if selection.span.is_some() { 0 } else { shown.store.count_spans(&resolved)? };
    let joined = shown.store.has_joined(&resolved)?;
    let bounds = [(selection.least, resolved.least), (selection.most, resolved.most)];
    let percentiles = bounds.into_iter().filter_map(|(asked, found)| match (asked, found) {
        (Some(asked @ Bound::Percentile(_)), Some(Bound::Time(ns))) => Some((asked, ns)),
        _ => None,
    });
    Ok(html! {
        p.sums {
            @if spans > 0 { b { (counted(spans, "span")) } ", " }
            b { (value(sums.total, unit)) } (added(selection, sums))
            @if sums.concurrent > 0 {
                span.aside title="Other threads or tasks spent it in the spans meanwhile: it is no part of their wall time, and stands below (concurrent task)." {
                    " (of it " (value(sums.concurrent, unit)) " beside the spans)"
                }
            }
            ", " b { (counted(sums.samples, "sample")) }
            @if joined { span.aside title="Their profiler knows no spans: they are those of the span that their thread had open." { " · joined by time" } }
            @for (asked, ns) in percentiles { span.aside { " · " (asked.text()) " is " (format::time(ns)) } }
        }
    })
}

/// Whether values are sums or averages.
fn added(selection: &Selection, sums: &Sums) -> Markup {
    html! {
        @match sums.averaged_over {
            Some(profiles) => { " on average of " (counted(profiles, "profile")) }
            None if selection.profile_type == CPU => { " CPU" }
            None => { " in total" }
        }
    }
}

/// Of a span whose service is sampled by each span: the same with all spans below it, and back.
fn below(selection: &Selection, detail: Option<&SpanDetail>, to: impl Fn(Selection) -> String) -> Markup {
    let other = Selection { below: !selection.below, ..selection.clone() };
    let has_more = detail.is_some_and(|detail| detail.has_below && detail.sampled_by == Sampling::Span);
    html! {
        @if selection.below { p.actions { a href=(to(other)) { "This span alone" } } }
        @else if has_more { p.actions { a href=(to(other)) { "With all spans below it" } } }
    }
}

/// Of a selection of states, or one that could be: the states, and switches between them.
fn of_states(selection: &Selection, top: &Top, to: impl Fn(StateChoice) -> String) -> Markup {
    let times = top.states.as_ref();
    html! {
        @if times.is_some() || selection.state != StateChoice::All {
            div.states {
                (states::switch(Some(selection.state), &to))
                @if let Some(times) = times {
                    (states::legend_of(times, &top.unit, |choice| choice == selection.state, &to))
                }
            }
        }
    }
}

/// The fast spans of a name, and its slow ones; none where there are bounds already.
fn slow_against_fast(base: &Selection) -> Option<Pair> {
    (base.name.is_some() && !base.has_percentile() && base.span.is_none()).then(|| Pair {
        a: Selection { least: None, most: Some(Bound::Percentile(50)), ..base.clone() },
        b: Selection { least: Some(Bound::Percentile(95)), most: None, ..base.clone() },
    })
}

/// A link to what the slow spans of a name wait for that its fast ones do not.
pub(super) fn slow_waits(selection: &Selection) -> Option<String> {
    slow_against_fast(&selection.clone().profile_type(WALL)).map(|pair| pair.link("diff"))
}

/// What this selection is best compared with.
fn compare(selection: &Selection, detail: Option<&SpanDetail>, says_states: bool) -> Markup {
    let base = selection.clone();
    let waits = if says_states { slow_waits(selection) } else { None };
    // Of all time it is the same comparison.
    let slow =
        slow_against_fast(&base).filter(|_| waits.is_none() || !base.is_wall() || base.state != StateChoice::All);
    let before = base.time_range.before().map(|before| Pair { a: base.clone().time_range(before), b: base.clone() });
    let usual = detail.map(|detail| &detail.stored.span).filter(|span| !span.name.is_empty()).map(|span| Pair {
        a: Selection::everything()
            .profile_type(&base.profile_type)
            .service(&span.service)
            .name(&span.name)
            .state(base.state)
            .time_range(TimeRange::Stored),
        b: base.clone(),
    });
    let any = Pair { a: base.clone(), b: base };
    html! {
        p.actions {
            @if let Some(link) = waits { a href=(link) { (SLOW_WAITS) } }
            @if let Some(pair) = slow { a href=(pair.link("diff")) { "Compare its fast spans (up to p50) with its slow ones (from p95)" } }
            @if let Some(pair) = usual { a href=(pair.link("diff")) { "Compare with all spans of this name" } }
            @if let Some(pair) = before { a href=(pair.link("diff")) { "Compare with the time before" } }
            a href=(any.link("diff")) { "Compare with anything" }
        }
    }
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

/// Links from the service down to this selection.
pub(super) fn way(selection: &Selection, detail: Option<&SpanDetail>) -> Vec<(String, String)> {
    let mut way = Vec::new();
    let single = selection.span.is_some() || selection.trace.is_some();
    let everything = Selection::everything();
    let base = if single { everything } else { everything.time_range(selection.time_range) };
    let span = detail.map(|detail| &detail.stored.span);
    let service = span.map(|span| &*span.service).or(selection.service.as_deref());
    let name = span.map(|span| &span.name).or(selection.name.as_ref()).filter(|name| !name.is_empty());
    if let Some(service) = service {
        let of = base.service(service);
        way.push((service.to_owned(), of.link("spans")));
        way.extend(name.map(|name| (name.clone(), of.name(name).link("traces"))));
    }
    let trace = span.map(|span| span.trace).or(selection.trace);
    way.extend(trace.map(|trace| ("trace".into(), format!("trace/{trace}"))));
    way.push(("flame graph".into(), selection.link("flame")));
    way
}

/// What is known of a span beside its samples.
fn of_span(detail: &SpanDetail) -> Markup {
    let span = &detail.stored.span;
    let attributes: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&span.attributes).unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let said = StateTimes::of_attributes(&span.attributes);
    // With spans below it the rest may be theirs, which is not known here.
    let wall = Some(span.duration).filter(|_| detail.stored.traced && !detail.has_below);
    let said = TimeSpent::of(wall, said, 0);
    html! {
        dl.facts {
            dt { "service" } dd { (span.service) }
            @if detail.stored.traced {
                dt { "wall" } dd { (format::time(span.duration)) }
                dt { "started" } dd { (layout::instant(span.start)) }
            } @else { dt { "wall" } dd { "unknown: its trace was not received" } }
            @if !said.states.is_empty() {
                dt title="by its attributes pyroscope.time: sums of all it did, and no samples" { "its process measured" }
                dd { (states::bar(&said, "nanoseconds")) " " (said.sentence("nanoseconds", "; ")) }
            }
            @if span.status == Status::Error { dt { "status" } dd { span.tag { "error" } } }
            dt { "trace" } dd { a.id href={ "trace/" (span.trace) } { (span.trace) } }
        }
        @if !attributes.is_empty() {
            details {
                summary { (counted(i64::try_from(attributes.len()).unwrap_or(i64::MAX), "attribute")) }
                dl.facts.long { @for (name, value) in &attributes { dt { (name) } dd { (text(value)) } } }
            }
        }
    }
}

/// Why a service has no samples of what was asked for.
fn missing(shown: &Shown, selection: &Selection, absence: &Absence) -> Markup {
    let service = selection.service.as_deref().unwrap_or_default();
    let all = Selection::everything().service(service).time_range(TimeRange::Stored);
    html! {
        p.state {
            @match absence.reason {
                Reason::NoService => { b { (absence.sentence) } }
                Reason::NoSpan => { b { (absence.sentence) } " " a href=(all.link("spans")) { "Look at those that there are" } "." }
                Reason::Refused => { b { "No profile of this service is stored, and some were refused." } " " (why_refused()) }
                Reason::NoProfiles if !shown.profilers.of(service).is_empty() => { b { "Traces but no sample yet." } " Its profiler runs." }
                Reason::NoProfiles => { b { "Traces but no profiles yet." } " Start the profiler there" (advice::start(shown, absence.sender)) }
                Reason::NoType if absence.measures_no_waits => { (advice::measure_waits(absence.sender)) }
                Reason::NoType => { b { (absence.sentence) } }
                Reason::OtherType => {
                    b { (absence.sentence) }
                    @if let Some(other) = &absence.instead {
                        " " a href=(selection.clone().profile_type(&other.asked).link("flame")) { "Look at " (other.word) } "."
                    }
                }
                Reason::ChildSpan => {
                    b { "No sample of this service so far is of a child span." }
                    " If its profiler labels root spans alone (scope root), what this one did is counted in the span that entered the service. To see each span's own, "
                    (advice::each_span(absence.sender)) "."
                }
                Reason::Unlabelled => { b { (UNLABELLED) } " " (advice::label_spans(absence.sender)) }
            }
        }
    }
}

/// Where it is said why profiles were refused.
fn why_refused() -> Markup {
    html! { a href="./#refused" { "What its sender was told" } "." }
}

/// Spans whose time is known without a sample of theirs: it was their child spans', or nothing explains it.
fn unsampled(own: &TimeSpent) -> Markup {
    html! {
        p.state { b { "No sample was taken in these spans." } " Of their wall time: " (own.sentence("nanoseconds", "; ")) "." }
        (states::bar(own, "nanoseconds"))
    }
}

/// Few or no samples: what that means, and where there are more.
fn few(shown: &Shown, selection: &Selection, detail: Option<&SpanDetail>, samples: i64) -> Markup {
    if samples >= FEW_SAMPLES {
        return html! {};
    }
    let service = detail.map_or("", |detail| &detail.stored.span.service);
    let (sender, refused) = (shown.profilers.sender(service), shown.refusals.profiles_of(service));
    let span = detail.map(|detail| &detail.stored.span).filter(|span| !span.name.is_empty());
    let all = Selection::everything().profile_type(&selection.profile_type);
    let more = span.map(|span| all.service(&span.service).name(&span.name).link("flame"));
    let root = detail.filter(|detail| detail.sampled_by == Sampling::Root).and_then(|detail| detail.root);
    html! {
        p.state {
            @match (samples, root, &more, detail.map(|detail| detail.sampled_by)) {
                (0, Some(root), ..) => {
                    b { "No sample of this service so far is of a child span." }
                    " If its profiler labels root spans alone (scope root), what this one did is counted in the span that entered its service: "
                    a href=(Selection::of_span(root).link("flame")) { "look at that one" } "."
                }
                (0, None, _, Some(Sampling::None)) if refused > 0 => {
                    b { "No profile of this service could be taken." } " " (why_refused())
                }
                (0, None, _, Some(Sampling::None)) => {
                    b { "No profile holds a span of this service." } " " (advice::label_spans(sender))
                    " It must have the same name in profiles and in traces."
                }
                (0, None, Some(more), _) if selection.is_wall() => {
                    b { "No time of this span was measured." } " " a href=(more) { "Look at all spans of this name" } " instead."
                }
                (0, None, Some(more), _) => {
                    b { "No sample was taken in this span." } " It was on a CPU for less than a sample's period: "
                    a href=(more) { "look at all spans of this name" } " instead."
                }
                (0, ..) => {
                    b { "No sample was taken in this selection." } " " a href="./" { "Look at the services" } " to see where there are some."
                }
                (_, _, Some(more), _) => {
                    b { (counted(samples, "sample")) ":" } " " a href=(more) { "look at all spans of this name" } " instead."
                }
                _ if selection.time_range != TimeRange::Stored => {
                    b { (counted(samples, "sample")) ":" } " shares are rough; wait for more, or take a longer time range."
                }
                _ => { b { (counted(samples, "sample")) ":" } " shares are rough." }
            }
        }
    }
}

fn tools(selection: &Selection, display: StackDisplay) -> Markup {
    let with = |display: StackDisplay| link("flame", &[selection.pairs(), display.pairs()].concat());
    html! {
        div.tools {
            label.script { "Search " input #search type="search" placeholder="function or file" autocomplete="off" spellcheck="false"; }
            output #matches.script for="search" {}
            (display_switches(display, with))
            (layout::downloads(selection, display, &link("api/flame", &[selection.pairs(), display.pairs()].concat())))
        }
    }
}

/// The switches of a graph.
pub(super) fn display_switches(display: StackDisplay, with: impl Fn(StackDisplay) -> String) -> Markup {
    let switch = |set: bool, link: String, words: &str, title: &str| {
        html! { a.switch href=(link) aria-current=[set.then_some("true")] title=(title) { (words) } }
    };
    html! {
        span.switches {
            (switch(display.fold, with(StackDisplay { fold: !display.fold, ..display }), "fold runtime", "frames of the runtime and of libraries become one"))
            (switch(display.lines, with(StackDisplay { lines: !display.lines, ..display }), "lines", "lines of a function stand apart"))
            button #flip.script type="button" aria-pressed="false" title="callers below what they called" { "root below" }
        }
    }
}

/// The place that the script draws into.
fn graph(source: &str, unit: &str, svg: &str, has_states: bool) -> Markup {
    html! {
        section.graph aria-label="Flame graph" {
            nav #crumbs aria-label="Zoom" {}
            div #graph role="tree" aria-label="Functions, callers above what they called" data-source=(source) data-unit=(unit) {
                noscript {
                    p.state { "The graph is drawn by a script. Without it, read the table or the " a href=(svg) { "SVG" } "." }
                }
            }
            p #hovered.script aria-live="off" {}
            p.aside.script {
                "Width: share of all samples. "
                @if has_states { "Colours: in which states a function and all that it called were, as parts of its width and in no order of time. " }
                @else { "Colour: the stronger, the more of it the function burns itself. " }
                "Click or Enter zooms, Escape goes back, arrow keys walk."
            }
        }
    }
}

/// A function's name that leads to its callers and callees, its file below.
pub(super) fn function(
    selection: &Selection,
    display: StackDisplay,
    name: &str,
    file: &str,
    line: Option<i64>,
) -> Markup {
    let mut pairs = [selection.pairs(), StackDisplay { lines: false, ..display }.pairs()].concat();
    pairs.push(("function".into(), name.into()));
    if !file.is_empty() {
        pairs.push(("file".into(), file.into()));
    }
    let place = match line.filter(|line| *line > 0) {
        Some(line) => format!("{file}:{line}"),
        None => file.into(),
    };
    html! {
        th scope="row" title={ (name) "\n" (place) } {
            a.function href=(link("function", &pairs)) { (name) }
            @if !place.is_empty() { span.file { bdi { (place) } } }
        }
    }
}

fn table(top: &Top, selection: &Selection, display: StackDisplay) -> Markup {
    html! {
        section.functions aria-label="Functions" {
            div.scroll {
                table {
                    thead { tr { th { "function" } th.n { "own" } th.n { "share" } th.n { "total" } th.n { "share" } } }
                    tbody {
                        @for row in top.functions.iter().take(MOST_FUNCTIONS) {
                            tr data-function=(row.function) data-file=(row.file) {
                                (function(selection, display, &row.function, &row.file, row.line))
                                td.n { (states::dot(&row.states, &top.unit)) (value(row.own, &top.unit)) }
                                td.n { @if row.own > 0 { (layout::share(row.share, row.error)) } }
                                td.n { (value(row.total, &top.unit)) }
                                td.n { (layout::share(row.total_share, row.total_error)) }
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
