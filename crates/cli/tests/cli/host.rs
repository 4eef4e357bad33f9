//! Protection of the host against mounts, and messages about a server that does not answer. Needs root and /dev/fuse, and is skipped
//! without.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use tarpon_testkit::registry::Auth;

use crate::mounts::{MountFixture, code, stderr};

/// How long work in the background may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a script in a mount namespace of its own, with the program as `$0`, so that failures do no harm.
fn apart(fixture: &MountFixture, script: &str) -> Output {
    let plain = fixture.command(&[]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", script]).arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.output().expect("unshare is installed")
}

#[test]
fn a_mount_that_would_hide_the_host_or_the_store_is_refused() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.stdout(&["--quiet", "ls", "HOST/app:v1"]);
    let image = format!("{}/app:v1", fixture.server().host());
    let [folder, link] = ["", "link"].map(|name| fixture.path(name));
    std::os::unix::fs::symlink("/proc", &link).expect("made");
    let own = ["store", "store/run", "store/objects", "store/mounts"].map(|name| fixture.path(name));
    let own = own.iter().chain([&folder, &link]).filter_map(|path| path.to_str());
    for place in ["/", "/proc", "/sys", "/dev", "/run", "/etc", "/usr", "/sys/kernel"].into_iter().chain(own) {
        // `cat` reads the mount table from a descriptor that was opened before.
        let script = format!("exec 3</proc/self/mountinfo; \"$0\" mount --quiet {image} {place} || exit; cat <&3");
        let output = apart(&fixture, &script);
        assert_eq!(code(&output), 7, "{place}: {}", stderr(&output));
        assert!(stderr(&output).contains("hint: use a directory of its own"), "{place}: {}", stderr(&output));
    }
    let refused =
        apart(&fixture, &format!("\"$0\" mount --quiet --rw=/etc {image} {}", fixture.directory("mnt").display()));
    assert_eq!(code(&refused), 7, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("/etc is the host's own"), "{}", stderr(&refused));
}

#[test]
fn an_image_is_unmounted_without_proc() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    let (image, place) = (format!("{}/app:v1", fixture.server().host()), fixture.directory("mnt"));
    for how in ["", "--lazy"] {
        let place = place.display();
        let script = format!(
            "\"$0\" mount --quiet {image} {place}; test -e {place}/etc/hello; umount -l /proc; test ! -e /proc/self
             \"$0\" umount {how} {place}; test ! -e {place}/etc/hello"
        );
        let output = apart(&fixture, &script);
        assert_eq!(code(&output), 0, "{how}: {}", stderr(&output));
        // The next mount is in another mount namespace, which needs another server.
        fixture.wait_for_server_to_end();
    }
}

#[test]
fn the_store_of_a_mount_is_found_by_the_mount() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    for mode in ["native", "fuse"] {
        let place = fixture.path(mode);
        std::fs::create_dir(&place).expect("made");
        fixture.stdout(&[
            "--quiet",
            "mount",
            "--rw=TMP/upper",
            "--mode",
            mode,
            "HOST/app:v1",
            place.to_str().expect("UTF-8"),
        ]);
        let mut command = fixture.command(&["umount", place.to_str().expect("UTF-8")]);
        let output = command.env("TARPON_STORE", fixture.path("other-store")).output().expect("it runs");
        assert_eq!(code(&output), 0, "{mode}: {}", stderr(&output));
        assert!(fixture.mounts().is_empty() && !fixture.path("other-store").exists());
    }
}

#[test]
fn a_mount_in_use_stays_unless_unmounted_lazily() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    let place = fixture.directory("mnt");
    fixture.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    let mut user = File::open(place.join("etc/hello")).expect("there");
    for arguments in [&["umount", "TMP/mnt"], &["umount", "--all"]] {
        let output = fixture.output(arguments);
        assert_eq!(code(&output), 7);
        assert!(stderr(&output).contains("mnt is in use\nhint: "), "{}", stderr(&output));
        assert_eq!(fixture.mounts(), std::slice::from_ref(&place));
    }
    let output = fixture.output(&["umount", "--lazy", "TMP/mnt"]);
    assert!(
        code(&output) == 0 && stderr(&output).contains("it was detached, and is removed when it is no longer used")
    );
    assert!(fixture.mounts().is_empty());
    assert_eq!(std::io::read_to_string(&mut user).expect("served to the end"), "hello\n");
}

#[test]
fn a_server_that_is_stopped_is_named_by_every_command_that_needs_it() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    for (mode, place) in [("native", "one"), ("fuse", "two")] {
        fixture.directory(place);
        fixture.stdout(&["--quiet", "mount", "--mode", mode, "HOST/app:v1", &format!("TMP/{place}")]);
    }
    fixture.directory("new");
    let mounted = fixture.mounts();
    let server = fixture.server_process();
    kill_process(server, Signal::STOP).expect("it is ours");
    let commands: [&[&str]; 7] = [
        &["status"],
        &["umount", "TMP/one"],
        &["umount", "TMP/two"],
        &["umount", "--all"],
        &["recover"],
        &["--quiet", "mount", "HOST/app:v1", "TMP/new"],
        &["--quiet", "mount", "HOST/app:v1", "TMP/two"],
    ];
    // All at the same time: the holder kills a server that is silent for longer than all of them take one after the other.
    let outputs = std::thread::scope(|scope| {
        let running = commands.map(|arguments| (arguments, scope.spawn(|| fixture.output(arguments))));
        running.map(|(arguments, output)| (arguments, output.join().expect("it ran")))
    });
    kill_process(server, Signal::CONT).expect("it is ours");
    for (arguments, output) in outputs {
        let expected = format!("process {} is stopped, by SIGSTOP or a debugger", server.as_raw_nonzero());
        assert_eq!(code(&output), 8, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(&expected), "{arguments:?}: {}", stderr(&output));
    }
    fixture.stdout(&["status"]);
    assert_eq!(fixture.mounts(), mounted, "a command that failed has no effect later");
    fixture.stdout(&["umount", "--all"]);
}

/// Number of lines in the server's log that contain these words.
fn lines(log: &Path, words: &str) -> usize {
    std::fs::read_to_string(log).unwrap_or_default().lines().filter(|line| line.contains(words)).count()
}

#[test]
fn a_server_without_descriptors_neither_spins_nor_fills_its_log() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    let script = "ulimit -n 48; exec \"$0\" \"$@\"";
    let plain = fixture.command(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().expect("it runs");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (log, socket) = (fixture.path("store/run/server.log"), fixture.path("store/run/server.sock"));
    let clients: Vec<_> = (0..60).map(|_| UnixStream::connect(&socket).expect("there is room in the queue")).collect();
    let began = Instant::now();
    while lines(&log, "a client was not accepted") == 0 {
        assert!(began.elapsed() < PATIENCE, "it has descriptors for all of them");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(clients);
    fixture.stdout(&["umount", "TMP/mnt"]);
    let written = lines(&log, "a client was not accepted");
    assert!(written <= 5, "{written} lines");
}
