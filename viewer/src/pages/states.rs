//! Where time went, drawn: bars of states and what their colours mean.

use maud::{Markup, html};

use crate::format::{percent, value};
use crate::selection::StateChoice;
use crate::states::{Part, StateTimes, TimeSpent};

/// A bar that is as wide as its cell; what it says is its title, which screen readers read.
pub(super) fn bar(spent: &TimeSpent, unit: &str) -> Markup {
    html! { svg.bar.spent role="img" { title { (spent.sentence(unit, "\n")) } (segments(spent, 0.0, 1.0)) } }
}

/// The pieces of a bar, of which `start` and `width` are parts of the picture.
pub(super) fn segments(spent: &TimeSpent, start: f64, width: f64) -> Markup {
    let place = |part: f64| format!("{:.3}%", part * 100.0);
    html! {
        @for segment in spent.segments() {
            rect class=(class(segment.part)) x=(place(start + segment.start * width)) width=(place(segment.width * width)) height="100%" {}
        }
    }
}

fn class(part: Part) -> String {
    format!("in-{}", part.class())
}

/// The largest part of a wall time in words: `lock 62 %`.
pub(super) fn mostly(spent: &TimeSpent) -> Markup {
    let largest = spent.parts().reduce(|most, part| if part.1 > most.1 { part } else { most });
    html! {
        @if let Some((part, ns)) = largest { (part.word()) " " (percent(spent.share(ns))) }
        @if let Some(over) = spent.over() {
            span title=(spent.why_over()) { ", all " (percent(over)) }
        }
    }
}

/// A colour and its word.
pub(super) fn named(part: Part) -> Markup {
    html! { i class={ "swatch " (class(part)) } {} span.word { (part.word()) } }
}

/// The state with the most time as its colour, all of them as what is said of it.
pub(super) fn dot(times: &StateTimes, unit: &str) -> Markup {
    let spent = TimeSpent::of(None, times.clone(), 0);
    html! {
        @if let Some(largest) = times.largest() {
            i class={ "swatch " (class(Part::In(largest))) } role="img" aria-label=(spent.sentence(unit, "; ")) title=(spent.sentence(unit, "\n")) {}
        }
    }
}

/// What colours mean, of parts that occur.
pub(super) fn legend(parts: impl IntoIterator<Item = Part>) -> Markup {
    html! {
        ul.legend aria-label="Colours" { @for part in parts { li title=(part.meaning()) { (named(part)) } } }
    }
}

/// The same with the values of states, each a link; `current` is the one that is chosen.
pub(super) fn legend_of(
    states: &StateTimes,
    unit: &str,
    current: impl Fn(StateChoice) -> bool,
    link: impl Fn(StateChoice) -> String,
) -> Markup {
    let all = TimeSpent::of(None, states.clone(), 0);
    html! {
        ul.legend aria-label="States" {
            @for (state, ns) in states.iter() {
                @let choice = StateChoice::One(state);
                li {
                    a href=(link(choice)) title=(state.meaning()) data-state=(state.label()) aria-current=[current(choice).then_some("true")] {
                        (named(Part::In(state))) " " b { (value(ns, unit)) } " " span.error { (percent(all.share(ns))) }
                    }
                }
            }
        }
    }
}

/// Switches between CPU, waits and both.
pub(super) fn switch(current: Option<StateChoice>, link: impl Fn(StateChoice) -> String) -> Markup {
    html! {
        span.switches role="group" aria-label="States" {
            @for choice in StateChoice::SWITCHES {
                @let (words, title) = match choice {
                    StateChoice::All => ("both", "CPU and waits"),
                    StateChoice::Waits => ("waits", "all time that was spent on no CPU, as far as samples say their state: neither CPU nor collections"),
                    StateChoice::One(_) => ("CPU", "time on a CPU, collections left out"),
                };
                a.switch href=(link(choice)) aria-current=[(current == Some(choice)).then_some("true")] title=(title) { (words) }
            }
        }
    }
}
