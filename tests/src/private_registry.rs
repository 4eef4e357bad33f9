//! A registry that only one user may read, with images of its own.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_testkit::layers::Image;
use tempfile::TempDir;

use crate::real::{self, run};

/// How long the registry may take to listen.
const START: Duration = Duration::from_secs(60);

/// Passwords and their hashes with bcrypt, the only ones that the registry reads.
const HASHES: [(&str, &str); 3] = [
    ("first-0f-alice", "$2y$05$abcdefghijklmnopqrstuuGdVdu0F2FSQBGV4cojYF5pKJz9ldNKq"),
    ("second-0f-alice", "$2y$05$abcdefghijklmnopqrstuuMhw88/XXvfm1WHKEJM2WJ7k2/cVPapG"),
    ("0nly-of-bob", "$2y$05$abcdefghijklmnopqrstuul4MuVkRRU0VDQcCLvex2pzjqMfoHQdq"),
];

/// `docker-registry` with a user and a password. Dropping it ends it.
pub struct PrivateRegistry {
    folder: TempDir,
    address: String,
    user: &'static str,
    process: Child,
}

impl PrivateRegistry {
    /// Why these tests cannot run on this machine; `None` if they can.
    pub fn missing() -> Option<String> {
        (!real::have(&["docker-registry", "skopeo"])).then(|| "docker-registry or skopeo is not installed".to_owned())
    }

    /// A registry that accepts this user.
    pub fn start(user: &'static str, password: &str) -> Result<Self> {
        let folder = real::scratch()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\nhttp: {{addr: {address:?}}}\n\
             auth: {{htpasswd: {{realm: tests, path: {:?}}}}}\n",
            at("data"),
            at("users")
        );
        fs::write(at("config.yml"), config)?;
        write_users(folder.path(), user, password)?;
        let log = File::create(at("log"))?;
        let mut command = Command::new("docker-registry");
        command.args(["serve", &at("config.yml")]).env("OTEL_TRACES_EXPORTER", "none");
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let this = Self { folder, address, user, process };
        let began = Instant::now();
        while TcpStream::connect(&this.address).is_err() {
            if began.elapsed() > START {
                bail!("docker-registry does not listen:\n{}", this.log()?);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(this)
    }

    /// From now on only this password is accepted.
    pub fn change_password(&self, password: &str) -> Result<()> {
        write_users(self.folder.path(), self.user, password)
    }

    /// Copies an image to this repository and tag; returns the name by which it is pulled.
    pub fn push(&self, image: &Image, name: &str, password: &str) -> Result<String> {
        let layout = tempfile::tempdir_in(self.folder.path())?;
        image.write_layout("v1", layout.path());
        let (name, from) = (format!("{}/{name}", self.address), format!("oci:{}:v1", layout.path().display()));
        let credentials = format!("{}:{password}", self.user);
        let copy = ["copy", "-q", "--dest-tls-verify=false", "--dest-creds", &credentials, &from];
        run(Command::new("skopeo").args(copy).arg(format!("docker://{name}")))?;
        Ok(name)
    }

    /// What the registry has written, including the requests and their users.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("log"))?)
    }
}

impl Drop for PrivateRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The registry reads the file again when its time of change differs, so it is replaced by a newer one.
fn write_users(folder: &Path, user: &str, password: &str) -> Result<()> {
    let known = HASHES.iter().find(|(known, _)| *known == password);
    let (_, hash) = known.with_context(|| format!("no hash of {password}"))?;
    fs::write(folder.join("new"), format!("{user}:{hash}\n"))?;
    Ok(fs::rename(folder.join("new"), folder.join("users"))?)
}
