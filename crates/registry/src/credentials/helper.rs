//! Credential helpers: programs `docker-credential-NAME` that store passwords elsewhere.
//!
//! Protocol: `get` as the only argument, the server's name on stdin, JSON on stdout; `store` with JSON on stdin; `erase` with the
//! server's name.

use std::io;
use std::process::Stdio;

use serde::{Deserialize, Serialize};
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

/// The input of `store`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Login<'a> {
    #[serde(rename = "ServerURL")]
    server: &'a str,
    username: &'a str,
    secret: &'a str,
}

/// Queries the helper `name` for `server`. `None` if it has no credentials for it.
pub(super) async fn get(name: &str, server: &str) -> io::Result<Option<Credentials>> {
    in_time(name, |program| async move { ask(&program, server).await }).await
}

/// Stores credentials in the helper `name`.
pub(super) async fn store(name: &str, server: &str, credentials: &Credentials) -> io::Result<()> {
    let (username, secret) = credentials.pair();
    let login = Zeroizing::new(serde_json::to_vec(&Login { server, username, secret })?);
    in_time(name, |program| async move { demand(run(&program, "store", &login).await?) }).await
}

/// Removes the credentials for `server` from the helper `name`.
pub(super) async fn erase(name: &str, server: &str) -> io::Result<()> {
    in_time(name, |program| async move { demand(run(&program, "erase", server.as_bytes()).await?) }).await
}

fn demand(output: Option<Zeroizing<Vec<u8>>>) -> io::Result<()> {
    output.map(drop).ok_or_else(|| io::Error::other("it failed"))
}

/// Runs the program of the helper, with the time limit.
async fn in_time<T, F: Future<Output = io::Result<T>>>(name: &str, work: impl FnOnce(String) -> F) -> io::Result<T> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_word) {
        return Err(io::Error::other(format!("credential helper {name:?} is not a valid program name")));
    }
    let program = format!("docker-credential-{name}");
    let answer = timeout(timing::HELPER, work(program.clone())).await;
    let answer = answer.map_err(|_| io::Error::other(format!("{program} did not respond")))?;
    answer.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))
}

async fn ask(program: &str, server: &str) -> io::Result<Option<Credentials>> {
    // Helpers report "not found" in different words, with a failing exit code.
    let Some(output) = run(program, "get", server.as_bytes()).await? else { return Ok(None) };
    let answer: Answer =
        serde_json::from_slice(&output).map_err(|_| io::Error::other("its answer is not understood"))?;
    Ok(Some(Credentials::from_pair(&answer.username, &answer.secret)))
}

/// The output of the program; `None` if it fails.
async fn run(program: &str, action: &str, input: &[u8]) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut child = Command::new(program)
        .arg(action)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that does not read its input has already refused.
        drop(stdin.write_all(input).await);
    }
    let mut output = Zeroizing::new(Vec::new());
    if let Some(stdout) = child.stdout.take() {
        stdout.take(OUTPUT_BYTES + 1).read_to_end(&mut output).await?;
    }
    if output.len() as u64 > OUTPUT_BYTES {
        return Err(io::Error::other("its output is too long"));
    }
    Ok(child.wait().await?.success().then_some(output))
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
        assert_eq!(ask(&helper("good"), "quay.io").await.unwrap(), Credentials::parse("u:p"));
        assert_eq!(ask(&helper("good"), "other.io").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_login_is_stored_as_json_and_erased_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let program = folder.path().join("docker-credential-log");
        let script = format!("#!/bin/sh\necho \"$1 $(cat)\" >> '{}'\n", log.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let login = serde_json::to_vec(&Login { server: "quay.io", username: "u", secret: "p" }).unwrap();
        let program = program.to_str().unwrap();
        assert!(run(program, "store", &login).await.unwrap().is_some());
        assert!(run(program, "erase", b"quay.io").await.unwrap().is_some());
        let logged = std::fs::read_to_string(log).unwrap();
        assert_eq!(logged, "store {\"ServerURL\":\"quay.io\",\"Username\":\"u\",\"Secret\":\"p\"}\nerase quay.io\n");
    }

    #[tokio::test]
    async fn answers_without_end_or_sense_are_errors() {
        assert!(ask(&helper("endless"), "quay.io").await.is_err());
        let error = ask(&helper("nonsense"), "quay.io").await.unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_helper_is_an_error_that_names_it() {
        let error = get("that-is-not-installed", "quay.io").await.unwrap_err().to_string();
        assert!(error.contains("docker-credential-that-is-not-installed"), "{error}");
    }
}
