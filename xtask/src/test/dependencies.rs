//! The checks of the crates that this repository depends on, by cargo-deny and `deny.toml`.

use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::{paths, process};

use super::check::{Skipped, cargo, check, skip};
use super::count::Count;

/// Git gives up a transfer slower than this, in bytes per second, for [`SLOW_SECONDS`]: without network a check must not hang.
const SLOW_BYTES: &str = "1000";
const SLOW_SECONDS: &str = "30";

/// Time limit for fetching the advisory database, as `timeout` takes it. It has a few megabytes.
const FETCH_LIMIT: &str = "180";

/// Checks licences, sources, banned crates and known vulnerabilities. `.ci/tools` installs cargo-deny.
pub(super) fn checks(skipped: &mut Skipped) -> Count {
    if process::find_in_cargo_home("cargo-deny").is_none() {
        let why = "cargo-deny is not installed (.ci/tools installs it)";
        return skip(skipped, "dependencies", why) + skip(skipped, "advisories", why);
    }
    // Without the database, so that it always runs.
    let lists = ["deny", "--locked", "--log-level", "error", "check", "bans", "licenses", "sources"];
    check("dependencies", cargo(&lists)) + advisories(skipped)
}

/// Compares the dependencies with the RustSec advisory database. Skipped if the database cannot be fetched: then nothing is
/// known about the dependencies, good or bad.
fn advisories(skipped: &mut Skipped) -> Count {
    match fetch() {
        Ok(None) => check("advisories", cargo(&["deny", "--locked", "--log-level", "error", "check", "advisories"])),
        Ok(Some(why)) => skip(skipped, "advisories", &format!("the advisory database cannot be fetched: {why}")),
        Err(error) => check("advisories", || Err(error)),
    }
}

/// Fetches the database; returns why it failed.
fn fetch() -> Result<Option<String>> {
    let mut command = Command::new("timeout");
    command.args([FETCH_LIMIT, "cargo", "deny", "--log-level", "error", "fetch", "db"]).current_dir(paths::root());
    command.env("GIT_HTTP_LOW_SPEED_LIMIT", SLOW_BYTES).env("GIT_HTTP_LOW_SPEED_TIME", SLOW_SECONDS);
    let output = command.output().context("cannot start timeout")?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Some(last.map_or_else(|| format!("cargo deny ended with {}", output.status), str::to_owned)))
}
