//! `/`: the services; before there are any, how to start one.

use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};

use super::advice::{self, otlp_url, url};
use super::layout::{self, Page};
use crate::format::{ago, number, percent, rate, time, value};
use crate::http::request::take_time_range;
use crate::http::tenant::TenantChoice;
use crate::params::Params;
use crate::selection::{DOCTOR, Selection, TimeRange};
use crate::sender::Sender;
use crate::show::{ServiceRow, Services, ShowError, Shown, share};
use crate::store::Sampling;

/// The page.
pub(super) fn page(shown: &Shown, mut params: Params, choice: &TenantChoice) -> Result<Page, ShowError> {
    let time_range = take_time_range(&mut params)?;
    params.finish()?;
    let services = shown.services(time_range)?;
    let body = html! {
        @if services.services.is_empty() && shown.store.is_empty()? { (nothing_yet(shown, !services.refused.is_empty(), time_range)) }
        @else {
            div.title {
                h1 { "Services" span.aside { (time_range.words()) } }
                (layout::ranges(shown, time_range, "./", |range| Selection::everything().time_range(range).pairs()))
            }
            @if services.services.is_empty() {
                p.state {
                    b { "Nothing was received in this time range." } " " a href="?since=all" { "Look at all that is stored" } "."
                }
            } @else {
                (table(&services, time_range))
                (next_steps(shown, &services, time_range))
            }
        }
        (tenants(choice))
        (refused(&services))
        (kept(shown, &services, time_range))
    };
    Ok(layout::page("Services", &[], body))
}

/// All services but the doctor's, of which nothing is missing and no other's bar is a part.
fn programs(services: &Services) -> impl Iterator<Item = &ServiceRow> {
    services.services.iter().filter(|row| row.service != DOCTOR)
}

fn table(services: &Services, time_range: TimeRange) -> Markup {
    let most = programs(services).chain(&services.rest).map(|row| row.cpu_cores).fold(0.0, f64::max);
    html! {
        div.scroll {
            table {
                thead { tr {
                    th { "service" } th.n { "spans/s" } th.n { "CPU cores" } th {} th.n { "in spans" } th.n { "CPU" } th.n { "samples" }
                    th { "profiles" } th.n { "last upload" } th.n { "refused" } th { "samples carry" }
                } }
                tbody {
                    @for service in &services.services { (row(service, true, most, time_range)) }
                    @if let Some(rest) = &services.rest { (row(rest, false, most, time_range)) }
                }
            }
        }
    }
}

/// A row with its links; what had no room has none.
fn row(row: &ServiceRow, has_room: bool, most: f64, time_range: TimeRange) -> Markup {
    let selection = Selection::everything().service(&row.service).time_range(time_range);
    let heard = format!("over the {} that were heard of it", time(row.heard_ns));
    html! {
        tr {
            @if has_room { th scope="row" { a href=(selection.link("spans")) { (row.service) } } }
            @else { th scope="row" title="the services with the least CPU and the fewest spans; --memory bounds how many are shown" { (row.service) } }
            td.n title=(heard) { @if row.spans > 0 { (rate(row.spans_per_second)) } @else { "–" } }
            td.n title=(heard) { @if row.profiles > 0 { (rate(row.cpu_cores)) } @else { "–" } }
            td.bar { (layout::bar(if most > 0.0 { row.cpu_cores / most } else { 0.0 })) }
            td.n { (percent(share(row.cpu_in_spans_ns, row.cpu_ns))) }
            td.n { (time(row.cpu_ns)) }
            td.n { (number(row.samples)) }
            td.list {
                @for seen in &row.profile_types {
                    @let link = selection.clone().profile_type(&seen.asked).link("flame");
                    a href=(link) title={ "flame graph of " (seen.asked) } { (seen.word) } " "
                }
                @if row.more_profile_types > 0 { "and " (row.more_profile_types) " more" }
                @else if has_room && row.profile_types.is_empty() { "none" }
            }
            td.n { (row.last_upload_unix_ms.map_or_else(|| "never".into(), ago)) }
            td.n { @if row.refused > 0 { a href=(refused_link(time_range)) { (count(row.refused)) } } @else { "–" } }
            td { @if has_room { (carries(row)) } @else { "–" } }
        }
    }
}

/// The table of refusals on this very page; `#refused` alone would start at `<base>`.
fn refused_link(time_range: TimeRange) -> String {
    format!("{}#refused", Selection::everything().time_range(time_range).link("./"))
}

/// What the samples of a service are labelled with, in words.
fn carries(row: &ServiceRow) -> &'static str {
    match row.sampled_by {
        Sampling::Span | Sampling::Wall => "their own span",
        Sampling::Root => "the root span",
        Sampling::None if row.profiles == 0 => "–",
        Sampling::None => "no span",
    }
}

/// What is missing, with the one thing to do about it: a sentence for all services that it is the same for.
fn next_steps(shown: &Shown, services: &Services, time_range: TimeRange) -> Markup {
    let groups = |wanted: fn(&&ServiceRow) -> bool, advice: &dyn Fn(Option<Sender>) -> Markup| {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for row in programs(services).filter(wanted) {
            groups.entry(advice(row.sender).into_string()).or_default().push(&row.service);
        }
        groups.into_iter().map(|(advice, names)| (PreEscaped(advice), names[..names.len().min(5)].join(", ")))
    };
    let all = |wanted: fn(&&ServiceRow) -> bool| {
        let names: Vec<&str> = programs(services).filter(wanted).map(|row| row.service.as_str()).take(5).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    html! {
        @if let Some(names) = all(|row| row.profiles == 0 && row.refused_profiles > 0) {
            p.state {
                "Traces, and no profile that could be taken: " b { (names) } ". What they were told stands "
                a href=(refused_link(time_range)) { "below" } "."
            }
        }
        @for (start, names) in groups(|row| row.profiles == 0 && row.refused_profiles == 0, &|sender| advice::start(shown, sender)) {
            p.state { "Traces but no profiles yet: " b { (names) } ". Start the profiler there" (start) }
        }
        @if let Some(names) = all(|row| row.spans == 0) {
            p.state {
                "Profiles but no traces yet: " b { (names) } ". Span names come from the profiles, and wall times are unknown until traces come: set "
                code { "OTEL_EXPORTER_OTLP_ENDPOINT=" (otlp_url(shown)) } ". In Ruby the SDK adds no exporter beside a span processor: add "
                code { "OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(OpenTelemetry::Exporter::OTLP::Exporter.new)" } " too."
            }
        }
        @for (label, names) in groups(|row| row.profiles > 0 && row.spans > 0 && row.sampled_by == Sampling::None, &advice::label_spans) {
            p.state { "Traces and profiles, but no sample carries a span: " b { (names) } ". " (label) }
        }
        @for (each, names) in groups(|row| row.sampled_by == Sampling::Root, &advice::each_span) {
            p.state {
                "Sampled by root span: " b { (names) } ". CPU of child spans is counted in their root span; to see each span's own, "
                (each) "."
            }
        }
    }
}

fn nothing_yet(shown: &Shown, is_refused: bool, time_range: TimeRange) -> Markup {
    html! {
        h1 { "Nothing received yet" }
        @if is_refused {
            p.state { b { "What came could not be taken." } " What its senders were told stands " a href=(refused_link(time_range)) { "below" } "." }
        } @else {
            p.state {
                "No profile and no trace is stored. Start a program like this, and reload. Versions below 2 are other packages of these names; "
                "where no registry has newer ones, install what " code { "ci/package" } " made."
            }
        }
        h2 { "Python" }
        pre { "pip install 'pyroscope-otel>=2' opentelemetry-sdk opentelemetry-exporter-otlp-proto-http" }
        pre {
            "import pyroscope, pyroscope.otel\n"
            "from opentelemetry import trace\n"
            "from opentelemetry.sdk.trace import TracerProvider\n"
            "from opentelemetry.sdk.trace.export import BatchSpanProcessor\n"
            "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter\n\n"
            "pyroscope.configure(application_name=\"my-service\", server_address=\"" (url(shown)) "\")\n"
            "provider = TracerProvider()\n"
            "provider.add_span_processor(pyroscope.otel.PyroscopeSpanProcessor())\n"
            "provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))\n"
            "trace.set_tracer_provider(provider)"
        }
        pre { "OTEL_SERVICE_NAME=my-service OTEL_EXPORTER_OTLP_ENDPOINT=" (otlp_url(shown)) " python app.py" }
        h2 { "Ruby" }
        pre { "bundle add opentelemetry-sdk opentelemetry-exporter-otlp\nbundle add pyroscope-otel --version '>= 2'" }
        pre {
            "require \"opentelemetry/sdk\"\n"
            "require \"opentelemetry-exporter-otlp\"\n"
            "require \"pyroscope-otel\"\n\n"
            "OpenTelemetry::SDK.configure do |sdk|\n"
            "  sdk.add_span_processor(Pyroscope::Otel::SpanProcessor.new)\n"
            "  # With a processor that is added by hand the SDK no longer adds its own OTLP exporter.\n"
            "  exporter = OpenTelemetry::Exporter::OTLP::Exporter.new\n"
            "  sdk.add_span_processor(OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(exporter))\n"
            "end"
        }
        pre { (environment(shown)) " bundle exec ruby app.rb" }
        h2 { ".NET" }
        pre { "dotnet add package OpenTelemetry.Extensions.Hosting\ndotnet add package OpenTelemetry.Exporter.OpenTelemetryProtocol\ndotnet add package Pyroscope.OpenTelemetry --version '2.*'" }
        pre {
            "using OpenTelemetry.Trace;\n"
            "using Pyroscope.OpenTelemetry;\n\n"
            "builder.Services.AddOpenTelemetry().WithTracing(tracing => tracing.AddPyroscope().AddOtlpExporter());"
        }
        pre { (environment(shown)) " OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf dotnet run" }
        p {
            "With " code { "PYROSCOPE_PROFILING_WALLTIME_ENABLED=true" } " in the environment of any of these, or " code { "wall_time" }
            " in its settings, what its spans wait for is shown too."
        }
        h2 { "Anything else" }
        p { "Profiles go to " code { (url(shown)) "/push.v1.PusherService/Push" } ", traces to " code { (otlp_url(shown)) "/v1/traces" } "." }
    }
}

/// Whose services these are, where there is more than one tenant.
fn tenants(choice: &TenantChoice) -> Markup {
    html! {
        @if choice.names.len() > 1 {
            nav.ranges aria-label="Tenant" {
                span.aside { "tenant" }
                @for tenant in &choice.names {
                    @if *tenant == choice.tenant { span aria-current="true" { (tenant) } } @else { a href=(tenant.home()) { (tenant) } }
                }
            }
        }
    }
}

fn refused(services: &Services) -> Markup {
    html! {
        @if !services.refused.is_empty() {
            h2 id="refused" { "Refused since the start" }
            div.scroll {
                table {
                    thead { tr { th { "what" } th { "service" } th { "why" } th.n { "how often" } th.n { "last" } th { "the last one was told" } } }
                    tbody {
                        @for count in &services.refused {
                            tr {
                                th scope="row" { (count.what) }
                                td { (count.service.as_deref().unwrap_or("not read")) }
                                td { (count.reason.name().replace('_', " ")) }
                                td.n { (self::count(count.count)) }
                                td.n { (ago(count.last_unix_ms)) }
                                td.words { (count.message) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn count(count: u64) -> String {
    number(i64::try_from(count).unwrap_or(i64::MAX))
}

/// How much is kept, and what was forgotten.
fn kept(shown: &Shown, services: &Services, time_range: TimeRange) -> Markup {
    let bytes = |bytes: u64| value(i64::try_from(bytes).unwrap_or(i64::MAX), "bytes");
    let forgotten = &services.forgotten;
    let count = |count: usize| number(i64::try_from(count).unwrap_or(i64::MAX));
    html! {
        p.aside {
            (bytes(services.stored_bytes))
            @if services.others_bytes > 0 { " and " (bytes(services.others_bytes)) " of other tenants" }
            " of " (bytes(services.most_bytes)) " used; " (shown.kept()) "."
            @if forgotten.profiles_by_size + forgotten.spans_by_size > 0 {
                " Forgotten for want of room: " (count(forgotten.profiles_by_size)) " profiles, " (count(forgotten.spans_by_size))
                " spans; give more by --memory."
            }
            " " a href=(crate::selection::link("api/services", &Selection::everything().time_range(time_range).pairs())) { "JSON" }
        }
    }
}

/// What a program is told by its environment.
fn environment(shown: &Shown) -> String {
    let (url, otlp) = (url(shown), otlp_url(shown));
    format!("OTEL_SERVICE_NAME=my-service PYROSCOPE_SERVER_ADDRESS={url} OTEL_EXPORTER_OTLP_ENDPOINT={otlp}")
}
