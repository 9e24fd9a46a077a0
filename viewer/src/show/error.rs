//! Why something cannot be shown.

use std::fmt;

use axum::http::StatusCode;

use crate::params::BadParameter;
use crate::store::StoreError;

/// Why something cannot be shown.
#[derive(Debug)]
pub(crate) enum ShowError {
    /// A parameter is not understood.
    Bad(BadParameter),
    /// There is no such thing; the sentence says what.
    NotFound(String),
    /// It took too long, or others were before it.
    Busy(String),
    /// The answer would be larger than one may be.
    TooLarge(String),
    /// The store failed, or the thread that asked it.
    Failed(String),
}

impl ShowError {
    /// The time of the request was over before its work was; the store says it in the same words.
    pub(crate) fn over() -> Self {
        StoreError::over().into()
    }

    /// Its HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooLarge(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl fmt::Display for ShowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(bad) => bad.fmt(f),
            Self::NotFound(sentence) | Self::Busy(sentence) | Self::TooLarge(sentence) | Self::Failed(sentence) => {
                f.write_str(sentence)
            }
        }
    }
}

impl From<BadParameter> for ShowError {
    fn from(bad: BadParameter) -> Self {
        Self::Bad(bad)
    }
}

impl From<StoreError> for ShowError {
    fn from(error: StoreError) -> Self {
        match error.to_string() {
            sentence if error.is_over() => Self::Busy(sentence),
            sentence if error.is_too_large() => Self::TooLarge(sentence),
            sentence => Self::Failed(sentence),
        }
    }
}
