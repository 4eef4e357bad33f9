//! A machine with an ordinary user, as distributions set one up: a home directory, subordinate IDs, `/dev/fuse` and `/dev/net/tun` for everybody, and cgroup v2.
//! It is a mount namespace of its own, so that nothing of the host changes.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

const USER: u32 = 4711;
/// First subordinate ID.
pub const FIRST: u32 = 300_000;

/// Runs in the namespace as its first process: the argument is the folder with the files of `/etc`.
const SETUP: &str = r#"
set -e
mount --make-rprivate /
for file in passwd group subuid subgid; do mount --bind "$0/$file" /etc/$file; done
mkdir "$0/dev" && mount -t tmpfs tmpfs "$0/dev"
mknod -m 666 "$0/dev/fuse" c 10 229
mount --bind "$0/dev/fuse" /dev/fuse
if [ -e /dev/net/tun ]; then
    mknod -m 666 "$0/dev/tun" c 10 200
    mount --bind "$0/dev/tun" /dev/net/tun
fi
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
echo ready
exec sleep infinity
"#;

/// The user. Dropping it ends all of the user's processes.
pub struct Ordinary {
    work: PathBuf,
    /// The first folder of the user's `PATH`.
    programs: PathBuf,
    first: Child,
}

impl Ordinary {
    /// A user whose files are in the folder `work`, which exists, with these lines in `/etc/subuid` and `/etc/subgid`.
    pub fn new(work: &Path, programs: &Path, ids: &str) -> Result<Self> {
        let etc = work.join("etc");
        fs::create_dir(&etc)?;
        for (file, line) in [
            ("passwd", format!("anna:x:{USER}:{USER}::{}:/bin/sh\n", work.join("home").display())),
            ("group", format!("anna:x:{USER}:\n")),
        ] {
            fs::write(etc.join(file), fs::read_to_string(Path::new("/etc").join(file))? + &line)?;
        }
        for file in ["subuid", "subgid"] {
            fs::write(etc.join(file), ids)?;
            // A bind mount needs a file.
            fs::File::options().append(true).create(true).open(Path::new("/etc").join(file))?;
        }
        for folder in ["home", "run"] {
            fs::create_dir(work.join(folder))?;
            chown(work.join(folder), Some(USER), Some(USER))?;
        }
        fs::set_permissions(work, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let mut first = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", SETUP])
            .arg(&etc)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the first process of the namespace")?;
        let mut line = String::new();
        BufReader::new(first.stdout.take().context("it has an output")?).read_line(&mut line)?;
        let user = Self { work: work.to_owned(), programs: programs.to_owned(), first };
        if line != "ready\n" {
            bail!("the namespace of the user was not set up");
        }
        Ok(user)
    }

    /// The home directory.
    pub fn home(&self) -> PathBuf {
        self.work.join("home")
    }

    /// A command that runs as the user, with a login's environment and nothing else.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        // The first process of the PID namespace is a child of `unshare`.
        command.arg("--target").arg(self.namespaces()).args(["--mount", "--pid"]);
        command.args(["setpriv", "--reuid=anna", "--regid=anna", "--clear-groups", "env", "-i"]);
        // The option of nsenter for this names a directory of the caller's namespace.
        command.arg("-C").arg(self.home());
        command.arg(format!("PATH={}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", self.programs.display()));
        command.arg(format!("HOME={}", self.home().display()));
        command.arg(format!("XDG_RUNTIME_DIR={}", self.work.join("run").display()));
        command.args(["USER=anna", "SHELL=/bin/sh"]).arg(program).stdin(Stdio::null());
        command
    }

    fn namespaces(&self) -> String {
        let children = format!("/proc/{0}/task/{0}/children", self.first.id());
        fs::read_to_string(children).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        // The PID namespace ends with its first process, which `unshare` kills when it is killed.
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}
