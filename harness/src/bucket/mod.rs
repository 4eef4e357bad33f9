//! [`Bucket`]: an empty bucket of a real S3 server, at 127.0.0.1 unless another address is named.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{http, paths, process};

mod port;
mod server;

use port::Port;
pub use server::Server;
use server::{ACCESS_KEY, NAME, REGION, SECRET_KEY};

/// A prefix in it, so that tests notice objects that are stored without their prefix.
const PREFIX: &str = "test";

/// Installs the servers.
const INSTALLER: &str = ".ci/s3-server";

/// How long a server may take to start and to stop. Python needs a second to load moto, and more on a busy machine.
const START: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A bucket and its server. Dropping it ends the server.
pub struct Bucket {
    server: Server,
    port: Port,
    folder: PathBuf,
    /// Its process, if there is one.
    process: Option<Child>,
}

impl Bucket {
    /// Starts the fastest server that is installed. Everything it keeps is in the folder, which exists, is empty and is on a disk
    /// with extended attributes.
    pub fn start(folder: &Path) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, folder)
    }

    /// The same at another address of the namespace that this is called in.
    pub fn start_at(host: Ipv4Addr, folder: &Path) -> Result<Self> {
        match Server::installed().first() {
            Some(server) => Self::start_with(*server, host, folder),
            None => bail!("{}", missing().unwrap_or_default()),
        }
    }

    /// The same with a server that is installed.
    pub fn start_with(server: Server, host: Ipv4Addr, folder: &Path) -> Result<Self> {
        server.before_first_start(folder)?;
        let mut bucket = Self { server, port: Port::reserve(host)?, folder: folder.to_owned(), process: None };
        bucket.start_again()?;
        server.after_first_start(bucket.port.address())?;
        Ok(bucket)
    }

    /// The server.
    pub fn server(&self) -> Server {
        self.server
    }

    /// HOST:PORT where it listens. The port does not change.
    pub fn address(&self) -> String {
        self.port.address().to_string()
    }

    /// The bucket and a prefix, as a client names them.
    pub fn url(&self) -> String {
        format!("s3://{NAME}/{PREFIX}")
    }

    /// The variables that a client needs in its environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        self.environment_at(&self.address())
    }

    /// The same for a client that reaches the server at another HOST:PORT: through a proxy or a link.
    pub fn environment_at(&self, address: &str) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", format!("http://{address}")),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// Ends the server as a crash would: connections break and new ones are refused. The objects remain.
    pub fn stop(&mut self) -> Result<()> {
        if self.server.keeps_objects_on_disk() {
            self.kill();
        } else {
            self.command("stop")?;
        }
        self.wait("close its port", |address| match TcpStream::connect_timeout(&address, START) {
            Err(error) => error.kind() == ErrorKind::ConnectionRefused,
            Ok(_) => false,
        })
    }

    /// Starts a stopped server, at the same address and with the same objects.
    pub fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            self.command("start")?;
        } else {
            self.process = Some(self.server.spawn(self.port.address(), &self.folder)?);
        }
        // Any answer shows that it is ready, also that the request has no signature.
        self.wait("answer", |address| http::request(&address.to_string(), "GET", "/", "", b"").is_ok())
    }

    /// Writes a command to a server that keeps its objects in memory.
    fn command(&mut self, command: &str) -> Result<()> {
        let input = self.process.as_mut().and_then(|process| process.stdin.as_mut());
        let input = input.with_context(|| format!("no process to {command}"))?;
        writeln!(input, "{command}").with_context(|| format!("cannot {command} {:?}", self.server))
    }

    /// Waits until the server at this address is in the wanted state.
    fn wait(&mut self, wanted: &str, is_reached: impl Fn(SocketAddr) -> bool) -> Result<()> {
        let (began, address) = (Instant::now(), self.port.address());
        while !is_reached(address) {
            let has_ended = self.process.as_mut().is_some_and(|process| !matches!(process.try_wait(), Ok(None)));
            if has_ended || began.elapsed() > START {
                let log = fs::read_to_string(server::log(&self.folder)).unwrap_or_default();
                bail!("{:?} at {address} does not {wanted}: {log}", self.server);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = (process.kill(), process.wait());
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Why there is no bucket on this machine; `None` if there is one.
pub fn missing() -> Option<String> {
    Server::installed().is_empty().then(|| format!("no S3 server is installed ({INSTALLER} installs it)"))
}

/// Ensures that a server is installed.
pub fn ensure() -> Result<()> {
    if missing().is_none() {
        return Ok(());
    }
    process::check(Command::new(paths::root().join(INSTALLER)).current_dir(paths::root()))
}
