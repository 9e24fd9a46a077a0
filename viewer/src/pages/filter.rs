//! The form that narrows a selection: by name, attribute, wall time, status and label.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::selection::{Bound, Selection, link, status_text};
use crate::span_status::Status;

/// What the form itself asks for; the other parameters of the page are sent along.
const FIELDS: [&str; 6] = ["name~", "attr", "dur>", "dur<", "status", "label"];

/// The form. `also` are parameters of the page beside the selection; lists of spans have no labels of profiles.
pub(super) fn form(path: &str, selection: &Selection, also: &[(String, String)], labels: bool) -> Markup {
    let is_field = |name: &str| FIELDS.contains(&name) || name.starts_with("attr.") || name.starts_with("label.");
    let mut kept: Vec<(String, String)> = selection.pairs();
    kept.retain(|(name, _)| !is_field(name));
    kept.extend_from_slice(also);
    html! {
        details.filter open[selection.has_filter()] {
            summary { "Filter" }
            form.fields action=(path) {
                @for (name, value) in &kept { input type="hidden" name=(name) value=(value); }
                @if selection.name.is_none() { (part(selection, "")) }
                (of_spans(selection, ""))
                @if labels { (of_profiles(selection, "")) }
                button { "Apply" }
                @if selection.has_filter() { a href=(link(path, &kept)) { "Clear" } }
            }
        }
    }
}

/// The part of a name; `prefix` is that of a diff's side.
pub(super) fn part(selection: &Selection, prefix: &str) -> Markup {
    field(&format!("{prefix}name~"), "name has", selection.name_part.as_deref().unwrap_or(""), "cart")
}

/// What traces say of spans.
pub(super) fn of_spans(selection: &Selection, prefix: &str) -> Markup {
    let bound = |bound: Option<Bound>| bound.map(Bound::text).unwrap_or_default();
    html! {
        (pairs(prefix, ("attr", "attribute", "http.route=/cart"), &selection.attributes))
        (field(&format!("{prefix}dur>"), "wall at least", &bound(selection.least), "200ms or p95"))
        (field(&format!("{prefix}dur<"), "wall at most", &bound(selection.most), "2s or p50"))
        label { "status"
            select name={ (prefix) "status" } {
                option value="" { "any" }
                @for status in [Status::Error, Status::Ok, Status::Unset] {
                    option value=(status_text(status)) selected[selection.status == Some(status)] { (status_text(status)) }
                }
            }
        }
    }
}

/// What profiles say of samples.
pub(super) fn of_profiles(selection: &Selection, prefix: &str) -> Markup {
    pairs(prefix, ("label", "profile label", "region=eu"), &selection.labels)
}

/// A field for each pair that is chosen, which leaves it away where it is emptied, and one for another.
fn pairs(prefix: &str, (name, label, example): (&str, &str, &str), chosen: &BTreeMap<String, String>) -> Markup {
    let named = format!("{prefix}{name}");
    html! {
        @for (key, value) in chosen {
            // In one text the key would end at its equals sign, and spaces around either are not sent.
            @if key.contains('=') || [key, value].iter().any(|text| text.trim() != text.as_str()) { (field(&format!("{named}.{key}"), key, value, "")) }
            @else { (field(&named, label, &format!("{key}={value}"), "")) }
        }
        (field(&named, label, "", example))
    }
}

/// A field with its name above it.
pub(super) fn field(name: &str, label: &str, value: &str, placeholder: &str) -> Markup {
    html! {
        label { (label) input name=(name) value=(value) placeholder=(placeholder) autocomplete="off" spellcheck="false"; }
    }
}
