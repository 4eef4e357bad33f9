#![allow(clippy::unwrap_used, reason = "tests")]

use std::thread;

use super::*;
use crate::{Store, StoreConfig};

/// Attempts to take the content from a writer that has not recorded its bytes. Each would succeed if it did not hold the content.
const ATTEMPTS: usize = 1000;

#[test]
fn a_small_object_does_not_become_a_file_between_a_write_and_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), StoreConfig { free_floor: Some(0), ..StoreConfig::default() }).unwrap();
    let key = (Digest::of(b"an object"), Digest::of(b"its list"));
    let partial = Partial::new(&store.shared, key, 16, Content::Memory(Mutex::new(vec![0; 16])));
    thread::scope(|scope| {
        let recorded = partial.written.lock();
        let writer = scope.spawn(|| partial.spool_at(b"part", 4));
        let mut bytes = [0; 4];
        while bytes != *b"part" {
            thread::yield_now();
            partial.read_at(&mut bytes, 4).unwrap();
        }
        for _ in 0..ATTEMPTS {
            assert!(partial.content.try_write().is_none(), "the bytes are in memory only");
            thread::yield_now();
        }
        drop(recorded);
        writer.join().unwrap().unwrap();
    });
    partial.persist().unwrap();
    let mut bytes = [0; 4];
    partial.read_at(&mut bytes, 4).unwrap();
    assert_eq!((&bytes, partial.may_hold(4, 4)), (b"part", true));
}
