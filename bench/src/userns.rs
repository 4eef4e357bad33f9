//! [`UserNamespace`]: where trees are mounted and read as by an ordinary user.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// IDs of the namespace. With all of them it would be equal to the host's.
const IDS: &str = "0 0 65536";

/// Waits for the IDs, and gets all privileges of the namespace with the next program.
const FIRST: &str = "read line && exec unshare --mount --propagation private sh -c 'echo ready && exec sleep infinity'";

/// A user namespace with its own mounts. Dropping it ends its first process.
pub(super) struct UserNamespace(Child);

impl UserNamespace {
    pub(super) fn new() -> Result<Self> {
        let mut first = Command::new("unshare");
        first.args(["--user", "sh", "-c", FIRST]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut namespace = Self(first.spawn().context("cannot start unshare")?);
        let inside = || fs::read_link(format!("/proc/{}/ns/user", namespace.0.id()));
        let outside = fs::read_link("/proc/self/ns/user")?;
        while inside()? == outside {
            std::thread::yield_now();
        }
        for file in ["uid_map", "gid_map"] {
            let path = format!("/proc/{}/{file}", namespace.0.id());
            fs::write(&path, IDS).with_context(|| format!("cannot write {path}"))?;
        }
        namespace.0.stdin.take().context("it has an input")?.write_all(b"\n")?;
        let mut line = String::new();
        BufReader::new(namespace.0.stdout.take().context("it has an output")?).read_line(&mut line)?;
        if line != "ready\n" {
            bail!("the user namespace was not made");
        }
        Ok(namespace)
    }

    fn enter(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--mount", "--target", &self.0.id().to_string()]).arg(program);
        command
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// A command in the namespace, or on the host.
pub(super) fn command(namespace: Option<&UserNamespace>, program: impl AsRef<OsStr>) -> Command {
    match namespace {
        Some(namespace) => namespace.enter(program),
        None => Command::new(program),
    }
}
