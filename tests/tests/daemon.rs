//! `tarpon daemon` as programs and users use it: with curl, beside the command line, under systemd's protocol, and after being killed.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tarpon_testkit::processes;
use tarpon_tests::manager::Manager;
use tarpon_tests::real::{self, run};
use tarpon_tests::tarpon::{Tarpon, binary};

/// Debian's base, read lazily through its tables of contents.
const IMAGE: &str = "dev/debian-base:estargz";
/// How long work in the background may take.
const PATIENCE: Duration = Duration::from_secs(60);

const API: &str = include_str!("../../docs/api.md");

/// A store with a daemon. Dropping it ends the daemon and unmounts everything.
struct DaemonFixture {
    tarpon: Tarpon,
    image: String,
    daemon: Child,
}

impl DaemonFixture {
    fn new() -> Option<Self> {
        let is_there = real::have(&["curl", "jq"]) && (real::have(&["crun"]) || real::have(&["runc"]));
        let missing = real::missing().or_else(|| (!is_there).then(|| "curl, jq, or crun and runc are missing".into()));
        if let Some(reason) = missing {
            println!("skipped: {reason}");
            return None;
        }
        let tarpon = Tarpon::new().unwrap();
        let image = format!("{}/{IMAGE}", real::registry()?);
        let daemon = started(&mut plain(&tarpon), &tarpon);
        Some(Self { tarpon, image, daemon })
    }

    fn place(&self, name: &str) -> PathBuf {
        beside(&self.tarpon, name)
    }

    /// Output of curl.
    fn curl(&self, path: &str, options: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail-with-body", "--unix-socket"]).arg(self.place("api.sock"));
        run(curl.args(options).arg(format!("http://localhost{path}"))).unwrap()
    }

    fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.curl(path, &[])).unwrap()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        serde_json::from_str(&self.curl(path, &["-d", &body.to_string()])).unwrap()
    }

    /// Mounts the image on a new directory through the API.
    fn mounted(&self, name: &str) -> PathBuf {
        let place = self.place(name);
        std::fs::create_dir(&place).unwrap();
        let place = place.canonicalize().unwrap();
        self.post("/v1/mounts", &json!({"image": self.image, "mountpoint": place}));
        place
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.daemon), signal).unwrap();
    }

    /// Ends the daemon and starts another one under a manager that stores its descriptors.
    fn under_manager(&mut self) -> Manager {
        self.signal(Signal::TERM);
        self.daemon.wait().unwrap();
        let mut manager = Manager::new(&self.place("notify.sock"));
        self.daemon = manager.start(&mut plain(&self.tarpon));
        manager
    }

    /// Ends the daemon with a signal and starts another one.
    fn restart(&mut self, signal: Signal) {
        self.signal(signal);
        self.daemon.wait().unwrap();
        self.daemon = started(&mut plain(&self.tarpon), &self.tarpon);
    }
}

impl Drop for DaemonFixture {
    fn drop(&mut self) {
        self.tarpon.remove_containers();
        let _ = self.tarpon.output("umount", &["--all", "--lazy"]);
        let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
        let _ = self.daemon.wait();
    }
}

fn beside(tarpon: &Tarpon, name: &str) -> PathBuf {
    tarpon.store().with_file_name(name)
}

fn plain(tarpon: &Tarpon) -> Command {
    let mut command = tarpon.command("daemon");
    command.arg("--listen").arg(format!("unix://{}", beside(tarpon, "api.sock").display()));
    command
}

/// Starts a daemon, and waits until it reports that it is ready.
fn started(command: &mut Command, tarpon: &Tarpon) -> Child {
    Manager::new(&beside(tarpon, "notify.sock")).start(command)
}

fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it never happened");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_mounted(place: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == place.to_str())
}

#[test]
fn the_examples_of_the_documentation_work_as_they_stand_there() {
    let Some(fixture) = DaemonFixture::new() else { return };
    let place = fixture.place("mnt");
    std::fs::create_dir(&place).unwrap();
    let blocks = API.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let script: String = blocks.collect();
    let script = script
        .replace("/run/tarpon/tarpon.sock", fixture.place("api.sock").to_str().unwrap())
        .replace("docker.io/library/debian:12", &fixture.image)
        .replace("/mnt", place.canonicalize().unwrap().to_str().unwrap());
    let printed = run(Command::new("bash").args(["-euc", &script])).unwrap();
    for expected in ["\"how\":\"clean\"", "\"event\":\"listening\"", "\"tarpon-trace\":1", "\"status\":\"ok\""] {
        assert!(printed.contains(expected), "no {expected} in {printed}");
    }
    assert!(!is_mounted(&place));
}

#[test]
fn the_command_line_uses_the_daemon_and_the_daemon_sends_events() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    let mut curl = Command::new("curl");
    curl.args(["-sSN", "--unix-socket"]).arg(fixture.place("api.sock")).arg("http://localhost/v1/events");
    let mut listener = curl.stdout(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(listener.stdout.take().unwrap()).lines();
    let mut next = |event: &str| -> Value {
        let lines = events.by_ref().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        lines.into_iter().find(|line| line["event"] == event).unwrap()
    };
    next("listening");
    let image = fixture.image.clone();
    let place = fixture.tarpon.mount(&image, &[]).unwrap();
    let status = fixture.tarpon.status().unwrap();
    assert_eq!(status[0]["server"], fixture.daemon.id());
    assert_eq!(next("mounted")["mountpoint"], place.to_str().unwrap());
    assert_eq!(fixture.get("/v1/mounts")[0]["mountpoint"], place.to_str().unwrap());
    fixture.tarpon.unmount(&place).unwrap();
    assert_eq!(next("unmounted")["mountpoint"], place.to_str().unwrap());
    assert_eq!(fixture.get("/v1/stats")["pid"], fixture.daemon.id(), "it stays when nothing is mounted");
    let ran = fixture.tarpon.run("run", &["--name", "short", &image, "true"]).unwrap();
    assert_eq!((ran.as_str(), &next("container-ended")["name"]), ("", &json!("short")));
    fixture.signal(Signal::TERM);
    next("stopping");
    assert!(listener.wait().unwrap().success() && fixture.daemon.wait().unwrap().success());
    fixture.daemon = started(&mut plain(&fixture.tarpon), &fixture.tarpon);
}

#[test]
fn a_daemon_that_is_stopped_or_killed_finds_its_mounts_at_the_next_start() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    let place = fixture.mounted("mnt");
    let content = std::fs::read(place.join("etc/debian_version")).unwrap();
    fixture.signal(Signal::TERM);
    assert!(fixture.daemon.wait().unwrap().success());
    assert!(!is_mounted(&place) && !fixture.place("api.sock").exists());
    fixture.daemon = started(&mut plain(&fixture.tarpon), &fixture.tarpon);
    for signal in [Signal::KILL, Signal::KILL, Signal::TERM] {
        assert_eq!(fixture.get("/v1/mounts")[0]["alive"], true);
        assert_eq!(std::fs::read(place.join("etc/debian_version")).unwrap(), content);
        fixture.restart(signal);
    }
    fixture.tarpon.run("umount", &[place.to_str().unwrap()]).unwrap();
    fixture.restart(Signal::KILL);
    assert_eq!(fixture.get("/v1/mounts"), json!([]), "what was unmounted stays so");
}

#[test]
fn containers_are_stopped_with_the_daemon_and_outlive_its_death() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    // The whole image is local: the shell reads more of it when it is stopped, after its server died.
    fixture.tarpon.run("pull", &[&fixture.image]).unwrap();
    let script = "trap 'echo asked; exit 3' TERM; echo \"$NOTIFY_SOCKET\" ready; while :; do sleep 0.1; done";
    let wish = |name: &str| json!({"image": fixture.image, "name": name, "command": ["sh", "-c", script]});
    fixture.post("/v1/containers", &wish("first"));
    until(|| fixture.curl("/v1/containers/first/logs", &[]) == " ready\n");
    fixture.restart(Signal::KILL);
    assert_eq!(fixture.get("/v1/containers/first")["status"], "running");
    fixture.restart(Signal::TERM);
    let ended = fixture.get("/v1/containers/first");
    assert_eq!((&ended["status"], &ended["exit_code"]), (&json!("exited"), &json!(3)));
    assert_eq!(fixture.curl("/v1/containers/first/logs", &["-G", "-d", "follow=true"]), " ready\nasked\n");
    assert_eq!(fixture.get("/v1/mounts"), json!([]));
    fixture.curl("/v1/containers/first", &["-X", "DELETE"]);
    assert_eq!(fixture.get("/v1/containers"), json!([]));
}

#[test]
fn a_socket_that_is_handed_over_is_used_and_left_alone() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    fixture.signal(Signal::TERM);
    fixture.daemon.wait().unwrap();
    let path = fixture.place("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // Before any server runs: a client that connects waits for the daemon that is started for it.
    let mut early = Command::new("curl");
    early.args(["-sS", "--unix-socket"]).arg(&path).arg("http://localhost/healthz");
    let early = early.stdout(Stdio::piped()).spawn().unwrap();
    let mut manager = Manager::new(&fixture.place("notify.sock"));
    manager.pass("tarpon.socket", listener.try_clone().unwrap().into());
    fixture.daemon = manager.start(&mut fixture.tarpon.command("daemon"));
    let answered = early.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answered.stdout), "{\"status\":\"ok\"}\n");
    assert_eq!(fixture.get("/v1/stats")["pid"], fixture.daemon.id());
    fixture.signal(Signal::TERM);
    assert!(fixture.daemon.wait().unwrap().success());
    assert!(path.exists(), "it is the manager's");
    drop((listener, manager));
    std::fs::remove_file(&path).unwrap();
    fixture.daemon = started(&mut plain(&fixture.tarpon), &fixture.tarpon);
}

#[test]
fn a_daemon_takes_the_mounts_of_a_server_over_while_they_are_read() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    fixture.signal(Signal::TERM);
    fixture.daemon.wait().unwrap();
    let image = fixture.image.clone();
    let place = fixture.tarpon.mount(&image, &[]).unwrap();
    let open = std::fs::File::open(place.join("etc/passwd")).unwrap();
    fixture.daemon = started(&mut plain(&fixture.tarpon), &fixture.tarpon);
    assert_eq!(fixture.tarpon.status().unwrap()[0]["server"], fixture.daemon.id());
    assert_eq!(fixture.get("/v1/mounts")[0]["mountpoint"], place.to_str().unwrap());
    assert!(std::io::read_to_string(open).unwrap().starts_with("root:"));
    // A killed daemon is replaced by a server in the background, and that one by the next daemon.
    let open = std::fs::File::open(place.join("etc/group")).unwrap();
    fixture.restart(Signal::KILL);
    assert!(std::io::read_to_string(open).unwrap().starts_with("root:"));
    assert_eq!(fixture.tarpon.status().unwrap()[0]["server"], fixture.daemon.id());
    fixture.tarpon.unmount(&place).unwrap();
}

#[test]
fn an_upgrade_executes_the_new_program_in_the_process_of_the_daemon() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    fixture.signal(Signal::TERM);
    fixture.daemon.wait().unwrap();
    let program = fixture.place("installed");
    real::copy_program(&binary(), &program).unwrap();
    let mut command = Command::new(&program);
    command.env("TARPON_STORE", fixture.tarpon.store()).args(["daemon", "--listen"]);
    command.arg(format!("unix://{}", fixture.place("api.sock").display()));
    let mut manager = Manager::new(&fixture.place("notify.sock"));
    fixture.daemon = manager.start(&mut command);
    let place = fixture.mounted("mnt");
    let open = std::fs::File::open(place.join("etc/passwd")).unwrap();
    // An update replaces the file by one that does not work, and then by one that does.
    std::fs::remove_file(&program).unwrap();
    real::write_program(&program, "#!/bin/false\n").unwrap();
    let refused = fixture.tarpon.output("server", &["upgrade"]).unwrap();
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("does not start"), "{refused}");
    assert_eq!(fixture.get("/v1/mounts")[0]["alive"], true);
    real::copy_program(&binary(), &program).unwrap();
    fixture.tarpon.run("server", &["upgrade"]).unwrap();
    let executed = std::fs::read_link(format!("/proc/{}/exe", fixture.daemon.id())).unwrap();
    assert_eq!(executed, program.canonicalize().unwrap());
    assert_eq!(fixture.tarpon.status().unwrap()[0]["server"], fixture.daemon.id());
    assert_eq!(fixture.get("/v1/mounts")[0]["mountpoint"], place.to_str().unwrap());
    assert!(std::io::read_to_string(open).unwrap().starts_with("root:"));
    while !manager.receive().starts_with("RELOADING=1") {}
    while manager.receive() != "READY=1" {}
    fixture.tarpon.unmount(&place).unwrap();
}

#[test]
fn a_daemon_that_is_stopped_while_it_waits_for_requests_before_an_upgrade_stops() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    let mut manager = fixture.under_manager();
    let place = fixture.mounted("mnt");
    // The daemon has the head of this request, and waits for the rest.
    let mut request = UnixStream::connect(fixture.place("api.sock")).unwrap();
    let head = "POST /v1/mounts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\
                Expect: 100-continue\r\n\r\n";
    request.write_all(head.as_bytes()).unwrap();
    request.read_exact(&mut [0; 12]).unwrap();
    let mut upgrade = fixture.tarpon.command("server").arg("upgrade").stderr(Stdio::null()).spawn().unwrap();
    while !manager.receive().starts_with("RELOADING=1") {}
    fixture.signal(Signal::TERM);
    while manager.receive() != "STOPPING=1" {}
    request.write_all(b"{}").unwrap();
    assert!(fixture.daemon.wait().unwrap().success());
    assert!(!is_mounted(&place));
    assert!(!upgrade.wait().unwrap().success(), "there is no new daemon");
    fixture.daemon = started(&mut plain(&fixture.tarpon), &fixture.tarpon);
    fixture.tarpon.unmount(&place).unwrap();
}

#[test]
fn a_kill_of_all_processes_of_the_service_is_not_noticed() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    let mut manager = fixture.under_manager();
    let place = fixture.mounted("mnt");
    // In a process of its own: the test must not have files of the mount open when it starts the next daemon.
    let script =
        "exec 3<etc/passwd; for name in group profile debian_version; do read kill; cat etc/$name; done; cat <&3";
    let mut reader = Command::new("sh");
    reader.args(["-ec", script]).current_dir(&place).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = reader.spawn().unwrap();
    for _ in 0..3 {
        manager.wait_for("fuse.", 1);
        processes::kill_with_holder(&fixture.tarpon.store(), Pid::from_child(&fixture.daemon));
        fixture.daemon.wait().unwrap();
        // It waits for the next daemon: nothing that it reads is local.
        reader.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        fixture.daemon = manager.start(&mut plain(&fixture.tarpon));
    }
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("root:x:0"), "{output:?}");
    assert_eq!(fixture.tarpon.status().unwrap()[0]["server"], fixture.daemon.id());
    fixture.tarpon.unmount(&place).unwrap();
    fixture.signal(Signal::TERM);
    fixture.daemon.wait().unwrap();
    manager.wait_for("held.", 0);
    fixture.daemon = started(&mut plain(&fixture.tarpon), &fixture.tarpon);
}

#[test]
fn mounts_that_are_in_use_stay_and_are_served_when_the_daemon_is_stopped() {
    let Some(mut fixture) = DaemonFixture::new() else { return };
    let (used, other) = (fixture.mounted("used"), fixture.mounted("other"));
    let directory = std::fs::File::open(&used).unwrap();
    fixture.signal(Signal::TERM);
    assert!(fixture.daemon.wait().unwrap().success());
    // This file was not read before: a server in the background fetches it.
    std::fs::read(used.join("etc/debian_version")).unwrap();
    let background = fixture.tarpon.status().unwrap()[0]["server"].clone();
    assert_ne!(background, fixture.daemon.id());
    fixture.daemon = started(&mut plain(&fixture.tarpon), &fixture.tarpon);
    let mounts = fixture.get("/v1/mounts");
    let places: Vec<_> = mounts.as_array().unwrap().iter().map(|mount| mount["mountpoint"].as_str().unwrap()).collect();
    assert_eq!(places, [other.to_str().unwrap(), used.to_str().unwrap()]);
    assert_eq!(fixture.tarpon.status().unwrap()[0]["server"], fixture.daemon.id());
    std::fs::read(used.join("etc/passwd")).unwrap();
    let refused = fixture.tarpon.output("umount", &[used.to_str().unwrap()]).unwrap();
    assert_eq!((refused.status.success(), is_mounted(&used)), (false, true));
    drop(directory);
    for place in [used, other] {
        fixture.tarpon.unmount(&place).unwrap();
    }
}

/// The manifests of a DaemonSet that prefetches.
const PREFETCH: &str = include_str!("../../contrib/kubernetes/prefetch.yaml");

#[test]
fn the_script_of_the_daemonset_prefetches_a_list_and_reports_what_failed() {
    let Some(fixture) = DaemonFixture::new() else { return };
    let (_, rest) = PREFETCH.split_once("prefetch.sh: |\n").unwrap();
    let (script, _) = rest.split_once("---\n").unwrap();
    let script: String = script.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap())).collect();
    let socket = fixture.place("api.sock").display().to_string();
    assert!(script.contains("/run/tarpon/tarpon.sock"));
    let script = script.replace("/run/tarpon/tarpon.sock", &socket);
    let image = &fixture.image;
    let commented = format!("# of tomorrow\n  # and later\n{image} # this one\n\n");
    let without_newline = format!("{image}-none\n{image}");
    for (list, is_done) in [(commented, true), (without_newline, false)] {
        let images = fixture.place("images");
        std::fs::write(&images, list).unwrap();
        let output = Command::new("sh").args(["-c", &script]).env("IMAGES", &images).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.success(), is_done, "{printed}");
        let jobs: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(jobs.last().unwrap()["state"], "done", "{printed}");
        assert_eq!(jobs.len(), if is_done { 1 } else { 2 }, "{printed}");
    }
    let images = fixture.get("/v1/images");
    assert_eq!(images[0]["layers"][0]["verification"], "toc-verified", "no layer was fetched whole");
}

#[test]
fn systemd_takes_the_units() {
    if !real::have(&["systemd-analyze"]) {
        println!("skipped: systemd-analyze is not installed");
        return;
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib");
    let of_system = [
        "tarpon.service",
        "tarpon.socket",
        "tarpon-snapshotter.service",
        "tarpon-prefetch.service",
        "tarpon-prefetch.timer",
    ];
    let of_dragonfly = ["dragonfly-scheduler.service", "dragonfly-seed.service", "dfdaemon.service"];
    for (manager, folder, names) in [
        ("--system", "systemd", &of_system[..]),
        ("--user", "systemd/user", &of_system[..2]),
        ("--system", "dragonfly", &of_dragonfly[..]),
    ] {
        let work = real::scratch().unwrap();
        for name in names {
            let text = std::fs::read_to_string(units.join(folder).join(name)).unwrap();
            // With the binary of this build: an installed one is not required, nor are its manual pages, nor is Dragonfly.
            let text = ["=tarpon ", "=scheduler ", "=dfdaemon "]
                .iter()
                .fold(text, |text, program| text.replace(program, &format!("={} ", binary().display())));
            let text: String = text.split_inclusive('\n').filter(|line| !line.starts_with("Documentation=")).collect();
            std::fs::write(work.path().join(name), text).unwrap();
        }
        let mut verify = Command::new("systemd-analyze");
        verify.env("XDG_RUNTIME_DIR", work.path());
        let output = verify.args([manager, "verify"]).args(names).current_dir(work.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<_> = printed.lines().filter(|line| names.iter().any(|name| line.contains(name))).collect();
        assert!(output.status.success() && ours.is_empty(), "{printed}");
    }
}
