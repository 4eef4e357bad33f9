//! [`GiveWay`]: how a server makes way for a newer program.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tarpon_client::child::read_line;
use tokio::sync::Notify;

/// How long a program may take to print its version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// How a server gives way to a newer program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GiveWay {
    /// It ends when another server requests it.
    End,
    /// It executes this program.
    Execute(PathBuf),
}

/// Requests to give way. By default there is no way.
#[derive(Debug, Default)]
pub(super) struct Succession {
    way: OnceLock<GiveWay>,
    requested: Notify,
}

impl Succession {
    pub(super) fn allow(&self, way: GiveWay) {
        let _is_allowed_already = self.way.set(way);
    }

    pub(super) fn way(&self) -> Option<&GiveWay> {
        self.way.get()
    }

    pub(super) fn request(&self) {
        self.requested.notify_one();
    }

    /// Resolves when this server is to give way.
    pub(super) async fn requested(&self) {
        self.requested.notified().await;
    }
}

/// What the program prints before its version.
const NAME: &str = "tarpon ";

/// Checks that the program can be executed here: it prints its version. A file that is incomplete, or of another machine, cannot.
pub(super) fn starts(program: &Path) -> io::Result<()> {
    starts_as(program, NAME)
}

fn starts_as(program: &Path, name: &str) -> io::Result<()> {
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
    let line = read_line(output, Instant::now() + VERSION_LIMIT);
    // It may have ended.
    let _ended = child.kill();
    child.wait()?;
    if !line?.starts_with(name) {
        return Err(io::Error::other("it does not print its version"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_prints_its_version_starts_and_others_do_not() {
        starts_as(Path::new("/bin/ls"), "ls ").unwrap();
        for program in ["/bin/ls", "/dev/null", "/deleted"] {
            assert!(starts(Path::new(program)).is_err(), "{program}");
        }
    }
}
