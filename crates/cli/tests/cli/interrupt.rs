//! Ctrl-C: every command ends with 130 and one line.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use tarpon_testkit::kernel::can_mount;

use crate::world::World;

/// How long a command may take to reach a state, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between two checks.
const LOOK: Duration = Duration::from_millis(10);

/// Waits for a result of `look` while the command runs; a command that does not get there is killed.
fn until<T>(child: &mut Child, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended by itself: {what}");
        if let Some(found) = look() {
            return found;
        }
        if began.elapsed() >= PATIENCE {
            child.kill().expect("it runs");
            panic!("{what}: not within {} s", PATIENCE.as_secs());
        }
        thread::sleep(LOOK);
    }
}

/// Output of the command after its end. One that does not end is killed.
fn end_of(child: Child) -> Output {
    let process = Pid::from_child(&child);
    let (ended, is_ended) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if is_ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            kill_process(process, Signal::KILL).expect("it runs");
        }
    });
    let output = child.wait_with_output().expect("it can be waited for");
    drop(ended);
    watchdog.join().expect("it ends");
    output
}

/// A world, and a registry that accepts requests and never answers.
struct Silent {
    world: World,
    registry: TcpListener,
}

impl Silent {
    fn new() -> Self {
        let registry = TcpListener::bind("127.0.0.1:0").expect("a port");
        registry.set_nonblocking(true).expect("a socket");
        Self { world: World::new(), registry }
    }

    /// The command, with that registry as `HOST`.
    fn command(&self, arguments: &[&str]) -> Command {
        let host = self.registry.local_addr().expect("a port").to_string();
        let real: Vec<String> = arguments.iter().map(|argument| argument.replace("HOST", &host)).collect();
        self.world.command(&real.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts the command, and returns when it waits for the registry. The connection lasts as long as the returned value.
    fn waiting(&self, mut command: Command) -> (Child, TcpStream) {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        let (mut asked, _) = until(&mut child, "it asks", || self.registry.accept().ok());
        asked.set_nonblocking(false).and_then(|()| asked.set_read_timeout(Some(PATIENCE))).expect("a socket");
        asked.read_exact(&mut [0]).expect("it asks");
        (child, asked)
    }
}

/// The command as an interactive shell starts it. A shell that runs the tests in the background ignores SIGINT for all of them.
fn in_foreground(command: &Command) -> Command {
    let mut foreground = Command::new("env");
    foreground.arg("--default-signal=INT,HUP,TERM").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => foreground.env(name, value),
            None => foreground.env_remove(name),
        };
    }
    foreground
}

fn interrupt(child: Child) -> Output {
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    end_of(child)
}

fn assert_interrupted(what: &[&str], output: &Output) {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{what:?}: {} {printed}", output.status);
    let last = printed.lines().last().unwrap_or_default();
    assert!(last.starts_with("tarpon: ") && last.contains("interrupted"), "{what:?}: {printed}");
}

#[test]
fn commands_that_wait_for_a_registry_exit_with_130() {
    let mut runs: Vec<&[&str]> = vec![
        &["mount", "HOST/app:v1", "TMP/mnt"],
        &["mount", "--foreground", "HOST/app:v1", "TMP/mnt"],
        &["pull", "HOST/app:v1"],
        &["ls", "HOST/app:v1"],
        &["inspect", "HOST/app:v1"],
        &["index", "HOST/app:v1"],
        &["convert", "--format", "estargz", "HOST/app:v1", "oci:TMP/out"],
        &["doctor", "--registry", "HOST"],
    ];
    if can_mount() {
        runs.push(&["podman", "add", "HOST/app:v1"]);
    }
    for run in runs {
        // A separate registry: another command's requests may still be in the queue.
        let silent = Silent::new();
        silent.world.directory("mnt");
        let (child, _asked) = silent.waiting(in_foreground(&silent.command(run)));
        assert_interrupted(run, &interrupt(child));
    }
}

#[test]
fn a_command_started_with_sigint_ignored_continues_to_ignore_it() {
    let silent = Silent::new();
    let tarpon = silent.command(&["pull", "HOST/app:v1"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$@\"", "sh"]).arg(tarpon.get_program()).args(tarpon.get_args());
    shell.envs(tarpon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (mut child, _asked) = silent.waiting(shell);
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask").trim();
    let ignored = u64::from_str_radix(mask, 16).expect("hexadecimal");
    assert_ne!(ignored & (1 << (Signal::INT.as_raw() - 1)), 0, "{mask}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

/// Starts a server and waits until it answers at the socket; it installs its signal handlers before that.
fn serving(world: &World, arguments: &[&str], hello: &[u8]) -> Child {
    let mut command = in_foreground(&world.command(arguments));
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).env("RUST_LOG", "off").spawn().expect("it runs");
    let socket = world.path("s.sock");
    until(&mut child, "it answers", || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(hello).ok()?;
        if hello.is_empty() { Some(()) } else { stream.read_exact(&mut [0]).ok() }
    });
    child
}

#[test]
fn servers_end_in_order_and_exit_with_130() {
    if !can_mount() {
        return;
    }
    let runs: [(&[&str], &[u8]); 2] = [
        (&["snapshotter", "--address", "TMP/s.sock"], b""),
        (&["daemon", "--listen", "unix://TMP/s.sock"], b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ];
    for (run, hello) in runs {
        let world = World::new();
        let child = serving(&world, run, hello);
        assert_interrupted(run, &interrupt(child));
        let child = serving(&world, run, hello);
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        assert_eq!(end_of(child).status.code(), Some(0), "{run:?}");
    }
}

/// A pseudo-terminal: the user's end, and the end of programs.
fn terminal() -> (OwnedFd, OwnedFd) {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&user).and_then(|()| unlockpt(&user)).expect("it can be opened");
    let name = ptsname(&user, Vec::new()).expect("a name");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let programs = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).expect("it opens");
    (user, programs)
}

#[test]
fn a_question_for_a_password_leaves_the_terminal_as_it_was() {
    let echoes = |terminal: &OwnedFd| tcgetattr(terminal).expect("a terminal").local_modes.contains(LocalModes::ECHO);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let world = World::new();
        let (_user, programs) = terminal();
        let mut command = in_foreground(&world.command(&["login", "--username", "alice", "registry.invalid"]));
        command.stdin(programs.try_clone().expect("a descriptor")).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut question = [0; "Password: ".len()];
        child.stderr.as_mut().expect("a pipe").read_exact(&mut question).expect("it asks");
        assert_eq!(&question, b"Password: ");
        assert!(!echoes(&programs));
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let output = end_of(child);
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(echoes(&programs), "after {signal:?}");
    }
}
