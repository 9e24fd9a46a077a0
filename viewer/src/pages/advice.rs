//! What to do where something is missing: fit to what a service is sent with.

use maud::{Markup, html};

use crate::sender::Sender;
use crate::show::{Shown, how_each_span_is_sampled, how_samples_are_labelled, how_waits_are_measured};

/// How the profiler of a service is started, as the rest of a sentence that begins with "Start the profiler there".
pub(super) fn start(shown: &Shown, sender: Option<Sender>) -> Markup {
    let url = url(shown);
    html! {
        @match sender {
            Some(Sender::Go) => {
                ": " code { "pyroscope.Start(pyroscope.Config{ApplicationName: …, ServerAddress: \"" (url) "\"})" } " of pyroscope-go, with the same name as its traces."
            }
            Some(Sender::Java) => {
                ": add pyroscope-otel.jar to the OpenTelemetry agent by " code { "-Dotel.javaagent.extensions" } ", and set "
                code { "PYROSCOPE_SERVER_ADDRESS=" (url) } " and " code { "PYROSCOPE_APPLICATION_NAME" } " to the same name as its traces."
            }
            Some(Sender::Node) => {
                ": " code { "Pyroscope.init({ appName: …, serverAddress: '" (url) "' }); Pyroscope.start()" } " of @pyroscope/nodejs, with the same name as its traces."
            }
            Some(Sender::Native) => {
                ": an eBPF profiler beside it that sends OTLP profiles or Push to " code { (url) } ", under the same service name."
            }
            Some(Sender::Otlp) => { " with the OTLP endpoint " code { (otlp_url(shown)) } " and the same service name as its traces." }
            _ => { " with its server address " code { (url) } " and the same service name as its traces." }
        }
    }
}

/// How samples get to carry spans: a sentence.
pub(super) fn label_spans(sender: Option<Sender>) -> Markup {
    with_code(how_samples_are_labelled(sender))
}

/// How samples get to carry each span, and not the root span alone: the rest of a sentence that begins with "to see each span's own".
pub(super) fn each_span(sender: Option<Sender>) -> Markup {
    with_code(how_each_span_is_sampled(sender))
}

/// How what spans wait for is measured, where the sender can.
pub(super) fn measure_waits(sender: Option<Sender>) -> Markup {
    html! { "What these spans wait for is not measured. " (with_code(&how_waits_are_measured(sender))) }
}

/// A sentence with code between backticks.
fn with_code(sentence: &str) -> Markup {
    html! {
        @for (at, part) in sentence.split('`').enumerate() { @if at % 2 == 1 { code { (part) } } @else { (part) } }
    }
}

/// Where profiles are best sent.
pub(super) fn url(shown: &Shown) -> String {
    reachable(shown.address)
}

/// Where traces are best sent.
pub(super) fn otlp_url(shown: &Shown) -> String {
    reachable(shown.otlp.unwrap_or(shown.address))
}

/// An address that listens everywhere is reached from here by loopback.
fn reachable(mut address: std::net::SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(std::net::IpAddr::from([127, 0, 0, 1]));
    }
    format!("http://{address}")
}
