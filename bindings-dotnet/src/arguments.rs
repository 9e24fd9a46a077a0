//! What C# passes to a start, as the engine's configuration.

use spanprof_core::{Config, Error, SettingKind, SettingValue};

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
            headers.push((header.to_owned(), value.clone()));
            continue;
        }
        match name.as_str() {
            "upload_interval_ms" => {
                let ms: f64 = value.parse().map_err(|_| Error::invalid(name, value, "milliseconds, 1000 to 600000"))?;
                config.set("upload_interval", SettingValue::Seconds(ms / 1_000.0))?;
            }
            "runtime_version" => config.runtime.1.clone_from(value),
            _ if SettingKind::of(name).is_some() => config.set(name, SettingValue::Text(value.clone()))?,
            _ => return Err(Error::invalid("settings", name, "the names that interface/types.rs lists")),
        }
    }
    if !headers.is_empty() {
        config.set("http_headers", SettingValue::Pairs(headers))?;
    }
    Ok(config)
}
