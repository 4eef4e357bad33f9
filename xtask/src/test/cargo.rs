//! Builds and lints everything with one command and finds the resulting test programs.
//!
//! A single command matters: cargo unifies features over the requested packages, so separate builds of `tarpon` and of
//! the workspace compile half of the dependencies twice. Clippy is the compiler of the workspace, because `cargo clippy`
//! before the build would check all dependencies and parse the workspace once more: 150 s of processor time in a fresh clone.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tarpon_harness::paths;

/// The package of the end-to-end tests.
pub(super) const END_TO_END: &str = "tarpon-tests";

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// PACKAGE FOLDER/TARGET, such as `tests/differential` or `crates/fetch/lib`.
    pub(crate) name: String,
    /// The folder of its package, where cargo runs it.
    pub(crate) folder: PathBuf,
    pub(crate) executable: PathBuf,
}

/// The result of a build.
pub(super) struct Built {
    pub(super) programs: Vec<Program>,
    /// Warnings of the compiler and of Clippy, as cargo renders them.
    pub(super) lints: Vec<String>,
}

/// Builds the tests of the workspace and the binaries that they start. Benchmarks are built for their lints only.
pub(super) fn build(root: &Path, with_end_to_end: bool) -> Result<Built> {
    let mut command = cargo(root, with_end_to_end)?;
    command.args(["--all-targets", "--no-run", "--message-format=json"]).stderr(Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    let messages = messages(&String::from_utf8_lossy(&output.stdout))?;
    let lints = lints(&messages);
    if !output.status.success() {
        bail!("cargo test --no-run ended with {}\n{}", output.status, lints.join("\n"));
    }
    Ok(Built { programs: programs(root, &messages)?, lints })
}

/// Builds what a `cargo test` command names, without lints, and returns its programs.
pub(crate) fn programs_of(command: &mut Command) -> Result<Vec<Program>> {
    command.args(["--no-run", "--message-format=json"]).stderr(Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo test --no-run ended with {}", output.status);
    }
    programs(&paths::root(), &messages(&String::from_utf8_lossy(&output.stdout))?)
}

/// The command that runs the documentation examples, which have no program of their own.
pub(super) fn documentation(root: &Path, with_end_to_end: bool) -> Result<Command> {
    let mut command = cargo(root, with_end_to_end)?;
    command.args(["--doc", "--no-fail-fast", "--", "--show-output"]);
    Ok(command)
}

fn cargo(root: &Path, with_end_to_end: bool) -> Result<Command> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace"]).current_dir(root).env("RUSTC_WORKSPACE_WRAPPER", clippy(root)?);
    if !with_end_to_end {
        command.args(["--exclude", END_TO_END]);
    }
    Ok(command)
}

/// Clippy as a compiler, of the toolchain that compiles this repository.
fn clippy(root: &Path) -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root).output();
    let sysroot = String::from_utf8(output.context("cannot start rustc")?.stdout)?;
    let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
    if !driver.is_file() {
        bail!("{} does not exist: please install Clippy (rustup component add clippy)", driver.display());
    }
    Ok(driver)
}

/// Cargo's messages, a JSON object per line.
fn messages(output: &str) -> Result<Vec<Value>> {
    let lines = output.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).context("cargo printed a line that is no JSON")).collect()
}

/// The messages of the compiler, each once: a library is compiled with its tests and without.
fn lints(messages: &[Value]) -> Vec<String> {
    let mut lints = Vec::new();
    for message in messages.iter().filter(|message| message["reason"] == "compiler-message") {
        let Some(text) = message["message"]["rendered"].as_str() else { continue };
        let text = text.trim_end().to_owned();
        // The compiler counts its warnings at the end.
        let is_about_code = message["message"]["spans"].as_array().is_some_and(|spans| !spans.is_empty());
        if is_about_code && !lints.contains(&text) {
            lints.push(text);
        }
    }
    lints
}

/// The test programs among cargo's messages.
fn programs(root: &Path, messages: &[Value]) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for message in messages {
        let is_test = message["reason"] == "compiler-artifact"
            && message["profile"]["test"] == true
            && message["target"]["kind"][0] != "bench";
        let (Some(executable), true) = (message["executable"].as_str(), is_test) else { continue };
        let manifest = message["manifest_path"].as_str().context("cargo names no manifest")?;
        let folder = Path::new(manifest).parent().context("a manifest without a folder")?.to_owned();
        let target = match message["target"]["kind"][0].as_str() {
            Some("lib") => "lib",
            Some("bin") => "bin",
            _ => message["target"]["name"].as_str().context("a target without a name")?,
        };
        let package = folder.strip_prefix(root).unwrap_or(&folder).display();
        programs.push(Program { name: format!("{package}/{target}"), executable: executable.into(), folder });
    }
    // Cargo's order depends on the timing of the build.
    programs.sort_by(|a, b| (&a.name, &a.executable).cmp(&(&b.name, &b.executable)));
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(folder: &str, kind: &str, name: &str, is_test: bool, executable: Option<&str>) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": format!("/r/{folder}/Cargo.toml"),
            "target": {"kind": [kind], "name": name},
            "profile": {"test": is_test},
            "executable": executable,
        })
        .to_string()
    }

    #[test]
    fn test_programs_are_found_among_the_messages_and_other_programs_are_not() {
        let messages = [
            artifact("tests", "test", "run", true, Some("/t/run-1")),
            artifact("crates/oci", "lib", "tarpon_oci", true, Some("/t/oci-1")),
            artifact("crates/oci", "lib", "tarpon_oci", false, None),
            artifact("crates/cli", "bin", "tarpon", false, Some("/t/tarpon")),
            artifact("benches", "bench", "functions", true, Some("/t/functions-1")),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = programs(Path::new("/r"), &super::messages(&messages.join("\n")).unwrap()).unwrap();
        let names: Vec<&str> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["crates/oci/lib", "tests/run"]);
        assert_eq!(found[1].folder, Path::new("/r/tests"));
        assert_eq!(found[1].executable, Path::new("/t/run-1"));
    }

    fn warning(text: &str, has_span: bool) -> String {
        let spans = if has_span { serde_json::json!([{}]) } else { serde_json::json!([]) };
        let message = serde_json::json!({"rendered": text, "spans": spans});
        serde_json::json!({"reason": "compiler-message", "message": message}).to_string()
    }

    #[test]
    fn a_warning_is_reported_once_and_the_number_of_warnings_is_not() {
        let messages = [warning("unused\n", true), warning("1 warning emitted", false), warning("unused\n", true)];
        let messages = super::messages(&messages.join("\n")).unwrap();
        assert_eq!(lints(&messages), ["unused"]);
    }
}
