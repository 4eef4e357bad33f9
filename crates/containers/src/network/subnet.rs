//! A private subnet that this host does not use.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// 10.89.0.0/16. Podman takes the networks that its users create from the low end.
const FIRST: [u8; 2] = [10, 89];

/// The number of its gateway.
const GATEWAY: u8 = 1;

/// The numbers that containers can have.
const HOSTS: std::ops::RangeInclusive<u8> = 2..=254;

/// A subnet of 256 addresses: 10.89.N.0/24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Subnet(u8);

impl Subnet {
    /// The number of bits of its prefix.
    pub(super) const BITS: u8 = 24;

    /// The last one that no interface of this host uses, except the interface `own`.
    pub(super) fn free(own: &str) -> Option<Self> {
        // Without a table there are no routes.
        Self::not_in(&std::fs::read_to_string("/proc/net/route").unwrap_or_default(), own)
    }

    fn not_in(table: &str, own: &str) -> Option<Self> {
        let used: Vec<(u32, u32)> = table.lines().skip(1).filter_map(|line| route(line, own)).collect();
        (0..=u8::MAX).rev().map(Self).find(|subnet| !used.iter().any(|route| subnet.overlaps(*route)))
    }

    fn at(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(FIRST[0], FIRST[1], self.0, host)
    }

    fn overlaps(self, (network, mask): (u32, u32)) -> bool {
        let common = mask & (u32::MAX << (32 - u32::from(Self::BITS)));
        // The default route leads everywhere, and hides nothing.
        mask != 0 && network & common == u32::from(self.at(0)) & common
    }

    /// As `10.89.255.0/24`.
    pub(super) fn prefix(self) -> String {
        format!("{}/{}", self.at(0), Self::BITS)
    }

    pub(super) fn gateway(self) -> Ipv4Addr {
        self.at(GATEWAY)
    }

    /// The addresses for containers.
    pub(super) fn addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        HOSTS.map(move |host| self.at(host))
    }
}

/// The network and the mask of a line of `/proc/net/route`, where both are numbers in the memory's order of bytes.
fn route(line: &str, own: &str) -> Option<(u32, u32)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok().map(u32::from_be);
    if *fields.first()? == own { None } else { Some((number(1)?, number(7)?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    /// A line of the table on a machine with this order of bytes.
    fn line(interface: &str, network: [u8; 4], mask: [u8; 4]) -> String {
        let number = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        format!("{interface}\t{}\t00000000\t0001\t0\t0\t0\t{}\t0\t0\t0\n", number(network), number(mask))
    }

    fn chosen(lines: &[String]) -> Option<String> {
        Subnet::not_in(&(HEAD.to_owned() + &lines.concat()), "tarpon0").map(Subnet::prefix)
    }

    #[test]
    fn a_subnet_is_taken_that_no_other_interface_has() {
        let default = line("eth0", [0; 4], [0; 4]);
        let local = line("eth0", [192, 168, 1, 0], [255, 255, 255, 0]);
        assert_eq!(chosen(&[]).as_deref(), Some("10.89.255.0/24"));
        assert_eq!(chosen(&[default.clone(), local]).as_deref(), Some("10.89.255.0/24"));
        let own = line("tarpon0", [10, 89, 255, 0], [255, 255, 255, 0]);
        assert_eq!(chosen(&[own]).as_deref(), Some("10.89.255.0/24"));
        let podman = line("podman1", [10, 89, 255, 0], [255, 255, 255, 0]);
        assert_eq!(chosen(&[default, podman]).as_deref(), Some("10.89.254.0/24"));
        let host = line("tun0", [10, 89, 255, 7], [255; 4]);
        assert_eq!(chosen(&[host]).as_deref(), Some("10.89.254.0/24"));
        let half = line("tun0", [10, 89, 128, 0], [255, 255, 128, 0]);
        assert_eq!(chosen(&[half]).as_deref(), Some("10.89.127.0/24"));
        let all = line("tun0", [10, 0, 0, 0], [255, 0, 0, 0]);
        assert_eq!(chosen(&[all]), None);
    }

    #[test]
    fn the_gateway_is_not_an_address_of_a_container() {
        let subnet = Subnet(7);
        assert_eq!(subnet.gateway().to_string(), "10.89.7.1");
        assert_eq!(subnet.addresses().next().unwrap().to_string(), "10.89.7.2");
        assert_eq!(subnet.addresses().last().unwrap().to_string(), "10.89.7.254");
    }
}
