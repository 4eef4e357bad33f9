//! virtiofsd, which serves a directory to one virtual machine and ends with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::process;

/// Where Debian 13 and newer, and Debian 12, have it: in no folder of `$PATH`.
const PLACES: [&str; 2] = ["/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd"];
/// How long it may take to listen: many times what it takes on a busy host.
const START_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Finds the named program, else that of the distribution.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf> {
    let found = named.map(Path::to_owned).or_else(|| process::find("virtiofsd"));
    let found = found.or_else(|| PLACES.map(PathBuf::from).into_iter().find(|place| place.is_file()));
    found.context("there is no virtiofsd: install the package virtiofsd, or qemu-system-common of Debian 12")
}

/// Its version, such as `1.14`.
pub(super) fn version(program: &Path) -> Result<String> {
    let text = process::output(Command::new(program).arg("--version"))?;
    let version = short_version(&text);
    version.with_context(|| format!("{} prints no version: {}", program.display(), text.escape_debug()))
}

/// The first two numbers of the version in a text such as `virtiofsd version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
fn short_version(text: &str) -> Option<String> {
    let version = text.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()))?;
    Some(version.split('.').take(2).collect::<Vec<_>>().join("."))
}

/// A running virtiofsd.
pub(super) struct Daemon {
    process: Child,
    pub(super) socket: PathBuf,
}

impl Daemon {
    /// Shares a directory. The log is in `folder`.
    pub(super) fn start(program: &Path, shared: &Path, cache: &str, folder: &Path) -> Result<Self> {
        let socket = folder.join("virtiofsd.sock");
        let _of_an_earlier_one = fs::remove_file(&socket);
        let log = File::options().create(true).append(true).open(folder.join("virtiofsd.log"))?;
        let mut command = Command::new(program);
        // These options have the same names in the C program of Debian 12 and in the one in Rust.
        command.arg(format!("--socket-path={}", socket.display())).arg("-f");
        command.args(["-o", &format!("source={},cache={cache},xattr,announce_submounts", shared.display())]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut daemon = Self { process, socket };
        daemon.wait(folder)?;
        Ok(daemon)
    }

    fn wait(&mut self, folder: &Path) -> Result<()> {
        let end = Instant::now() + START_LIMIT;
        while Instant::now() < end {
            if self.socket.exists() {
                return Ok(());
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("virtiofsd ended with {status}; see {}", folder.join("virtiofsd.log").display());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("virtiofsd does not listen after {} s", START_LIMIT.as_secs())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended already if the machine did.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_two_numbers() {
        assert_eq!(short_version("virtiofsd version 7.2.22 (Debian 1:7.2)\n"), Some("7.2".to_owned()));
        assert_eq!(short_version("virtiofsd 1.14.0"), Some("1.14".to_owned()));
        assert_eq!(short_version("virtiofsd"), None);
    }
}
