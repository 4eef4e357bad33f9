//! Many hosts with Dragonfly as `contrib/dragonfly` configures it. Its programs are in no distribution, so these tests are skipped
//! on most machines: docs/fleet.md describes how to build them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use tarpon_harness::dragonfly::{self, Addresses, Member};
use tarpon_harness::nginx::Nginx;
use tarpon_tests::mirrored::{MirroredHost, Mount};
use tarpon_tests::real;
use tarpon_tests::wire::Wire;
use tempfile::TempDir;

/// Swarms of this process so far, and addresses of each.
static SWARMS: AtomicU8 = AtomicU8::new(0);
const MEMBERS: u8 = 16;

/// A scheduler, a seed peer, and peers of hosts, each at a loopback address of its own.
struct Swarm {
    peers: Vec<Member>,
    _seed: Member,
    scheduler: Member,
    _folder: TempDir,
}

impl Swarm {
    fn of(hosts: u8, registry: &str) -> Self {
        let work = real::scratch().unwrap();
        let folder = |name: &str| {
            let folder = work.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            folder
        };
        // The ports of Dragonfly are fixed, so each swarm has addresses of its own.
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let first = SWARMS.fetch_add(1, Ordering::Relaxed) * MEMBERS;
        let addresses = |member: u8| {
            let address = Ipv4Addr::new(127, high | 1, low, first + member);
            Addresses { address, local: address }
        };
        let at = addresses(1).address;
        let scheduler = Member::scheduler(addresses(1), &folder("scheduler")).unwrap();
        let seed = Member::seed(addresses(2), at, &folder("seed")).unwrap();
        let peer = |host| Member::host(addresses(host + 3), at, registry, &folder(&format!("host-{host}"))).unwrap();
        Self { peers: (0..hosts).map(peer).collect(), _seed: seed, scheduler, _folder: work }
    }

    /// A host that has the peer of this number, with the shipped file of endpoints.
    fn host(&self, number: usize, registry: &str, source: &str) -> MirroredHost {
        let text = dragonfly::endpoints("images.example", &self.peers[number].address(), source).unwrap();
        MirroredHost::with_endpoints(registry, &text)
    }
}

fn is_skipped() -> bool {
    let missing = real::missing().or_else(dragonfly::missing);
    if let Some(reason) = &missing {
        eprintln!("skipped: {reason}");
    }
    missing.is_some()
}

/// What the registry sent while this many hosts started the image at the same time with a new swarm in front of a new cache.
fn egress(hosts: u8, expected: &Mount, registry: &str) -> u64 {
    let (wire, folder) = (Wire::to(registry).unwrap(), real::scratch().unwrap());
    let cache = Nginx::cache(&wire.address(), folder.path()).unwrap();
    let swarm = Swarm::of(hosts, &cache.address());
    let host = |number: u8| swarm.host(number.into(), &wire.address(), &cache.address());
    let all: Vec<_> = (0..hosts).map(host).collect();
    let start = |host: &MirroredHost| {
        let mount = host.mount("base:zstdchunked", &[]);
        mount.check("usr/bin", expected);
        mount
    };
    // The mounts stay until it was asked where their bytes are from.
    let _mounts: Vec<Mount> = thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|host| scope.spawn(move || start(host))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (host, peer) in all.iter().zip(&swarm.peers) {
        let status = host.tarpon.status().unwrap();
        assert_eq!(status[0]["endpoints"][0]["endpoint"], peer.address(), "{status}");
        assert!(status[0]["endpoints"][0]["bytes"].as_u64() > Some(100_000), "{status}");
    }
    wire.bytes()
}

#[test]
fn hosts_with_dragonfly_in_front_of_a_cache_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let plain = MirroredHost::new(&registry, &registry);
    let expected = plain.mount_plain(&registry);
    let one = egress(1, &expected, &registry);
    let all = egress(4, &expected, &registry);
    println!("the registry sent {one} bytes for one host and {all} for 4");
    assert!(all * 10 <= one * 11, "{all} bytes for 4 hosts, {one} for one");
}

#[test]
fn a_peer_that_dies_during_reads_costs_no_error() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let wire = Wire::to(&registry).unwrap();
    let mut swarm = Swarm::of(1, &wire.address());
    let host = swarm.host(0, &wire.address(), &wire.address());
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    let status = host.tarpon.status().unwrap();
    assert_eq!(status[0]["endpoints"][0]["endpoint"], swarm.peers[0].address(), "{status}");
    assert!(status[0]["endpoints"][0]["bytes"].as_u64() > Some(100_000), "{status}");
    swarm.peers[0].kill();
    mount.check("usr/sbin", &expected);
}

#[test]
fn a_scheduler_that_dies_during_reads_costs_no_error() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let wire = Wire::to(&registry).unwrap();
    let mut swarm = Swarm::of(1, &wire.address());
    let host = swarm.host(0, &wire.address(), &wire.address());
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    swarm.scheduler.kill();
    mount.check("usr/sbin", &expected);
}
