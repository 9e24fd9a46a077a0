//! The environment variables, the same in every language. A value that is not allowed is an error that names the
//! variable, never a silent default; names that other languages' profilers read are left alone, as they are often
//! set for a whole cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use super::address::percent_decode;
use super::options::{Config, TraceIdLabel, WALL_TIME_MISSPELT};
use super::secret::Secret;
use super::settings::{INTERVALS_ALLOWED, MAX_RATE, UPLOAD_INTERVALS};
use super::tag_name::check_tag_name;
use crate::error::Error;
use crate::messages::Level;

/// Attributes of the resource that become labels where that is asked for; the later of two for one label wins.
const RESOURCE_LABELS: [(&str, &str); 4] = [
    ("service.version", "service_version"),
    ("deployment.environment", "deployment_environment"),
    ("deployment.environment.name", "deployment_environment"),
    ("host.name", "host_name"),
];
const LABELS_ALLOWED: &str = "name:value,name:value or name=value,name=value";
const HEADERS_ALLOWED: &str = r#"a JSON object of strings, such as {"X-Name": "value"}"#;
const DURATION_ALLOWED: &str = "a number with s (or nothing), ms or m, such as 15, 15s, 500ms, 1m";

impl Config {
    /// The defaults, changed by the variables that `lookup` knows. A variable that is empty counts as not set.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when a value does not parse or is out of range; the
    /// message names the variable, its value and what is allowed. What only makes sense together with other settings is
    /// checked when the profiler starts.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let get = |name: &str| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let mut config = Self::default();
        let resource = get("OTEL_RESOURCE_ATTRIBUTES").map_or_else(Vec::new, |text| resource_attributes(&text));
        let attribute = |name: &str| resource.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());

        if let Some(name) =
            get("PYROSCOPE_APPLICATION_NAME").or_else(|| get("OTEL_SERVICE_NAME")).or_else(|| attribute("service.name"))
        {
            config.application_name = name;
        }
        // Grafana's flame graph button asks for this label whenever the span's resource has the attribute.
        if let Some(namespace) = attribute("service.namespace") {
            config.tags.push(("service_namespace".to_owned(), namespace));
        }
        if let Some(value) = get("OTEL_PYROSCOPE_RESOURCE_LABELS")
            && parse_bool("OTEL_PYROSCOPE_RESOURCE_LABELS", &value)?
        {
            config.tags.extend(resource_labels(attribute));
        }
        if let Some(labels) = get("PYROSCOPE_LABELS") {
            config.tags.extend(parse_labels(&labels)?);
        }
        if let Some(address) = get("PYROSCOPE_SERVER_ADDRESS") {
            config.server_address = address;
        }
        if let Some(user) = get("PYROSCOPE_BASIC_AUTH_USER") {
            config.basic_auth_user = user;
        }
        if let Some(password) = get("PYROSCOPE_BASIC_AUTH_PASSWORD") {
            config.basic_auth_password = Secret(password);
        }
        if let Some(tenant) = get("PYROSCOPE_TENANT_ID") {
            config.tenant_id = tenant;
        }
        if let Some(headers) = get("PYROSCOPE_HTTP_HEADERS") {
            config.http_headers = parse_headers(&headers)?;
        }
        if let Some(interval) = get("PYROSCOPE_UPLOAD_INTERVAL") {
            config.upload_interval = parse_duration("PYROSCOPE_UPLOAD_INTERVAL", &interval)?;
            if !UPLOAD_INTERVALS.contains(&config.upload_interval) {
                return Err(Error::invalid("PYROSCOPE_UPLOAD_INTERVAL", interval, INTERVALS_ALLOWED));
            }
        }
        if let Some(interval) = get("PYROSCOPE_PROFILING_INTERVAL") {
            config.sample_rate = rate_of_interval("PYROSCOPE_PROFILING_INTERVAL", &interval)?;
        }
        if let Some(rate) = get("PYROSCOPE_SAMPLE_RATE") {
            config.sample_rate = (rate.parse().ok().filter(|rate| (1..=MAX_RATE).contains(rate)))
                .ok_or_else(|| Error::invalid("PYROSCOPE_SAMPLE_RATE", &rate, "samples a second, 1 to 1000"))?;
        }
        if let Some(value) = get("OTEL_PYROSCOPE_ADD_TRACE_ID") {
            config.trace_id = parse_trace_id("OTEL_PYROSCOPE_ADD_TRACE_ID", &value)?;
        }
        if let Some(level) = get("PYROSCOPE_LOG_LEVEL") {
            config.log_level = parse_log_level("PYROSCOPE_LOG_LEVEL", &level)?;
        }
        // Java's name and .NET's.
        let (mut lock, mut contention) = (false, false);
        for (name, setting) in [
            ("PYROSCOPE_PROFILING_ENABLED", &mut config.enabled),
            ("PYROSCOPE_PROFILING_CPU_ENABLED", &mut config.cpu_enabled),
            ("PYROSCOPE_PROFILING_WALLTIME_ENABLED", &mut config.wall_time),
            ("PYROSCOPE_PROFILING_ALLOCATION_ENABLED", &mut config.allocation_enabled),
            ("PYROSCOPE_PROFILING_LOCK_ENABLED", &mut lock),
            ("PYROSCOPE_PROFILING_CONTENTION_ENABLED", &mut contention),
            ("PYROSCOPE_PROFILING_EXCEPTION_ENABLED", &mut config.exception_enabled),
            ("OTEL_PYROSCOPE_ADD_SPAN_NAME", &mut config.span_names),
        ] {
            if let Some(value) = get(name) {
                *setting = parse_bool(name, &value)?;
            }
        }
        config.lock_enabled = lock || contention;
        config.wall_time_misspelt = get(WALL_TIME_MISSPELT).is_some();
        Ok(config)
    }
}

/// Reads true, false, 1, 0, yes or no, in any case.
///
/// # Errors
/// Anything else; the message starts with `field`.
pub fn parse_bool(field: &str, value: &str) -> Result<bool, Error> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(Error::invalid(field, value, "true, false, 1, 0, yes, no")),
    }
}

/// The labels of a resource that `OTEL_PYROSCOPE_RESOURCE_LABELS` asks for, from a function that knows its attributes.
pub fn resource_labels(attribute: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let known = RESOURCE_LABELS.iter().filter_map(|(name, label)| Some(((*label).to_owned(), attribute(name)?)));
    known.collect()
}

/// Reads auto, or what [`parse_bool`] does: whether samples carry `trace_id`.
///
/// # Errors
/// Anything else; the message starts with `field`.
pub fn parse_trace_id(field: &str, value: &str) -> Result<TraceIdLabel, Error> {
    if value.trim().eq_ignore_ascii_case("auto") {
        return Ok(TraceIdLabel::Auto);
    }
    match parse_bool(field, value) {
        Ok(true) => Ok(TraceIdLabel::Always),
        Ok(false) => Ok(TraceIdLabel::Never),
        Err(_) => Err(Error::invalid(field, value, "auto, true, false, 1, 0, yes, no")),
    }
}

/// The names of levels in all languages' loggers; there are messages of two.
pub(super) fn parse_log_level(field: &str, value: &str) -> Result<Option<Level>, Error> {
    match value.to_ascii_lowercase().as_str() {
        "trace" | "debug" | "info" => Ok(Some(Level::Info)),
        "warn" | "warning" => Ok(Some(Level::Warning)),
        "error" | "critical" | "fatal" | "none" | "off" => Ok(None),
        _ => Err(Error::invalid(field, value, "trace, debug, info, warn, error, off")),
    }
}

/// Reads `15` and `15s` (seconds), `500ms` or `1m`.
///
/// # Errors
/// Anything else; the message starts with `field`.
pub fn parse_duration(field: &str, value: &str) -> Result<Duration, Error> {
    let text = value.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| match unit {
            "" | "s" => Some(Duration::from_secs(number)),
            "ms" => Some(Duration::from_millis(number)),
            "m" => number.checked_mul(60).map(Duration::from_secs),
            _ => None,
        })
        .ok_or_else(|| Error::invalid(field, value, DURATION_ALLOWED))
}

/// The sample rate whose period is nearest to an interval: 10ms = 100 a second. The interval is checked first, as 1500ms is nearest to 1
/// a second too.
fn rate_of_interval(field: &str, value: &str) -> Result<u32, Error> {
    let nanos = parse_duration(field, value)?.as_nanos();
    let rate = (1_000_000..=1_000_000_000).contains(&nanos).then(|| (1_000_000_000 + nanos / 2) / nanos);
    rate.and_then(|rate| u32::try_from(rate).ok()).ok_or_else(|| Error::invalid(field, value, "1ms to 1s"))
}

fn parse_labels(text: &str) -> Result<Vec<(String, String)>, Error> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| match pair.split_once([':', '=']) {
            Some((name, value)) => {
                let name = name.trim();
                check_tag_name("PYROSCOPE_LABELS", name)?;
                Ok((name.to_owned(), value.trim().to_owned()))
            }
            None => Err(Error::invalid("PYROSCOPE_LABELS", pair, LABELS_ALLOWED)),
        })
        .collect()
}

/// The value holds credentials as a rule, so no message repeats it.
fn parse_headers(text: &str) -> Result<Vec<(String, Secret)>, Error> {
    match serde_json::from_str::<BTreeMap<String, String>>(text) {
        Ok(headers) => Ok(headers.into_iter().map(|(name, value)| (name, Secret(value))).collect()),
        Err(_) => Err(Error::invalid("PYROSCOPE_HTTP_HEADERS", "the value (not shown)", HEADERS_ALLOWED)),
    }
}

/// `k=v,k=v` with percent-encoded values. The variable belongs to OpenTelemetry, which reports what is wrong in it.
fn resource_attributes(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let decoded = pairs.filter_map(|(name, value)| Some((name.trim().to_owned(), percent_decode(value.trim())?)));
    decoded.filter(|(_, value)| !value.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Error> {
        Config::from_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn nothing_set_is_the_default() {
        assert_eq!(read(&[]).unwrap(), Config::default());
    }

    #[test]
    fn every_variable_reaches_its_field() {
        let config = read(&[
            ("PYROSCOPE_APPLICATION_NAME", "shop"),
            ("PYROSCOPE_SERVER_ADDRESS", "pyroscope:4040"),
            ("PYROSCOPE_BASIC_AUTH_USER", "user"),
            ("PYROSCOPE_BASIC_AUTH_PASSWORD", "password"),
            ("PYROSCOPE_TENANT_ID", "tenant"),
            ("PYROSCOPE_HTTP_HEADERS", r#"{"X-B":"2","X-A":"1"}"#),
            ("PYROSCOPE_LABELS", "region:eu, zone=a:b,"),
            ("PYROSCOPE_UPLOAD_INTERVAL", "1500ms"),
            ("PYROSCOPE_SAMPLE_RATE", "250"),
            ("PYROSCOPE_PROFILING_ENABLED", "No"),
            ("PYROSCOPE_PROFILING_CPU_ENABLED", "0"),
            ("OTEL_PYROSCOPE_ADD_SPAN_NAME", "FALSE"),
            ("OTEL_PYROSCOPE_ADD_TRACE_ID", "no"),
            ("PYROSCOPE_LOG_LEVEL", "Error"),
        ])
        .unwrap();
        let expected = Config {
            enabled: false,
            cpu_enabled: false,
            application_name: "shop".to_owned(),
            server_address: "pyroscope:4040".to_owned(),
            basic_auth_user: "user".to_owned(),
            basic_auth_password: Secret("password".to_owned()),
            tenant_id: "tenant".to_owned(),
            http_headers: vec![("X-A".to_owned(), Secret("1".to_owned())), ("X-B".to_owned(), Secret("2".to_owned()))],
            tags: vec![pair("region", "eu"), pair("zone", "a:b")],
            sample_rate: 250,
            upload_interval: Duration::from_millis(1_500),
            span_names: false,
            trace_id: TraceIdLabel::Never,
            log_level: None,
            ..Config::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn the_service_name_of_the_traces_is_taken_when_there_is_no_own_one() {
        let resource = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=from%20resource,service.namespace=team,broken");
        assert_eq!(read(&[resource]).unwrap().application_name, "from resource");
        let otel = ("OTEL_SERVICE_NAME", "otel");
        assert_eq!(read(&[resource, otel]).unwrap().application_name, "otel");
        let own = ("PYROSCOPE_APPLICATION_NAME", "own");
        let config = read(&[resource, otel, own]).unwrap();
        assert_eq!(config.application_name, "own");
        assert_eq!(config.tags, [pair("service_namespace", "team")]);
    }

    #[test]
    fn attributes_of_the_resource_become_labels_where_that_is_asked_for() {
        let attributes =
            "service.version=1.2,deployment.environment=old,deployment.environment.name=live,host.name=h,os.type=x";
        let resource = ("OTEL_RESOURCE_ATTRIBUTES", attributes);
        assert!(read(&[resource]).unwrap().tags.is_empty());
        let config =
            read(&[resource, ("OTEL_PYROSCOPE_RESOURCE_LABELS", "true"), ("PYROSCOPE_LABELS", "host_name=mine")]);
        let mut tags = config.unwrap().tags;
        tags.reverse();
        let of = |label: &str| tags.iter().find(|(name, _)| name == label).map(|(_, value)| value.as_str());
        let labels = ["service_version", "deployment_environment", "host_name", "os_type"].map(of);
        assert_eq!(labels, [Some("1.2"), Some("live"), Some("mine"), None], "of two with one name the later counts");
    }

    #[test]
    fn trace_ids_are_automatic_or_as_said() {
        for (text, label) in [("Auto", TraceIdLabel::Auto), ("1", TraceIdLabel::Always), ("no", TraceIdLabel::Never)] {
            assert_eq!(read(&[("OTEL_PYROSCOPE_ADD_TRACE_ID", text)]).unwrap().trace_id, label);
        }
        let message = read(&[("OTEL_PYROSCOPE_ADD_TRACE_ID", "maybe")]).unwrap_err().to_string();
        assert!(message.starts_with("OTEL_PYROSCOPE_ADD_TRACE_ID: maybe ") && message.contains("auto"), "{message}");
    }

    #[test]
    fn variables_of_other_profilers_and_empty_ones_are_ignored() {
        let config = read(&[
            ("PYROSCOPE_FORMAT", "jfr"),
            ("PYROSCOPE_PROFILER_EVENT", "itimer"),
            ("PYROSCOPE_SAMPLE_RATE", " "),
            ("PYROSCOPE_SERVER_ADDRESS", ""),
        ]);
        assert_eq!(config.unwrap(), Config::default());
    }

    #[test]
    fn an_interval_is_the_rate_it_stands_for() {
        for (interval, rate) in [("10ms", 100), ("1ms", 1000), ("1s", 1), ("3ms", 333)] {
            assert_eq!(read(&[("PYROSCOPE_PROFILING_INTERVAL", interval)]).unwrap().sample_rate, rate);
        }
        let both = read(&[("PYROSCOPE_PROFILING_INTERVAL", "10ms"), ("PYROSCOPE_SAMPLE_RATE", "50")]);
        assert_eq!(both.unwrap().sample_rate, 50);
    }

    #[test]
    fn durations_and_booleans() {
        for (text, seconds) in [("15", 15.0), ("15s", 15.0), (" 500ms ", 0.5), ("1m", 60.0)] {
            assert_eq!(parse_duration("f", text).unwrap(), Duration::from_secs_f64(seconds));
        }
        for text in ["TRUE", "yes", "1", " true"] {
            assert!(parse_bool("f", text).unwrap());
        }
        for text in ["False", "NO", "0"] {
            assert!(!parse_bool("f", text).unwrap());
        }
    }

    #[test]
    fn a_value_that_is_not_allowed_names_the_variable_the_value_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("PYROSCOPE_SAMPLE_RATE", "fast", "1 to 1000"),
            ("PYROSCOPE_SAMPLE_RATE", "-1", "1 to 1000"),
            ("PYROSCOPE_SAMPLE_RATE", "0", "1 to 1000"),
            ("PYROSCOPE_SAMPLE_RATE", "100000", "1 to 1000"),
            ("PYROSCOPE_UPLOAD_INTERVAL", "0", "1 s to 10 min"),
            ("PYROSCOPE_UPLOAD_INTERVAL", "11m", "1 s to 10 min"),
            ("PYROSCOPE_UPLOAD_INTERVAL", "10 parsecs", "500ms"),
            ("PYROSCOPE_UPLOAD_INTERVAL", "s", "500ms"),
            ("PYROSCOPE_UPLOAD_INTERVAL", "18446744073709551615m", "500ms"),
            ("PYROSCOPE_PROFILING_INTERVAL", "0", "1ms to 1s"),
            ("PYROSCOPE_PROFILING_INTERVAL", "10", "1ms to 1s"),
            ("PYROSCOPE_PROFILING_INTERVAL", "2s", "1ms to 1s"),
            ("PYROSCOPE_PROFILING_INTERVAL", "1001ms", "1ms to 1s"),
            ("PYROSCOPE_PROFILING_ENABLED", "on", "yes"),
            ("OTEL_PYROSCOPE_ADD_SPAN_NAME", "2", "yes"),
            ("PYROSCOPE_LABELS", "novalue", "name:value"),
        ] {
            let message = read(&[(name, value)]).expect_err(value).to_string();
            assert!(message.starts_with(&format!("{name}: {value} ")), "{message}");
            assert!(message.contains(allowed), "{message}");
        }
    }

    #[test]
    fn a_label_that_is_not_allowed_is_reported_by_its_variable_in_one_line() {
        for (value, shown) in [
            ("zone:a,a-b:c", "\"a-b\""),
            (":value", "\"\""),
            ("trace_id=1", "trace_id"),
            ("zone:a,two\nlines", "two\\nlines"),
        ] {
            let message = read(&[("PYROSCOPE_LABELS", value)]).expect_err(value).to_string();
            assert!(message.starts_with(&format!("PYROSCOPE_LABELS: {shown} is not allowed; ")), "{message}");
        }
    }

    #[test]
    fn headers_that_do_not_parse_are_not_repeated() {
        for value in ["Authorization: hunter2", r#"{"Authorization": ["hunter2"]}"#] {
            let message = read(&[("PYROSCOPE_HTTP_HEADERS", value)]).expect_err(value).to_string();
            assert!(message.starts_with("PYROSCOPE_HTTP_HEADERS: "), "{message}");
            assert!(message.contains("JSON object") && !message.contains("hunter2"), "{message}");
        }
    }
}
