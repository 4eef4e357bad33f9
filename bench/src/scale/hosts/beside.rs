//! Caches, Dragonfly or a tier, on machines of their own beside the hosts.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::bucket::Bucket;
use tarpon_harness::nginx::Nginx;
use tarpon_harness::paths;

use super::gluster::{Brick, GlusterMount};
use super::site::Site;
use super::swarm::Swarm;
use crate::machine::{self, made};
use crate::scale::engine::{CACHES, Engine};
use crate::service::unmount_below;

/// The ports of contrib/nginx.
const CACHE: u16 = 5000;
const BALANCER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 5001);

/// What runs beside the hosts. Dropping it ends it.
pub(super) struct Beside {
    caches: Vec<Nginx>,
    /// One on each host.
    balancers: Vec<Nginx>,
    swarm: Option<Swarm>,
    tier: Option<Tier>,
    /// The registries.conf(5) of the hosts.
    configuration: PathBuf,
    folder: PathBuf,
}

enum Tier {
    Folder(PathBuf),
    Bucket(Bucket),
    /// Mounted on each host. The mounts go before the brick.
    Gluster {
        mounts: Vec<GlusterMount>,
        _brick: Brick,
    },
}

impl Beside {
    /// Starts it, empty, for the first hosts of the site.
    pub(super) fn start(engine: Engine, site: &Site, registry: &str, hosts: usize) -> Result<Self> {
        let folder = paths::benchmarks().join("scale-beside");
        // A run that was killed may have left them.
        unmount_below(&folder);
        machine::remove(&folder)?;
        let configuration = made(&folder)?.join("registries.conf");
        let (caches, balancers) = (Vec::new(), Vec::new());
        let mut beside = Self { caches, balancers, swarm: None, tier: None, configuration, folder };
        for machine in site.beside.iter().take(engine.caches()) {
            let folder = made(&beside.folder.join(format!("cache-{}", beside.caches.len())))?;
            let address = SocketAddr::from((machine.address(), CACHE));
            beside.caches.push(machine.namespace.run(|| Nginx::cache_at(address, registry, &folder))??);
        }
        if beside.caches.len() == CACHES {
            beside.balance(site, hosts)?;
        }
        if engine.has_peers() {
            let source = beside.mirror().unwrap_or_else(|| registry.to_owned());
            let folder = made(&beside.folder.join("swarm"))?;
            beside.swarm = Some(Swarm::start(site, [registry, &source], hosts, &folder)?);
        }
        beside.tier = beside.tier(engine, site, hosts)?;
        let text = registries(registry, beside.mirror().as_deref());
        fs::write(&beside.configuration, text)
            .with_context(|| format!("cannot write {}", beside.configuration.display()))?;
        Ok(beside)
    }

    /// Starts a balancer on each host.
    fn balance(&mut self, site: &Site, hosts: usize) -> Result<()> {
        let caches: Vec<String> = self.caches.iter().map(Nginx::address).collect();
        let [one, two, three] = &caches[..] else { return Ok(()) };
        for host in site.hosts.iter().take(hosts) {
            let folder = made(&self.folder.join(format!("balancer-{}", self.balancers.len())))?;
            let start = || Nginx::balancer_at(BALANCER, [one, two, three], &folder);
            self.balancers.push(host.namespace.run(start)??);
        }
        Ok(())
    }

    fn tier(&self, engine: Engine, site: &Site, hosts: usize) -> Result<Option<Tier>> {
        let (folder, machine) =
            (made(&self.folder.join("tier"))?, site.beside.first().context("no machine for a tier")?);
        Ok(match engine {
            Engine::None | Engine::Cache | Engine::ThreeCaches | Engine::Dragonfly | Engine::DragonflyCache => None,
            Engine::Folder => Some(Tier::Folder(folder)),
            Engine::Bucket => {
                let start = || Bucket::start_at(machine.address(), &folder);
                Some(Tier::Bucket(machine.namespace.run(start)??))
            }
            Engine::Gluster => {
                let brick = Brick::start(machine, &folder)?;
                let mount = |(number, host)| brick.mount(host, &made(&self.folder.join(format!("mount-{number}")))?);
                let mounts = (0..).zip(site.hosts.iter().take(hosts)).map(mount).collect::<Result<_>>()?;
                Some(Tier::Gluster { mounts, _brick: brick })
            }
        })
    }

    /// The mirror that the hosts ask.
    fn mirror(&self) -> Option<String> {
        self.balancers.first().or(self.caches.first()).map(Nginx::address)
    }

    /// Lets a `tarpon run` of a host, counted from 0, use it. Returns whether it is a tier, which may have indexes of the layers.
    pub(super) fn configure(&self, command: &mut Command, host: usize) -> Result<bool> {
        command.env("CONTAINERS_REGISTRIES_CONF", &self.configuration);
        command.envs(self.swarm.as_ref().map(|swarm| ("TARPON_ENDPOINTS", swarm.endpoints())));
        let url = match &self.tier {
            None => return Ok(false),
            Some(Tier::Folder(folder)) => folder_url(folder),
            Some(Tier::Bucket(bucket)) => {
                command.envs(bucket.environment());
                bucket.url()
            }
            Some(Tier::Gluster { mounts, .. }) => folder_url(mounts.get(host).context("no mount on this host")?.root()),
        };
        command.args(["--tier", &url]);
        Ok(true)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.balancers.clear();
        self.caches.clear();
        self.swarm = None;
        self.tier = None;
        // The next run removes it otherwise.
        let _left = machine::remove(&self.folder);
    }
}

fn folder_url(folder: &Path) -> String {
    format!("file://{}", folder.display())
}

/// The registries.conf(5) of a registry with this mirror, both without TLS.
fn registries(registry: &str, mirror: Option<&str>) -> String {
    let mut text = format!("[[registry]]\nlocation = '{registry}'\ninsecure = true\n");
    text.extend(mirror.map(|mirror| format!("[[registry.mirror]]\nlocation = '{mirror}'\ninsecure = true\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ask_a_mirror_only_if_there_is_a_cache() {
        assert!(!registries("10.231.0.1:5000", None).contains("mirror"));
        let text = registries("10.231.0.1:5000", Some("127.0.0.1:5001"));
        assert!(text.ends_with("[[registry.mirror]]\nlocation = '127.0.0.1:5001'\ninsecure = true\n"), "{text}");
    }
}
