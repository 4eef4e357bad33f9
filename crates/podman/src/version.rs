//! The version of the installed Podman, for version-dependent behaviour.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tarpon_client::child::read_line;

/// How long Podman may take to print its version.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A version of Podman.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodmanVersion {
    major: u32,
    minor: u32,
}

impl PodmanVersion {
    /// The first version whose containers/storage (1.58) does not record that a layer came from a store of layers: after the pull the image
    /// is listed, and its layers are "not known". Neither 5.8 nor any later version so far records it.
    const LOSES_LAYERS: Self = Self { major: 5, minor: 5 };

    /// The version of the Podman on the search path. `None`: there is none, or it prints no version.
    pub fn installed() -> Option<Self> {
        let mut command = Command::new("podman");
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let line = child.stdout.take().map(|output| read_line(output, Instant::now() + TIMEOUT));
        let _ended = child.kill();
        let _reaped = child.wait();
        Self::read(&line?.ok()?)
    }

    /// Reads `podman version 4.3.1`.
    fn read(line: &str) -> Option<Self> {
        let mut numbers = line.trim().strip_prefix("podman version ")?.split('.');
        let mut number = || numbers.next()?.parse().ok();
        Some(Self { major: number()?, minor: number()? })
    }

    /// Why this version cannot use a store of layers, if it cannot.
    pub fn problem_with_layers(self) -> Option<String> {
        (self >= Self::LOSES_LAYERS).then(|| {
            format!("Podman {self} loses the layers of every additional layer store after the pull (so do all since {}): use tarpon podman add", Self::LOSES_LAYERS)
        })
    }
}

impl fmt::Display for PodmanVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lose_layers_are_distinguished_from_those_that_do_not() {
        for (line, loses) in [
            ("podman version 4.3.1", false),
            ("podman version 5.4.2\n", false),
            ("podman version 5.5.0", true),
            ("podman version 5.8.0-dev", true),
            ("podman version 6.0.0", true),
        ] {
            let version = PodmanVersion::read(line).unwrap();
            assert_eq!(version.problem_with_layers().is_some(), loses, "{line}");
        }
        assert_eq!(PodmanVersion::read("docker version 20.1.1"), None);
    }
}
