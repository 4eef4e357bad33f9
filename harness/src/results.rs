//! The file of a measurement: JSON lines. The first is a header with the machine and the command; each other line is a run or a link. A
//! command that adds to the file writes another header before its lines.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::machine;

/// A file to which runs are added.
pub struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Writes a header for this command and machine, to a new file or at the end of an existing one. `program` is what a user types before
    /// the arguments of this process.
    pub fn begin(path: &Path, program: &str, programs: &[&Path], adds: bool) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut options = File::options();
        options.create(true).write(true).append(adds).truncate(!adds);
        let mut log = Self { path: path.to_owned(), file: options.open(path).with_context(|| failed(path))? };
        log.add(&json!({
            "command": command(program, std::env::args().skip(1)),
            "date": today(),
            "commit": machine::commit(),
            "machine": machine::description(programs),
        }))?;
        Ok(log)
    }

    /// Opens a file that another process has begun.
    pub fn append(path: &Path) -> Result<Self> {
        let file = File::options().append(true).open(path).with_context(|| failed(path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds one line.
    pub fn add(&mut self, line: &Value) -> Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes()).with_context(|| failed(&self.path))
    }
}

fn failed(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Options whose values are paths of one machine, which mean nothing elsewhere.
const PATHS: [&str; 4] = ["--json", "--tarpon", "--bin", "--virtiofsd"];

/// A command line as a user would type it, without [`PATHS`].
fn command(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec![program.to_owned()];
    let mut is_path = false;
    for word in arguments {
        if std::mem::take(&mut is_path) {
            continue;
        }
        let option = word.split('=').next().unwrap_or_default();
        if PATHS.contains(&option) {
            is_path = !word.contains('=');
        } else {
            words.push(word);
        }
    }
    words.join(" ")
}

fn today() -> String {
    let printed = Command::new("date").arg("--utc").arg("+%Y-%m-%d").output();
    printed.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_header_has_no_paths_of_the_machine() {
        let words = ["steady", "--json", "/tmp/a", "--runs", "5", "--tarpon=/tmp/t", "--add"].map(str::to_owned);
        assert_eq!(command("cargo xtask bench", words.into_iter()), "cargo xtask bench steady --runs 5 --add");
    }
}
