//! Why something was not taken: in words for its sender, counted for the page that lists services.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;

use crate::clock;

/// Why something was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// Not a format that is spoken here.
    ContentType,
    /// Compressed with something else than gzip.
    ContentEncoding,
    /// Larger than a bound.
    TooLarge,
    /// Did not arrive in time or broke off.
    Incomplete,
    /// Does not decode, or says what cannot be.
    Invalid,
    /// Too old, or from the future.
    Time,
    /// There is no room for one tenant more.
    Tenants,
    /// There is no room for it beside others right now.
    Busy,
    /// The store failed.
    Store,
}

impl Reason {
    /// The name that the API and the metrics have for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ContentType => "content_type",
            Self::ContentEncoding => "content_encoding",
            Self::TooLarge => "too_large",
            Self::Incomplete => "incomplete",
            Self::Invalid => "invalid",
            Self::Time => "time",
            Self::Tenants => "tenants",
            Self::Busy => "busy",
            Self::Store => "store",
        }
    }
}

/// Names of services are kept with their refusals up to so many bytes.
const LONGEST_SERVICE: usize = 200;
/// Sentences have at most so many bytes.
const LONGEST_SENTENCE: usize = 2_000;
/// And are kept up to so many characters.
const LONGEST_MESSAGE: usize = 500;

/// A request that is not taken.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    reason: Reason,
    message: String,
    /// Whose it was, as far as that was read.
    service: Option<String>,
}

impl Refusal {
    /// Refuses with a sentence that says what and why.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        // Names in it are anyone's.
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(LONGEST_SENTENCE));
        Self { reason, message, service: None }
    }

    /// Whether it says something of what was sent, and not of what there is room for.
    pub(crate) fn is_of_content(&self) -> bool {
        matches!(self.reason, Reason::Invalid | Reason::Time)
    }

    /// Whether it was more than there is room or time for.
    pub(crate) fn is_too_large(&self) -> bool {
        self.reason == Reason::TooLarge
    }

    /// Whether it would be counted with the other.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.reason == other.reason && self.service == other.service
    }

    /// The same, with what it happened in before it.
    pub(crate) fn within(self, place: impl fmt::Display) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// The same, said to be of a service.
    pub(crate) fn of_service(self, service: &str) -> Self {
        let start = &service[..service.floor_char_boundary(LONGEST_SERVICE)];
        Self { service: Some(start.into()), ..self }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.reason {
            Reason::ContentType | Reason::ContentEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::Incomplete => StatusCode::REQUEST_TIMEOUT,
            Reason::Invalid | Reason::Time => StatusCode::BAD_REQUEST,
            Reason::Tenants => StatusCode::TOO_MANY_REQUESTS,
            Reason::Busy | Reason::Store => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The code that Connect and gRPC have for it: name and number.
    pub(crate) fn code(&self) -> (&'static str, i32) {
        match self.reason {
            Reason::ContentType | Reason::ContentEncoding => ("unimplemented", 12),
            Reason::TooLarge | Reason::Tenants => ("resource_exhausted", 8),
            Reason::Incomplete => ("deadline_exceeded", 4),
            Reason::Invalid | Reason::Time => ("invalid_argument", 3),
            Reason::Busy | Reason::Store => ("unavailable", 14),
        }
    }
}

/// Refuses what does not decode, or says what cannot be.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::Invalid, message)
}

/// What a refusal of profiles is counted as.
pub(crate) const PROFILES: &str = "profiles";

/// How often something was refused, and what was said the last time.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct RefusalCount {
    /// `profiles` or `traces`, or `tenants` of which neither was read.
    pub(crate) what: &'static str,
    /// Of which service, where that was read.
    pub(crate) service: Option<String>,
    /// Why.
    pub(crate) reason: Reason,
    /// How many requests.
    pub(crate) count: u64,
    /// What the last one was told.
    pub(crate) message: String,
    /// When that was.
    pub(crate) last_unix_ms: i64,
}

/// Services that are counted each on their own; names are anyone's to choose.
const MOST_SERVICES: usize = 200;

/// All refusals since the start.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Vec<RefusalCount>>);

impl Refusals {
    /// Counts one.
    pub(crate) fn count(&self, what: &'static str, refusal: &Refusal) {
        self.count_many(what, refusal, 1);
    }

    /// Counts many of a kind.
    pub(crate) fn count_many(&self, what: &'static str, refusal: &Refusal, number: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let service = refusal.service.clone().filter(|service| {
            let named = |count: &RefusalCount| count.service.as_ref() == Some(service);
            counts.len() < MOST_SERVICES || counts.iter().any(named)
        });
        let same =
            |count: &RefusalCount| (count.what, count.reason, &count.service) == (what, refusal.reason, &service);
        let found = counts.iter().position(same);
        let index = found.unwrap_or_else(|| {
            counts.push(RefusalCount {
                what,
                service,
                reason: refusal.reason,
                count: 0,
                message: String::new(),
                last_unix_ms: 0,
            });
            counts.len() - 1
        });
        counts[index].count += number;
        counts[index].message = refusal.message.chars().take(LONGEST_MESSAGE).collect();
        counts[index].last_unix_ms = clock::now() / clock::MILLISECOND;
    }

    /// How many profiles of a service.
    pub(crate) fn profiles_of(&self, service: &str) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_it = counts.iter().filter(|count| count.what == PROFILES && count.service.as_deref() == Some(service));
        of_it.map(|count| count.count).sum()
    }

    /// All counts, in the order they first came up in.
    pub(crate) fn counts(&self) -> Vec<RefusalCount> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
