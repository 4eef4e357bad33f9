//! Hosts that share layers through a tier: what the registry sends, and what hosts read when the tier fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use tarpon_harness::bucket::{self, Bucket, Server};
use tarpon_testkit::matrix;
use tarpon_tests::real;
use tarpon_tests::tiered::{Place, SharedImage, TieredHost, read_through, start};
use tarpon_tests::wait::wait_for;
use tarpon_tests::wire::{Behaviour, Wire};
use tempfile::TempDir;

/// What takes longer hangs.
const HUNG: Duration = Duration::from_secs(120);

/// An image of which most requests are for files of a distribution.
fn real_image() -> &'static SharedImage {
    static IMAGE: OnceLock<SharedImage> = OnceLock::new();
    IMAGE.get_or_init(|| SharedImage::real(&real::registry().unwrap()))
}

/// An image whose files are larger than what is fetched at once.
fn made_image() -> &'static SharedImage {
    static IMAGE: OnceLock<SharedImage> = OnceLock::new();
    IMAGE.get_or_init(|| SharedImage::made(&real::registry().unwrap()))
}

fn is_skipped() -> bool {
    let missing = real::missing();
    if let Some(reason) = &missing {
        println!("skipped: {reason}");
    }
    missing.is_some()
}

/// How many hosts start at the same time.
fn crowd() -> usize {
    if matrix::is_full() { 12 } else { 4 }
}

/// An empty folder that hosts share.
struct Shared {
    folder: TempDir,
}

impl Shared {
    fn new() -> Self {
        Self { folder: real::scratch().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn place(&self) -> Place {
        Place::folder(self.path())
    }
}

/// A registry's proxy.
fn wire() -> Wire {
    Wire::to(&real::registry().unwrap()).unwrap()
}

fn hosts(count: usize, wire: &Wire, image: &SharedImage, place: &Place) -> Vec<TieredHost> {
    (0..count).map(|_| TieredHost::new(&wire.address(), image, Some(place))).collect()
}

/// Hosts that start together transfer each layer once, and later ones transfer none.
fn storm(image: &SharedImage, place: &Place, what: &str) {
    let alone = wire();
    start(&[TieredHost::new(&alone.address(), image, None)], image);
    let wire = wire();
    start(&hosts(crowd(), &wire, image, place), image);
    let (one, all) = (alone.bytes(), wire.bytes());
    println!("{what}: the registry sent {one} bytes for one host without a tier and {all} for {} with it", crowd());
    assert!(one >= image.bytes, "{one} bytes");
    assert!(all * 10 <= one * 11, "{all} bytes for {} hosts, {one} for one", crowd());
    assert_eq!(image.requests(&wire), vec![1; image.layers.len()], "each layer is requested once");
    start(&hosts(2, &wire, image, place), image);
    assert_eq!(image.requests(&wire), vec![1; image.layers.len()], "later hosts request no layer");
}

#[test]
fn hosts_that_share_a_folder_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    for image in [real_image(), made_image()] {
        let shared = Shared::new();
        storm(image, &shared.place(), &format!("{}, a folder", image.name));
    }
}

#[test]
fn hosts_that_share_a_bucket_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    if let Some(reason) = bucket::missing() {
        return println!("skipped: {reason}");
    }
    for image in [real_image(), made_image()] {
        let folder = real::scratch().unwrap();
        let bucket = Bucket::start(folder.path()).unwrap();
        storm(image, &Place::bucket(&bucket), &format!("{}, {:?}", image.name, bucket.server()));
    }
}

/// A filled tier, and hosts that have mounted the image through it.
fn mounted(wire: &Wire, place: &Place) -> Vec<TieredHost> {
    let image = made_image();
    TieredHost::new(&real::registry().unwrap(), image, Some(place)).mount();
    let hosts = hosts(crowd(), wire, image, place);
    hosts.iter().for_each(|host| drop(host.mount()));
    assert_eq!(image.requests(wire), vec![0; image.layers.len()], "the tier has the layers");
    hosts
}

/// Lets hosts mount the image and read it. `fault` happens while they stream layers or wait for those who do. Returns what the commands print.
fn prepare_through(hosts: &[TieredHost], wire: &Wire, fault: impl FnOnce()) -> Vec<String> {
    let image = made_image();
    let part = image.bytes / 3;
    wire.behave(Behaviour::SilentAfter(part));
    thread::scope(|scope| {
        let started = scope.spawn(|| start(hosts, image));
        wait_for(HUNG, "layers are streamed", || (wire.bytes() >= part).then_some(()));
        fault();
        wire.behave(Behaviour::Honest);
        started.join().unwrap()
    })
}

fn with_bucket(test: impl FnOnce(Bucket)) {
    match bucket::missing() {
        Some(reason) => println!("skipped: {reason}"),
        None => {
            let folder = real::scratch().unwrap();
            test(Bucket::start(folder.path()).unwrap());
        }
    }
}

#[test]
fn a_bucket_that_goes_away_while_hosts_prepare_costs_no_error() {
    if is_skipped() {
        return;
    }
    with_bucket(|mut bucket| {
        let (image, wire, place) = (made_image(), wire(), Place::bucket(&bucket));
        let notes = prepare_through(&hosts(crowd(), &wire, image, &place), &wire, || bucket.stop().unwrap());
        println!("{notes:#?}");
        bucket.start_again().unwrap();
        let before = image.requests(&wire);
        start(&hosts(2, &wire, image, &place), image);
        let after = image.requests(&wire);
        println!("{before:?} {after:?}");
        start(&hosts(1, &wire, image, &place), image);
        assert_eq!(image.requests(&wire), after, "it has the layers now");
    });
}

#[test]
fn a_bucket_that_goes_away_while_hosts_read_costs_no_error_and_is_used_when_it_returns() {
    if is_skipped() {
        return;
    }
    with_bucket(|mut bucket| {
        let (wire, place) = (wire(), Place::bucket(&bucket));
        let hosts = mounted(&wire, &place);
        let (files, left) = made_image().files.split_at(made_image().files.len() * 3 / 4);
        read_through(&hosts, files, || bucket.stop().unwrap());
        let asked = made_image().requests(&wire);
        assert!(asked.iter().all(|requests| *requests > 0), "{asked:?}");
        bucket.start_again().unwrap();
        for host in &hosts {
            wait_for(HUNG, "the tier does not rest", || {
                host.endpoint("tier")["rest_millis"].as_u64().is_none_or(|rest| rest == 0).then_some(())
            });
            let before = host.counted("tier");
            host.check(left);
            println!("{before:?} {:?}", host.counted("tier"));
            assert!(host.counted("tier").bytes > before.bytes);
        }
        assert_eq!(made_image().requests(&wire), asked);
    });
}

#[test]
fn a_bucket_that_falls_silent_costs_no_error() {
    if is_skipped() {
        return;
    }
    with_bucket(|bucket| {
        let (wire, line) = (wire(), Wire::to(&bucket.address()).unwrap());
        let place = Place::bucket_behind(&bucket, &line);
        let hosts = mounted(&wire, &place);
        read_through(&hosts, &made_image().files, || line.behave(Behaviour::Silent));
        let asked = made_image().requests(&wire);
        assert!(asked.iter().all(|requests| *requests > 0), "{asked:?}");
        let notes = start(&self::hosts(2, &wire, made_image(), &place), made_image());
        println!("{notes:#?}");
    });
}

#[test]
fn a_bucket_that_lies_costs_no_wrong_byte() {
    if is_skipped() {
        return;
    }
    with_bucket(|bucket| {
        let (wire, line) = (wire(), Wire::to(&bucket.address()).unwrap());
        let place = Place::bucket_behind(&bucket, &line);
        let hosts = mounted(&wire, &place);
        read_through(&hosts, &made_image().files, || line.behave(Behaviour::Lying));
        let asked = made_image().requests(&wire);
        assert!(asked.iter().all(|requests| *requests > 0), "{asked:?}");
        println!("{:?}", hosts[0].endpoint("tier"));
        let notes = start(&self::hosts(2, &wire, made_image(), &place), made_image());
        println!("{notes:#?}");
    });
}
