//! What C# passes to a start, as the engine's configuration.

use std::time::Duration;

use spanprof_core::{Config, Error, Secret, parse_bool, parse_trace_id};

use crate::events::samples;
use crate::interface::types::{Pair, Settings};

/// The configuration of the environment, changed by what was set in code.
pub(crate) fn config(settings: &Settings) -> Result<Config, Error> {
    let newest =
        |pairs: &[Pair], name: &str| pairs.iter().rev().find(|pair| pair.name == name).map(|pair| pair.text.clone());
    let mut config = Config::from_environment(|name| newest(&settings.environment, name))?;
    "spanprof-dotnet".clone_into(&mut config.spy);
    config.runtime = (".NET".to_owned(), String::new());
    config.package = ("Pyroscope.OpenTelemetry".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    config.profile_types = samples::PROFILE_TYPES.to_vec();
    let mut headers = Vec::new();
    for Pair { name, text: value } in &settings.values {
        if let Some(tag) = name.strip_prefix("tag.") {
            config.tags.push((tag.to_owned(), value.clone()));
            continue;
        }
        if let Some(header) = name.strip_prefix("http_header.") {
            headers.push((header.to_owned(), Secret(value.clone())));
            continue;
        }
        match name.as_str() {
            "application_name" => config.application_name.clone_from(value),
            "server_address" => config.server_address.clone_from(value),
            "basic_auth_user" => config.basic_auth_user.clone_from(value),
            "basic_auth_password" => config.basic_auth_password = Secret(value.clone()),
            "tenant_id" => config.tenant_id.clone_from(value),
            "sample_rate" => {
                config.sample_rate =
                    value.parse().map_err(|_| Error::invalid(name, value, "1 to 1000 samples a second"))?;
            }
            "upload_interval_ms" => {
                let ms = value.parse().map_err(|_| Error::invalid(name, value, "milliseconds, 1000 to 600000"))?;
                config.upload_interval = Duration::from_millis(ms);
            }
            "enabled" => config.enabled = parse_bool(name, value)?,
            "allocation_enabled" => config.allocation_enabled = parse_bool(name, value)?,
            "lock_enabled" => config.lock_enabled = parse_bool(name, value)?,
            "exception_enabled" => config.exception_enabled = parse_bool(name, value)?,
            "cpu_enabled" => config.cpu_enabled = parse_bool(name, value)?,
            "span_names" => config.span_names = parse_bool(name, value)?,
            "trace_id" => config.trace_id = parse_trace_id(name, value)?,
            "report_pid" => config.report_pid = parse_bool(name, value)?,
            "report_thread_id" => config.report_thread_id = parse_bool(name, value)?,
            "report_thread_name" => config.report_thread_name = parse_bool(name, value)?,
            "log_level" => {
                // The environment's parser is the one that knows the names of levels.
                let lookup = |known: &str| (known == "PYROSCOPE_LOG_LEVEL").then(|| value.clone());
                config.log_level = Config::from_environment(lookup)
                    .map_err(|_| Error::invalid(name, value, "trace, debug, info, warn, error, off"))?
                    .log_level;
            }
            "runtime_version" => config.runtime.1.clone_from(value),
            _ => return Err(Error::invalid("settings", name, "the names that interface/types.rs lists")),
        }
    }
    if !headers.is_empty() {
        config.http_headers = headers;
    }
    Ok(config)
}
