//! Runs other programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The path of `program` on `$PATH`, or in a folder that is often missing from it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/go/bin"];
    std::env::split_paths(&path)
        .chain(usual.iter().map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Runs `command` with its output on the terminal.
pub fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", name(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", name(command));
    }
    Ok(())
}

/// Runs `command` with its output in `log`; an error includes the end of the log.
pub fn check_logged(command: &mut Command, log: &Path) -> Result<()> {
    if let Some(dir) = log.parent() {
        fs::create_dir_all(dir)?;
    }
    let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    check(command).with_context(|| format!("{}\n(all of it: {})", tail(log), log.display()))
}

/// What a command prints, without the last line break.
pub fn output(command: &mut Command) -> Result<String> {
    let name = name(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8(output.stdout).with_context(|| format!("{name} prints no text"))?.trim_end().to_owned())
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// The command as a user would type it.
pub fn name(command: &Command) -> String {
    let args = command.get_args().map(|a| a.to_string_lossy().into_owned());
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program()).to_string_lossy();
    std::iter::once(program.into_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

/// The path of a program in the folder of `cargo install`, where cargo finds its subcommands.
pub fn find_in_cargo_home(program: &str) -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let file = home.map(|h| h.join("bin").join(program)).filter(|f| f.is_file());
    file.or_else(|| find(program))
}
