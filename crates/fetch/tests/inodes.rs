//! A kernel that shares one inode of an object among all images and requests each page once, as a naive model. Honest and false
//! images are registered, mounted where that is allowed, read and removed in any order, and no honest one is ever shown a wrong
//! byte or a wrong size.
//!
//! `SEED=17 cargo test -p tarpon-fetch --test inodes` runs one seed.

mod common;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use common::{Random, noise};
use tarpon_fetch::{Config, Fetcher, ImageHandle};
use tarpon_oci::Digest;
use tarpon_testkit::seeds::Seeds;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, Packer, table_of};
use tokio::runtime::Handle;

const PAGE: usize = 1000;
const OBJECTS: usize = 3;

struct Inode {
    size: usize,
    pages: HashMap<usize, Vec<u8>>,
}

/// Where a mount found an object at its first look-up. It does not change afterwards.
#[derive(Clone, Copy)]
enum Found {
    LocalFile,
    SharedInode,
}

struct Mount {
    is_honest: bool,
    found: HashMap<usize, Found>,
}

struct World {
    objects: Vec<(Digest, Vec<u8>)>,
    store: MemoryStore,
    fetcher: Fetcher,
    images: Vec<(ImageHandle, bool)>,
    inodes: HashMap<usize, Inode>,
    mounts: Vec<Mount>,
    shown: u64,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let objects = (0..OBJECTS).map(|_| noise(random.next(), random.index(6000) + 1));
        let objects = objects.map(|bytes| (Digest::of(&bytes), bytes)).collect();
        let store = MemoryStore::default();
        // Fetches only the requested bytes, so that objects stay partly local.
        let config = Config { whole_object_bytes: 0, ..Config::default() };
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), config);
        Self { objects, store, fetcher, images: vec![], inodes: HashMap::new(), mounts: vec![], shown: 0 }
    }

    fn register(&mut self, random: &mut Random) {
        let is_honest = random.below(2) == 0;
        let mut packer = Packer::new([Form::Raw, Form::Zstd][random.index(2)]);
        let chunk = [700, 1000, 10_000][random.index(3)];
        for (name, bytes) in &self.objects {
            let mut content = bytes.clone();
            if !is_honest {
                match random.below(4) {
                    0 => {}
                    1 => content.iter_mut().for_each(|byte| *byte = !*byte),
                    2 => content.push(1),
                    _ => content.truncate(content.len() / 2 + 1),
                }
            }
            let object = packer.object(&content, chunk);
            packer.lie(&object, *name);
        }
        let layer = packer.finish();
        let source = Arc::new(MemorySource::new([layer.bytes.clone()]));
        self.images.push((self.fetcher.add_image(table_of(&[&layer]), source, "any:latest"), is_honest));
    }

    fn mount(&mut self, random: &mut Random) {
        let Some((image, is_honest)) = self.images.get(random.index(self.images.len())) else { return };
        if image.contested_inode().is_none() {
            self.mounts.push(Mount { is_honest: *is_honest, found: HashMap::new() });
        }
    }

    async fn read(&mut self, random: &mut Random) {
        let number = random.index(OBJECTS);
        let (id, bytes) = &self.objects[number];
        let mount = random.index(self.mounts.len());
        let Some(mount) = self.mounts.get_mut(mount) else { return };
        let is_local = self.store.object(id).is_some();
        let first = if is_local { Found::LocalFile } else { Found::SharedInode };
        let Found::SharedInode = *mount.found.entry(number).or_insert(first) else { return };
        let inode = match self.inodes.entry(number) {
            Entry::Occupied(inode) => inode.into_mut(),
            Entry::Vacant(free) => {
                let Some(size) = self.fetcher.hold_inode(id) else { return };
                free.insert(Inode { size: usize::try_from(size).expect("a small number"), pages: HashMap::new() })
            }
        };
        let page = random.index(inode.size.div_ceil(PAGE));
        let (start, end) = (page * PAGE, inode.size.min(page * PAGE + PAGE));
        let shown = match inode.pages.entry(page) {
            Entry::Occupied(page) => page.into_mut(),
            Entry::Vacant(free) => {
                let answer = self.fetcher.read(id, start as u64, (end - start) as u64).await;
                let Some(answer) = answer.ok().filter(|answer| answer.len() == end - start) else { return };
                free.insert(answer.to_vec())
            }
        };
        if mount.is_honest {
            assert_eq!(inode.size, bytes.len(), "a wrong size");
            assert!(*shown == bytes[start..end], "wrong bytes in page {page}");
            self.shown += 1;
        }
    }

    fn forget(&mut self, random: &mut Random) {
        let number = random.index(OBJECTS);
        if self.inodes.remove(&number).is_some() {
            self.fetcher.release_inode(&self.objects[number].0);
            // Its users have to look it up again.
            for mount in &mut self.mounts {
                mount.found.remove(&number);
            }
        }
    }

    fn evict(&mut self, random: &mut Random) {
        // Objects of mounted images stay.
        if self.mounts.is_empty() {
            let (id, _) = &self.objects[random.index(OBJECTS)];
            self.fetcher.close_local(id);
            self.store.evict(id);
        }
    }
}

async fn run(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut world = World::new(&mut random);
    for _ in 0..120 {
        match random.below(16) {
            0 if world.images.len() < 5 => world.register(&mut random),
            1 | 2 => world.mount(&mut random),
            3 => drop((!world.mounts.is_empty()).then(|| world.mounts.swap_remove(random.index(world.mounts.len())))),
            4 => world.forget(&mut random),
            5 => world.evict(&mut random),
            _ => world.read(&mut random).await,
        }
    }
    world.shown
}

#[test]
fn no_correct_image_shows_content_that_another_invented() {
    let (mut shown, mut cases) = (0, 0);
    for seed in Seeds::from_environment(400) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(run(seed))));
        match outcome {
            Ok(pages) => shown += pages,
            Err(panic) => {
                eprintln!("failed with SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
        cases += 1;
    }
    println!("cases: {cases}");
    assert!(cases < 400 || shown > 1000, "honest images were mounted and read: {shown} pages");
}
