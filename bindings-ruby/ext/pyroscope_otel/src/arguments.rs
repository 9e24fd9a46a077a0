//! From the options of `Pyroscope.configure` and the environment to the engine's configuration.

use std::sync::atomic::Ordering;
use std::time::Duration;

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Float, RHash, RString, Ruby, Value};
use spanprof_core::{Config, SettingKind, SettingValue};

use crate::errors::{guard, invalid, not_allowed, to_ruby};
use crate::stack::wall_clock::BY_WALL_TIME;
use crate::strings::{for_each_pair, pairs, symbol_or_string, text};
use crate::value::integer;

/// The configuration that the environment gives. What `options` say of one variable goes before it.
pub(crate) fn from_environment(ruby: &Ruby, options: RHash) -> Result<Config, Error> {
    let resource_labels = match options.get(ruby.to_symbol("resource_labels")) {
        Some(value) if !value.is_nil() => Some(flag(ruby, "resource_labels", value)?.to_string()),
        _ => None,
    };
    let lookup = |name: &str| match &resource_labels {
        Some(value) if name == "OTEL_PYROSCOPE_RESOURCE_LABELS" => Some(value.clone()),
        _ => std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
    };
    let mut config = Config::from_environment(lookup).map_err(|error| to_ruby(ruby, &error))?;
    let version: String = ruby.eval("RUBY_VERSION")?;
    config.spy = "spanprof-ruby".to_owned();
    config.runtime = ("ruby".to_owned(), version);
    config.package = ("pyroscope-otel".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Ok(config)
}

/// What the environment alone says: the application's name ("" if it has none) and names of tags.
pub(crate) fn environment(ruby: &Ruby) -> Result<(String, Vec<String>), Error> {
    guard(ruby, || {
        let config = from_environment(ruby, ruby.hash_new())?;
        Ok((config.application_name, config.tags.into_iter().map(|(name, _)| name).collect()))
    })
}

/// The labels that an OpenTelemetry resource with these attributes gives to profiles.
pub(crate) fn resource_labels(ruby: &Ruby, attributes: RHash) -> Result<RHash, Error> {
    guard(ruby, || {
        let attributes = pairs(ruby, "resource", attributes)?;
        let known = |name: &str| attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let labels = ruby.hash_new();
        for (name, value) in spanprof_core::resource_labels(known) {
            labels.aset(name, value)?;
        }
        Ok(labels)
    })
}

/// Puts the options that were given in code over the configuration.
pub(crate) fn apply(ruby: &Ruby, config: &mut Config, options: RHash) -> Result<(), Error> {
    for_each_pair(ruby, options, |name, value| {
        let name = symbol_or_string(name).unwrap_or_default();
        if value.is_nil() { Ok(()) } else { set(ruby, config, &name, value) }
    })
}

fn set(ruby: &Ruby, config: &mut Config, name: &str, value: Value) -> Result<(), Error> {
    if name == "resource_labels" {
        // Has told from_environment() already.
        return Ok(());
    }
    let Some(kind) = SettingKind::of(name) else {
        return Err(invalid(ruby, format!("configure: there is no option {name}")));
    };
    let value = setting(ruby, name, kind, value)?;
    if name == "wall_clock" {
        BY_WALL_TIME.store(value == SettingValue::Flag(true), Ordering::Relaxed);
    }
    config.set(name, value).map_err(|error| to_ruby(ruby, &error))
}

/// An option as the engine takes it; ArgumentError where that cannot be.
fn setting(ruby: &Ruby, name: &str, kind: SettingKind, value: Value) -> Result<SettingValue, Error> {
    Ok(match kind {
        SettingKind::Text => SettingValue::Text(text(ruby, name, value)?),
        SettingKind::Secret => SettingValue::Text(secret(ruby, name, value)?),
        SettingKind::Flag => SettingValue::Flag(flag(ruby, name, value)?),
        SettingKind::Number => SettingValue::Number(number(ruby, name, value)?.into()),
        SettingKind::Time => SettingValue::Time(seconds(ruby, name, value)?),
        SettingKind::TraceId => match symbol_or_string(value) {
            Some(text) => SettingValue::Text(text),
            None => SettingValue::Flag(flag(ruby, name, value)?),
        },
        SettingKind::Level => SettingValue::Text(level(ruby, name, value)?.to_owned()),
        SettingKind::Pairs => SettingValue::Pairs(pairs(ruby, name, hash(ruby, name, value)?)?),
    })
}

fn secret(ruby: &Ruby, name: &str, value: Value) -> Result<String, Error> {
    if RString::from_value(value).is_none() {
        return Err(invalid(ruby, format!("{name}: the value (not shown) is not allowed; allowed: a String")));
    }
    text(ruby, name, value)
}

fn hash(ruby: &Ruby, name: &str, value: Value) -> Result<RHash, Error> {
    RHash::from_value(value).ok_or_else(|| not_allowed(ruby, name, value, "a Hash"))
}

fn flag(ruby: &Ruby, name: &str, value: Value) -> Result<bool, Error> {
    match value {
        _ if value.as_raw() == ruby.qtrue().as_raw() => Ok(true),
        _ if value.as_raw() == ruby.qfalse().as_raw() => Ok(false),
        _ => Err(not_allowed(ruby, name, value, "true, false")),
    }
}

fn number(ruby: &Ruby, name: &str, value: Value) -> Result<u32, Error> {
    let number = integer(value).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| not_allowed(ruby, name, value, "1 to 1000"))
}

fn seconds(ruby: &Ruby, name: &str, value: Value) -> Result<Duration, Error> {
    let whole = integer(value).and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let seconds = || Duration::try_from_secs_f64(Float::from_value(value)?.to_f64()).ok();
    whole.or_else(seconds).ok_or_else(|| not_allowed(ruby, name, value, "1 to 600 (seconds)"))
}

/// Names of levels in Ruby's loggers, as one of those that the engine knows.
fn level(ruby: &Ruby, name: &str, value: Value) -> Result<&'static str, Error> {
    match symbol_or_string(value).unwrap_or_default().to_ascii_lowercase().as_str() {
        "trace" | "debug" | "info" => Ok("info"),
        "warn" | "warning" => Ok("warn"),
        "error" | "off" | "silent" => Ok("off"),
        _ => Err(not_allowed(ruby, name, value, "trace, debug, info, warn, error, off")),
    }
}
