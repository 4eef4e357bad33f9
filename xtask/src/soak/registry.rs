//! A registry that is stopped and started again.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::http;

/// Time limit for a registry to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Stops when dropped; its data stays in its folder.
pub(super) struct Registry {
    folder: PathBuf,
    address: String,
    process: Option<Child>,
}

impl Registry {
    /// A registry on a free port, with data in `folder`.
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        fs::create_dir_all(folder.join("data"))?;
        let config = format!(
            "version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\n\
             storage:\n  filesystem: {{rootdirectory: {:?}}}\nhttp: {{addr: {address:?}}}\n",
            folder.join("data").display().to_string()
        );
        fs::write(folder.join("config.yml"), config)?;
        let mut registry = Self { folder: folder.to_owned(), address, process: None };
        registry.resume()?;
        Ok(registry)
    }

    /// HOST:PORT
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Starts it again at the same address, and waits until it answers.
    pub(super) fn resume(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(self.folder.join("config.yml")).env("OTEL_TRACES_EXPORTER", "none");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(command.spawn().context("cannot start docker-registry")?);
        let end = Instant::now() + START_LIMIT;
        while Instant::now() < end {
            if http::request(&self.address, "GET", "/v2/", "", b"").is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("docker-registry does not answer at {}; see {}", self.address, self.folder.join("log").display())
    }

    /// Ends it in the middle of its answers.
    pub(super) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ended = process.kill();
            let _reaped = process.wait();
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}
