//! The network of root's containers: a bridge, made by netavark, the program by which Podman connects its containers.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::leases::{Lease, Leases};
use super::namespace::Namespace;
use super::publish::Port;
use super::subnet::Subnet;
use crate::program;
use crate::{Error, ErrorKind, Result, ResultExt};

const STEP: &str = "connect the container's network by netavark";

/// The network and its interface on the host.
const NETWORK: &str = "tarpon";
const INTERFACE: &str = "tarpon0";

/// An ID of 64 digits, from which netavark derives the names of its chains: the name of the network in ASCII.
const NETWORK_ID: &str = "746172706f6e0000000000000000000000000000000000000000000000000000";

/// Where distributions install it (containers.conf(5), `helper_binaries_dir`).
const FOLDERS: [&str; 5] = [
    "/usr/local/libexec/podman",
    "/usr/local/lib/podman",
    "/usr/libexec/podman",
    "/usr/lib/podman",
    "/usr/lib/netavark",
];

/// A container on the bridge.
pub(super) struct Bridged {
    pub(super) address: Ipv4Addr,
    pub(super) gateway: Ipv4Addr,
}

/// Whether netavark is installed.
pub(super) fn is_installed() -> bool {
    program::find("netavark", &FOLDERS).is_some()
}

/// # Errors
/// This user has no bridges, or netavark is missing.
pub(super) fn find() -> Result<PathBuf> {
    if !rustix::process::geteuid().is_root() || tarpon_store::in_user_namespace() {
        let error = Error::new(ErrorKind::CannotMount, STEP, "a bridge needs root of the host");
        return Err(error.hint("--network pasta works without root"));
    }
    program::find("netavark", &FOLDERS).ok_or_else(|| {
        let error = Error::new(ErrorKind::CannotMount, STEP, "netavark is not installed");
        error.hint("install the package netavark, or use --network pasta (package passt)")
    })
}

/// Connects the container, and remembers it. `folder`: its directory.
pub(super) fn connect(id: &str, name: &str, folder: &Path, namespace: &Path, ports: &[Port]) -> Result<Bridged> {
    let netavark = find()?;
    if let Some(port) = ports.iter().find(|port| port.host_ip.is_some_and(|ip| ip.is_ipv6())) {
        let error = Error::new(ErrorKind::Refused, STEP, format!("{port}: the bridge has no IPv6"));
        return Err(error.hint("--network pasta publishes IPv6 addresses"));
    }
    let mut leases = leases()?;
    remove_ended(&netavark, &mut leases);
    let no_subnet = || Error::new(ErrorKind::Other, STEP, "this host uses all of 10.89.0.0/16 otherwise");
    let subnet = leases.subnet().or_else(|| Subnet::free(INTERFACE)).ok_or_else(no_subnet)?;
    let no_address = || Error::new(ErrorKind::Other, STEP, format!("{} has no free address", subnet.prefix()));
    let address = leases.free(subnet).ok_or_else(no_address)?;
    let lease = Lease {
        id: id.to_owned(),
        name: name.to_owned(),
        folder: folder.to_owned(),
        namespace: namespace.to_owned(),
        address,
        ports: ports.to_vec(),
    };
    leases.add(subnet, lease.clone()).context(ErrorKind::Store, STEP)?;
    ask(&netavark, "setup", namespace, &describe(subnet, &lease))?;
    Ok(Bridged { address, gateway: subnet.gateway() })
}

/// Disconnects the container with this ID, if it was connected.
pub(super) fn disconnect(id: &str) -> Result<()> {
    let mut leases = leases()?;
    let Some(lease) = leases.of(id).cloned() else { return Ok(()) };
    remove(&find()?, &mut leases, &lease)
}

/// Disconnects containers whose directories are gone: their stores were removed, or their records could not be read.
pub(super) fn recover() -> Result<()> {
    let mut leases = leases()?;
    if !leases.all().is_empty() {
        remove_ended(&find()?, &mut leases);
    }
    Ok(())
}

fn leases() -> Result<Leases> {
    Leases::of_this_machine().context(ErrorKind::Store, "open the addresses of containers")
}

fn remove_ended(netavark: &Path, leases: &mut Leases) {
    for lease in leases.all().to_vec() {
        if !lease.folder.exists()
            && let Err(error) = remove(netavark, leases, &lease)
        {
            tracing::warn!(%error, "parts of a container's network remain");
        }
    }
}

fn remove(netavark: &Path, leases: &mut Leases, lease: &Lease) -> Result<()> {
    let Some(subnet) = leases.subnet() else { return Ok(()) };
    let (namespace, description) = (Namespace::at(&lease.namespace), describe(subnet, lease));
    let mut removed = match tarpon_mount::is_mounted(namespace.path()) {
        true => ask(netavark, "teardown", namespace.path(), &description),
        false => Err(Error::new(ErrorKind::Other, STEP, "the container's network namespace is gone")),
    };
    if removed.is_err() {
        // netavark removes what belongs to a namespace only if it finds its own interface there. It finds what it has just made.
        let other = Namespace::at(&lease.namespace.with_extension("gone"));
        removed = other.make().context(ErrorKind::Other, STEP).and_then(|()| {
            let _removed_by_the_next = ask(netavark, "setup", other.path(), &description);
            ask(netavark, "teardown", other.path(), &description)
        });
        let _gone = other.remove();
    }
    removed?;
    namespace.remove().context(ErrorKind::Other, STEP)?;
    leases.remove(&lease.id).context(ErrorKind::Store, STEP)
}

/// The container and its network, as netavark reads them.
fn describe(subnet: Subnet, lease: &Lease) -> Value {
    let port = |port: &Port| {
        json!({
            "host_ip": port.host_ip.filter(|ip| !ip.is_unspecified()).map_or_else(String::new, |ip| ip.to_string()),
            "host_port": port.host_port,
            "container_port": port.container_port,
            "protocol": port.protocol,
            "range": 1,
        })
    };
    json!({
        "container_id": lease.id,
        "container_name": lease.name,
        "port_mappings": lease.ports.iter().map(port).collect::<Vec<_>>(),
        "networks": { NETWORK: { "interface_name": "eth0", "static_ips": [lease.address], "aliases": [] } },
        "network_info": { NETWORK: {
            "name": NETWORK,
            "id": NETWORK_ID,
            "driver": "bridge",
            "network_interface": INTERFACE,
            "subnets": [{ "subnet": subnet.prefix(), "gateway": subnet.gateway() }],
            "ipv6_enabled": false,
            "internal": false,
            "dns_enabled": false,
            "ipam_options": { "driver": "host-local" },
        } },
    })
}

fn ask(netavark: &Path, what: &str, namespace: &Path, description: &Value) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Failure {
        error: String,
    }
    let failed = |cause: String| Error::new(ErrorKind::Other, STEP, cause);
    let arguments = [what.to_owned(), namespace.display().to_string()];
    let output = program::run(netavark, &arguments, description.to_string().as_bytes());
    let output = output.map_err(|error| failed(format!("{} {what}: {error}", netavark.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let message = serde_json::from_slice(&output.stdout).map(|Failure { error }| error);
    let message = message.unwrap_or_else(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned());
    let line = message.lines().last().unwrap_or_default();
    Err(failed(if line.is_empty() { format!("{what}: {}", output.status) } else { line.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_what_podman_gives() {
        let ports = "127.0.0.1:8080:80".parse::<super::super::publish::Publish>().unwrap();
        let subnet = Subnet::free("").unwrap();
        let lease = Lease {
            id: "0123".to_owned(),
            name: "web".to_owned(),
            folder: "/store/web".into(),
            namespace: "/run/netns/tarpon-0123".into(),
            address: subnet.addresses().next().unwrap(),
            ports: ports.ports().to_vec(),
        };
        let described = describe(subnet, &lease);
        let expected = json!([{
            "host_ip": "127.0.0.1", "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 1
        }]);
        assert_eq!(described["port_mappings"], expected);
        assert_eq!(described["networks"]["tarpon"]["static_ips"][0], lease.address.to_string());
        assert_eq!(described["network_info"]["tarpon"]["subnets"][0]["gateway"], subnet.gateway().to_string());
    }

    #[test]
    fn a_failure_of_netavark_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("netavark");
        let fails = |script: &str| {
            std::fs::write(&program, format!("#!/bin/sh\n{script}\nexit 1\n")).unwrap();
            std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            ask(&program, "setup", Path::new("/ns"), &json!({})).unwrap_err().to_string()
        };
        assert_eq!(fails(r#"echo '{"error":"no nft"}'"#), format!("{STEP}: no nft"));
        assert_eq!(fails("echo trace >&2; echo oops >&2"), format!("{STEP}: oops"));
        assert_eq!(fails(""), format!("{STEP}: setup: exit status: 1"));
    }
}
