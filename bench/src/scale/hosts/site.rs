//! The hosts, and the machines of caches and tiers beside them: network namespaces on one bridge, behind the slow link.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use tarpon_harness::bridge::{Bridge, Machine};
use tarpon_harness::packages::{Tool, tool};

use crate::link_end::Here;
use crate::scale::engine::CACHES;

/// The links of all machines, each way.
const RATE: &str = "1gbit";

/// What the network needs.
pub(super) const TOOLS: [Tool; 2] = [tool("ip", "iproute2"), tool("tc", "iproute2")];

pub(super) struct Site {
    pub(super) hosts: Vec<Machine>,
    /// Those of caches. The first is also that of a tier, and of Dragonfly's scheduler; the second that of its seed peer.
    pub(super) beside: Vec<Machine>,
}

impl Site {
    pub(super) fn new(here: &Here, hosts: u64) -> Result<Self> {
        let other_end: Ipv4Addr = here.host.parse().context("the other end of the link has no address")?;
        let mut bridge = Bridge::new(other_end)?;
        let hosts = (0..hosts).map(|_| bridge.attach(RATE)).collect::<Result<_>>()?;
        let beside = (0..CACHES).map(|_| bridge.attach(RATE)).collect::<Result<_>>()?;
        Ok(Self { hosts, beside })
    }

    /// Bytes that the first hosts have received and sent.
    pub(super) fn carried(&self, hosts: usize) -> Result<u64> {
        self.hosts.iter().take(hosts).try_fold(0, |sum, host| {
            let traffic = host.traffic()?;
            Ok(sum + traffic.received + traffic.sent)
        })
    }
}
