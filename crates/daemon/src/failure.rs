//! [`Failure`]: the common form of all errors.

use std::fmt;
use std::time::Duration;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tarpon_engine::{Error, ErrorKind, RunError};
use utoipa::ToSchema;

use crate::answer::Answer;

/// Seconds until a client that was rejected as one too many may retry.
const RETRY: HeaderValue = HeaderValue::from_static("1");

/// The reason why a request failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Failure {
    /// The class of the failure, for programs.
    kind: FailureKind,
    /// The step that failed.
    step: String,
    /// The cause.
    cause: String,
    /// A remedy, if one is known.
    hint: Option<String>,
}

/// Classes of failures, and the status of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum FailureKind {
    /// 400: the request is invalid.
    Invalid,
    /// 403: the registry refuses access.
    Denied,
    /// 404: no such image, tag, platform, path, mount, container or job.
    NotFound,
    /// 405: the path does not support this method.
    NoSuchMethod,
    /// 409: this machine or user cannot mount in this mode or at this path.
    CannotMount,
    /// 409: an existing object prevents the request.
    Conflict,
    /// 413: the request is too long.
    TooLong,
    /// 422: the image is malformed, unsupported, does not match its digest, or lacks the program.
    Refused,
    /// 500: the local store failed.
    Store,
    /// 500: anything else.
    Other,
    /// 502: the registry or the network failed.
    Unavailable,
    /// 503: too many concurrent requests.
    Busy,
    /// 504: the time limit of the request has passed.
    Late,
}

impl FailureKind {
    fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::NoSuchMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::CannotMount | Self::Conflict => StatusCode::CONFLICT,
            Self::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Refused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Store | Self::Other => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::BAD_GATEWAY,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl From<ErrorKind> for FailureKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Refused | ErrorKind::Forbidden => Self::Refused,
            ErrorKind::CannotMount => Self::CannotMount,
            ErrorKind::Store => Self::Store,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Other => Self::Other,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let cause = error.cause().to_string();
        Self { kind: error.kind.into(), step: error.step, cause, hint: error.hint }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let failure = Self::from(error.error);
        match error.exit {
            // The program does not exist or cannot be executed: the image is at fault.
            126 | 127 => Self { kind: FailureKind::Refused, ..failure },
            _ => failure,
        }
    }
}

impl Failure {
    fn new(kind: FailureKind, step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { kind, step: step.into(), cause: cause.to_string(), hint: None }
    }

    /// The request is invalid.
    pub(crate) fn invalid(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(FailureKind::Invalid, step, cause)
    }

    /// The request has more than `limit` bytes.
    pub(crate) fn too_long(limit: usize) -> Self {
        Self::new(FailureKind::TooLong, "read the request", format!("it has more than {limit} bytes"))
    }

    /// The requested object does not exist.
    pub(crate) fn not_found(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(FailureKind::NotFound, step, cause)
    }

    /// An existing object prevents the operation.
    pub(crate) fn conflict(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(FailureKind::Conflict, step, cause)
    }

    /// Too many requests of one kind at once.
    pub(crate) fn busy(cause: &str) -> Self {
        Self { hint: Some("try again later".to_owned()), ..Self::new(FailureKind::Busy, "admit the request", cause) }
    }

    /// The operation took longer than `time_limit`.
    pub(crate) fn late(step: impl Into<String>, time_limit: Duration) -> Self {
        let failure = Self::new(FailureKind::Late, step, format!("not done within {} s", time_limit.as_secs()));
        Self { hint: Some("fetched data is kept: retry, or raise timeout_seconds".to_owned()), ..failure }
    }

    /// The operation was cancelled on request.
    pub(crate) fn cancelled(step: impl Into<String>) -> Self {
        Self::new(FailureKind::Other, step, "it was cancelled")
    }

    /// An internal error.
    pub(crate) fn internal(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(FailureKind::Other, step, cause)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let is_busy = self.kind == FailureKind::Busy;
        let mut response = Answer(self.kind.status(), self).into_response();
        if is_busy {
            response.headers_mut().insert(RETRY_AFTER, RETRY);
        }
        response
    }
}

/// The path does not exist.
pub(crate) async fn no_such_path(uri: Uri) -> Failure {
    let failure = Failure::not_found("find the path", format!("{} does not exist", uri.path()));
    Failure { hint: Some("GET /openapi.json lists all paths".to_owned()), ..failure }
}

/// The path exists, but not with this method.
pub(crate) async fn no_such_method(method: Method, uri: Uri) -> Failure {
    Failure::new(FailureKind::NoSuchMethod, "find the path", format!("{} does not support {method}", uri.path()))
}
