//! SIGKILL of the server at arbitrary moments while readers run: no reader hangs or gets a wrong byte, local files stay
//! readable in mode `native`, and the next start leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tarpon_oci::Digest;
use tarpon_testkit::matrix;
use tarpon_tests::dump::dump;
use tarpon_tests::expected::Expected;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const IMAGE: &str = "dev/debian-base";
const READERS: usize = 4;
/// A read is answered or refused within 30 s; a reader that takes longer than this hangs.
const HUNG: Duration = Duration::from_secs(60);

/// Number of kills per mode; `TARPON_KILLS` requests more.
fn rounds() -> u64 {
    let usual = if matrix::is_full() { 15 } else { 5 };
    std::env::var("TARPON_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// Files that are read back after each kill; after the last one the whole tree is read.
const SAMPLE: u64 = 40;

/// Regular files of a mounted tree and the digests of their contents.
fn contents(expected: &tarpon_tests::dump::Dump) -> BTreeMap<PathBuf, Digest> {
    use std::os::unix::ffi::OsStringExt;
    expected
        .iter()
        .filter(|(_, seen)| seen.size > 0)
        .filter_map(|(path, seen)| Some((std::ffi::OsString::from_vec(path.clone()).into(), seen.content?)))
        .collect()
}

/// A pseudo-random number that is the same in every run.
fn scatter(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

fn server_of(tarpon: &Tarpon) -> Pid {
    let status = tarpon.status().unwrap();
    let pid = status[0]["server"].as_i64().expect("status names the server");
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// Reads files in its own order until `stop`, and counts them. A read may fail, but must not return a wrong byte.
fn read_until(stop: &AtomicBool, read: &AtomicUsize, root: &Path, files: &[(PathBuf, Digest)], seed: u64) {
    for turn in 0_u64.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let index = usize::try_from(scatter(seed.wrapping_add(turn)) % files.len() as u64).unwrap();
        let (path, digest) = &files[index];
        if let Ok(bytes) = std::fs::read(root.join(path)) {
            assert_eq!(Digest::of(&bytes), *digest, "wrong bytes in {}", path.display());
        }
        read.fetch_add(1, Ordering::AcqRel);
    }
}

/// The environment of a test of one mode.
struct KillFixture {
    tarpon: Tarpon,
    image: String,
    mode: &'static str,
    expected: Expected,
    files: Arc<Vec<(PathBuf, Digest)>>,
    /// The files that are made local before the first kill.
    local: Vec<(PathBuf, Digest)>,
}

impl KillFixture {
    fn new(mode: &'static str) -> Option<Self> {
        if let Some(reason) = real::missing() {
            println!("skipped: {reason}");
            return None;
        }
        let registry = real::registry().expect("missing() looked");
        let image = format!("{registry}/{IMAGE}:zstdchunked");
        let expected = Expected::of(&registry, &format!("{IMAGE}:gzip")).unwrap();
        let files: Arc<Vec<_>> = Arc::new(contents(&expected.tree).into_iter().collect());
        let local = files.iter().filter(|(path, _)| path.starts_with("etc")).cloned().collect();
        Some(Self { tarpon: Tarpon::new().unwrap(), image, mode, expected, files, local })
    }

    fn mount(&mut self) -> PathBuf {
        self.tarpon.mount(&self.image, &["--mode", self.mode, "--suid", "--dev"]).unwrap()
    }

    /// Kills the server while readers run, at a moment that depends on the round.
    fn kill_while_reading(&self, root: &Path, round: u64) {
        let server = server_of(&self.tarpon);
        let (stop, read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ended, all_ended) = mpsc::channel();
        for reader in 0..READERS as u64 {
            let (stop, read, root, files, ended) =
                (stop.clone(), read.clone(), root.to_owned(), self.files.clone(), ended.clone());
            std::thread::spawn(move || {
                read_until(&stop, &read, &root, &files, round * 1000 + reader);
                ended.send(()).unwrap();
            });
        }
        drop(ended);
        let wait_for = |count| {
            while read.load(Ordering::Acquire) < count {
                std::thread::yield_now();
            }
        };
        wait_for(usize::try_from(scatter(round) % 400).unwrap());
        kill_process(server, Signal::KILL).unwrap();
        wait_for(read.load(Ordering::Acquire) + 50);
        stop.store(true, Ordering::Release);
        for _ in 0..READERS {
            all_ended.recv_timeout(HUNG).expect("a reader hangs, or saw a wrong byte");
        }
    }

    fn check_local(&self, root: &Path) {
        for (path, digest) in &self.local {
            let bytes = std::fs::read(root.join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(Digest::of(&bytes), *digest, "{}", path.display());
        }
    }

    /// Checks some files all over the tree, others in each round.
    fn check_sample(&self, root: &Path, round: u64) {
        for turn in 0..SAMPLE {
            let index = usize::try_from(scatter(round * SAMPLE + turn) % self.files.len() as u64).unwrap();
            let (path, digest) = &self.files[index];
            assert_eq!(Digest::of(&std::fs::read(root.join(path)).unwrap()), *digest, "{}", path.display());
        }
    }

    fn check_all(&self, root: &Path) {
        let wrong = self.expected.differences("zstdchunked", &dump(root).unwrap());
        let shown: Vec<String> = wrong.iter().take(20).map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), shown.join("\n"));
    }

    /// Mounts of this store only: the other test runs at the same time.
    fn mounts(&self) -> Vec<String> {
        let folder = self.tarpon.store().parent().unwrap().to_string_lossy().into_owned();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().filter(|line| line.contains(&folder)).map(str::to_owned).collect()
    }

    /// Checks that a kill left nothing behind and damaged nothing.
    fn check_store(&self) {
        let verified = self.tarpon.output("cache", &["verify"]).unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
        for folder in ["run/mounts", "mounts", "pins"] {
            let left: Vec<_> = std::fs::read_dir(self.tarpon.store().join(folder)).unwrap().flatten().collect();
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
    }
}

fn kill_at_many_moments(mode: &'static str) {
    let Some(mut fixture) = KillFixture::new(mode) else { return };
    let rounds = rounds();
    for round in 0..rounds {
        // A separate mount makes some files local, so that the next one finds them.
        let first = fixture.mount();
        fixture.check_local(&first);
        fixture.tarpon.unmount(&first).unwrap();

        let root = fixture.mount();
        fixture.kill_while_reading(&root, round);
        if mode == "native" {
            fixture.check_local(&root);
        }
        let again = fixture.mount();
        fixture.check_sample(&again, round);
        if round + 1 == rounds {
            fixture.check_all(&again);
        }
        fixture.tarpon.unmount(&again).unwrap();
        fixture.tarpon.unmount(&root).unwrap();
        assert_eq!(fixture.mounts(), [""; 0], "a mount of the dead server is still there");
        if round + 1 < rounds {
            // The next round fetches everything again, over the network that a kill is to interrupt.
            fixture.tarpon.run("cache", &["clear"]).unwrap();
        }
    }
    fixture.check_store();
}

#[test]
fn a_killed_server_of_native_mounts_hangs_nobody() {
    kill_at_many_moments("native");
}

#[test]
fn a_killed_server_of_fuse_mounts_hangs_nobody() {
    kill_at_many_moments("fuse");
}
