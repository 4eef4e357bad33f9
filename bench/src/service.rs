//! A process that runs before the clock starts, as it would on a host.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tarpon_harness::process;

use crate::machine::ENDING;
use crate::machine::quietly;

/// How often its start and its end are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running process. Dropping it kills the process.
pub(crate) struct Service(Child);

impl Service {
    /// Starts a command with its output in `log`, and waits until it is up.
    pub(crate) fn start(mut command: Command, log: &Path, is_up: impl Fn() -> bool) -> Result<Self> {
        let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let name = process::name(&command);
        let mut service = Self(command.spawn().with_context(|| format!("cannot start {name}"))?);
        let until = Instant::now() + ENDING;
        while !is_up() {
            if service.0.try_wait()?.is_some() || Instant::now() > until {
                bail!("{name} does not come up: see {}", log.display());
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(service)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it with a signal, and waits; it is killed if that takes too long.
    pub(crate) fn end(mut self) -> Result<()> {
        if let (None, Some(pid)) = (self.0.try_wait()?, pid(&self.0)) {
            kill_process(pid, Signal::TERM).context("cannot end a service")?;
        }
        let until = Instant::now() + ENDING;
        while self.0.try_wait()?.is_none() && Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // It may just have ended.
            let _gone = self.0.kill();
            let _gone = self.0.wait();
        }
    }
}

/// Unmounts everything in a folder, and the folder itself.
pub(crate) fn unmount_below(folder: &Path) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for mountpoint in mountpoints_below(&table, folder).into_iter().rev() {
        let mut unmount = Command::new("umount");
        unmount.arg("-l").arg(mountpoint);
        quietly(unmount);
    }
}

/// Whether anything is mounted in a folder, or on it.
pub(crate) fn has_mounts_below(folder: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    !mountpoints_below(&table, folder).is_empty()
}

/// The mount points of a table in a folder, or the folder itself, in mount order.
fn mountpoints_below<'a>(table: &'a str, folder: &Path) -> Vec<&'a str> {
    let all = table.lines().filter_map(|line| line.split(' ').nth(4));
    all.filter(|mountpoint| Path::new(mountpoint).starts_with(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, is_up: impl Fn(&Path) -> bool) -> (tempfile::TempDir, Result<Service>) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let service = Service::start(command, &log, || is_up(&log));
        (folder, service)
    }

    #[test]
    fn a_service_that_ends_before_it_is_up_is_an_error_that_names_its_log() {
        let (folder, service) = sh("echo no", |_| false);
        let error = service.err().unwrap().to_string();
        assert!(error.contains(&folder.path().join("log").display().to_string()), "{error}");
    }

    #[test]
    fn a_service_is_up_when_it_reports_it_and_ends_when_it_is_asked_to() {
        let is_up = |log: &Path| fs::read_to_string(log).is_ok_and(|text| text.contains("up"));
        let (_folder, service) = sh("echo up; exec sleep 1000", is_up);
        let service = service.unwrap();
        let pid = service.pid();
        service.end().unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn what_is_mounted_in_a_folder_is_distinguished_from_what_is_beside_it() {
        let table =
            "1 0 0:1 / /a/store rw - tmpfs t rw\n2 1 0:2 / /a/store/deep rw - fuse f rw\n3 0 0:3 / /a/store-own rw";
        assert_eq!(mountpoints_below(table, Path::new("/a/store")), ["/a/store", "/a/store/deep"]);
    }
}
