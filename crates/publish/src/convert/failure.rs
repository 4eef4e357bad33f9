//! Errors of a conversion, with the advice that fits the command.

use tarpon_images::access;

use crate::{Error, ErrorKind};

/// An error of source or destination, with the advice that fits this command.
pub(super) fn outward(step: impl Into<String>, error: tarpon_registry::Error) -> Error {
    advised(access::registry(step, error))
}

pub(super) fn advised(error: Error) -> Error {
    match error.kind {
        ErrorKind::Denied => error.hint(
            "log in with tarpon login, podman login or docker login, or give --src-creds, --dest-creds or --authfile",
        ),
        _ => error,
    }
}
