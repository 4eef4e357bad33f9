//! Dragonfly: a scheduler and a seed peer on machines of their own, and a peer on each host, which is the host's endpoint.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tarpon_harness::bridge::Machine;
use tarpon_harness::dragonfly::{self, Addresses, Member};

use super::site::Site;
use crate::machine::made;

/// Where hosts find their own peer: the address of contrib/dragonfly.
const PEER: &str = "127.0.0.1:4001";

/// All members. Dropping it ends them.
pub(super) struct Swarm {
    _members: Vec<Member>,
    /// The folder of the hosts' file of endpoints.
    endpoints: PathBuf,
}

impl Swarm {
    /// Starts it, empty, for the first hosts of the site and images of a registry, which it gets from there or from a cache of it.
    /// Everything it keeps is in the folder.
    pub(super) fn start(site: &Site, [registry, source]: [&str; 2], hosts: usize, folder: &Path) -> Result<Self> {
        let endpoints = made(&folder.join("endpoints.d"))?;
        fs::write(endpoints.join("dragonfly.toml"), dragonfly::endpoints(registry, PEER, source)?)
            .context("cannot write the file of endpoints")?;
        let [first, second, ..] = &site.beside[..] else { anyhow::bail!("no machines for Dragonfly") };
        let scheduler = first.address();
        let mut members = vec![
            run(first, &folder.join("scheduler"), Member::scheduler)?,
            run(second, &folder.join("seed"), |addresses, folder| Member::seed(addresses, scheduler, folder))?,
        ];
        for (number, host) in (1..).zip(site.hosts.iter().take(hosts)) {
            let start = |addresses: Addresses, folder: &Path| Member::host(addresses, scheduler, source, folder);
            members.push(run(host, &folder.join(format!("host-{number}")), start)?);
        }
        Ok(Self { _members: members, endpoints })
    }

    /// The folder of the hosts' file of endpoints.
    pub(super) fn endpoints(&self) -> &Path {
        &self.endpoints
    }
}

/// Starts a member on a machine, with a folder of its own.
fn run(
    machine: &Machine,
    folder: &Path,
    start: impl FnOnce(Addresses, &Path) -> Result<Member> + Send,
) -> Result<Member> {
    let (folder, addresses) = (made(folder)?, Addresses { address: machine.address(), local: Ipv4Addr::LOCALHOST });
    machine.namespace.run(|| {
        // The next run starts at once on the same machines, and the ports of peers must not stay taken for the minute of TIME-WAIT.
        fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0").context("cannot free ports at once")?;
        start(addresses, &folder)
    })?
}
