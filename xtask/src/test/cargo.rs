//! Builds all tests with one command and finds the resulting programs.
//!
//! A single command matters: cargo unifies features over the requested packages, so separate builds of `tarpon` and of
//! the workspace compile half of the dependencies twice.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The package of the end-to-end tests.
pub(super) const END_TO_END: &str = "tarpon-tests";

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// PACKAGE FOLDER/TARGET, such as `tests/differential` or `crates/fetch/lib`.
    pub(super) name: String,
    /// The folder of its package, where cargo runs it.
    pub(super) folder: PathBuf,
    pub(super) executable: PathBuf,
}

/// Builds the tests of the workspace and the binaries that they start.
pub(super) fn build(root: &Path, with_end_to_end: bool) -> Result<Vec<Program>> {
    let mut command = cargo(root, with_end_to_end);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo test --no-run ended with {}", output.status);
    }
    programs(root, &String::from_utf8_lossy(&output.stdout))
}

/// The command that runs the documentation examples, which have no program of their own.
pub(super) fn documentation(root: &Path, with_end_to_end: bool) -> Command {
    let mut command = cargo(root, with_end_to_end);
    command.args(["--doc", "--no-fail-fast", "--", "--show-output"]);
    command
}

fn cargo(root: &Path, with_end_to_end: bool) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace"]).current_dir(root);
    if !with_end_to_end {
        command.args(["--exclude", END_TO_END]);
    }
    command
}

/// Reads cargo's messages, a JSON object per line.
fn programs(root: &Path, messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo printed a line that is no JSON")?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
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
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = programs(Path::new("/r"), &messages.join("\n")).unwrap();
        let names: Vec<&str> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["crates/oci/lib", "tests/run"]);
        assert_eq!(found[1].folder, Path::new("/r/tests"));
        assert_eq!(found[1].executable, Path::new("/t/run-1"));
    }
}
