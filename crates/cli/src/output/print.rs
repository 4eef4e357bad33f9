//! Writes results to stdout and messages to stderr.

use std::io::{self, Write};

use serde::Serialize;
use tarpon_oci::Digest;

use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::line::shorten;

/// Hexadecimal digits of a shortened digest.
const SHORT_DIGEST: usize = 12;

/// Writes bytes to stdout unchanged.
pub(crate) fn bytes(bytes: &[u8]) -> Result {
    let mut out = io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Writes text to stdout.
pub(crate) fn text(text: &str) -> Result {
    bytes(text.as_bytes())
}

/// Writes one JSON document to stdout.
pub(crate) fn json(value: &impl Serialize) -> Result {
    bytes(&json_document(value)?)
}

/// One JSON document, indented, with a newline.
pub(crate) fn json_document(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut document = serde_json::to_vec_pretty(value)
        .map_err(|error| Failure::new(Exit::Failure, format_args!("cannot write the result as JSON: {error}")))?;
    document.push(b'\n');
    Ok(document)
}

/// Writes a line about the work to stderr. Errors are ignored: a closed stderr is no reason to fail.
pub(crate) fn note(line: &str) {
    drop(writeln!(io::stderr(), "{}", shorten(line)));
}

/// Writes a failure to stderr.
pub(crate) fn error(failure: &Failure) {
    drop(io::stderr().write_all(failure.text().as_bytes()));
}

/// The first digits of a digest, as other tools show it.
pub(crate) fn short_digest(digest: &Digest) -> String {
    digest.hex().chars().take(SHORT_DIGEST).collect()
}

/// Ignores a closed pipe: a reader that stops early (`tarpon ls … | head`) is no failure.
fn written(result: io::Result<()>) -> Result {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::io("cannot write to standard output", &error)),
        Ok(()) => Ok(()),
    }
}
