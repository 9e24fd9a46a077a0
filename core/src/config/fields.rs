//! The one ladder from a setting's name to its field: what a program sets in code goes through [`Config::set`].
//!
//! A language asks [`SettingKind::of`] what a setting takes, makes that of its own value, and refuses in its own words what its
//! types cannot be. What has the right type and is still not allowed is refused here.

use std::fmt;
use std::time::Duration;

use super::environment::{parse_bool, parse_duration, parse_log_level, parse_trace_id};
use super::options::{Config, TraceIdLabel};
use super::secret::Secret;
use super::settings::{INTERVALS_ALLOWED, RATES_ALLOWED};
use crate::error::Error;
use crate::messages::Level;
use crate::profile_type::SampleClock;

/// What a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// Text.
    Text,
    /// Text that no message shows.
    Secret,
    /// Yes or no.
    Flag,
    /// A whole number.
    Number,
    /// A time.
    Time,
    /// Yes or no, or the text `auto`.
    TraceId,
    /// The name of a level.
    Level,
    /// Names and values.
    Pairs,
}

impl SettingKind {
    /// What the setting of this name takes; `None`: there is no such setting.
    pub fn of(name: &str) -> Option<Self> {
        Config::default().field(name).map(|field| match field {
            Field::Text(_) => Self::Text,
            Field::Secret(_) => Self::Secret,
            Field::Flag(_) | Field::Clock(_) => Self::Flag,
            Field::Number(_) => Self::Number,
            Field::Time(_) => Self::Time,
            Field::TraceId(_) => Self::TraceId,
            Field::Level(_) => Self::Level,
            Field::Headers(_) | Field::Tags(_) => Self::Pairs,
        })
    }
}

/// What a setting is set to.
#[derive(Clone, PartialEq)]
pub enum SettingValue {
    /// Text, which is parsed where the setting is not text.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A time, in seconds.
    Seconds(f64),
    /// A time.
    Time(Duration),
    /// Names and values.
    Pairs(Vec<(String, String)>),
}

impl SettingValue {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Flag(_) => "a flag",
            Self::Number(_) => "a number",
            Self::Seconds(_) | Self::Time(_) => "a time",
            Self::Pairs(_) => "pairs",
        }
    }
}

/// Written by hand, as it may be a password.
impl fmt::Debug for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SettingValue({})", self.type_name())
    }
}

/// A field, by what it holds.
enum Field<'a> {
    Text(&'a mut String),
    Secret(&'a mut Secret),
    Flag(&'a mut bool),
    Clock(&'a mut SampleClock),
    Number(&'a mut u32),
    Time(&'a mut Duration),
    TraceId(&'a mut TraceIdLabel),
    Level(&'a mut Option<Level>),
    Headers(&'a mut Vec<(String, Secret)>),
    Tags(&'a mut Vec<(String, String)>),
}

impl Config {
    /// Sets what a program names in code: text is parsed as in the environment's variables, tags are added to those that there are
    /// by now, all else replaces what there was. What only makes sense together with other settings is checked when the profiler
    /// starts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when there is no such setting, or it cannot have this value; the
    /// message has its name, the value and what is allowed.
    pub fn set(&mut self, name: &str, value: SettingValue) -> Result<(), Error> {
        let Some(field) = self.field(name) else {
            return Err(Error::invalid("settings", name, "names of settings"));
        };
        match (field, value) {
            (Field::Text(field), SettingValue::Text(text)) => *field = text,
            (Field::Secret(field), SettingValue::Text(text)) => *field = Secret(text),
            (Field::Flag(field), SettingValue::Flag(flag)) => *field = flag,
            (Field::Flag(field), SettingValue::Text(text)) => *field = parse_bool(name, &text)?,
            (Field::Clock(field), SettingValue::Flag(by_wall_time)) => *field = SampleClock::of(by_wall_time),
            (Field::Clock(field), SettingValue::Text(text)) => *field = SampleClock::of(parse_bool(name, &text)?),
            // Whole numbers that no field can hold are refused as those are that validation refuses.
            (Field::Number(field), SettingValue::Number(number)) => {
                *field = u32::try_from(number).map_err(|_| Error::invalid(name, number, RATES_ALLOWED))?;
            }
            (Field::Number(field), SettingValue::Text(text)) => {
                *field = text.parse().map_err(|_| Error::invalid(name, &text, RATES_ALLOWED))?;
            }
            (Field::Time(field), SettingValue::Time(time)) => *field = time,
            (Field::Time(field), SettingValue::Seconds(seconds)) => {
                *field = Duration::try_from_secs_f64(seconds)
                    .map_err(|_| Error::invalid(name, format!("{seconds} s"), INTERVALS_ALLOWED))?;
            }
            (Field::Time(field), SettingValue::Text(text)) => *field = parse_duration(name, &text)?,
            (Field::TraceId(field), SettingValue::Flag(flag)) => {
                *field = if flag { TraceIdLabel::Always } else { TraceIdLabel::Never };
            }
            (Field::TraceId(field), SettingValue::Text(text)) => *field = parse_trace_id(name, &text)?,
            (Field::Level(field), SettingValue::Text(text)) => *field = parse_log_level(name, text.trim())?,
            (Field::Headers(field), SettingValue::Pairs(pairs)) => {
                *field = pairs.into_iter().map(|(name, value)| (name, Secret(value))).collect();
            }
            (Field::Tags(field), SettingValue::Pairs(pairs)) => field.extend(pairs),
            (field, value) => return Err(Error::invalid(name, value.type_name(), field.allowed())),
        }
        Ok(())
    }

    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "application_name" => Field::Text(&mut self.application_name),
            "server_address" => Field::Text(&mut self.server_address),
            "basic_auth_user" | "basic_auth_username" => Field::Text(&mut self.basic_auth_user),
            "basic_auth_password" => Field::Secret(&mut self.basic_auth_password),
            "tenant_id" => Field::Text(&mut self.tenant_id),
            "http_headers" => Field::Headers(&mut self.http_headers),
            "tags" => Field::Tags(&mut self.tags),
            "sample_rate" => Field::Number(&mut self.sample_rate),
            "upload_interval" => Field::Time(&mut self.upload_interval),
            "trace_id" => Field::TraceId(&mut self.trace_id),
            "log_level" => Field::Level(&mut self.log_level),
            "enabled" => Field::Flag(&mut self.enabled),
            "cpu_enabled" => Field::Flag(&mut self.cpu_enabled),
            "wall_time" => Field::Flag(&mut self.wall_time),
            "allocation_enabled" => Field::Flag(&mut self.allocation_enabled),
            "lock_enabled" => Field::Flag(&mut self.lock_enabled),
            "exception_enabled" => Field::Flag(&mut self.exception_enabled),
            "span_names" => Field::Flag(&mut self.span_names),
            "legacy_labels" => Field::Flag(&mut self.legacy_labels),
            "report_pid" => Field::Flag(&mut self.report_pid),
            "report_thread_id" => Field::Flag(&mut self.report_thread_id),
            "report_thread_name" => Field::Flag(&mut self.report_thread_name),
            // For the stress tests: rates by wall time that no CPU clock could give.
            "wall_clock" => Field::Clock(&mut self.clock),
            // For them, too: as many samples of waits as an hour of a service has in seconds.
            "every_wait" => Field::Flag(&mut self.every_wait),
            _ => return None,
        })
    }
}

impl Field<'_> {
    fn allowed(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Secret(_) => "text",
            Self::Flag(_) | Self::Clock(_) => "true, false",
            Self::Number(_) => RATES_ALLOWED,
            Self::Time(_) => INTERVALS_ALLOWED,
            Self::TraceId(_) => "auto, true, false",
            Self::Level(_) => "the name of a level",
            Self::Headers(_) | Self::Tags(_) => "names and values",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> SettingValue {
        SettingValue::Text(text.to_owned())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn set(settings: &[(&str, SettingValue)]) -> Result<Config, Error> {
        let mut config = Config::default();
        settings.iter().try_for_each(|(name, value)| config.set(name, value.clone()))?;
        Ok(config)
    }

    fn refused(name: &str, value: SettingValue) -> String {
        set(&[(name, value)]).expect_err("must be refused").to_string()
    }

    /// What all fields are when everything was set.
    fn all() -> Config {
        Config {
            enabled: false,
            cpu_enabled: false,
            wall_time: true,
            every_wait: true,
            allocation_enabled: true,
            lock_enabled: true,
            exception_enabled: true,
            application_name: "shop".to_owned(),
            server_address: "none".to_owned(),
            basic_auth_user: "user".to_owned(),
            basic_auth_password: Secret("password".to_owned()),
            tenant_id: "tenant".to_owned(),
            http_headers: vec![("X-A".to_owned(), Secret("1".to_owned()))],
            tags: pairs(&[("region", "eu")]),
            sample_rate: 250,
            clock: SampleClock::Wall,
            upload_interval: Duration::from_millis(1_500),
            trace_id: TraceIdLabel::Never,
            span_names: false,
            legacy_labels: true,
            report_pid: true,
            report_thread_id: true,
            report_thread_name: true,
            log_level: None,
            ..Config::default()
        }
    }

    #[test]
    fn every_name_reaches_its_field_as_the_type_it_is() {
        let (yes, no) = (SettingValue::Flag(true), SettingValue::Flag(false));
        let config = set(&[
            ("enabled", no.clone()),
            ("cpu_enabled", no.clone()),
            ("wall_time", yes.clone()),
            ("allocation_enabled", yes.clone()),
            ("lock_enabled", yes.clone()),
            ("exception_enabled", yes.clone()),
            ("application_name", text("shop")),
            ("server_address", text("none")),
            ("basic_auth_username", text("user")),
            ("basic_auth_password", text("password")),
            ("tenant_id", text("tenant")),
            ("http_headers", SettingValue::Pairs(pairs(&[("X-B", "gone")]))),
            ("http_headers", SettingValue::Pairs(pairs(&[("X-A", "1")]))),
            ("tags", SettingValue::Pairs(pairs(&[("region", "eu")]))),
            ("sample_rate", SettingValue::Number(250)),
            ("wall_clock", yes.clone()),
            ("every_wait", yes.clone()),
            ("upload_interval", SettingValue::Seconds(1.5)),
            ("trace_id", no.clone()),
            ("span_names", no),
            ("legacy_labels", yes.clone()),
            ("report_pid", yes.clone()),
            ("report_thread_id", yes.clone()),
            ("report_thread_name", yes),
            ("log_level", text("error")),
        ]);
        assert_eq!(config.unwrap(), all());
    }

    #[test]
    fn text_is_parsed_for_fields_that_are_none() {
        let config = set(&[
            ("cpu_enabled", text("No")),
            ("wall_clock", text("yes")),
            ("sample_rate", text("250")),
            ("upload_interval", text("500ms")),
            ("trace_id", text("auto")),
            ("log_level", text(" INFO ")),
            ("basic_auth_user", text("user")),
        ]);
        let expected = Config {
            cpu_enabled: false,
            clock: SampleClock::Wall,
            sample_rate: 250,
            upload_interval: Duration::from_millis(500),
            trace_id: TraceIdLabel::Auto,
            log_level: Some(Level::Info),
            basic_auth_user: "user".to_owned(),
            ..Config::default()
        };
        assert_eq!(config.unwrap(), expected);
    }

    #[test]
    fn tags_are_added_to_those_that_there_are() {
        let tags = |tags| ("tags", SettingValue::Pairs(pairs(tags)));
        let config = set(&[tags(&[("a", "1"), ("b", "2")]), tags(&[("a", "3")])]);
        assert_eq!(config.unwrap().tags, pairs(&[("a", "1"), ("b", "2"), ("a", "3")]));
    }

    #[test]
    fn an_error_names_field_value_and_what_is_allowed() {
        for (name, value, message) in [
            ("sample_rate", SettingValue::Number(-1), "-1 is not allowed; allowed: 1 to 1000 samples a second"),
            ("sample_rate", text("many"), "many is not allowed; allowed: 1 to 1000 samples a second"),
            ("upload_interval", SettingValue::Seconds(-2.5), "-2.5 s is not allowed; allowed: 1 s to 10 min"),
            ("upload_interval", SettingValue::Seconds(f64::NAN), "NaN s is not allowed; allowed: 1 s to 10 min"),
            ("span_names", text("maybe"), "maybe is not allowed; allowed: true, false, 1, 0, yes, no"),
            ("trace_id", text("maybe"), "maybe is not allowed; allowed: auto, true, false, 1, 0, yes, no"),
            ("log_level", text("loud"), "loud is not allowed; allowed: trace, debug, info, warn, error, off"),
            ("tags", text("a=b"), "text is not allowed; allowed: names and values"),
        ] {
            assert_eq!(refused(name, value), format!("{name}: {message}"));
        }
        assert_eq!(refused("colour", text("red")), "settings: colour is not allowed; allowed: names of settings");
    }

    #[test]
    fn no_message_shows_what_may_be_a_password() {
        for (name, value) in [
            ("basic_auth_password", SettingValue::Pairs(pairs(&[("hunter2", "hunter2")]))),
            ("http_headers", text("hunter2")),
            ("hunter", text("hunter2")),
        ] {
            assert!(!format!("{value:?}{}", refused(name, value.clone())).contains("hunter2"), "{name}");
        }
    }

    #[test]
    fn the_kind_of_a_setting_says_what_it_takes() {
        for (name, kind) in [
            ("server_address", SettingKind::Text),
            ("basic_auth_password", SettingKind::Secret),
            ("span_names", SettingKind::Flag),
            ("wall_clock", SettingKind::Flag),
            ("sample_rate", SettingKind::Number),
            ("upload_interval", SettingKind::Time),
            ("trace_id", SettingKind::TraceId),
            ("log_level", SettingKind::Level),
            ("http_headers", SettingKind::Pairs),
            ("tags", SettingKind::Pairs),
        ] {
            assert_eq!(SettingKind::of(name), Some(kind), "{name}");
        }
        assert_eq!(SettingKind::of("colour"), None);
    }
}
