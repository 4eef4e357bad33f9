//! The bucket of the end-to-end tests does what hosts rely on that share layers in one, with each server that is installed.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Barrier;
use std::thread;

use tarpon_harness::bucket::{self, Bucket, Server};
use tempfile::TempDir;

mod client;

use client::{CREATE, Client};

/// Hosts that write the same object at the same time.
const RACERS: u8 = 16;
const ROUNDS: u32 = 20;
/// The least that a part of an upload has, but for the last.
const PART: usize = 5 << 20;

struct BucketFixture {
    bucket: Bucket,
    client: Client,
    _folder: TempDir,
}

/// Runs a test with each server.
fn with_each_server(test: impl Fn(BucketFixture)) {
    if let Some(reason) = bucket::missing() {
        eprintln!("skipped: {reason}");
    }
    for server in Server::installed() {
        eprintln!("with {server:?}");
        let folder = tempfile::tempdir().unwrap();
        let bucket = Bucket::start_with(server, Ipv4Addr::LOCALHOST, folder.path()).unwrap();
        let client = Client::of(&bucket);
        test(BucketFixture { bucket, client, _folder: folder });
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 251 + at).to_le_bytes()[0]).collect()
}

#[test]
fn of_hosts_that_create_the_same_object_one_succeeds_and_the_object_is_its_own() {
    with_each_server(|BucketFixture { client, .. }| {
        for round in 0..ROUNDS {
            // Small as a lease, and large enough that bodies arrive in several parts.
            let length = if round % 2 == 0 { 1 } else { 300_000 };
            let (key, barrier) = (format!("test/layers/aa/claim-{round}"), Barrier::new(RACERS.into()));
            let race = |racer: u8| {
                let body = vec![racer; length];
                barrier.wait();
                client.put(&key, CREATE, &body)
            };
            let statuses: Vec<u16> = thread::scope(|scope| {
                let racers: Vec<_> = (0..RACERS).map(|racer| scope.spawn(move || race(racer))).collect();
                racers.into_iter().map(|racer| racer.join().unwrap()).collect()
            });
            let winners: Vec<u8> = (0..RACERS).filter(|racer| statuses[usize::from(*racer)] == 200).collect();
            assert_eq!(winners.len(), 1, "{statuses:?}");
            assert!(statuses.iter().all(|status| [200, 409, 412].contains(status)), "{statuses:?}");
            assert_eq!(client.get(&key, "").body, vec![winners[0]; length]);
        }
    });
}

#[test]
fn an_object_that_exists_is_not_created_again() {
    with_each_server(|BucketFixture { client, .. }| {
        assert_eq!(client.put("test/layers/aa/claim-1", CREATE, b"first"), 200);
        assert_eq!(client.put("test/layers/aa/claim-1", CREATE, b"second"), 412);
        assert_eq!(client.get("test/layers/aa/claim-1", "").body, b"first");
        assert_eq!(client.delete("test/layers/aa/claim-1"), 204);
        assert_eq!(client.put("test/layers/aa/claim-1", CREATE, b"third"), 200);
        assert_eq!(client.put("test/layers/aa/claim-1", "", b"fourth"), 200);
        assert_eq!(client.get("test/layers/aa/claim-1", "").body, b"fourth");
    });
}

#[test]
fn a_range_of_an_object_in_parts_is_answered_with_exactly_its_bytes() {
    with_each_server(|BucketFixture { client, .. }| {
        let (key, content) = ("test/layers/aa/blob", pattern(PART + 1_000_000));
        let upload = client.upload(key, &[&content[..PART], &content[PART..]]);
        assert_eq!(client.get(key, "").status, 404, "before all parts are joined");
        client.complete(key, &upload);
        let last = content.len() - 1;
        for (first, end) in [(0, 0), (0, 65_535), (PART - 10, PART + 65_525), (last, last), (last - 9, last + 100)] {
            let answer = client.get(key, &format!("Range: bytes={first}-{end}\r\n"));
            assert_eq!(answer.status, 206);
            assert!(answer.body == content[first..=end.min(last)], "{first}-{end}: {} bytes", answer.body.len());
        }
        assert_eq!(client.get(key, &format!("Range: bytes={}-\r\n", last + 1)).status, 416);
        assert!(client.get(key, "").body == content);
    });
}

#[test]
fn an_aborted_upload_leaves_no_object() {
    with_each_server(|BucketFixture { client, .. }| {
        let upload = client.upload("test/layers/aa/blob", &[b"only"]);
        assert_eq!(client.abort("test/layers/aa/blob", &upload), 204);
        assert_eq!(client.get("test/layers/aa/blob", "").status, 404);
        assert!(client.list("test%2F").is_empty());
    });
}

#[test]
fn an_object_is_listed_from_its_creation_to_its_deletion_and_by_its_prefix_alone() {
    with_each_server(|BucketFixture { client, .. }| {
        assert_eq!(client.put("other/layers/aa/blob", "", b"x"), 200);
        assert_eq!(client.put("test/layers/ab/blob", "", b"x"), 200);
        let mut expected = Vec::new();
        for number in 0..5 {
            let key = format!("test/layers/aa/index-{number}");
            assert_eq!(client.put(&key, CREATE, b"x"), 200);
            expected.push(key);
            assert_eq!(client.list("test%2Flayers%2Faa%2F"), expected);
        }
        for key in expected.split_off(2) {
            assert_eq!(client.delete(&key), 204);
        }
        assert_eq!(client.list("test%2Flayers%2Faa%2F"), expected);
        assert_eq!(client.delete("test/layers/aa/none"), 204);
    });
}

#[test]
fn a_stopped_server_breaks_connections_and_returns_with_its_objects_at_its_address() {
    with_each_server(|BucketFixture { mut bucket, client, .. }| {
        let address = bucket.address();
        for round in 0..3 {
            let key = format!("test/layers/aa/claim-{round}");
            assert_eq!(client.put(&key, CREATE, b"kept"), 200);
            let mut open = TcpStream::connect(&address).unwrap();
            bucket.stop().unwrap();
            assert!(matches!(open.read(&mut [0]), Ok(0) | Err(_)));
            assert_eq!(TcpStream::connect(&address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            bucket.start_again().unwrap();
            assert_eq!(bucket.address(), address);
            assert_eq!(client.get(&key, "").body, b"kept");
            assert_eq!(client.put(&key, CREATE, b"replaced"), 412);
        }
    });
}

#[test]
fn a_bucket_that_is_dropped_serves_no_longer() {
    with_each_server(|BucketFixture { bucket, .. }| {
        let address = bucket.address();
        drop(bucket);
        assert_eq!(TcpStream::connect(&address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn buckets_at_the_same_time_share_nothing() {
    with_each_server(|one| {
        let folder = tempfile::tempdir().unwrap();
        let host = Ipv4Addr::new(127, 0, 0, 2);
        let other = Bucket::start_with(one.bucket.server(), host, folder.path()).unwrap();
        assert!(other.address().starts_with("127.0.0.2:"));
        assert_eq!(one.client.put("test/a", "", b"x"), 200);
        assert_eq!(Client::of(&other).get("test/a", "").status, 404);
    });
}
