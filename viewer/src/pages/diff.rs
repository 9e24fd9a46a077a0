//! `/diff`: two selections, one graph and one table of what changed.

use maud::{Markup, html};

use super::layout::{self, Page};
use super::{filter, flame, states};
use crate::format::{counted, error, percent, points};
use crate::params::Params;
use crate::selection::{LAST_HOUR, Pair, Selection, StackDisplay, StateChoice, TimeRange, link};
use crate::show::{Change, Diff, DiffSide, FEW_SAMPLES, FunctionChange, ShowError, Shown};
use crate::states::{Part, TimeSpent};

/// More functions than anyone reads; the API has them all.
const MOST_FUNCTIONS: usize = 100;
/// What the form asks for; the other parameters of a side are sent along.
const FIELDS: [&str; 11] =
    ["service", "name", "name~", "attr", "dur>", "dur<", "status", "label", "since", "from", "to"];

/// The page.
pub(super) fn page(shown: &Shown, mut params: Params) -> Result<Page, ShowError> {
    let display = StackDisplay::take(&mut params)?;
    let pair = Pair::take(params)?;
    let body = if pair.a == pair.b {
        html! {
            h1 { "Compare" }
            p.state { b { "Both sides are the same." } " Change one of them: another time range, span name, attribute, label or duration." }
            (form(&pair, display, true))
        }
    } else {
        let diff = shown.diff(&pair, display)?;
        html! {
            div.title { h1 { "Compare" span.aside { "what has another share of b than of a" } } }
            div.sides {
                (side(shown, "a", &pair.a, &diff.a, &diff.unit)?)
                (side(shown, "b", &pair.b, &diff.b, &diff.unit)?)
            }
            (form(&pair, display, false))
            (of_states(&pair, display, &diff))
            (few(&diff))
            @if diff.a.sums.samples + diff.b.sums.samples > 0 {
                (tools(&pair, display))
                div.split { (graph(&pair, display, &diff)) (table(&diff, &pair, display)) }
            }
        }
    };
    let mut way = flame::way(&pair.b, None);
    way.pop();
    way.push(("compare".into(), link("diff", &pair.pairs())));
    Ok(layout::page("Compare", &way, body))
}

fn side(shown: &Shown, letter: &str, selection: &Selection, of: &DiffSide, unit: &str) -> Result<Markup, ShowError> {
    Ok(html! {
        section.side {
            h2 { span.letter { (letter) } " " a href=(selection.link("flame")) { (selection.sentence()) } }
            (flame::sums(shown, selection, &of.sums, unit)?)
            @if let Some(times) = &of.states { (states::bar(&TimeSpent::of(None, times.clone(), 0), unit)) }
            (layout::downloads(selection, StackDisplay::default(), &selection.link("api/top")))
        }
    })
}

/// Which states have another share of b than of a, and switches between them.
fn of_states(pair: &Pair, display: StackDisplay, diff: &Diff) -> Markup {
    let chosen = (pair.a.state == pair.b.state).then_some(pair.a.state);
    let with = |state: StateChoice| {
        let pair = Pair { a: pair.a.clone().state(state), b: pair.b.clone().state(state) };
        link("diff", &[pair.pairs(), display.pairs()].concat())
    };
    html! {
        @if !diff.states.is_empty() || chosen != Some(StateChoice::All) {
            div.states { (states::switch(chosen, with)) }
        }
        @if !diff.states.is_empty() {
            section.of-states aria-label="States" {
                table {
                    thead { tr { th { "state" } th.n { "a" } th.n { "b" } th.n { "change" } } }
                    tbody {
                        @for row in &diff.states {
                            tr {
                                th scope="row" title=(row.state.meaning()) { a href=(with(StateChoice::One(row.state))) { (states::named(Part::In(row.state))) } }
                                td.n { (percent(row.change.a)) }
                                td.n { (percent(row.change.b)) }
                                (change(row.change, true))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn few(diff: &Diff) -> Markup {
    let least = diff.a.sums.samples.min(diff.b.sums.samples);
    html! {
        @if least < FEW_SAMPLES {
            p.state {
                @if least == 0 { b { "A side has no sample," } " so nothing can be compared. Choose more spans or a longer time range." }
                @else { b { "A side has only " (counted(least, "sample")) ":" } " hardly any change can be told from chance. Choose more spans or a longer time range." }
            }
        }
    }
}

fn tools(pair: &Pair, display: StackDisplay) -> Markup {
    let with = |display: StackDisplay| link("diff", &[pair.pairs(), display.pairs()].concat());
    html! {
        div.tools {
            label.script { "Search " input #search type="search" placeholder="function or file" autocomplete="off" spellcheck="false"; }
            output #matches.script for="search" {}
            (flame::display_switches(display, with))
            a href=(link("diff", &[pair.swapped().pairs(), display.pairs()].concat())) { "swap a and b" }
            span.downloads { a href=(link("api/diff", &[pair.pairs(), display.pairs()].concat())) { "JSON" } }
        }
    }
}

fn graph(pair: &Pair, display: StackDisplay, diff: &Diff) -> Markup {
    html! {
        section.graph aria-label="Flame graph of both" {
            nav #crumbs aria-label="Zoom" {}
            div #graph role="tree" aria-label="Functions of both, callers above what they called" data-unit=(diff.unit)
                data-source=(link("api/diff", &[pair.pairs(), display.pairs()].concat())) {
                noscript { p.state { "The graph is drawn by a script. Without it, read the table." } }
            }
            p #hovered.script aria-live="off" {}
            p.aside.script {
                "Width: mean of both shares. " span.legend-more {} " more of b, " span.legend-less {} " less of b; "
                "grey: a change within twice its error, which may be chance."
            }
        }
    }
}

fn table(diff: &Diff, pair: &Pair, display: StackDisplay) -> Markup {
    html! {
        section.functions.changes aria-label="Functions that changed" {
            div.scroll {
                table {
                    thead { tr { th { "function" } th.n { "own a" } th.n { "own b" } th.n { "change" } th.n { "total" } } }
                    tbody {
                        @for row in diff.changes.iter().take(MOST_FUNCTIONS) { (change_row(row, pair, display)) }
                    }
                }
            }
            @if diff.changes.len() > MOST_FUNCTIONS {
                p.aside { "The first " (MOST_FUNCTIONS) " of " (diff.changes.len()) " functions." }
            }
            p.aside { "Changes are in points of share, b less a; ± is their standard error. Grey ones are within twice of it." }
        }
    }
}

fn change_row(row: &FunctionChange, pair: &Pair, display: StackDisplay) -> Markup {
    // A function that is only in one side is looked at there.
    let selection = if row.total.b > 0.0 { &pair.b } else { &pair.a };
    html! {
        tr data-function=(row.function) data-file=(row.file) {
            (flame::function(selection, display, &row.function, &row.file, row.line))
            td.n { (percent(row.own.a)) }
            td.n { (percent(row.own.b)) }
            (change(row.own, true))
            (change(row.total, false))
        }
    }
}

fn change(change: Change, with_error: bool) -> Markup {
    let class = match (change.sure, change.change > 0.0) {
        (false, _) => "n unsure",
        (true, true) => "n more",
        (true, false) => "n less",
    };
    html! {
        td class=(class) title={ (percent(change.a)) " of a, " (percent(change.b)) " of b, change " (points(change.change)) " " (error(change.error)) } {
            (points(change.change)) @if with_error { " " span.error { (error(change.error)) } }
        }
    }
}

fn form(pair: &Pair, display: StackDisplay, open: bool) -> Markup {
    html! {
        details.filter open[open] {
            summary { "Change the sides" }
            form action="diff" {
                @for (name, value) in display.pairs() { input type="hidden" name=(name) value=(value); }
                div.sides { (fields("a", &pair.a)) (fields("b", &pair.b)) }
                button { "Compare" }
            }
        }
    }
}

fn fields(letter: &str, selection: &Selection) -> Markup {
    let prefix = format!("{letter}.");
    let name = |name: &str| format!("{prefix}{name}");
    let is_field = |name: &str| FIELDS.contains(&name) || name.starts_with("attr.") || name.starts_with("label.");
    let pairs = selection.pairs();
    let said = |wanted: &str| pairs.iter().find(|(name, _)| name == wanted).map_or("", |(_, value)| value.as_str());
    // A time range that is not written is the usual one, and is said here so that it can be changed.
    let since = if selection.time_range == LAST_HOUR { "1h" } else { said("since") };
    let stored = selection.time_range == TimeRange::Stored && since.is_empty();
    html! {
        fieldset {
            legend { span.letter { (letter) } }
            @for (key, value) in pairs.iter().filter(|(name, _)| !is_field(name)) { input type="hidden" name=(name(key)) value=(value); }
            div.fields {
                (filter::field(&name("service"), "service", said("service"), "checkout"))
                (filter::field(&name("name"), "span name", said("name"), "GET /cart"))
                (filter::part(selection, &prefix))
                (filter::of_spans(selection, &prefix))
                (filter::of_profiles(selection, &prefix))
                (filter::field(&name("since"), "the last", if stored { "all" } else { since }, "15m or all"))
                (filter::field(&name("from"), "or from", said("from"), "2026-11-21T23:50:00Z"))
                (filter::field(&name("to"), "to", said("to"), "2026-11-21T23:55:00Z"))
            }
        }
    }
}
