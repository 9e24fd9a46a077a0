//! Why a query is not answered, as Connect writes it.

use std::fmt;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::http::refusal::Refusal;
use crate::params::BadParameter;
use crate::show::ShowError;
use crate::store::StoreError;

/// Why a query is not answered.
#[derive(Debug)]
pub(crate) struct QueryError {
    code: &'static str,
    status: StatusCode,
    message: String,
}

impl QueryError {
    /// The question is not understood; the sentence says why.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { code: "invalid_argument", status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// What is asked for is not answered here.
    pub(super) fn unimplemented(message: impl Into<String>) -> Self {
        Self { code: "unimplemented", status: StatusCode::NOT_IMPLEMENTED, message: message.into() }
    }

    /// Others are before it, or it took too long.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: "unavailable", status: StatusCode::SERVICE_UNAVAILABLE, message: message.into() }
    }

    /// It could not be worked on.
    pub(super) fn failed(error: impl fmt::Display) -> Self {
        Self {
            code: "internal",
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: format!("the request could not be worked on: {error}"),
        }
    }
}

impl QueryError {
    /// The number that gRPC has for its code.
    pub(super) fn grpc_code(&self) -> i32 {
        match self.code {
            "invalid_argument" => 3,
            "deadline_exceeded" => 4,
            "resource_exhausted" => 8,
            "unimplemented" => 12,
            "internal" => 13,
            _ => 14,
        }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<StoreError> for QueryError {
    fn from(error: StoreError) -> Self {
        if error.is_too_large() { Self::invalid(error.to_string()) } else { Self::unavailable(error.to_string()) }
    }
}

impl From<ShowError> for QueryError {
    fn from(error: ShowError) -> Self {
        let sentence = error.to_string();
        match error {
            ShowError::Busy(_) => Self::unavailable(sentence),
            ShowError::Failed(_) => Self::failed(sentence),
            ShowError::Bad(_) | ShowError::NotFound(_) | ShowError::TooLarge(_) => Self::invalid(sentence),
        }
    }
}

impl From<Refusal> for QueryError {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code().0, status: refusal.status(), message: refusal.message().into() }
    }
}

impl From<BadParameter> for QueryError {
    fn from(bad: BadParameter) -> Self {
        Self::invalid(bad.to_string())
    }
}

impl IntoResponse for QueryError {
    // Connect writes its errors as JSON, whatever the request was written in.
    fn into_response(self) -> Response {
        let error = serde_json::json!({ "code": self.code, "message": self.message });
        (self.status, [(CONTENT_TYPE, "application/json")], error.to_string()).into_response()
    }
}
