//! pasta(1) of passt: a process that turns the packets of a namespace into connections of its user, and connections to published ports of
//! the host into packets.
//!
//! The container has an address of its own, not that of the host as pasta does by default: so it reaches services of the host by the host's
//! address. pasta ends when the name of its namespace is removed.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, RawPid, Signal, kill_process};

use super::files::FORWARDED;
use super::namespace::Namespace;
use super::publish::{Port, Protocol};
use super::subnet::Subnet;
use crate::program;
use crate::{Error, ErrorKind, Result};

const STEP: &str = "connect the container's network by pasta";

/// How long pasta may take to end after its namespace is gone, before it is killed.
const ENDING: Duration = Duration::from_secs(5);

/// Names of the program, which chooses a build of itself for the processor.
const NAMES: [&str; 4] = ["pasta", "passt", "pasta.avx2", "passt.avx2"];

/// Lines of pasta that are no reason of a failure: it could not write to the system's journal as well.
const NOISE: [&str; 2] = ["Failed to send", "Don't run as root"];

pub(super) fn find() -> Result<PathBuf> {
    program::find("pasta", &[]).ok_or_else(|| {
        let error = Error::new(ErrorKind::CannotMount, STEP, "pasta is not installed");
        error.hint("install the package passt, or use --network host without -p")
    })
}

/// Starts it, in the background. `forwards_names`: the host's resolver answers at [`FORWARDED`].
pub(super) fn start(namespace: &Namespace, subnet: Subnet, ports: &[Port], forwards_names: bool) -> Result<()> {
    let failed = |cause: String| Error::new(ErrorKind::Other, STEP, cause);
    let arguments = arguments(namespace, subnet, ports, forwards_names);
    let pasta = find()?;
    let output = program::run(&pasta, &arguments, &[]);
    let output = output.map_err(|error| failed(format!("{}: {error}", pasta.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = text.lines().filter(|line| !NOISE.iter().any(|noise| line.starts_with(noise)));
    let error = failed(lines.next_back().map_or_else(|| output.status.to_string(), str::to_owned));
    Err(if text.contains("routable interface") {
        error.hint("pasta needs a network of this host that leads somewhere; without one use --network host")
    } else if text.contains("tun") {
        error.hint(
            "pasta needs /dev/net/tun, which everybody may open on most systems: modprobe tun; chmod 666 /dev/net/tun",
        )
    } else {
        error
    })
}

fn arguments(namespace: &Namespace, subnet: Subnet, ports: &[Port], forwards_names: bool) -> Vec<String> {
    let mut arguments: Vec<String> = ["--config-net", "--quiet", "--no-map-gw"].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    // It would become another user, who may not enter the namespace.
    option("--runas", "0:0".to_owned());
    option("--netns", namespace.path().display().to_string());
    option("--pid", namespace.pasta_pid().display().to_string());
    option("--address", subnet.addresses().next().unwrap_or(subnet.gateway()).to_string());
    option("--netmask", Subnet::BITS.to_string());
    option("--gateway", subnet.gateway().to_string());
    if forwards_names {
        option("--dns-forward", FORWARDED.to_string());
    }
    for (protocol, name) in [(Protocol::Tcp, "--tcp-ports"), (Protocol::Udp, "--udp-ports")] {
        let published: Vec<_> = ports.iter().filter(|port| port.protocol == protocol).collect();
        if published.is_empty() {
            option(name, "none".to_owned());
        }
        for port in published {
            let address = port.host_ip.filter(|ip| !ip.is_unspecified()).map(|ip: IpAddr| format!("{ip}/"));
            option(name, format!("{}{}:{}", address.unwrap_or_default(), port.host_port, port.container_port));
        }
    }
    // Ports of the host that would be ports of the container's loopback interface.
    option("--tcp-ns", "none".to_owned());
    option("--udp-ns", "none".to_owned());
    arguments
}

/// Ends it, after its namespace lost its name.
pub(super) fn stop(namespace: &Namespace) {
    let file = namespace.pasta_pid();
    let process = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<RawPid>().ok());
    // `from_raw` panics for a negative ID.
    let process = process.filter(|process| *process > 0).and_then(Pid::from_raw).filter(|process| is_pasta(*process));
    if let Some(process) = process
        && !program::is_over_within(process, ENDING).unwrap_or(true)
        && is_pasta(process)
    {
        let _gone_just_now = kill_process(process, Signal::KILL);
    }
    let _gone_already = std::fs::remove_file(file);
}

/// Whether the ID was not given to another program since.
fn is_pasta(process: Pid) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero())).unwrap_or_default();
    NAMES.contains(&name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_ports_are_forwarded_and_no_others() {
        let ports: Vec<Port> = ["8080:80", "127.0.0.1:53:5353/udp", "[::1]:8081:81"]
            .iter()
            .flat_map(|text| text.parse::<super::super::publish::Publish>().unwrap().ports().to_vec())
            .collect();
        let subnet = Subnet::free("").unwrap();
        let namespace = Namespace::at("/run/netns/tarpon-0123".as_ref());
        let shown = arguments(&namespace, subnet, &ports, true).join(" ");
        for part in [
            "--netns /run/netns/tarpon-0123 --pid /run/netns/tarpon-0123.pid",
            "--tcp-ports 8080:80 --tcp-ports ::1/8081:81",
            "--udp-ports 127.0.0.1/53:5353",
            "--tcp-ns none --udp-ns none",
            "--dns-forward 169.254.1.1",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let shown = arguments(&namespace, subnet, &[], false).join(" ");
        assert!(shown.contains("--tcp-ports none --udp-ports none") && !shown.contains("dns"), "{shown}");
    }

    #[test]
    fn another_program_with_the_id_of_pasta_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let namespace = Namespace::at(&folder.path().join("tarpon-0123"));
        let own = std::process::id().to_string();
        for text in [own.as_str(), "", "-1", "0", "x"] {
            std::fs::write(namespace.pasta_pid(), text).unwrap();
            stop(&namespace);
            assert!(!namespace.pasta_pid().exists());
        }
    }
}
