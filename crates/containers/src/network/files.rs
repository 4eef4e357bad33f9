//! `/etc/hosts` and `/etc/resolv.conf` of a container with a network of its own.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// An address that pasta answers with the resolver of the host, where containers cannot reach that resolver: as with Podman.
pub(super) const FORWARDED: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The names of the host in a container, of Podman and of Docker.
const HOST_NAMES: &str = "host.containers.internal host.docker.internal";

/// An address beyond the host's own networks (RFC 5737), to find out which one of the host's addresses leads there. Nothing is sent to it.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// The content of `/etc/hosts`: the host's own names that are valid in the container, the container's `names`, and those of the host.
pub(super) fn hosts(of_host: &str, address: Ipv4Addr, names: &[&str], host: Option<IpAddr>) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    text += &format!("{address} {}\n", names.join(" "));
    if let Some(host) = host {
        text += &format!("{host} {HOST_NAMES}\n");
    }
    for line in of_host.lines() {
        let address = line.split_whitespace().next().and_then(|word| word.parse::<IpAddr>().ok());
        if address.is_some_and(|address| !address.is_loopback()) {
            text += &format!("{line}\n");
        }
    }
    text
}

/// The content of `/etc/resolv.conf`: that of the host without resolvers of its loopback interface, which the container cannot reach. If
/// there are no others, `forwarded` takes their place.
pub(super) fn resolvers(of_host: &str, forwarded: Option<Ipv4Addr>) -> String {
    let is_local = |line: &str| resolver(line).is_some_and(|address| address.is_loopback());
    let mut text: String = of_host.lines().filter(|line| !is_local(line)).map(|line| format!("{line}\n")).collect();
    if !has_resolver(&text)
        && let Some(address) = forwarded
    {
        text += &format!("nameserver {address}\n");
    }
    text
}

/// Whether a container could use a resolver of this file.
pub(super) fn has_resolver(text: &str) -> bool {
    text.lines().filter_map(resolver).any(|address| !address.is_loopback())
}

fn resolver(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    if words.next() != Some("nameserver") {
        return None;
    }
    // An address may have a zone: fe80::1%eth0.
    words.next()?.split('%').next()?.parse().ok()
}

/// The address of this host by which a container can reach it; `None` without a route.
pub(super) fn host_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(ELSEWHERE).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_host_that_mean_something_else_in_the_container_are_left_out() {
        let of_host = "127.0.0.1 localhost\n127.0.1.1 laptop\n# note\n192.168.1.9 printer\n::1 ip6-localhost\n";
        let text = hosts(of_host, Ipv4Addr::new(10, 89, 255, 2), &["web", "0123"], Some([10, 89, 255, 1].into()));
        assert_eq!(
            text,
            "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n10.89.255.2 web 0123\n\
             10.89.255.1 host.containers.internal host.docker.internal\n192.168.1.9 printer\n"
        );
    }

    #[test]
    fn a_resolver_on_loopback_is_not_one_of_the_container() {
        let stub = "search lan\nnameserver 127.0.0.53\n";
        assert!(!has_resolver(stub));
        assert_eq!(resolvers(stub, None), "search lan\n");
        assert_eq!(resolvers(stub, Some(FORWARDED)), "search lan\nnameserver 169.254.1.1\n");
        let both = "nameserver ::1\nnameserver 192.168.1.1\nnameserver fe80::1%eth0\n";
        assert_eq!(resolvers(both, Some(FORWARDED)), "nameserver 192.168.1.1\nnameserver fe80::1%eth0\n");
    }
}
