//! SIGKILL of the server at arbitrary moments while readers run: nobody hangs, nobody gets a wrong byte, what was
//! local stays readable in mode `native`, and the next start leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tarpon_oci::Digest;
use tarpon_tests::dump::{compare, dump};
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const IMAGE: &str = "dev/debian-base";
const READERS: usize = 4;
/// A read is answered or refused within 30 s; whoever takes longer than this hangs.
const HUNG: Duration = Duration::from_secs(60);

/// Kills a mode is tested with; `TARPON_KILLS` asks for more.
fn rounds() -> u64 {
    std::env::var("TARPON_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(4)
}

/// Regular files of a mounted tree and what is in them.
fn contents(expected: &tarpon_tests::dump::Dump) -> BTreeMap<PathBuf, Digest> {
    use std::os::unix::ffi::OsStringExt;
    expected
        .iter()
        .filter(|(_, seen)| seen.size > 0)
        .filter_map(|(path, seen)| Some((std::ffi::OsString::from_vec(path.clone()).into(), seen.content?)))
        .collect()
}

/// A number that looks random and is the same in every run.
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

/// Reads files in an order of its own until `stop`; counts them. A failed read is fine, a wrong byte is not.
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

fn ours() -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(" tarpon")).count()
}

fn kill_at_many_moments(mode: &str) {
    if let Some(reason) = real::missing() {
        println!("skipped: {reason}");
        return;
    }
    let registry = real::registry().expect("missing() looked");
    let image = format!("{registry}/{IMAGE}:zstdchunked");
    let expected = real::umoci_dump(&registry, &format!("{IMAGE}:gzip")).unwrap();
    let files: Arc<Vec<(PathBuf, Digest)>> = Arc::new(contents(&expected).into_iter().collect());
    for round in 0..rounds() {
        let mut tarpon = Tarpon::new().unwrap();
        // A mount of its own makes some files local, so that the next one finds them there.
        let local: Vec<_> = files.iter().filter(|(path, _)| path.starts_with("etc")).cloned().collect();
        let first = tarpon.mount(&image, &["--mode", mode]).unwrap();
        for (path, digest) in &local {
            assert_eq!(Digest::of(&std::fs::read(first.join(path)).unwrap()), *digest);
        }
        tarpon.unmount(&first).unwrap();

        let root = tarpon.mount(&image, &["--mode", mode]).unwrap();
        let server = server_of(&tarpon);
        let (stop, read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ended, all_ended) = mpsc::channel();
        for reader in 0..READERS as u64 {
            let (stop, read, root, files, ended) =
                (stop.clone(), read.clone(), root.clone(), files.clone(), ended.clone());
            std::thread::spawn(move || {
                read_until(&stop, &read, &root, &files, round * 1000 + reader);
                ended.send(()).unwrap();
            });
        }
        drop(ended);
        let moment = usize::try_from(scatter(round) % 400).unwrap();
        while read.load(Ordering::Acquire) < moment {
            std::thread::yield_now();
        }
        kill_process(server, Signal::KILL).unwrap();
        let after = read.load(Ordering::Acquire) + 50;
        while read.load(Ordering::Acquire) < after {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Release);
        for _ in 0..READERS {
            all_ended.recv_timeout(HUNG).expect("a reader hangs, or saw a wrong byte");
        }
        if mode == "native" {
            for (path, digest) in &local {
                let bytes =
                    std::fs::read(root.join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert_eq!(Digest::of(&bytes), *digest);
            }
        }
        let again = tarpon.mount(&image, &["--mode", mode]).unwrap();
        let wrong = compare(&expected, &dump(&again).unwrap());
        assert!(wrong.iter().all(|found| found.field == "nlink" || found.field == "mtime"), "{:?}", wrong.first());
        tarpon.unmount(&again).unwrap();
        let before = ours();
        tarpon.unmount(&root).unwrap();
        assert!(ours() < before, "the mount of the dead server is still there");
    }
}

#[test]
fn a_killed_server_of_native_mounts_hangs_nobody() {
    kill_at_many_moments("native");
}

#[test]
fn a_killed_server_of_fuse_mounts_hangs_nobody() {
    kill_at_many_moments("fuse");
}
