//! [`Bridge`]: machines on one network. Each is a namespace with a link to a bridge in the caller's namespace, which is their router.
//!
//! ```text
//!   namespace of a machine                        namespace of the caller
//!   eth0 10.231.N.130 ── veth, with a rate each way ── port ─ bridge 10.231.N.129 ── 10.231.N.2, the slow link
//! ```
//!
//! The machines have the upper half of the addresses behind the slow link, whose other end therefore reaches them as it is. Links of
//! machines have a rate and no delay: the kernel may lack `netem`, and the shaper of the slow link, which copies each packet twice,
//! would take the processors of the machines.
//!
//! No cleanup is needed: the kernel removes the devices with the namespaces.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::link::device::{Traffic, traffic};
use crate::namespace::Namespace;
use crate::process;

const BRIDGE: &str = "tarpon-bridge";

/// The address of the bridge in the network of the link; those of the machines follow. 255 is for broadcasts.
const FIRST: u8 = 129;
const MACHINES: u8 = 254 - FIRST;
/// Half of the network: 128 to 255.
const PREFIX: u8 = 25;

/// What may leave a link at once, in bytes: more than one packet, which the kernel cuts late, up to 64 KiB.
const BURST: &str = "128kb";
/// How long a packet may wait for a link before it is dropped.
const QUEUE: &str = "50ms";

/// The bridge. It is in the namespace in which it was made.
pub struct Bridge {
    /// The network of the slow link.
    network: [u8; 3],
    machines: u8,
}

/// A machine on the bridge.
pub struct Machine {
    /// Its namespace.
    pub namespace: Namespace,
    address: Ipv4Addr,
    port: String,
}

impl Bridge {
    /// Makes a bridge behind the slow link whose other end has this address.
    pub fn new(other_end: Ipv4Addr) -> Result<Self> {
        let [a, b, c, _] = other_end.octets();
        ip(&["link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0"])?;
        quiet(BRIDGE)?;
        let bridge = Self { network: [a, b, c], machines: 0 };
        ip(&["addr", "add", &format!("{}/{PREFIX}", bridge.address(0)), "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot make a router")?;
        // Where it exists, frames between machines would pass the packet filter.
        let filter = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        if fs::exists(filter)? {
            fs::write(filter, "0").context("cannot set up the bridge")?;
        }
        Ok(bridge)
    }

    /// Adds a machine, with a link of this rate, such as `1gbit`.
    pub fn attach(&mut self, rate: &str) -> Result<Machine> {
        if self.machines == MACHINES {
            bail!("{MACHINES} machines are on the bridge already");
        }
        self.machines += 1;
        let (namespace, port) = (Namespace::new()?, format!("tarpon-port{}", self.machines));
        let (address, router) = (self.address(self.machines), self.address(0).to_string());
        ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace.path()])?;
        ip(&["link", "set", &port, "master", BRIDGE])?;
        limit(&port, rate)?;
        namespace.run(|| -> Result<()> {
            ip(&["addr", "add", &format!("{address}/{PREFIX}"), "dev", "eth0"])?;
            limit("eth0", rate)?;
            ip(&["route", "add", "default", "via", &router])
        })??;
        Ok(Machine { namespace, address, port })
    }

    /// The address of a machine; 0 is the bridge.
    fn address(&self, machine: u8) -> Ipv4Addr {
        let [a, b, c] = self.network;
        Ipv4Addr::new(a, b, c, FIRST + machine)
    }
}

impl Machine {
    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What its link has carried. Called in the namespace of the bridge.
    pub fn traffic(&self) -> Result<Traffic> {
        let devices = fs::read_to_string("/proc/thread-self/net/dev").context("cannot see the devices")?;
        let of_port = traffic(&devices, &self.port).with_context(|| format!("{} does not exist", self.port))?;
        // What the port sends, the machine receives.
        Ok(Traffic { received: of_port.sent, sent: of_port.received })
    }
}

/// Brings a device up that sends at this rate at most.
fn limit(device: &str, rate: &str) -> Result<()> {
    quiet(device)?;
    let shape = ["qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", BURST, "latency", QUEUE];
    process::check(Command::new("tc").args(shape))?;
    ip(&["link", "set", device, "up"])
}

/// Without a link-local address, whose solicitations would be counted as traffic.
fn quiet(device: &str) -> Result<()> {
    ip(&["link", "set", device, "addrgenmode", "none"])
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::check(Command::new("ip").args(arguments))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::packages;

    #[test]
    fn machines_reach_each_other_at_the_rate_of_their_links() {
        if !packages::is_root() || process::find("tc").is_none() {
            println!("skipped: a bridge needs root and the program tc");
            return;
        }
        // The bridge is in a namespace of its own, too.
        Namespace::new().unwrap().run(transfer).unwrap();
    }

    /// Sends 2 MB from one machine to another, of which one has 40 Mbit/s: that takes 0.4 s.
    fn transfer() {
        const BYTES: usize = 2_000_000;
        let mut bridge = Bridge::new(Ipv4Addr::new(10, 231, 254, 1)).unwrap();
        let (fast, slow) = (bridge.attach("1gbit").unwrap(), bridge.attach("40mbit").unwrap());
        assert_eq!((fast.address().octets()[3], slow.address().octets()[3]), (130, 131));
        let listener = slow.namespace.run(|| TcpListener::bind((slow.address(), 0))).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
            (all.len(), Instant::now())
        });
        let began = Instant::now();
        let mut sender = fast.namespace.run(|| TcpStream::connect(address)).unwrap().unwrap();
        sender.write_all(&vec![7; BYTES]).unwrap();
        drop(sender);
        let (received, ended) = reader.join().unwrap();
        let (took, carried) = ((ended - began).as_secs_f64(), slow.traffic().unwrap());
        assert!(received == BYTES && took > 0.3, "{took} s");
        assert!(carried.received > BYTES as u64 && carried.sent < carried.received / 10, "{carried:?}");
        assert!(fast.traffic().unwrap().sent > BYTES as u64);
    }

    #[test]
    fn addresses_are_those_of_the_upper_half_of_the_network() {
        let bridge = Bridge { network: [10, 231, 7], machines: 0 };
        assert_eq!(bridge.address(0).to_string(), "10.231.7.129");
        assert_eq!(bridge.address(MACHINES).to_string(), "10.231.7.254");
    }
}
