//! SIGKILL of the server at arbitrary moments while programs read: none of them notices more than a pause, and at the end
//! nothing of any server is left.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tarpon_oci::Digest;
use tarpon_testkit::{matrix, processes};
use tarpon_tests::dump::dump;
use tarpon_tests::expected::Expected;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const IMAGE: &str = "dev/debian-base";
/// A read is answered or refused within 30 s, and a successor serves within 10 s: a program that takes longer hangs.
const HUNG: Duration = Duration::from_secs(60);
/// A program of the image that needs nothing but the C library.
const PROGRAM: &str = "usr/bin/true";

/// Number of kills per mode; `TARPON_KILLS` requests more.
fn kills() -> usize {
    number("TARPON_KILLS").unwrap_or(if matrix::is_full() { 60 } else { 20 })
}

/// Number of programs that read; `TARPON_READERS` requests more.
fn readers() -> usize {
    number("TARPON_READERS").unwrap_or(8)
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

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

/// What the programs did.
#[derive(Default)]
struct Readers {
    stop: AtomicBool,
    reads: AtomicUsize,
    /// In microseconds.
    longest: AtomicUsize,
}

impl Readers {
    /// Reads in one of four ways until it is stopped. Every operation must succeed.
    fn run(&self, root: &Path, files: &[(PathBuf, Digest)], reader: u64) {
        for turn in (0_u64..).take_while(|_| !self.stop.load(Ordering::Acquire)) {
            let index = usize::try_from(scatter(reader << 32 | turn) % files.len() as u64).unwrap();
            let (path, digest) = &files[index];
            let (place, began) = (root.join(path), Instant::now());
            match reader % 4 {
                // Opens, reads and closes.
                0 | 1 => match std::fs::read(&place) {
                    Ok(bytes) => assert_eq!(Digest::of(&bytes), *digest, "wrong bytes in {}", path.display()),
                    Err(error) => panic!("read {}: {error}", path.display()),
                },
                // Looks up, lists, and keeps files open.
                2 => Self::walk(&place, turn),
                // Executes and maps.
                _ => {
                    let status = Command::new(root.join(PROGRAM)).status();
                    let status = status.unwrap_or_else(|error| panic!("execute {PROGRAM}: {error}"));
                    assert!(status.success(), "{PROGRAM}: {status}");
                }
            }
            let took = usize::try_from(began.elapsed().as_micros()).unwrap_or(usize::MAX);
            self.longest.fetch_max(took, Ordering::AcqRel);
            self.reads.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn walk(place: &Path, turn: u64) {
        let folder = place.parent().unwrap();
        let names = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("list {}: {error}", folder.display()));
        for entry in names {
            let path = entry.unwrap_or_else(|error| panic!("list {}: {error}", folder.display())).path();
            path.symlink_metadata().unwrap_or_else(|error| panic!("look up {}: {error}", path.display()));
        }
        let mut file = std::fs::File::open(place).unwrap_or_else(|error| panic!("open {}: {error}", place.display()));
        let mut start = [0; 1];
        file.read_exact(&mut start).unwrap_or_else(|error| panic!("read {} ({turn}): {error}", place.display()));
    }
}

/// The environment of a test of one mode.
struct KillFixture {
    tarpon: Tarpon,
    image: String,
    mode: &'static str,
    expected: Expected,
    files: Arc<Vec<(PathBuf, Digest)>>,
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
        Some(Self { tarpon: Tarpon::new().unwrap(), image, mode, expected, files })
    }

    fn mount(&mut self) -> PathBuf {
        self.tarpon.mount(&self.image, &["--mode", self.mode, "--suid", "--dev"]).unwrap()
    }

    /// Unmounts. Another test of this process may just be starting a program, which has this one's open files for a moment.
    fn unmount(&self, root: &Path) {
        let path = root.to_string_lossy();
        wait_for("the mount is not in use", || {
            self.tarpon.output("umount", &[&path]).unwrap().status.success().then_some(())
        });
    }

    /// The server, once it serves. (Three successors that die before that are enough for the holder.)
    fn server(&self) -> Option<Pid> {
        let socket = self.tarpon.store().join("run/server.sock");
        let mut server = UnixStream::connect(socket).ok()?;
        server.write_all(b"{\"ask\":\"scrub\"}\n").ok()?;
        server.read_exact(&mut [0; 1]).ok()?;
        rustix::net::sockopt::socket_peercred(&server).ok().map(|peer| peer.pid)
    }

    /// Kills the server again and again while programs read, each time after some more reads.
    fn kill_while_reading(&self, root: &Path) {
        let readers = Readers::default();
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..self::readers() as u64)
                .map(|reader| {
                    scope.spawn({
                        let readers = &readers;
                        move || readers.run(root, &self.files, reader)
                    })
                })
                .collect();
            let _stop = StopAtEnd(&readers.stop);
            let has_failed = || all.iter().any(|reader| reader.is_finished());
            for kill in 0..kills() as u64 {
                let target = readers.reads.load(Ordering::Acquire) + usize::try_from(scatter(kill) % 200).unwrap();
                let is_time = || has_failed() || readers.reads.load(Ordering::Acquire) >= target;
                wait_for("programs read", || is_time().then_some(()));
                if has_failed() {
                    break;
                }
                let server = wait_for("a server serves", || self.server());
                kill_process(server, Signal::KILL).unwrap();
            }
        });
        let (reads, longest) = (readers.reads.into_inner(), readers.longest.into_inner());
        println!("{}: {} kills, {reads} operations, the longest took {} ms", self.mode, kills(), longest / 1000);
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

    /// Checks that the kills left nothing behind and damaged nothing.
    fn check_store(&self) {
        let verified = self.tarpon.output("cache", &["verify"]).unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
        for folder in ["run/mounts", "mounts", "pins"] {
            let left: Vec<_> = std::fs::read_dir(self.tarpon.store().join(folder)).unwrap().flatten().collect();
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
    }
}

/// Stops the readers, also if the test fails.
struct StopAtEnd<'s>(&'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls until there is a value, within the time after which a program hangs.
fn wait_for<T>(what: &str, poll: impl Fn() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        match poll() {
            Some(value) => return value,
            None => assert!(began.elapsed() < HUNG, "not within {HUNG:?}: {what}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill_at_many_moments(mode: &'static str) {
    let Some(mut fixture) = KillFixture::new(mode) else { return };
    let root = fixture.mount();
    fixture.kill_while_reading(&root);
    fixture.check_all(&root);
    let again = fixture.mount();
    fixture.check_all(&again);
    fixture.unmount(&again);
    fixture.unmount(&root);
    assert_eq!(fixture.mounts(), [""; 0], "a mount of a dead server is still there");
    let store = fixture.tarpon.store();
    wait_for("no process is left", || {
        (processes::servers(&store).is_empty() && processes::holders(&store).is_empty()).then_some(())
    });
    fixture.check_store();
}

#[test]
fn programs_that_read_native_mounts_survive_the_server() {
    kill_at_many_moments("native");
}

#[test]
fn programs_that_read_fuse_mounts_survive_the_server() {
    kill_at_many_moments("fuse");
}

#[test]
fn without_a_holder_and_a_server_readers_get_an_error_and_the_next_command_mounts_again() {
    for mode in ["native", "fuse"] {
        let Some(mut fixture) = KillFixture::new(mode) else { return };
        let root = fixture.mount();
        let store = fixture.tarpon.store();
        wait_for("a holder runs", || (!processes::holders(&store).is_empty()).then_some(()));
        processes::kill_with_holder(&store, fixture.server().unwrap());
        let (path, _) = &fixture.files[0];
        wait_for("readers get an error", || std::fs::read(root.join(path)).is_err().then_some(()));
        fixture.tarpon.run("recover", &[]).unwrap();
        fixture.check_all(&root);
        fixture.unmount(&root);
        assert_eq!(fixture.mounts(), [""; 0]);
    }
}

#[test]
fn an_upgrade_is_not_noticed_and_a_server_that_does_not_start_leaves_the_old_one() {
    for mode in ["native", "fuse"] {
        let Some(mut fixture) = KillFixture::new(mode) else { return };
        let root = fixture.mount();
        let before = fixture.server().unwrap();
        let readers = Readers::default();
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|reader| {
                    let (readers, files, root) = (&readers, &fixture.files, &root);
                    scope.spawn(move || readers.run(root, files, reader))
                })
                .collect();
            let _stop = StopAtEnd(&readers.stop);
            for _ in 0..3 {
                fixture.tarpon.run("server", &["upgrade"]).unwrap();
                assert!(!all.iter().any(|reader| reader.is_finished()), "a program got an error");
            }
        });
        let after = fixture.server().unwrap();
        assert_ne!(before, after);
        let mut broken = fixture.tarpon.command("serve");
        let refused = broken.args(["--replace", "--scrub", "nonsense"]).output().unwrap();
        assert!(!refused.status.success());
        assert_eq!(fixture.server(), Some(after));
        fixture.check_all(&root);
        fixture.unmount(&root);
    }
}
