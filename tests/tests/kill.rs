//! SIGKILL of the server, or of its worker, at arbitrary moments while programs read: none of them notices more than a pause, and at the end
//! nothing of any server is left.
//!
//! `TARPON_KILLS`, `TARPON_UPGRADES` and `TARPON_READERS` request more than an ordinary run; each test prints what was noticed.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tarpon_oci::Digest;
use tarpon_testkit::{matrix, processes};
use tarpon_tests::dump::dump;
use tarpon_tests::expected::Expected;
use tarpon_tests::load::{Load, Noticed, Readers, Slow, now, scatter};
use tarpon_tests::real;
use tarpon_tests::tarpon::{Tarpon, binary};
use tarpon_tests::wait;

const IMAGE: &str = "dev/debian-base";
/// A read is answered or refused within 30 s, and a successor serves within 10 s: a program that takes longer hangs.
const HUNG: Duration = Duration::from_secs(60);
/// A server ends when the kernel has released its mounts. Programs of other tests that run in mount namespaces of their own (on the slow link,
/// for example) keep copies of all mounts that existed when they started, for as long as they run.
const RELEASED: Duration = Duration::from_secs(300);
/// A program of the image that needs nothing but the C library.
const PROGRAM: &str = "usr/bin/true";
/// Kills with one store: later, too much of the image is local, and is read without the server.
const KILLS_PER_STORE: usize = 20;
/// Longest time until the next death, from when the programs have read again.
const LONGEST_LIFE: Duration = Duration::from_millis(200);
/// User ID of the tests without root. `fusermount3` requires that the user database has a name for it; this one is `nobody`.
const USER: u32 = 65_534;
/// Parameters of the role [`read_from_a_mount`]: the root, the list of files, the number of readers.
const ROOT: &str = "TARPON_LOAD_ROOT";
const FILES: &str = "TARPON_LOAD_FILES";
const READERS: &str = "TARPON_LOAD_READERS";

/// Number of kills per kind of mount.
fn kills() -> usize {
    number("TARPON_KILLS").unwrap_or(if matrix::is_full() { 60 } else { 20 })
}

/// Number of upgrades per mode. Every second one is to a program that dies.
fn upgrades() -> usize {
    number("TARPON_UPGRADES").unwrap_or(if matrix::is_full() { 12 } else { 4 })
}

/// Number of programs that read.
fn readers() -> usize {
    number("TARPON_READERS").unwrap_or(14)
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Regular files of a mounted tree and the digests of their contents. `user`: only those that everybody may read.
fn contents(expected: &tarpon_tests::dump::Dump, user: Option<u32>) -> Vec<(PathBuf, Digest)> {
    use std::os::unix::ffi::OsStringExt;
    let closed = |path: &[u8]| {
        let parents = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]);
        let is_closed = |path: &[u8], bits| expected.get(path).is_some_and(|seen| seen.mode & bits != bits);
        is_closed(path, 0o4) || parents.into_iter().any(|parent| is_closed(parent, 0o5))
    };
    expected
        .iter()
        .filter(|(path, seen)| seen.size > 0 && (user.is_none() || !closed(path)))
        .filter_map(|(path, seen)| Some((std::ffi::OsString::from_vec(path.clone()).into(), seen.content?)))
        .collect()
}

/// The process of readers.
#[test]
#[ignore = "a role"]
fn read_from_a_mount() {
    let (Some(root), Some(files)) = (std::env::var_os(ROOT), std::env::var_os(FILES)) else { return };
    let list = std::fs::read_to_string(files).unwrap();
    let files = list.lines().filter_map(|line| {
        let (digest, path) = line.split_once(' ')?;
        Some((PathBuf::from(path), digest.parse().ok()?))
    });
    let load = Load { root: root.into(), files: Arc::new(files.collect()), program: PROGRAM.into() };
    load.run(u8::try_from(number(READERS).unwrap()).unwrap());
}

/// The process that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    /// The process that receives and decodes for the server.
    Worker,
}

/// What programs noticed of many deaths of their server.
#[derive(Default)]
struct Account {
    kills: Vec<u64>,
    operations: usize,
    slow: Vec<Slow>,
}

impl Account {
    /// Panics if there was an error.
    fn add(&mut self, noticed: Noticed) {
        assert!(noticed.errors.is_empty(), "after {} kills: {}", self.kills.len(), noticed.errors.join("\n"));
        self.operations += noticed.operations;
        self.slow.extend(noticed.slow);
    }

    /// Prints how long the longest step of an operation took that each death interrupted.
    fn report(&self, what: &str) {
        let stall = |kill: &u64| {
            let interrupted = self.slow.iter().filter(|slow| (slow.began..slow.ended).contains(kill));
            interrupted.map(|slow| (slow.ended - kill) / 1_000_000).max().unwrap_or_default()
        };
        let mut stalls: Vec<_> = self.kills.iter().map(stall).collect();
        stalls.sort_unstable();
        let at = |percent: usize| stalls.get((stalls.len() * percent / 100).min(stalls.len().saturating_sub(1)));
        let duration = |slow: &Slow| (slow.ended - slow.began) / 1_000_000;
        let was_interrupted = |slow: &&Slow| self.kills.iter().any(|kill| (slow.began..slow.ended).contains(kill));
        let longest = self.slow.iter().map(duration).max().unwrap_or_default();
        let undisturbed =
            self.slow.iter().filter(|slow| !was_interrupted(slow)).map(duration).max().unwrap_or_default();
        println!(
            "{what}: {} deaths, {} readers, {} operations, 0 errors; pause after a death in ms: p50 {}, p90 {}, p99 {}, longest {}; \
             longest step {longest} ms, {undisturbed} ms without a death in it",
            stalls.len(),
            readers(),
            self.operations,
            at(50).unwrap_or(&0),
            at(90).unwrap_or(&0),
            at(99).unwrap_or(&0),
            stalls.last().unwrap_or(&0),
        );
    }
}

/// The environment of a test of one kind of mount.
struct KillFixture {
    tarpon: Tarpon,
    image: String,
    mode: &'static str,
    user: Option<u32>,
    expected: Arc<Expected>,
    list: tempfile::NamedTempFile,
    files: Vec<(PathBuf, Digest)>,
}

impl KillFixture {
    fn new(mode: &'static str) -> Option<Self> {
        Self::of(mode, None)
    }

    /// Mounts of an ordinary user, if one is named.
    fn of(mode: &'static str, user: Option<u32>) -> Option<Self> {
        let no_helper = || (!real::have(&["fusermount3"])).then(|| "fusermount3 is missing".to_owned());
        let reason =
            real::missing().or_else(|| user.and_then(|_| no_helper().or_else(closed_device).or_else(closed_to_users)));
        if let Some(reason) = reason {
            println!("skipped: {reason}");
            return None;
        }
        let registry = real::registry().expect("missing() looked");
        let image = format!("{registry}/{IMAGE}:zstdchunked");
        let expected = Arc::new(Expected::of(&registry, &format!("{IMAGE}:gzip")).unwrap());
        let files = contents(&expected.tree, user);
        let mut list = tempfile::NamedTempFile::new().unwrap();
        for (path, digest) in &files {
            writeln!(list, "{digest} {}", path.display()).unwrap();
        }
        list.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).unwrap();
        Some(Self { tarpon: Self::store(user), image, mode, user, expected, list, files })
    }

    fn store(user: Option<u32>) -> Tarpon {
        user.map_or_else(Tarpon::new, Tarpon::of_user).unwrap()
    }

    /// The same with an empty store.
    fn renew(&mut self) {
        self.tarpon = Self::store(self.user);
    }

    fn mount(&mut self) -> PathBuf {
        let allowed: &[&str] = if self.user.is_some() { &[] } else { &["--suid", "--dev"] };
        self.tarpon.mount(&self.image, &[&["--mode", self.mode], allowed].concat()).unwrap()
    }

    fn start_readers(&self, root: &Path) -> Readers {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "read_from_a_mount", "--nocapture"]);
        command.env(ROOT, root).env(FILES, self.list.path()).env(READERS, readers().to_string());
        Readers::start(self.tarpon.run_as_user(&mut command))
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

    /// Kills the server or its worker again and again while programs read, each time after some more reads.
    fn kill_while_reading(&self, root: &Path, victim: Victim, kills: usize, account: &mut Account) {
        let mut readers = self.start_readers(root);
        for _ in 0..kills {
            Self::wait_for_moment(&mut readers, account.kills.len() as u64);
            if readers.have_failed() {
                break;
            }
            let server = wait_for("a server serves", || self.server());
            let killed = match victim {
                Victim::Server => Some(server),
                Victim::Worker => processes::workers_of(server).first().copied(),
            };
            // Without misses there is no worker.
            if let Some(killed) = killed {
                account.kills.push(now());
                kill_process(killed, Signal::KILL).unwrap();
            }
        }
        let noticed = readers.stop(HUNG);
        if !noticed.errors.is_empty() {
            self.show_log();
        }
        account.add(noticed);
    }

    /// Prints the log of the servers.
    fn show_log(&self) {
        let log = std::fs::read_to_string(self.tarpon.store().join("run/server.log"));
        println!("the log of the servers:\n{}", log.unwrap_or_else(|error| error.to_string()));
    }

    /// Waits until every reader has ended an operation, in one of four cases, and then for an arbitrary time; or for an error.
    fn wait_for_moment(readers: &mut Readers, seed: u64) {
        let before = readers.operations();
        let all = if scatter(seed).is_multiple_of(4) { self::readers() } else { 0 };
        let have_read = |readers: &Readers| {
            let progress = readers.operations().into_iter().zip(&before).filter(|(now, before)| now > before);
            progress.count() >= all
        };
        wait_for("programs read", || (readers.have_failed() || have_read(readers)).then_some(()));
        let moment = Instant::now() + LONGEST_LIFE.mul_f64((scatter(!seed) % 1000) as f64 / 1000.0);
        wait_for("the moment", || (readers.have_failed() || Instant::now() >= moment).then_some(()));
    }

    /// Replaces the server again and again while programs read, every second time by a program that dies at an arbitrary moment.
    fn upgrade_while_reading(&self, root: &Path, upgrades: usize, account: &mut Account) {
        let mut readers = self.start_readers(root);
        for upgrade in 0..upgrades as u64 {
            Self::wait_for_moment(&mut readers, upgrade);
            if readers.have_failed() {
                break;
            }
            wait_for("a server serves", || self.server());
            account.kills.push(now());
            if upgrade % 2 == 0 {
                self.tarpon.run("server", &["upgrade"]).unwrap();
                continue;
            }
            let mut successor = self.tarpon.command("serve").arg("--replace").stdout(Stdio::null()).spawn().unwrap();
            let moment = Instant::now() + Duration::from_micros(scatter(upgrade) % 40_000);
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
            successor.kill().unwrap();
            successor.wait().unwrap();
        }
        account.add(readers.stop(HUNG));
    }

    /// Compares the whole tree, if root may look at it.
    fn check_all(&self, root: &Path) {
        if self.user.is_some() {
            return;
        }
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

    /// Checks that no mount and no process of any server is left.
    fn check_nothing_is_left(&self) {
        assert_eq!(self.mounts(), [""; 0], "a mount of a dead server is still there");
        let store = self.tarpon.store();
        wait::wait_for(RELEASED, "no process is left", || {
            (processes::servers(&store).is_empty() && processes::holders(&store).is_empty()).then_some(())
        });
    }

    /// Checks that the kills left no record behind and damaged nothing.
    fn check_store(&self) {
        let verified = self.tarpon.output("cache", &["verify"]).unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
        for folder in ["run/mounts", "mounts", "pins"] {
            let left: Vec<_> = std::fs::read_dir(self.tarpon.store().join(folder)).unwrap().flatten().collect();
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
    }
}

fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait::wait_for(HUNG, what, poll)
}

/// Why other users cannot open connections; `None` if they can.
fn closed_device() -> Option<String> {
    let device = Path::new("/dev/fuse").metadata().ok()?;
    (device.permissions().mode() & 0o6 != 0o6).then(|| "only root may open /dev/fuse".to_owned())
}

/// Why other users cannot reach the program and the stores; `None` if they can.
fn closed_to_users() -> Option<String> {
    let program = binary();
    let is_closed = |path: &&Path| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o1 == 0);
    let closed = program.ancestors().find(is_closed)?;
    Some(format!("{} is closed to other users", closed.display()))
}

fn kill_at_many_moments(mode: &'static str, user: Option<u32>, victim: Victim) {
    let Some(mut fixture) = KillFixture::of(mode, user) else { return };
    let mut account = Account::default();
    while account.kills.len() < kills() {
        let root = fixture.mount();
        let left = kills() - account.kills.len();
        fixture.kill_while_reading(&root, victim, left.min(KILLS_PER_STORE), &mut account);
        fixture.check_all(&root);
        let again = fixture.mount();
        fixture.check_all(&again);
        fixture.unmount(&again);
        fixture.unmount(&root);
        fixture.check_nothing_is_left();
        fixture.check_store();
        fixture.renew();
    }
    let who = if user.is_some() { "without root" } else { "as root" };
    account.report(&format!("{mode}, {who}, {victim:?}"));
}

#[test]
fn programs_that_read_native_mounts_survive_the_server() {
    kill_at_many_moments("native", None, Victim::Server);
}

#[test]
fn programs_that_read_fuse_mounts_survive_the_server() {
    kill_at_many_moments("fuse", None, Victim::Server);
}

#[test]
fn programs_of_an_ordinary_user_survive_the_server() {
    kill_at_many_moments("fuse", Some(USER), Victim::Server);
}

#[test]
fn programs_that_read_mounts_do_not_notice_the_death_of_a_worker() {
    kill_at_many_moments("native", None, Victim::Worker);
    kill_at_many_moments("fuse", None, Victim::Worker);
}

#[test]
fn a_server_that_is_killed_right_after_a_mount_has_a_successor() {
    for mode in ["native", "fuse"] {
        for _ in 0..3 {
            let Some(mut fixture) = KillFixture::new(mode) else { return };
            let root = fixture.mount();
            for server in processes::servers(&fixture.tarpon.store()) {
                kill_process(server, Signal::KILL).unwrap();
            }
            let (path, digest) = &fixture.files[0];
            assert_eq!(Digest::of(&std::fs::read(root.join(path)).unwrap()), *digest);
            fixture.unmount(&root);
            fixture.check_nothing_is_left();
        }
    }
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
fn an_upgrade_is_not_noticed_even_if_the_next_server_dies_at_its_start() {
    for mode in ["native", "fuse"] {
        let Some(mut fixture) = KillFixture::new(mode) else { return };
        let mut account = Account::default();
        while account.kills.len() < upgrades() {
            let root = fixture.mount();
            let left = upgrades() - account.kills.len();
            fixture.upgrade_while_reading(&root, left.min(KILLS_PER_STORE), &mut account);
            fixture.check_all(&root);
            fixture.unmount(&root);
            fixture.check_nothing_is_left();
            fixture.renew();
        }
        account.report(&format!("{mode}, upgrades"));
    }
}

#[test]
fn a_newer_program_replaces_the_server_of_an_older_one() {
    let Some(mut fixture) = KillFixture::new("fuse") else { return };
    let root = fixture.mount();
    let before = wait_for("a server serves", || fixture.server());
    let version = fixture.tarpon.store().join("run/server.version");
    wait_for("its version is on record", || version.exists().then_some(()));
    let other = fixture.mount();
    assert_eq!(fixture.server(), Some(before), "the same version stays");
    std::fs::write(version, "0.0.1").unwrap();
    let third = fixture.mount();
    assert_ne!(fixture.server().unwrap(), before);
    for root in [root, other, third] {
        fixture.check_all(&root);
        fixture.unmount(&root);
    }
}

#[test]
fn a_server_that_cannot_start_leaves_the_old_one() {
    let Some(mut fixture) = KillFixture::new("fuse") else { return };
    let root = fixture.mount();
    let before = fixture.server().unwrap();
    fixture.tarpon.run("server", &["upgrade"]).unwrap();
    let after = fixture.server().unwrap();
    assert_ne!(before, after);
    let mut broken = fixture.tarpon.command("serve");
    let refused = broken.args(["--replace", "--scrub", "nonsense"]).output().unwrap();
    assert!(!refused.status.success());
    assert_eq!(fixture.server(), Some(after));
    fixture.check_all(&root);
    fixture.unmount(&root);
}
