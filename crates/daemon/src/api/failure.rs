//! [`Failure`]: the common form of all errors.

use std::fmt;
use std::time::Duration;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tarpon_engine::{Error, ErrorKind, RunError};
use utoipa::ToSchema;

use super::answer::Answer;

/// Seconds until a client that was rejected as one too many may retry.
const RETRY: HeaderValue = HeaderValue::from_static("1");

/// Why a request failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Failure {
    /// The kind, for programs.
    kind: Kind,
    /// What was being done.
    step: String,
    /// Why it failed.
    cause: String,
    /// What to do about it, if anything is known to help.
    hint: Option<String>,
}

/// Classes of failures, and the status of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = FailureKind)]
enum Kind {
    /// 400: the request makes no sense.
    Invalid,
    /// 403: the registry refuses access.
    Denied,
    /// 404: no such image, tag, platform, path, mount, container or job.
    NotFound,
    /// 405: not with this method.
    NoSuchMethod,
    /// 409: this machine or user cannot mount this way, or not there.
    CannotMount,
    /// 409: what is there already is in the way.
    Conflict,
    /// 413: the request is too long.
    TooLong,
    /// 422: the image is malformed, unsupported, not what its digest says, or has no such program.
    Refused,
    /// 500: the local store failed.
    Store,
    /// 500: anything else.
    Other,
    /// 502: the registry or the network failed.
    Unavailable,
    /// 503: too many want the same at once.
    Busy,
    /// 504: it took longer than the request allowed.
    Late,
}

impl Kind {
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

impl From<ErrorKind> for Kind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Refused => Self::Refused,
            ErrorKind::CannotMount => Self::CannotMount,
            ErrorKind::Store => Self::Store,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Other => Self::Other,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let Error { kind, step, cause, hint } = error;
        Self { kind: kind.into(), step, cause, hint }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let failure = Self::from(error.error);
        match error.exit {
            // The program does not exist or cannot be executed: the image is at fault.
            126 | 127 => Self { kind: Kind::Refused, ..failure },
            _ => failure,
        }
    }
}

impl Failure {
    fn new(kind: Kind, step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { kind, step: step.into(), cause: cause.to_string(), hint: None }
    }

    /// The request is invalid.
    pub(crate) fn invalid(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Kind::Invalid, step, cause)
    }

    /// The request has more than `limit` bytes.
    pub(super) fn too_long(limit: usize) -> Self {
        Self::new(Kind::TooLong, "read the request", format!("it has more than {limit} bytes"))
    }

    /// The requested object does not exist.
    pub(crate) fn not_found(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Kind::NotFound, step, cause)
    }

    /// An existing object prevents the operation.
    pub(super) fn conflict(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Kind::Conflict, step, cause)
    }

    /// Too many requests of one kind at once.
    pub(crate) fn busy(cause: &str) -> Self {
        Self {
            hint: Some("try again later".to_owned()),
            ..Self::new(Kind::Busy, "find a place for the request", cause)
        }
    }

    /// The operation took longer than `patience`.
    pub(crate) fn late(step: impl Into<String>, patience: Duration) -> Self {
        let failure = Self::new(Kind::Late, step, format!("not done within {} s", patience.as_secs()));
        Self {
            hint: Some("what arrived is kept: ask again, or give it more time with timeout_seconds".to_owned()),
            ..failure
        }
    }

    /// The operation was cancelled on request.
    pub(crate) fn cancelled(step: impl Into<String>) -> Self {
        Self::new(Kind::Other, step, "it was cancelled")
    }

    /// An internal error.
    pub(crate) fn of_us(step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Kind::Other, step, cause)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let is_busy = self.kind == Kind::Busy;
        let mut response = Answer(self.kind.status(), self).into_response();
        if is_busy {
            response.headers_mut().insert(RETRY_AFTER, RETRY);
        }
        response
    }
}

/// The path does not exist.
pub(super) async fn no_such_path(uri: Uri) -> Failure {
    let failure = Failure::not_found("find what is asked for", format!("there is nothing at {}", uri.path()));
    Failure { hint: Some("GET /openapi.json describes what there is".to_owned()), ..failure }
}

/// The path exists, but not with this method.
pub(super) async fn no_such_method(method: Method, uri: Uri) -> Failure {
    Failure::new(Kind::NoSuchMethod, "find what is asked for", format!("{} takes no {method}", uri.path()))
}
