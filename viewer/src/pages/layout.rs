//! What all pages have around them, and the pieces that several share.

use std::time::Duration;

use maud::{DOCTYPE, Markup, html};

use super::format;
use crate::selection::{Window, since_text};
use crate::show::Shown;

/// A page with its way back: links from the services down to this page.
pub(super) fn page(title: &str, way: &[(String, String)], body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · spanprof" }
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/assets/style.css";
                script src="/assets/flame.js" defer {}
            }
            body {
                header {
                    nav aria-label="Way" {
                        a.brand href="/" { "spanprof" }
                        @for (name, link) in way { a href=(link) { (name) } }
                    }
                    form.find action="/find" role="search" {
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

/// Links to the same page for other time ranges, as long as data is kept that long.
pub(super) fn ranges(shown: &Shown, window: Window, link: impl Fn(Window) -> String) -> Markup {
    let mut choices: Vec<Duration> = [300, 900, 3_600, 21_600, 86_400].map(Duration::from_secs).into();
    choices.retain(|choice| *choice <= shown.retain.max(Duration::from_secs(3_600)));
    html! {
        nav.ranges aria-label="Time range" {
            @for choice in choices {
                @let since = Window::Since(choice);
                @if since == window { span aria-current="true" { (since_text(choice)) } }
                @else { a href=(link(since)) { (since_text(choice)) } }
            }
            @if let Window::Between(..) = window { span aria-current="true" { (window.words()) } }
        }
    }
}

/// A bar that is `share` of its cell.
pub(super) fn bar(share: f64) -> Markup {
    let width = format!("{:.2}%", share.clamp(0.0, 1.0) * 100.0);
    html! { svg.bar aria-hidden="true" { rect width=(width) height="100%" {} } }
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
