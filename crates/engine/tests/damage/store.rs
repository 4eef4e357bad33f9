//! An image of many files, a registry that has it, a store, and functions that damage the store.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tarpon_engine::oci::Digest;
use tarpon_engine::{Engine, ImageRequest, Mode, MountStatus, Prepared, Pull, Server};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Image, Item, Layer};
use tarpon_testkit::matrix;

use crate::support::{EngineFixture, Notes, mount_request};

/// Files of the image, each an object of its own.
pub(crate) const FILES: usize = 60;

/// A kind of damage to the files of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    Flip,
    Cut,
    Extend,
    Zero,
    Swap,
    Remove,
}

const DAMAGES: [Damage; 6] = [Damage::Flip, Damage::Cut, Damage::Swap, Damage::Extend, Damage::Zero, Damage::Remove];

/// The kinds of damage to test in a mode: all of them in a full run, otherwise half of them in each.
pub(crate) fn damages(mode: Mode) -> &'static [Damage] {
    let half = if mode == Mode::Native { &DAMAGES[..3] } else { &DAMAGES[3..] };
    if matrix::is_full() { &DAMAGES } else { half }
}

/// A registry that serves the image, and a store to damage.
pub(crate) struct DamageFixture {
    fixture: Fixture,
    pub(crate) notes: Notes,
}

/// File sizes: small ones, some that start as partial files, and some that are read with several requests.
fn size(number: usize) -> usize {
    match number % 12 {
        0 => 200_000 + number,
        1..4 => 70_000 + number,
        _ => 100 + 500 * number,
    }
}

fn content(number: usize) -> Vec<u8> {
    let seed = u8::try_from(number).unwrap();
    (0..size(number)).map(|at| seed ^ u8::try_from(at * 7 % 251).unwrap()).collect()
}

impl std::ops::Deref for DamageFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl DamageFixture {
    pub(crate) async fn new() -> Self {
        let mut items = vec![Item::directory("d")];
        items.extend((0..FILES).map(|number| Item::file(format!("d/{number}"), content(number))));
        let fixture = Fixture::with_image(&Image::of([Layer::estargz(&items)])).await;
        Self { fixture, notes: Notes::default() }
    }

    pub(crate) fn stop_registry(&mut self) {
        self.fixture.stop_registry();
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// An engine as another process opens it.
    pub(crate) fn engine(&self) -> Engine {
        self.fixture.engine("store")
    }

    pub(crate) async fn prepare(&self, engine: &Engine, pull: Pull) -> tarpon_engine::Result<Prepared> {
        engine.prepare(&ImageRequest { pull, ..self.request("app:v1") }, &self.notes).await
    }

    pub(crate) fn point(&self) -> PathBuf {
        self.directory("mnt")
    }

    pub(crate) async fn mount(
        &self,
        engine: &Engine,
        server: &Server,
        mode: Mode,
    ) -> tarpon_engine::Result<MountStatus> {
        self.mount_at(engine, server, mode, &self.point()).await
    }

    pub(crate) async fn mount_at(
        &self,
        engine: &Engine,
        server: &Server,
        mode: Mode,
        point: &Path,
    ) -> tarpon_engine::Result<MountStatus> {
        let prepared = self.prepare(engine, Pull::Missing).await?;
        server.mount(mount_request(&prepared, point, mode)).await
    }

    /// Mounts, reads everything, unmounts: afterwards all objects are local.
    pub(crate) async fn make_local(&self, engine: &Engine, server: &Server, mode: Mode) {
        self.mount(engine, server, mode).await.unwrap();
        assert_eq!(self.wrong().await, (0, 0));
        server.unmount(self.point()).await.unwrap();
        self.wait_for_objects();
    }

    /// Waits for the background conversion of parts to objects.
    fn wait_for_objects(&self) {
        while (0..FILES).any(|number| !self.object(number).exists()) {
            std::thread::yield_now();
        }
    }

    /// Number of files with wrong bytes, and of unreadable ones.
    pub(crate) async fn wrong(&self) -> (usize, usize) {
        let point = self.point();
        // In parallel: while the registry is gone, each reader waits for it.
        let read = move || {
            let is_right =
                |number: usize| fs::read(point.join(format!("d/{number}"))).map(|bytes| bytes == content(number));
            let is_right = &is_right;
            let outcomes = std::thread::scope(|scope| {
                let readers: Vec<_> = (0..FILES).map(|number| scope.spawn(move || is_right(number))).collect();
                readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
            });
            let wrong = outcomes.iter().filter(|outcome| matches!(outcome, Ok(false))).count();
            (wrong, outcomes.iter().filter(|outcome| outcome.is_err()).count())
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    /// Opens all files.
    pub(crate) async fn open(&self) -> Vec<File> {
        let point = self.point();
        let open = move || (0..FILES).map(|number| File::open(point.join(format!("d/{number}"))).unwrap()).collect();
        tokio::task::spawn_blocking(open).await.unwrap()
    }

    /// Number of open files that have wrong bytes or are unreadable.
    pub(crate) async fn wrong_open(&self, files: Vec<File>) -> usize {
        let read = move || {
            let wrong = files.iter().enumerate().filter(|(number, file)| {
                let mut bytes = vec![0; size(*number) + 1];
                let mut filled = 0;
                while let Ok(count @ 1..) = file.read_at(&mut bytes[filled..], filled as u64) {
                    filled += count;
                }
                bytes[..filled] != content(*number)
            });
            wrong.count()
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    /// The first step of `tarpon cache verify`: returns the number of damaged objects.
    pub(crate) async fn verify(&self) -> usize {
        let engine = self.engine();
        tokio::task::spawn_blocking(move || engine.store().verify(|_| {}).unwrap().corrupt.len()).await.unwrap()
    }

    fn object(&self, number: usize) -> PathBuf {
        let hex = Digest::of(&content(number)).hex();
        self.store().join("objects").join(&hex[..2]).join(&hex[2..])
    }

    /// Damages all objects.
    pub(crate) fn damage(&self, damage: Damage) {
        for number in 0..FILES {
            let path = self.object(number);
            match damage {
                Damage::Swap if number % 2 == 0 => swap(&path, &self.object(number + 1)),
                Damage::Swap => {}
                Damage::Remove => fs::remove_file(path).unwrap(),
                _ => damage_file(&path, damage, number),
            }
        }
    }

    /// Simulates a reboot of the machine: the store loses everything that only the kernel knew.
    pub(crate) fn reboot(&self) {
        for entry in fs::read_dir(self.store().join("run")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("hashed-") {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// A file of the image's record.
    pub(crate) fn record_file(&self, name: &str) -> PathBuf {
        let images = fs::read_dir(self.store().join("images")).unwrap();
        let folders: Vec<_> = images.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        folders[0].join(name)
    }
}

fn swap(one: &Path, other: &Path) {
    let beside = one.with_extension("beside");
    fs::rename(one, &beside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&beside, other).unwrap();
}

/// Changes a file in place, and keeps its times and permissions as far as possible.
pub(crate) fn damage_file(path: &Path, damage: Damage, seed: usize) {
    let before = fs::metadata(path).unwrap();
    let mut bytes = fs::read(path).unwrap();
    let at = (seed * 7919) % bytes.len();
    match damage {
        Damage::Flip => bytes[at] ^= 1 << (seed % 8),
        Damage::Cut => bytes.truncate(at),
        Damage::Extend => bytes.extend(vec![7; seed + 1]),
        Damage::Zero => bytes.fill(0),
        Damage::Remove => return fs::remove_file(path).unwrap(),
        Damage::Swap => unreachable!("two files"),
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    fs::set_permissions(path, before.permissions()).unwrap();
}
