//! Credential helpers: programs `docker-credential-NAME` that store passwords elsewhere.
//!
//! Protocol: `get` as the only argument, the server's name on stdin, JSON on stdout.

use std::io;
use std::process::Stdio;

use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::Credentials;
use crate::timing;

/// Bytes of an answer.
const OUTPUT_BYTES: u64 = 64 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: Zeroizing<String>,
}

/// Queries the helper `name` for `server`. `None` if it has no credentials for it.
pub(super) async fn get(name: &str, server: &str) -> io::Result<Option<Credentials>> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_word) {
        return Err(io::Error::other(format!("credential helper {name:?} is not a valid program name")));
    }
    let program = format!("docker-credential-{name}");
    let answer = timeout(timing::HELPER, run(&program, server)).await;
    let answer = answer.map_err(|_| io::Error::other(format!("{program} did not respond")))?;
    answer.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))
}

async fn run(program: &str, server: &str) -> io::Result<Option<Credentials>> {
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that does not read its input has already refused.
        drop(stdin.write_all(server.as_bytes()).await);
    }
    let mut output = Zeroizing::new(Vec::new());
    if let Some(stdout) = child.stdout.take() {
        stdout.take(OUTPUT_BYTES + 1).read_to_end(&mut output).await?;
    }
    if output.len() as u64 > OUTPUT_BYTES {
        return Err(io::Error::other("its output is too long"));
    }
    if !child.wait().await?.success() {
        // Helpers report "not found" in different words, with a failing exit code.
        return Ok(None);
    }
    let answer: Answer =
        serde_json::from_slice(&output).map_err(|_| io::Error::other("its answer is not understood"))?;
    Ok(Some(Credentials::from_pair(&answer.username, &answer.secret)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_with_slashes_are_never_run() {
        for name in ["", "../sh", "a/b", ".hidden", "a b", "a;b"] {
            assert!(get(name, "quay.io").await.is_err(), "{name}");
        }
    }

    fn helper(name: &str) -> String {
        format!("{}/tests/helpers/docker-credential-{name}", env!("CARGO_MANIFEST_DIR"))
    }

    #[tokio::test]
    async fn the_protocol_is_get_the_server_on_stdin_and_json_on_stdout() {
        assert_eq!(run(&helper("good"), "quay.io").await.unwrap(), Credentials::parse("u:p"));
        assert_eq!(run(&helper("good"), "other.io").await.unwrap(), None);
    }

    #[tokio::test]
    async fn answers_without_end_or_sense_are_errors() {
        assert!(run(&helper("endless"), "quay.io").await.is_err());
        let error = run(&helper("nonsense"), "quay.io").await.unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_helper_is_an_error_that_names_it() {
        let error = get("that-is-not-installed", "quay.io").await.unwrap_err().to_string();
        assert!(error.contains("docker-credential-that-is-not-installed"), "{error}");
    }
}
