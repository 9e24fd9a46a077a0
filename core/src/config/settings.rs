//! The settings after validation: what the stages work with.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ureq::http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT,
};
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

use super::address::{self, Address};
use super::options::{Config, TraceIdLabel};
use super::tag_name::check_tag_name;
use crate::error::Error;
use crate::messages::{Cause, Message};
use crate::profile_type::SampleClock;
use crate::wire::labels::{LEGACY_SPAN_NAME, MAX_LABELS, MAX_VALUE_BYTES, PID, SERVICE_NAME, truncate_value};

/// Labels a user may add to every series; servers take 30 in all.
const MAX_TAGS: usize = 20;
/// Headers without which a push is not understood.
const OWN_HEADERS: [HeaderName; 6] =
    [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING, HOST, CONNECTION];

/// Where profiles go.
#[derive(Debug)]
pub(crate) enum Target {
    Http(HttpTarget),
    File(PathBuf),
    None,
}

/// A server and what every request to it carries.
#[derive(Debug)]
pub(crate) struct HttpTarget {
    /// Scheme, host, port and base path, without a slash at the end and without credentials.
    pub(crate) base: String,
    /// Headers of every request. Those with credentials are marked sensitive, so Debug hides them.
    pub(crate) headers: HeaderMap,
}

/// A [`Config`] all of whose values can be used.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Trimmed, never empty.
    pub(crate) application_name: String,
    pub(crate) target: Target,
    pub(crate) clock: SampleClock,
    /// CPU nanoseconds between two samples.
    pub(crate) period_ns: i64,
    /// Whether all time of spans is profiled: never beside timers of wall time.
    pub(crate) wall_time: bool,
    pub(crate) upload_interval: Duration,
    pub(crate) trace_id: TraceIdLabel,
    pub(crate) span_names: bool,
    pub(crate) legacy_labels: bool,
    pub(crate) report_thread_id: bool,
    pub(crate) report_thread_name: bool,
    /// Labels of every series but `__name__`, sorted by name.
    pub(crate) series_labels: Vec<(String, String)>,
    /// What was changed to make values fit, and what is not read, for the user.
    pub(crate) notices: Vec<Message>,
}

/// Samples a second of CPU time.
pub(super) const MAX_RATE: u32 = 1_000;
pub(super) const UPLOAD_INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
pub(super) const INTERVALS_ALLOWED: &str = "1 s to 10 min";
pub(super) const RATES_ALLOWED: &str = "1 to 1000 samples a second";

impl Settings {
    /// How many tags of its own a sample may have. They become labels of its series, beside those of all profiles,
    /// `__name__`, the span's name and the state of wall time.
    pub(crate) fn room_for_tags(&self) -> usize {
        let of_span = usize::from(self.span_names) * (1 + usize::from(self.legacy_labels));
        MAX_LABELS.saturating_sub(self.series_labels.len() + 1 + of_span + 2 * usize::from(self.wall_time))
    }
}

impl Config {
    /// Says whether [`Profiler::start`](crate::Profiler::start) would take these settings, without starting anything.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for the first field that has a value which is
    /// not allowed.
    pub fn check(&self) -> Result<(), Error> {
        self.validate().map(drop)
    }

    /// Checks every field.
    pub(crate) fn validate(&self) -> Result<Settings, Error> {
        let application_name = self.application_name.trim();
        if application_name.is_empty() {
            return Err(Error::invalid(
                "application_name",
                "\"\"",
                "the name of the service, the same as service.name of its traces",
            ));
        }
        let max_rate = if self.clock == SampleClock::Cpu { MAX_RATE } else { 10_000 };
        if !(1..=max_rate).contains(&self.sample_rate) {
            let allowed = format!("1 to {max_rate} samples a second");
            return Err(Error::invalid("sample_rate", self.sample_rate, &allowed));
        }
        if !UPLOAD_INTERVALS.contains(&self.upload_interval) {
            let seconds = format!("{} s", self.upload_interval.as_secs_f64());
            return Err(Error::invalid("upload_interval", seconds, INTERVALS_ALLOWED));
        }
        self.check_tags()?;
        let address = address::parse(&self.server_address)?;
        let (user, password) = match &address {
            Address::Http { credentials: Some((user, password)), .. } if self.basic_auth_user.is_empty() => {
                (user, password)
            }
            _ => (&self.basic_auth_user, &self.basic_auth_password),
        };
        // Wherever profiles go, so that a try without a server finds what a server would not get.
        let headers = self.headers(user, &password.0)?;
        let target = match address {
            Address::Http { base, .. } => Target::Http(HttpTarget { base, headers }),
            Address::File(folder) => Target::File(folder),
            Address::None => Target::None,
        };
        let mut notices = Vec::new();
        if self.wall_time_misspelt {
            notices.push(Cause::OtherName.message(&[]));
        }
        let series_labels = self.series_labels(application_name, &mut notices);
        Ok(Settings {
            application_name: application_name.to_owned(),
            target,
            clock: self.clock,
            wall_time: self.wall_time && self.clock == SampleClock::Cpu,
            period_ns: 1_000_000_000 / i64::from(self.sample_rate),
            upload_interval: self.upload_interval,
            trace_id: self.trace_id,
            span_names: self.span_names,
            legacy_labels: self.legacy_labels,
            report_thread_id: self.report_thread_id,
            report_thread_name: self.report_thread_name,
            series_labels,
            notices,
        })
    }

    fn check_tags(&self) -> Result<(), Error> {
        let mut names: Vec<&str> = self.tags.iter().map(|(name, _)| name.as_str()).collect();
        for name in &names {
            check_tag_name("tags", name)?;
            if self.legacy_labels && *name == LEGACY_SPAN_NAME {
                return Err(Error::invalid("tags", name, "other names, as legacy_labels gives samples this label"));
            }
        }
        names.sort_unstable();
        names.dedup();
        if names.len() > MAX_TAGS {
            let value = format!("a number of {}", names.len());
            return Err(Error::invalid("tags", value, &format!("at most {MAX_TAGS}")));
        }
        Ok(())
    }

    /// The labels of every series: the service, the user's tags, and what describes the profiler where no tag does.
    fn series_labels(&self, application_name: &str, notices: &mut Vec<Message>) -> Vec<(String, String)> {
        let mut labels: Vec<(String, String)> = vec![(SERVICE_NAME.to_owned(), application_name.to_owned())];
        for (name, value) in self.tags.iter().rev() {
            if !labels.iter().any(|(known, _)| known == name) {
                labels.push((name.clone(), value.clone()));
            }
        }
        let pid = if self.report_pid { std::process::id().to_string() } else { String::new() };
        for (name, value) in [
            (PID, &pid),
            ("otel.scope.name", &self.package.0),
            ("otel.scope.version", &self.package.1),
            ("process.runtime.name", &self.runtime.0),
            ("process.runtime.version", &self.runtime.1),
            ("pyroscope_spy", &self.spy),
        ] {
            if !value.is_empty() && !labels.iter().any(|(known, _)| known == name) {
                labels.push((name.to_owned(), value.clone()));
            }
        }
        for (name, value) in &mut labels {
            if value.len() > MAX_VALUE_BYTES {
                notices.push(Cause::LabelTruncated.message(&[name, &MAX_VALUE_BYTES.to_string()]));
                value.truncate(truncate_value(value).len());
            }
        }
        labels.sort_unstable();
        labels
    }

    /// Tenant and credentials, then the user's own headers, which replace ours of the same name.
    fn headers(&self, user: &str, password: &str) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        let agent = format!("{}/{} spanprof", self.package.0, self.package.1);
        let agent = HeaderValue::from_str(&agent).map_err(|_| {
            Error::invalid("package", format!("{agent:?}"), "a name and a version of visible characters")
        })?;
        headers.insert(USER_AGENT, agent);
        if !self.tenant_id.is_empty() {
            // What is refused is often something else that was pasted here.
            let is_visible = self.tenant_id.bytes().all(|byte| byte.is_ascii_graphic());
            let tenant = HeaderValue::from_str(&self.tenant_id).ok().filter(|_| is_visible);
            let tenant = tenant
                .ok_or_else(|| Error::invalid("tenant_id", "the value (not shown)", "visible ASCII characters"))?;
            headers.insert(HeaderName::from_static("x-scope-orgid"), tenant);
        }
        if !(user.is_empty() && password.is_empty()) {
            if let Some((name, _)) = user.split_once(':') {
                return Err(Error::invalid(
                    "basic_auth_username",
                    format!("{name}:(secret)"),
                    "a name without a colon",
                ));
            }
            let text = format!("Basic {}", base64(format!("{user}:{password}").as_bytes()));
            if let Ok(mut value) = HeaderValue::from_str(&text) {
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
        }
        for (name, value) in &self.http_headers {
            let parsed: HeaderName = name.parse().map_err(|_| {
                // Behind the first wrong character there may be a value, which is nobody's to read.
                let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
                let (start, rest) = name.split_at(end.unwrap_or(name.len()));
                let wrong: String = start.chars().chain(rest.chars().next()).collect();
                let given = format!("a name that begins with {wrong:?}");
                Error::invalid("http_headers", given, "names of HTTP headers, such as X-Name")
            })?;
            if OWN_HEADERS.contains(&parsed) {
                return Err(Error::invalid("http_headers", name, "headers that do not describe the request's body"));
            }
            let mut value = HeaderValue::from_str(&value.0).map_err(|_| {
                let given = format!("the value of {name} (not shown)");
                Error::invalid("http_headers", given, "text without line breaks or other control characters")
            })?;
            value.set_sensitive(true);
            headers.insert(parsed, value);
        }
        Ok(headers)
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let at = (word >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() { char::from(DIGITS[at as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::secret::Secret;
    use super::*;
    use crate::messages::Level;

    fn config() -> Config {
        Config { application_name: "shop".to_owned(), ..Config::default() }
    }

    fn tags(tags: &[(&str, &str)]) -> Vec<(String, String)> {
        tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn refused(config: &Config) -> String {
        config.check().expect_err("must be refused").to_string()
    }

    fn http(config: &Config) -> HttpTarget {
        match config.validate().unwrap().target {
            Target::Http(target) => target,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_with_a_name_are_good() {
        let settings = config().validate().unwrap();
        assert_eq!(settings.period_ns, 10_000_000);
        assert_eq!(http(&config()).base, "http://localhost:4040");
        assert!(settings.notices.is_empty());
    }

    #[test]
    fn fields_out_of_range_are_named_with_their_value() {
        let message = refused(&Config { application_name: "  ".to_owned(), ..config() });
        assert!(message.starts_with("application_name: "), "{message}");
        for rate in [0, 1001, 100_000] {
            let message = refused(&Config { sample_rate: rate, ..config() });
            assert!(
                message.starts_with(&format!("sample_rate: {rate} ")) && message.contains("1 to 1000"),
                "{message}"
            );
        }
        for (milliseconds, shown) in [(0, "0 s"), (999, "0.999 s"), (601_000, "601 s")] {
            let upload_interval = Duration::from_millis(milliseconds);
            let message = refused(&Config { upload_interval, ..config() });
            assert_eq!(message, format!("upload_interval: {shown} is not allowed; allowed: 1 s to 10 min"));
        }
        let message = refused(&Config { server_address: "ftp://x".to_owned(), ..config() });
        assert!(message.starts_with("server_address: ftp://x "), "{message}");
    }

    #[test]
    fn reserved_and_malformed_tag_names_are_refused_by_name() {
        for name in ["__name__", "__x", "service_name", "span_id", "span_name", "trace_id", "profile_id"] {
            let message = refused(&Config { tags: tags(&[(name, "x")]), ..config() });
            assert!(message.starts_with(&format!("tags: {name} ")) && message.contains("reserved"), "{message}");
        }
        for name in ["", "1a", "a-b", "é", "a b", ".a"] {
            let message = refused(&Config { tags: tags(&[(name, "x")]), ..config() });
            assert!(message.starts_with(&format!("tags: {name:?} ")), "{message}");
        }
        assert!(Config { tags: tags(&[("_a.B_9", "x")]), ..config() }.check().is_ok());
    }

    #[test]
    fn twenty_tags_fit_and_one_more_does_not() {
        let many = |n: usize| Config { tags: (0..n).map(|i| (format!("t{i}"), "x".to_owned())).collect(), ..config() };
        assert!(many(20).check().is_ok());
        let message = refused(&many(21));
        assert!(message.contains("21") && message.contains("at most 20"), "{message}");
    }

    #[test]
    fn a_long_value_is_truncated_between_characters_and_reported() {
        let long = format!("{}é", "x".repeat(2047));
        let settings = Config { tags: tags(&[("a", &long)]), ..config() }.validate().unwrap();
        let value = &settings.series_labels.iter().find(|(name, _)| name == "a").unwrap().1;
        assert_eq!(*value, "x".repeat(2047));
        assert_eq!(settings.notices.len(), 1);
        assert!(settings.notices[0].text.contains(" a "), "{:?}", settings.notices);
    }

    #[test]
    fn the_likeliest_wrong_name_of_a_variable_is_told_with_the_right_one() {
        for (value, told) in [("", None), ("true", Some(Level::Warning)), ("0", Some(Level::Warning))] {
            let lookup = |name: &str| (name == "PYROSCOPE_PROFILING_WALL_TIME_ENABLED").then(|| value.to_owned());
            let config = Config { application_name: "shop".to_owned(), ..Config::from_environment(lookup).unwrap() };
            let settings = config.validate().unwrap();
            assert!(!settings.wall_time);
            let text =
                "PYROSCOPE_PROFILING_WALL_TIME_ENABLED is not read; did you mean PYROSCOPE_PROFILING_WALLTIME_ENABLED?";
            let expected: Vec<_> = told.map(|level| Message { level, text: text.to_owned() }).into_iter().collect();
            assert_eq!(settings.notices, expected, "{value}");
        }
    }

    #[test]
    fn series_labels_are_sorted_and_a_tag_wins_over_ours() {
        let settings = Config {
            tags: tags(&[("zone", "old"), ("zone", "a"), ("pyroscope_spy", "mine")]),
            runtime: ("cpython".to_owned(), "3.13".to_owned()),
            package: ("pyroscope-otel".to_owned(), "2.0.0".to_owned()),
            ..config()
        }
        .validate()
        .unwrap();
        assert_eq!(
            settings.series_labels,
            tags(&[
                ("otel.scope.name", "pyroscope-otel"),
                ("otel.scope.version", "2.0.0"),
                ("process.runtime.name", "cpython"),
                ("process.runtime.version", "3.13"),
                ("pyroscope_spy", "mine"),
                ("service_name", "shop"),
                ("zone", "a"),
            ])
        );
        // Seven here, __name__ and span_name: of 30 labels 21 are left.
        assert_eq!(settings.room_for_tags(), 21);
        let settings = Settings { legacy_labels: true, ..settings };
        assert_eq!(settings.room_for_tags(), 20);
        // State and flow.
        assert_eq!(Settings { wall_time: true, ..settings }.room_for_tags(), 18);
    }

    #[test]
    fn credentials_in_the_address_become_basic_auth_unless_fields_say_otherwise() {
        let in_address = Config { server_address: "http://Aladdin:open%20sesame@host/a/".to_owned(), ..config() };
        let target = http(&in_address);
        assert_eq!(target.base, "http://host/a");
        assert_eq!(target.headers[AUTHORIZATION], "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        let both =
            Config { basic_auth_user: "u".to_owned(), basic_auth_password: Secret("pw".to_owned()), ..in_address };
        assert_eq!(http(&both).headers[AUTHORIZATION], "Basic dTpwdw==");
    }

    #[test]
    fn headers_are_checked_and_their_values_never_shown() {
        let with = |name: &str, value: &str| Config {
            http_headers: vec![(name.to_owned(), Secret(value.to_owned()))],
            ..config()
        };
        for bad in
            [with("X A", "hunter2"), with("", "hunter2"), with("X-A", "hunter2\n"), with("Content-Type", "hunter2")]
        {
            let message = refused(&bad);
            assert!(message.starts_with("http_headers: ") && !message.contains("hunter2"), "{message}");
        }
        let target = http(&Config { tenant_id: "t1".to_owned(), ..with("x-scope-orgid", "hunter2") });
        assert_eq!(target.headers["X-Scope-OrgID"], "hunter2");
        assert!(!format!("{target:?}").contains("hunter2"));
    }

    #[test]
    fn what_no_header_can_hold_is_refused_with_its_field_and_not_shown() {
        for bad in ["hunter2\n", "a\r\nAuthorization: hunter2", "hunter2\0"] {
            let http_headers = vec![("X-A".to_owned(), Secret(bad.to_owned()))];
            assert_eq!(
                refused(&Config { http_headers, ..config() }),
                "http_headers: the value of X-A (not shown) is not allowed; allowed: text without line breaks or other control \
                 characters"
            );
        }
        for bad in ["hunter2\n", "a\r\nAuthorization: hunter2", "hunter2\0", "hünter2", "a b"] {
            assert_eq!(
                refused(&Config { tenant_id: bad.to_owned(), ..config() }),
                "tenant_id: the value (not shown) is not allowed; allowed: visible ASCII characters"
            );
        }
        let message = refused(&Config { basic_auth_user: "me:hunter2".to_owned(), ..config() });
        assert_eq!(message, "basic_auth_username: me:(secret) is not allowed; allowed: a name without a colon");
    }

    #[test]
    fn headers_are_checked_wherever_profiles_go() {
        for address in ["http://host", "file:///folder", "none"] {
            let to = Config { server_address: address.to_owned(), ..config() };
            assert!(to.check().is_ok(), "{address}");
            let message = refused(&Config { tenant_id: "a b".to_owned(), ..to.clone() });
            assert!(message.starts_with("tenant_id: "), "{address}: {message}");
            let message = refused(&Config { basic_auth_user: "a:b".to_owned(), ..to.clone() });
            assert!(message.starts_with("basic_auth_username: "), "{address}: {message}");
            let http_headers = vec![("a b".to_owned(), Secret("c".to_owned()))];
            let message = refused(&Config { http_headers, ..to });
            assert!(message.starts_with("http_headers: "), "{address}: {message}");
        }
    }
}
