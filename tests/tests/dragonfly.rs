//! Many hosts with Dragonfly as `contrib/dragonfly` configures it. Its programs are in no distribution, so these tests are skipped
//! on most machines: docs/fleet.md describes how to build them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use tarpon_harness::dragonfly::{self, Addresses, Member};
use tarpon_harness::nginx::Nginx;
use tarpon_tests::mirrored::{MirroredHost, Mount, assert_hosts_cost_what_one_costs};
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
    fn of(hosts: usize, registry: &str) -> Self {
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
        let peer =
            |host: u8| Member::host(addresses(host + 3), at, registry, &folder(&format!("host-{host}"))).unwrap();
        Self { peers: (0..MEMBERS).take(hosts).map(peer).collect(), _seed: seed, scheduler, _folder: work }
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
fn egress(hosts: usize, expected: &Mount, registry: &str) -> u64 {
    let (wire, folder) = (Wire::to(registry).unwrap(), real::scratch().unwrap());
    let cache = Nginx::cache(&wire.address(), folder.path()).unwrap();
    let swarm = Swarm::of(hosts, &cache.address());
    let host = |number| swarm.host(number, &wire.address(), &cache.address());
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
    all.iter().zip(&swarm.peers).for_each(|(host, peer)| assert_reads_through(host, peer));
    wire.bytes()
}

/// Checks that the peer is the first endpoint of the host's image, and sent what was read.
fn assert_reads_through(host: &MirroredHost, peer: &Member) {
    let status = host.tarpon.status().unwrap();
    assert_eq!(status[0]["endpoints"][0]["endpoint"], peer.address(), "{status}");
    assert!(status[0]["endpoints"][0]["bytes"].as_u64() > Some(100_000), "{status}");
}

/// Lets a host read with its peer in front of the registry, then something fail, and the host read on.
fn reads_go_on_after(fail: impl FnOnce(&mut Swarm)) {
    let registry = real::registry().unwrap();
    let wire = Wire::to(&registry).unwrap();
    let mut swarm = Swarm::of(1, &wire.address());
    let host = swarm.host(0, &wire.address(), &wire.address());
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    assert_reads_through(&host, &swarm.peers[0]);
    fail(&mut swarm);
    mount.check("usr/sbin", &expected);
}

#[test]
fn hosts_with_dragonfly_in_front_of_a_cache_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    assert_hosts_cost_what_one_costs(4, egress);
}

#[test]
fn a_peer_that_dies_during_reads_costs_no_error() {
    if !is_skipped() {
        reads_go_on_after(|swarm| swarm.peers[0].kill());
    }
}

#[test]
fn a_scheduler_that_dies_during_reads_costs_no_error() {
    if !is_skipped() {
        reads_go_on_after(|swarm| swarm.scheduler.kill());
    }
}
