//! The file of a measurement: JSON lines. The first is a header with the machine and the command; each other line is a run, a link or a finding. A
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

/// Options whose values are paths of one machine, of which only the last name means something elsewhere.
const PATHS: [&str; 4] = ["--json", "--tarpon", "--bin", "--virtiofsd"];

/// A command line as a user would type it, with the file names of [`PATHS`].
fn command(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut words = vec![program.to_owned()];
    let mut is_path = false;
    for word in arguments {
        let shown = match word.split_once('=') {
            Some((option, path)) if PATHS.contains(&option) => format!("{option}={}", name(path)),
            _ if is_path => name(&word),
            _ => word.clone(),
        };
        is_path = PATHS.contains(&&*word);
        words.push(shown);
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
    fn the_command_of_a_header_names_files_without_their_folders() {
        let words = ["steady", "--json", "/a/b.jsonl", "--runs", "5", "--tarpon=/a/new", "--add"].map(str::to_owned);
        let shown = "cargo xtask bench steady --json b.jsonl --runs 5 --tarpon=new --add";
        assert_eq!(command("cargo xtask bench", words.into_iter()), shown);
    }
}
