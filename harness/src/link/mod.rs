//! Runs a command behind a slow network link that is simulated in user space.
//!
//! There are two TUN devices, one here and one in a separate network namespace, with a thread per direction that carries the
//! packets across at a bit rate and with a delay. So handshakes, slow start and queueing are realistic, which no delaying
//! proxy achieves, and the kernel needs no `netem`.
//!
//! ```text
//!   this namespace                                           namespace of the command
//!   10.231.N.1 ── TUN ── read ─► bit rate ─► delay ─► write ── TUN ── 10.231.N.2
//! ```
//!
//! No cleanup is needed: the devices belong to open files and the namespace to its processes, so the kernel removes them
//! when this program ends for any reason.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::packages::{self, tool};
use crate::process;

mod calibrate;
pub mod device;
mod kernel;
mod log;
mod relay;
mod shape;
mod units;

use device::DEVICE;
use log::Log;
use shape::{Counters, Shape};

pub(crate) use kernel::leave_network;

/// The options of `cargo xtask link`.
#[derive(clap::Args)]
pub struct Args {
    /// Bit rate of each direction, such as 100mbit, 1gbit or 512kbit
    #[arg(long, default_value = "100mbit", value_parser = units::rate)]
    rate: u64,
    /// Round trip time that the link adds, such as 10ms
    #[arg(long, default_value = "10ms", value_parser = units::time)]
    rtt: Duration,
    /// Time that a packet may wait in the queue before it is dropped
    #[arg(long, default_value = "60ms", value_parser = units::time)]
    queue: Duration,
    /// Forward $TARPON_LINK_HOST:PORT of the command to 127.0.0.1:PORT of this host
    #[arg(long, value_name = "PORT", default_values_t = [5000])]
    expose: Vec<u16>,
    /// Do not measure the link before the command
    #[arg(long)]
    no_calibration: bool,
    /// Write the traffic statistics to this file, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The command and its arguments. Its environment has $TARPON_LINK_HOST (this end of the link), the measured
    /// $TARPON_LINK_RATE (bits per second, headers included) and $TARPON_LINK_RTT (seconds), and $TARPON_LINK_LOG (a file
    /// with each request over the link)
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs the command behind a link. If the command fails, this process ends with its exit code.
pub fn run(args: &Args) -> Result<()> {
    if !packages::is_root() {
        bail!("a network link is made as root");
    }
    packages::ensure(&[tool("ip", "iproute2")])?;
    let link = Link::up(args)?;
    for port in &args.expose {
        relay::start(&link.host, *port, &link.log)?;
    }
    let status = link.run(args)?;
    link.report(args)?;
    match status.code() {
        Some(0) => Ok(()),
        // This program exits with the code of the command.
        code => std::process::exit(code.unwrap_or(1)),
    }
}

/// A link with an address at each end.
struct Link {
    /// The address of this end.
    host: String,
    /// The address of the command's end.
    client: String,
    to_client: Arc<Counters>,
    to_host: Arc<Counters>,
    /// The log of the requests.
    log: Arc<Log>,
    /// The thread in the namespace of the command.
    inside: kernel::Inside,
}

impl Link {
    fn up(args: &Args) -> Result<Self> {
        let (number, near) = kernel::first_free_device()?;
        let (host, client) = (format!("10.231.{number}.1"), format!("10.231.{number}.2"));
        let inside = kernel::Inside::new()?;
        let far = inside.run(|| kernel::device(DEVICE))??;
        configure(&format!("tarpon-link{number}"), &host)?;
        let address = client.clone();
        inside.run(move || -> Result<()> {
            process::check(Command::new("ip").args(["link", "set", "lo", "up"]))?;
            configure(DEVICE, &address)
        })??;
        let (near, far) = (Arc::new(near), Arc::new(far));
        let shape = Shape { rate: args.rate, delay: args.rtt / 2, queue: args.queue };
        let to_client = shape::carry(near.clone(), far.clone(), shape);
        let to_host = shape::carry(far, near, shape);
        Ok(Self { host, client, to_client, to_host, log: Arc::new(Log::new()?), inside })
    }

    /// Measures the link, then runs the command in the namespace behind it.
    fn run(&self, args: &Args) -> Result<ExitStatus> {
        let mut measured = Vec::new();
        if !args.no_calibration {
            let rtt = calibrate::round_trip(&self.host, &self.inside)?;
            let rate = calibrate::throughput(&self.host, &self.inside)?;
            eprintln!(
                "link: wanted {:.1} Mbit/s and {:.1} ms; measured {:.1} Mbit/s and {:.1} ms to connect",
                args.rate as f64 / 1e6,
                args.rtt.as_secs_f64() * 1e3,
                rate / 1e6,
                rtt.as_secs_f64() * 1e3,
            );
            measured.push(("TARPON_LINK_RATE", rate.to_string()));
            measured.push(("TARPON_LINK_RTT", rtt.as_secs_f64().to_string()));
        }
        forget_metrics(&self.client);
        // Packets of the calibration still in flight must not count for the command.
        thread::sleep(args.queue + args.rtt);
        self.to_client.reset();
        self.to_host.reset();
        measured.push(("TARPON_LINK_HOST", self.host.clone()));
        measured.push(("TARPON_LINK_LOG", self.log.path()));
        let command = args.command.clone();
        self.inside.run(move || execute(&command, &measured))?
    }

    /// Reports the traffic of the link while the command ran.
    fn report(&self, args: &Args) -> Result<()> {
        let (down, up) = (self.to_client.read(), self.to_host.read());
        eprintln!("link: to the command {down}; from the command {up}");
        if let Some(file) = &args.stats {
            let json = format!("{{\"to_command\":{},\"from_command\":{}}}\n", down.json(), up.json());
            fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

/// Sets the address of a device in the current namespace and brings it up.
fn configure(device: &str, address: &str) -> Result<()> {
    process::check(Command::new("ip").args(["addr", "add", &format!("{address}/24"), "dev", device]))?;
    // No link-local address: its solicitations would be counted as traffic.
    process::check(Command::new("ip").args(["link", "set", device, "addrgenmode", "none"]))?;
    process::check(Command::new("ip").args(["link", "set", device, "txqueuelen", "1000", "up"]))
}

/// Deletes what the kernel learned from the calibration; otherwise each connection would start with the congestion
/// window of the previous one.
fn forget_metrics(client: &str) {
    Command::new("ip").args(["tcp_metrics", "flush", client]).stderr(Stdio::null()).status().ok();
}

/// Runs the command in the namespace of the calling thread.
fn execute(command: &[String], link: &[(&str, String)]) -> Result<ExitStatus> {
    fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1").context("cannot set up the namespace")?;
    // The command ends when this program ends for any reason.
    Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--"])
        .args(command)
        .envs(link.iter().map(|(name, value)| (name, value)))
        .status()
        .context("cannot start setpriv")
}
