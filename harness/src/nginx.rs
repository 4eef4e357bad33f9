//! [`Nginx`]: the configurations of `contrib/nginx`, run as they are shipped.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::ops::Not as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shipped::edited;

const CACHE: &str = include_str!("../../contrib/nginx/tarpon-cache.conf");
const ENTRYPOINT: &str = include_str!("../../contrib/nginx/tarpon-cache-entrypoint");
const BALANCER: &str = include_str!("../../contrib/nginx/tarpon-balancer.conf");

/// How long nginx may take to listen.
const START: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running nginx. Dropping it ends it.
pub struct Nginx {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Nginx {
    /// Starts a cache of the registry at HOST:PORT, which speaks plain HTTP. Everything it keeps is in the folder, which exists.
    pub fn cache(registry: &str, folder: &Path) -> Result<Self> {
        Self::cache_at(free_address()?, registry, folder)
    }

    /// The same at this address of the namespace that this is called in.
    pub fn cache_at(address: SocketAddr, registry: &str, folder: &Path) -> Result<Self> {
        Self::cache_by_at(entrypoint(folder)?, address, registry, folder)
    }

    /// The same by an entry point that may have more variables, or the rights of another user.
    pub fn cache_by(entrypoint: Command, registry: &str, folder: &Path) -> Result<Self> {
        Self::cache_by_at(entrypoint, free_address()?, registry, folder)
    }

    fn cache_by_at(mut entrypoint: Command, address: SocketAddr, registry: &str, folder: &Path) -> Result<Self> {
        entrypoint.env("TARPON_REGISTRY_URL", format!("http://{registry}")).env("TARPON_LISTEN", address.to_string());
        Self::start(entrypoint, address, folder)
    }

    /// Starts a balancer in front of three caches at HOST:PORT each.
    pub fn balancer(caches: [&str; 3], folder: &Path) -> Result<Self> {
        Self::balancer_at(free_address()?, caches, folder)
    }

    /// The same at this address of the namespace that this is called in.
    pub fn balancer_at(address: SocketAddr, caches: [&str; 3], folder: &Path) -> Result<Self> {
        let shipped = ["cache-1.example:5000", "cache-2.example:5000", "cache-3.example:5000"];
        let listen = format!("listen {address}");
        let edits: Vec<_> =
            shipped.into_iter().zip(caches).chain([("listen 127.0.0.1:5001", listen.as_str())]).collect();
        Self::start(nginx(&edited(BALANCER, &edits)?, folder)?, address, folder)
    }

    /// Starts the program, which is to become nginx.
    fn start(mut program: Command, address: SocketAddr, folder: &Path) -> Result<Self> {
        let (errors, pid) = (folder.join("error.log"), folder.join("nginx.pid"));
        let log = File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
        let process = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut nginx = Self { process: process.context("cannot start nginx")?, address, folder: folder.to_owned() };
        let began = Instant::now();
        // It writes the file when it listens. A connection would prove nothing: another program may have taken the port.
        while fs::read_to_string(&pid).is_ok_and(|pid| !pid.is_empty()).not() {
            if began.elapsed() > START || nginx.process.try_wait()?.is_some() {
                let log = fs::read_to_string(&errors).unwrap_or_default();
                bail!("nginx does not listen at {address}: {log}");
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(nginx)
    }

    /// HOST:PORT where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The folder with its files. A cache keeps slices in `tarpon/`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends it as a crash of its machine would.
    pub fn kill(&mut self) {
        let pid = self.process.id().to_string();
        // Its workers are processes of their own, whose parent it is. It dies first: it would replace them.
        let workers = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for process in [pid.as_str()].into_iter().chain(workers.split_whitespace()) {
            // It may have ended by itself.
            let _gone = Command::new("kill").args(["-KILL", process]).stderr(Stdio::null()).status();
        }
        let _ended = self.process.wait();
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The entry point of the container image of the cache, which keeps everything in the folder. Arguments of nginx may follow.
pub fn entrypoint(folder: &Path) -> Result<Command> {
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        anyhow::Ok(file)
    };
    let mut entrypoint = Command::new("sh");
    entrypoint.arg(write("entrypoint", ENTRYPOINT)?).env("TARPON_CACHE_CONF", write("shipped.conf", CACHE)?);
    entrypoint.env("TARPON_CACHE_DIR", folder).env("TARPON_RUN_DIR", folder).env("TARPON_WORKERS", "1");
    // A machine may have no name server.
    entrypoint.env("TARPON_RESOLVER", "127.0.0.53");
    Ok(entrypoint)
}

/// nginx with a configuration for its http context.
fn nginx(conf: &str, folder: &Path) -> Result<Command> {
    let here = folder.display();
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = kinds.iter().map(|kind| format!("{kind}_temp_path {here}/{kind};")).collect();
    let main = format!(
        "worker_processes 1; daemon off; user root; pid {here}/nginx.pid; error_log stderr warn;\n\
         events {{ worker_connections 1024; }}\nhttp {{ access_log off; {temporary}\n{conf}\n}}"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, main).with_context(|| format!("cannot write {}", file.display()))?;
    let mut nginx = Command::new("nginx");
    nginx.arg("-e").arg("stderr").arg("-p").arg(folder).arg("-c").arg(&file);
    Ok(nginx)
}

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?)
}
