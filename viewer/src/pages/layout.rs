//! What all pages have around them, and the pieces that several share.

use std::time::Duration;

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};

use crate::format;
use crate::selection::{Selection, StackDisplay, TimeRange, link, since_text};
use crate::show::Shown;
use crate::store::SeenProfileType;

/// A page with its way back: links from the services down to this page.
pub(super) struct Page {
    title: String,
    way: Vec<(String, String)>,
    body: Markup,
}

/// Makes a page.
pub(super) fn page(title: &str, way: &[(String, String)], body: Markup) -> Page {
    Page { title: title.into(), way: way.into(), body }
}

impl Page {
    /// Its HTML; `base` is the way from its address to where its links start.
    pub(super) fn html(&self, base: &str) -> Markup {
        let Self { title, way, body } = self;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    base href=(base);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) " · spanprof" }
                    link rel="icon" href="assets/icon.svg" type="image/svg+xml";
                    link rel="stylesheet" href="assets/style.css";
                    script src="assets/page.js" defer {}
                    script src="assets/flame.js" defer {}
                }
                body {
                    header {
                        nav aria-label="Way" {
                            a.brand href="./" { "spanprof" }
                            @for (name, link) in way { a href=(link) { (name) } }
                        }
                        form.find action="find" role="search" {
                            input name="id" aria-label="Trace or span id" placeholder="trace or span id" autocomplete="off" spellcheck="false" required;
                            button { "Go" }
                        }
                    }
                    main { (body) }
                    footer { "CPU is samples × sampling period. ± is the standard error of a share or a sum that was sampled." }
                }
            }
        }
    }
}

/// Links to the same page for other time ranges, as long as data is kept that long, and a form for any other.
pub(super) fn ranges(
    shown: &Shown,
    time_range: TimeRange,
    path: &str,
    pairs: impl Fn(TimeRange) -> Vec<(String, String)>,
) -> Markup {
    let mut choices: Vec<Duration> = [300, 900, 3_600, 21_600, 86_400].map(Duration::from_secs).into();
    choices.retain(|choice| *choice <= shown.retain.max(Duration::from_secs(3_600)));
    let choices = choices.into_iter().map(|choice| (TimeRange::Since(choice), since_text(choice)));
    let choices = choices.chain([(TimeRange::Stored, "all".into())]);
    let (from, to) = match time_range {
        TimeRange::Between(from, to) => (utc(from), utc(to)),
        _ => Default::default(),
    };
    // What asks for the page without a time range, which the form then adds.
    let others = pairs(time_range).into_iter().filter(|(name, _)| !["since", "from", "to"].contains(&name.as_str()));
    html! {
        nav.ranges aria-label="Time range" {
            @for (choice, text) in choices {
                @if choice == time_range { span aria-current="true" { (text) } } @else { a href=(link(path, &pairs(choice))) { (text) } }
            }
            details.pop {
                summary aria-current=[matches!(time_range, TimeRange::Between(..)).then_some("true")] { "from … to" }
                form.fields action=(path) {
                    @for (name, value) in others { input type="hidden" name=(name) value=(value); }
                    label { "from (UTC)" input name="from" value=(from) placeholder="2026-11-21T23:50:00Z" required; }
                    label { "to (UTC)" input name="to" value=(to) placeholder="2026-11-21T23:55:00Z" required; }
                    button { "Show" }
                }
            }
        }
    }
}

/// Links to the same page for the profile types that there are, if there is a choice.
pub(super) fn profile_types(
    (profile_types, more): (&[SeenProfileType], usize),
    selection: &Selection,
    what: &str,
    link: impl Fn(&Selection) -> String,
) -> Markup {
    html! {
        @if profile_types.len() > 1 || profile_types.iter().any(|seen| seen.asked != selection.profile_type) {
            nav.ranges.kinds aria-label="Profile type" {
                span.aside { (what) }
                @for seen in profile_types {
                    @if seen.asked == selection.profile_type { span aria-current="true" { (seen.word) } }
                    @else { a href=(link(&selection.clone().profile_type(&seen.asked))) title=(seen.asked) { (seen.word) } }
                }
                @if more > 0 { span.aside { "and " (format::counted(i64::try_from(more).unwrap_or(i64::MAX), "other")) } }
            }
        }
    }
}

/// A selection as files, and what the page shows of it as JSON.
pub(super) fn downloads(selection: &Selection, display: StackDisplay, json: &str) -> Markup {
    let pairs = [selection.pairs(), display.pairs()].concat();
    html! {
        span.downloads {
            a href=(link("flame.svg", &pairs)) { "SVG" }
            a href=(link("profile.pb.gz", &pairs)) { "pprof" }
            a href=(link("folded", &pairs)) { "folded" }
            a href=(link("speedscope.json", &pairs)) { "speedscope" }
            a href=(json) { "JSON" }
        }
    }
}

/// A time of day; a script writes it in local time, and UTC stays in its title.
pub(super) fn instant(unix_ns: i64) -> Markup {
    let written = Timestamp::from_nanosecond(unix_ns.into());
    let text = |format| written.as_ref().map_or_else(|_| unix_ns.to_string(), |time| time.strftime(format).to_string());
    html! {
        time datetime=(text("%Y-%m-%dT%H:%M:%S.%3fZ")) title=(text("%Y-%m-%d %H:%M:%S.%6f UTC")) {
            (format::clock_time(unix_ns)) " UTC"
        }
    }
}

fn utc(unix_ms: i64) -> String {
    Timestamp::from_millisecond(unix_ms).map_or_else(|_| unix_ms.to_string(), |time| time.to_string())
}

/// A bar that is `share` of its cell.
pub(super) fn bar(share: f64) -> Markup {
    let width = format!("{:.2}%", share.clamp(0.0, 1.0) * 100.0);
    html! { svg.bar aria-hidden="true" { rect width=(width) height="100%" {} } }
}

/// A share with its standard error.
pub(super) fn share(share: f64, error: f64) -> Markup {
    html! { (format::percent(share)) " " span.error { (format::error(error)) } }
}

/// A number that may be unknown.
pub(super) fn known(value: Option<i64>, show: impl Fn(i64) -> String) -> Markup {
    match value {
        Some(value) => html! { (show(value)) },
        None => html! { span.unknown title="unknown" { "–" } },
    }
}

/// A time that may be unknown.
pub(super) fn time(ns: Option<i64>) -> Markup {
    known(ns, format::time)
}
