//! Containers, one after the other: each reads files of its image in batches and compares their digests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::account::{Account, Failure, Kind};
use super::images::{self, Image};
use crate::random::Random;

/// Containers at once.
pub(super) const COUNT: u32 = 64;
/// Batches of a container, with a pause after each.
pub(super) const BATCHES: u32 = 6;
/// Files of a batch from the image's own layer, and from the base.
const OWN_FILES: u64 = 3;
const BASE_FILES: u64 = 12;
/// A container may take this much longer than its pauses: starting and reading on a busy machine, with reads that wait for
/// 30 seconds at most in each batch.
const SLACK: Duration = Duration::from_secs(300);
/// Time limit for the removal of a container that hangs, as `timeout` takes it.
const REMOVE_LIMIT: &str = "60";
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Longest text kept of a failure.
const SHOWN: usize = 600;

/// The program of a container. The first line shows that it began.
const SCRIPT: &str = "echo began; code=0; for list in /soak-lists/*; do \
                      sha256sum --check --quiet \"$list\" || code=1; sleep $PAUSE; done; exit $code";
/// Lines of `sha256sum --check` end with these.
const UNREADABLE: &str = ": FAILED open or read";
const DIFFERENT: &str = ": FAILED";

/// What all containers share.
pub(super) struct Setting<'a> {
    pub(super) tarpon: &'a Path,
    pub(super) store: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) registry: &'a str,
    pub(super) images: &'a [Image],
    /// Seconds after each batch.
    pub(super) pause: f64,
    pub(super) rounds: u32,
    pub(super) seed: u64,
    pub(super) began: Instant,
    pub(super) end: Instant,
}

/// Runs the containers of one worker until the rounds or the time are over.
pub(super) fn run(setting: &Setting<'_>, worker: u32, account: &Account) -> Result<()> {
    // Spreads the starts over a round.
    let spread = setting.pause * f64::from(BATCHES);
    thread::sleep(Duration::from_secs_f64(spread * f64::from(worker) / f64::from(COUNT)));
    for round in 0..setting.rounds {
        if Instant::now() >= setting.end {
            break;
        }
        container(setting, worker, round, account)?;
    }
    Ok(())
}

fn container(setting: &Setting<'_>, worker: u32, round: u32, account: &Account) -> Result<()> {
    let mut random = Random::new(setting.seed ^ (u64::from(worker) << 32) ^ u64::from(round));
    // Two images at a time, so that the others are not mounted and may be evicted.
    let image = (round + worker % 2) as usize % images::COUNT;
    let image = setting.images.get(image).context("an image is missing")?;
    let name = format!("soak-{worker}-{round}");
    let [lists, log] = ["lists", "logs"].map(|kind| setting.folder.join(kind).join(&name));
    write_lists(&lists, image, &mut random)?;
    let began = setting.began.elapsed();
    let mut child = start(setting, image, &lists, &name, &log)?;
    let is_hung = wait(&mut child, setting)?;
    if is_hung {
        remove(setting, &name)?;
    }
    let status = child.wait()?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    fs::remove_dir_all(&lists)?;
    fs::remove_file(&log)?;
    account.finished();
    if let Some(kind) = kind(&text, status.success(), is_hung) {
        let text = text.replace("began\n", "").chars().take(SHOWN).collect();
        account.fail(Failure {
            kind,
            container: name,
            image: image.name.clone(),
            began,
            ended: setting.began.elapsed(),
            text,
        });
    }
    Ok(())
}

/// How a container failed, if it did.
fn kind(text: &str, is_success: bool, is_hung: bool) -> Option<Kind> {
    let lines = || text.lines().map(str::trim_end);
    if lines().any(|line| line.ends_with(DIFFERENT)) {
        Some(Kind::WrongBytes)
    } else if is_hung {
        Some(Kind::Hung)
    } else if lines().any(|line| line.ends_with(UNREADABLE)) {
        Some(Kind::Read)
    } else if is_success {
        None
    } else if lines().any(|line| line == "began") {
        Some(Kind::Ended)
    } else {
        Some(Kind::Start)
    }
}

/// A list for `sha256sum --check` for each batch.
fn write_lists(folder: &Path, image: &Image, random: &mut Random) -> Result<()> {
    fs::create_dir_all(folder)?;
    for batch in 0..BATCHES {
        let mut text = String::new();
        for (files, count) in [(&image.own, OWN_FILES), (&image.base, BASE_FILES)] {
            for _ in 0..count {
                let position = random.below(files.len() as u64);
                let (path, digest) = &files[usize::try_from(position)?];
                text.push_str(&format!("{digest}  {path}\n"));
            }
        }
        fs::write(folder.join(batch.to_string()), text)?;
    }
    Ok(())
}

fn start(setting: &Setting<'_>, image: &Image, lists: &Path, name: &str, log: &PathBuf) -> Result<Child> {
    let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(setting.tarpon);
    command.arg("--quiet").arg("--store").arg(setting.store);
    command.args(["run", "--rm", "--network", "host", "--runtime", "runc", "--entrypoint", "/bin/sh", "--name", name]);
    command.arg("--volume").arg(format!("{}:/soak-lists:ro", lists.display()));
    command.args(["--env", &format!("PAUSE={:.1}", setting.pause)]);
    command.arg(format!("{}/{}", setting.registry, image.name)).args(["-c", SCRIPT]);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    command.spawn().with_context(|| format!("cannot start {}", setting.tarpon.display()))
}

/// Removes a container that outlived the command that was to wait for it.
fn remove(setting: &Setting<'_>, name: &str) -> Result<()> {
    let mut command = Command::new("timeout");
    command.arg(REMOVE_LIMIT).arg(setting.tarpon).arg("--quiet").arg("--store").arg(setting.store);
    command.args(["rm", "--force", name]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // What it leaves behind is reported at the end.
    command.status().map(drop).context("cannot start timeout")
}

/// Waits for the end of a container. Returns whether it had to be killed. Time in which this program was stopped does not
/// count: the containers were, too, or could not be read from.
fn wait(child: &mut Child, setting: &Setting<'_>) -> Result<bool> {
    let limit = SLACK + Duration::from_secs_f64(setting.pause * f64::from(BATCHES));
    let mut waited = Duration::ZERO;
    while child.try_wait()?.is_none() {
        if waited > limit {
            child.kill()?;
            return Ok(true);
        }
        thread::sleep(POLL_INTERVAL);
        waited += POLL_INTERVAL;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_bytes_read_errors_and_failed_starts_are_different_kinds() {
        assert_eq!(kind("began\n", true, false), None);
        assert_eq!(kind("began\n/a: FAILED\n/b: FAILED open or read\n", false, false), Some(Kind::WrongBytes));
        assert_eq!(kind("began\n/b: FAILED open or read\n", false, false), Some(Kind::Read));
        assert_eq!(kind("began\n", false, false), Some(Kind::Ended));
        assert_eq!(kind("error: cannot mount\n", false, false), Some(Kind::Start));
        assert_eq!(kind("began\n", false, true), Some(Kind::Hung));
    }
}
