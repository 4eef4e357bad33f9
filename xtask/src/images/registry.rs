//! The local registry: a running one, or one that is started here and left running.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use tarpon_harness::http::{self, Answer};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::{paths, process};

/// A registry with plain HTTP and without credentials.
pub(crate) struct Registry {
    address: String,
    /// Data folder of a registry that is started here.
    folder: PathBuf,
}

/// A registry that stops when the value is dropped.
pub(crate) struct Started<'a>(&'a Registry);

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.0.stop().ok();
    }
}

const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json";

impl Registry {
    pub(crate) fn new(address: &str, folder: &str) -> Self {
        Self { address: address.to_owned(), folder: paths::target().join(folder) }
    }

    /// A registry on a free port, with its own data.
    pub(crate) fn private(folder: &str) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let registry = Self::new(&format!("127.0.0.1:{port}"), folder);
        // A killed run may have left one behind.
        registry.stop()?;
        Ok(registry)
    }

    /// HOST:PORT
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Starts a registry unless one listens. Returns whether this call started it.
    pub(crate) fn start(&self) -> Result<bool> {
        if let Ok(answer) = http::request(&self.address, "GET", "/v2/", "", b"") {
            if answer.status != 200 {
                bail!("{} answers /v2/ with {}: set REGISTRY to another HOST:PORT", self.address, answer.status);
            }
            return Ok(false);
        }
        if !self.address.starts_with("127.") && !self.address.starts_with("localhost:") {
            bail!("no registry listens at {}, and a registry is started on loopback only", self.address);
        }
        packages::ensure(&[tool("docker-registry", "docker-registry")])?;
        let child = self.spawn()?;
        self.wait_until_it_answers(child)?;
        println!("started a registry at {}, data in {}", self.address, self.folder.display());
        Ok(true)
    }

    /// As [`Registry::start`], until the value is dropped.
    pub(crate) fn start_until_dropped(&self) -> Result<Started<'_>> {
        self.start()?;
        Ok(Started(self))
    }

    /// Stops the registry that an earlier `start` left running; returns its process ID.
    pub(crate) fn stop(&self) -> Result<Option<i32>> {
        let file = self.pid_file();
        let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
        let pid = text.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.with_context(|| format!("{} holds no process id", file.display()))?;
        let running = is_registry(pid);
        if running {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        fs::remove_file(file)?;
        Ok(running.then(|| pid.as_raw_nonzero().get()))
    }

    /// Whether the registry has this tag.
    pub(crate) fn has(&self, image: &str, tag: &str) -> Result<bool> {
        let path = format!("/v2/{image}/manifests/{tag}");
        let answer = http::request(&self.address, "HEAD", &path, &format!("Accept: {MANIFESTS}\r\n"), b"")?;
        match answer.status {
            200 => Ok(true),
            404 => Ok(false),
            other => bail!("{} answers HEAD {path} with {other}", self.address),
        }
    }

    /// The bytes of an image's manifest.
    pub(crate) fn manifest(&self, image: &str, tag: &str) -> Result<Vec<u8>> {
        let path = format!("/v2/{image}/manifests/{tag}");
        let answer = http::request(&self.address, "GET", &path, &format!("Accept: {MANIFESTS}\r\n"), b"")?;
        self.expect(200, answer, &path)
    }

    /// Puts a manifest or an image index under a tag.
    pub(crate) fn put_manifest(&self, image: &str, tag: &str, media_type: &str, body: &[u8]) -> Result<()> {
        let path = format!("/v2/{image}/manifests/{tag}");
        let answer = http::request(&self.address, "PUT", &path, &format!("Content-Type: {media_type}\r\n"), body)?;
        self.expect(201, answer, &path).map(drop)
    }

    fn expect(&self, status: u16, answer: Answer, path: &str) -> Result<Vec<u8>> {
        if answer.status != status {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            bail!("{} answers {path} with {}: {text}", self.address, answer.status);
        }
        Ok(answer.body)
    }

    /// Starts the registry in a new session, so that it outlives this command.
    fn spawn(&self) -> Result<Child> {
        fs::create_dir_all(self.folder.join("data"))?;
        let config = self.folder.join("config.yml");
        fs::write(&config, self.config())?;
        let log = File::create(self.folder.join("log"))?;
        let child = Command::new("setsid")
            .arg("docker-registry")
            .arg("serve")
            .arg(&config)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start docker-registry")?;
        fs::write(self.pid_file(), child.id().to_string())?;
        Ok(child)
    }

    fn config(&self) -> String {
        let (data, address) = (self.folder.join("data").display().to_string(), &self.address);
        format!(
            "version: 0.1\n\
             log: {{level: warn, accesslog: {{disabled: true}}}}\n\
             storage:\n  filesystem: {{rootdirectory: {data:?}}}\n  delete: {{enabled: true}}\n\
             http: {{addr: {address:?}}}\n"
        )
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.join("pid")
    }

    fn wait_until_it_answers(&self, mut child: Child) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if http::request(&self.address, "GET", "/v2/", "", b"").is_ok_and(|a| a.status == 200) {
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                bail!("docker-registry ended with {status}; see {}", self.folder.join("log").display());
            }
            thread::sleep(Duration::from_millis(50));
        }
        child.kill()?;
        bail!("docker-registry does not answer at {}; see {}", self.address, self.folder.join("log").display())
    }
}

/// Whether the process is still the registry that was started; its process ID may have been reused.
fn is_registry(pid: rustix::process::Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let program = line.split(|b| *b == 0).next().unwrap_or_default();
    program.ends_with(b"docker-registry") && process::find("docker-registry").is_some()
}
