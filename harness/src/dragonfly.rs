//! [`Member`]: a scheduler, a seed peer or a host's peer of Dragonfly, with the configurations of `contrib/dragonfly` as they are shipped.
//!
//! Its programs are in no distribution. They are looked for in `$TARPON_DRAGONFLY` and on `$PATH`.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;
use crate::shipped::edited;

const SCHEDULER: &str = include_str!("../../contrib/dragonfly/scheduler.yaml");
const SCHEDULER_DYNCONFIG: &str = include_str!("../../contrib/dragonfly/scheduler-dynconfig.yaml");
const DYNCONFIG: &str = include_str!("../../contrib/dragonfly/dynconfig.yaml");
const SEED: &str = include_str!("../../contrib/dragonfly/seed.yaml");
const HOST: &str = include_str!("../../contrib/dragonfly/dfdaemon.yaml");
const ENDPOINT: &str = include_str!("../../contrib/dragonfly/endpoint.toml");

/// The variable that names the folder of the programs.
const FOLDER: &str = "TARPON_DRAGONFLY";
/// The programs, and what they are part of.
const PROGRAMS: [(&str, &str); 2] =
    [("scheduler", "Go module d7y.io/dragonfly/v2"), ("dfdaemon", "crate dragonfly-client")];

/// The ports of the configurations.
const SCHEDULER_PORT: u16 = 8002;
const PROXY_PORT: u16 = 4001;

/// How long a program may take to listen. A peer first announces itself to the scheduler, and one whose predecessor has ended may find the
/// port of its pieces taken for the minute of TCP's TIME-WAIT: then it ends, and is started again, as systemd would do.
const START: Duration = Duration::from_secs(90);
const TAKEN: &str = "Address already in use";
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why nothing of this can be started here; `None` if it can.
pub fn missing() -> Option<String> {
    let missing: Vec<String> = PROGRAMS
        .iter()
        .filter(|(name, _)| program(name).is_none())
        .map(|(name, origin)| format!("{name} ({origin})"))
        .collect();
    (!missing.is_empty()).then(|| format!("neither ${FOLDER} nor $PATH has {}", missing.join(" and ")))
}

fn program(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(FOLDER).map(|folder| PathBuf::from(folder).join(name)).filter(|file| file.is_file());
    named.or_else(|| process::find(name))
}

/// The addresses at which a member listens.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// For the other members.
    pub address: Ipv4Addr,
    /// For its own machine: 127.0.0.1 where each member is a machine, else an address that no other member has.
    pub local: Ipv4Addr,
}

/// A running program of Dragonfly. Dropping it ends it.
pub struct Member {
    process: Child,
    address: SocketAddr,
}

impl Member {
    /// Starts the scheduler. Everything that it keeps is in the folder, which exists.
    pub fn scheduler(addresses: Addresses, folder: &Path) -> Result<Self> {
        let (address, here) = (addresses.address.to_string(), folder.display().to_string());
        let edits = [
            ("192.0.2.10", &*address),
            ("/var/log/dragonfly-scheduler", &here),
            ("/var/lib/dragonfly-scheduler", &here),
        ];
        let conf = edited(SCHEDULER, &edits)?;
        let mut command = command("scheduler", &written(folder, "scheduler.yaml", &conf)?)?;
        command.arg("--dynconfig").arg(written(folder, "dynconfig.yaml", SCHEDULER_DYNCONFIG)?).env("HOME", folder);
        Self::start(command, SocketAddr::from((addresses.address, SCHEDULER_PORT)), folder)
    }

    /// Starts the seed peer of a scheduler.
    pub fn seed(addresses: Addresses, scheduler: Ipv4Addr, folder: &Path) -> Result<Self> {
        let address = addresses.address.to_string();
        Self::peer(SEED, &[("192.0.2.11", &address)], "-seed", addresses, scheduler, folder)
    }

    /// Starts the peer of a host in front of a cache or a registry at HOST:PORT, which speaks plain HTTP.
    pub fn host(addresses: Addresses, scheduler: Ipv4Addr, source: &str, folder: &Path) -> Result<Self> {
        let (address, source) = (addresses.address.to_string(), format!("addr: http://{source}"));
        let edits = [("192.0.2.20", address.as_str()), ("addr: http://cache.example:5000", &source)];
        Self::peer(HOST, &edits, "", addresses, scheduler, folder)
    }

    fn peer(
        conf: &str,
        edits: &[(&str, &str)],
        suffix: &str,
        addresses: Addresses,
        scheduler: Ipv4Addr,
        folder: &Path,
    ) -> Result<Self> {
        let conf = edited(conf, edits)?;
        let (here, local, scheduler) = (folder.display(), format!("ip: {}", addresses.local), scheduler.to_string());
        let (storage, cache) = (format!("dir: {here}/storage"), format!("cacheDir: {here}/cache"));
        let socket = format!("{here}/dfdaemon.sock");
        let conf = edited(
            &conf,
            &[
                ("ip: 127.0.0.1", &local),
                (&format!("dir: /var/lib/dragonfly{suffix}"), &storage),
                (&format!("cacheDir: /var/cache/dragonfly{suffix}"), &cache),
                (&format!("/run/dragonfly{suffix}/dfdaemon.sock"), &socket),
            ],
        )?;
        let dynconfig = edited(DYNCONFIG, &[("192.0.2.10", &scheduler)])?;
        let mut command = command("dfdaemon", &written(folder, "dfdaemon.yaml", &conf)?)?;
        command.arg("--dynconfig").arg(written(folder, "dynconfig.yaml", &dynconfig)?);
        command.args(["--log-level", "warn", "--console", "--log-dir"]).arg(folder);
        Self::start(command, SocketAddr::from((addresses.local, PROXY_PORT)), folder)
    }

    fn start(mut command: Command, address: SocketAddr, folder: &Path) -> Result<Self> {
        let (name, log, began) = (process::name(&command), folder.join("output"), Instant::now());
        let mut member = Self { process: spawn(&mut command, &log)?, address };
        while TcpStream::connect(address).is_err() {
            let has_ended = member.process.try_wait()?.is_some();
            let output = fs::read_to_string(&log).unwrap_or_default();
            if began.elapsed() > START || has_ended && !output.contains(TAKEN) {
                bail!("{name} does not listen at {address}: {output}");
            }
            thread::sleep(POLL_INTERVAL);
            if has_ended {
                member.process = spawn(&mut command, &log)?;
            }
        }
        Ok(member)
    }

    /// HOST:PORT where it serves: of a peer, its own machine.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _gone = self.process.kill();
        let _ended = self.process.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The shipped file of endpoints for a registry, as images name it, behind a host's peer, and behind what that is in front of.
pub fn endpoints(registry: &str, peer: &str, source: &str) -> Result<String> {
    let prefix = format!("\"{registry}\"");
    edited(ENDPOINT, &[("\"registry.example\"", &prefix), ("127.0.0.1:4001", peer), ("cache.example:5000", source)])
}

fn command(name: &str, conf: &Path) -> Result<Command> {
    let program = program(name).with_context(|| missing().unwrap_or_default())?;
    let mut command = Command::new(program);
    command.arg("--config").arg(conf);
    Ok(command)
}

fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    command.spawn().with_context(|| format!("cannot start {}", process::name(command)))
}

fn written(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let file = folder.join(name);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_endpoints_are_edited_for_their_registry_their_peer_and_their_cache() {
        let text = endpoints("images.example", "127.0.0.9:4001", "10.0.0.9:5000").unwrap();
        for part in ["prefix = \"images.example\"", "\"http://127.0.0.9:4001\"", "\"http://10.0.0.9:5000\""] {
            assert!(text.contains(part), "{text}");
        }
    }
}
