//! What a program that reads sees when more fails than the server: its holder, its program, its store. A read ends in every case, and
//! where the bytes can be had it returns them. Each case prints how long the read took.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use tarpon_testkit::{matrix, processes};
use tarpon_tests::real;
use tarpon_tests::tarpon::{Tarpon, binary};

const IMAGE: &str = "dev/debian-base:zstdchunked";
/// A read ends within 30 seconds. A program that has not ended by then is counted as one that hangs.
const LIMIT: Duration = Duration::from_secs(40);
/// Files that no other read fetches on the way: each is large enough for a request of its own.
const FILES: [&str; 3] = ["usr/bin/bash", "usr/bin/openssl", "usr/bin/perl"];
/// Size of a store that is full soon.
const SMALL_STORE: u64 = 96 << 20;

struct FaultFixture {
    tarpon: Tarpon,
    root: PathBuf,
    mode: &'static str,
    /// Whether the store is a file system of its own.
    has_file_system: bool,
}

impl FaultFixture {
    /// `program`: what mounts, if not the program of this build.
    fn new(mode: &'static str, program: Option<&Path>) -> Self {
        Self::with_store(mode, program, false)
    }

    fn with_store(mode: &'static str, program: Option<&Path>, has_file_system: bool) -> Self {
        let tarpon = Tarpon::new().unwrap();
        if has_file_system {
            std::fs::create_dir(tarpon.store()).unwrap();
            let disk = tarpon.store().with_file_name("disk");
            std::fs::File::create(&disk).unwrap().set_len(SMALL_STORE).unwrap();
            real::run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk)).unwrap();
            real::run(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(&disk).arg(tarpon.store()))
                .unwrap();
        }
        let root = tarpon.store().with_file_name("mnt");
        std::fs::create_dir(&root).unwrap();
        let image = format!("{}/{IMAGE}", real::registry().unwrap());
        let mut mount = Command::new(program.unwrap_or(&binary()));
        mount.env("TARPON_STORE", tarpon.store()).args(["mount", "--mode", mode, &image]).arg(&root);
        real::run(&mut mount).unwrap();
        let fixture = Self { tarpon, root, mode, has_file_system };
        fixture.holder();
        fixture
    }

    fn server(&self) -> Pid {
        let status = self.tarpon.status().unwrap();
        Pid::from_raw(i32::try_from(status[0]["server"].as_i64().unwrap()).unwrap()).unwrap()
    }

    /// The holder, once it runs.
    fn holder(&self) -> Pid {
        let began = Instant::now();
        loop {
            match processes::holders(&self.tarpon.store()).as_slice() {
                [holder] => return *holder,
                others => assert!(began.elapsed() < LIMIT, "{others:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads a file that is not local, in a process that starts before `fault`. Returns whether it got the bytes.
    fn read_after(&self, what: &str, fault: impl FnOnce()) -> bool {
        let mut reader = Command::new("sh");
        reader.args(["-c", "read go; exec cat \"$0\""]).arg(self.root.join(FILES[0]));
        let mut reader = reader.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        fault();
        let began = Instant::now();
        std::io::Write::write_all(reader.stdin.as_mut().unwrap(), b"\n").unwrap();
        let (pid, (ended, wait)) = (Pid::from_child(&reader), std::sync::mpsc::channel::<()>());
        let watchdog = std::thread::spawn(move || {
            let has_ended =
                wait.recv_timeout(LIMIT).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Disconnected);
            if !has_ended {
                let _gone = kill_process(pid, Signal::KILL);
            }
        });
        let output = reader.wait_with_output().unwrap();
        let took = began.elapsed();
        drop(ended);
        watchdog.join().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let seen = if output.status.success() { "the bytes" } else { error.trim().rsplit(": ").next().unwrap_or("?") };
        println!("{}: {what}: {seen}, after {} ms", self.mode, took.as_millis());
        assert!(took < LIMIT, "{what}: the read hangs");
        output.status.success()
    }
}

impl Drop for FaultFixture {
    fn drop(&mut self) {
        let _ = self.tarpon.output("umount", &["--lazy", &self.root.to_string_lossy()]);
        let _ = rustix::mount::unmount(&self.root, UnmountFlags::DETACH);
        let store = self.tarpon.store();
        let left = [processes::servers(&store), processes::holders(&store)].concat();
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        if self.has_file_system {
            let _ = rustix::mount::unmount(&store, UnmountFlags::DETACH);
        }
    }
}

/// Both modes, if the tests can run here.
fn modes() -> &'static [&'static str] {
    match real::missing() {
        Some(reason) => {
            println!("skipped: {reason}");
            &[]
        }
        None => &["native", "fuse"],
    }
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn a_holder_that_was_killed_has_a_successor_when_the_server_is_killed() {
    for mode in modes() {
        let fixture = FaultFixture::new(mode, None);
        let (holder, server) = (fixture.holder(), fixture.server());
        let is_read = fixture.read_after("the holder is killed, then the server", || {
            let socket = fixture.tarpon.store().join("run/holder.sock");
            let inode = || socket.symlink_metadata().ok().map(|found| found.ino());
            let before = inode();
            kill(holder);
            // The new one creates its socket when it has everything.
            while inode().is_none_or(|inode| Some(inode) == before) {
                std::thread::yield_now();
            }
            kill(server);
        });
        assert!(is_read);
    }
}

#[test]
fn the_holder_and_the_server_together_leave_an_error() {
    for mode in modes() {
        let fixture = FaultFixture::new(mode, None);
        let server = fixture.server();
        let store = fixture.tarpon.store();
        assert!(!fixture.read_after("both are killed", || processes::kill_with_holder(&store, server)));
    }
}

#[test]
fn a_server_that_is_stopped_is_killed_and_replaced() {
    if !matrix::is_full() {
        println!("skipped: it waits for 15 seconds (cargo xtask test --all)");
        return;
    }
    for mode in modes() {
        let fixture = FaultFixture::new(mode, None);
        let server = fixture.server();
        assert!(fixture.read_after("the server is stopped", || kill_process(server, Signal::STOP).unwrap()));
    }
}

#[test]
fn a_server_whose_program_was_deleted_has_a_successor() {
    for mode in modes() {
        let folder = real::scratch().unwrap();
        let program = folder.path().join("tarpon");
        real::copy_program(&binary(), &program).unwrap();
        let fixture = FaultFixture::new(mode, Some(&program));
        let server = fixture.server();
        let is_read = fixture.read_after("the program is deleted, then the server is killed", || {
            std::fs::remove_file(&program).unwrap();
            kill(server);
        });
        assert!(is_read);
    }
}

#[test]
fn a_read_ends_when_the_store_has_become_read_only_and_the_server_is_killed() {
    for mode in modes() {
        let fixture = FaultFixture::with_store(mode, None, true);
        let server = fixture.server();
        fixture.read_after("the store is read-only after an error of its disk, then the server is killed", || {
            // As after an error of the disk.
            let device =
                real::run(Command::new("findmnt").args(["-no", "SOURCE"]).arg(fixture.tarpon.store())).unwrap();
            let device = Path::new(device.trim()).file_name().unwrap().to_owned();
            let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
            std::fs::write(trigger, "1").unwrap();
            kill(server);
        });
    }
}

#[test]
fn a_read_is_answered_when_the_store_is_full_and_the_server_is_killed() {
    for mode in modes() {
        let fixture = FaultFixture::with_store(mode, None, true);
        let server = fixture.server();
        let is_read = fixture.read_after("the store is full, then the server is killed", || {
            let fill = fixture.tarpon.store().join("fill");
            let mut dd = Command::new("dd");
            dd.args(["if=/dev/zero", "bs=64k", "status=none"])
                .arg(format!("of={}", fill.display()))
                .stderr(Stdio::null());
            assert!(!dd.process_group(0).status().unwrap().success(), "the store has room for ever");
            kill(server);
        });
        assert!(is_read);
    }
}
