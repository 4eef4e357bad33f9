//! Published ports: `[[IP:][HOSTPORT]:]CONTAINERPORT[/PROTOCOL]`, as Podman parses them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most ports of one option. Each is an open socket of the keeper, which has at least 1024 descriptors, or an argument of pasta.
const MOST_PORTS: usize = 256;

const FORM: &str = "expected [[IP:][HOSTPORT]:]CONTAINERPORT[/tcp|/udp]";

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The address of the host; `None`: all of them.
    pub host_ip: Option<IpAddr>,
    /// The port of the host; 0 until a free one was chosen.
    pub host_port: u16,
    /// The port of the container.
    pub container_port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl Port {
    /// Where it is reserved on the host.
    pub(super) fn host(&self) -> SocketAddr {
        SocketAddr::new(self.host_ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), self.host_port)
    }
}

/// As `podman ps` shows it: `0.0.0.0:8080->80/tcp`.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}/{}", self.host(), self.container_port, self.protocol.name())
    }
}

/// The ports of one option: one, or a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish(Vec<Port>);

impl Publish {
    /// The ports.
    pub fn ports(&self) -> &[Port] {
        &self.0
    }
}

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ports, protocol) = match text.rsplit_once('/') {
            None => (text, Protocol::Tcp),
            Some((ports, "tcp")) => (ports, Protocol::Tcp),
            Some((ports, "udp")) => (ports, Protocol::Udp),
            Some((_, other)) => return Err(format!("{other:?} is neither tcp nor udp")),
        };
        let (ip, host, container) = parts(ports)?;
        let host_ip = match ip {
            None | Some("") => None,
            Some(ip) => Some(ip.parse().map_err(|_| format!("{ip:?} is no IP address"))?),
        };
        let (first, count) = range(container)?;
        if first == 0 {
            return Err("a container has no port 0".to_owned());
        }
        let first_of_host = match host {
            None | Some("") => None,
            Some(host) => {
                let (first, host_count) = range(host)?;
                if host_count != count {
                    return Err(format!("{host_count} ports of the host cannot be {count} ports of the container"));
                }
                Some(first).filter(|first| *first != 0)
            }
        };
        let port = |at: u16| Port {
            host_ip,
            host_port: first_of_host.map_or(0, |first| first + at),
            container_port: first + at,
            protocol,
        };
        Ok(Self((0..count).map(port).collect()))
    }
}

/// The address, the ports of the host and those of the container.
fn parts(text: &str) -> Result<(Option<&str>, Option<&str>, &str), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, rest) = rest.split_once("]:").ok_or(FORM)?;
        let (host, container) = rest.split_once(':').ok_or(FORM)?;
        return Ok((Some(ip), Some(host), container));
    }
    match *text.split(':').collect::<Vec<_>>() {
        [container] => Ok((None, None, container)),
        [host, container] => Ok((None, Some(host), container)),
        [ip, host, container] => Ok((Some(ip), Some(host), container)),
        _ => Err(FORM.to_owned()),
    }
}

/// The first port and the number of ports.
fn range(text: &str) -> Result<(u16, u16), String> {
    let number = |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is no port: {FORM}"));
    let (first, last) = match text.split_once('-') {
        None => (number(text)?, number(text)?),
        Some((first, last)) => (number(first)?, number(last)?),
    };
    let count = last.checked_sub(first).ok_or_else(|| format!("{text}: the last port is before the first one"))?;
    if usize::from(count) >= MOST_PORTS {
        return Err(format!("{text} has more than {MOST_PORTS} ports"));
    }
    Ok((first, count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<Vec<String>, String> {
        text.parse().map(|publish: Publish| publish.ports().iter().map(Port::to_string).collect())
    }

    #[test]
    fn ports_are_written_as_for_podman() {
        for (text, expected) in [
            ("8080:80", "0.0.0.0:8080->80/tcp"),
            ("80", "0.0.0.0:0->80/tcp"),
            (":80", "0.0.0.0:0->80/tcp"),
            ("0:80", "0.0.0.0:0->80/tcp"),
            ("53:53/udp", "0.0.0.0:53->53/udp"),
            ("127.0.0.1:8080:80/tcp", "127.0.0.1:8080->80/tcp"),
            ("127.0.0.1::80", "127.0.0.1:0->80/tcp"),
            ("[::1]:8080:80", "[::1]:8080->80/tcp"),
        ] {
            assert_eq!(shown(text), Ok(vec![expected.to_owned()]), "{text}");
        }
    }

    #[test]
    fn a_range_is_several_ports() {
        let expected = ["0.0.0.0:8000->80/udp", "0.0.0.0:8001->81/udp"].map(str::to_owned).to_vec();
        assert_eq!(shown("8000-8001:80-81/udp"), Ok(expected));
        assert_eq!(shown("65535:1").unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_port_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "no port"),
            ("http", "no port"),
            ("8080:", "no port"),
            ("8080:0", "port 0"),
            ("70000:80", "no port"),
            ("8080:80/sctp", "neither tcp nor udp"),
            ("host:8080:80", "no IP address"),
            ("1.2.3.4:5:6:7", "expected"),
            ("[::1]:80", "expected"),
            ("8000-8002:80", "cannot be 1 ports"),
            ("9-8:9-8", "before the first"),
            ("1-65535:1-65535", "more than 256"),
        ] {
            let error = shown(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
