//! Containers: real images on the real kernel, run by a real runtime.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tarpon_tests::containers::ContainerFixture;
use tarpon_tests::real::{self, run};

/// Debian's base, read lazily through its tables of contents.
const IMAGE: &str = "dev/debian-base:estargz";
/// How long work in the background may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Containers of one image.
struct RunFixture {
    containers: ContainerFixture,
    image: String,
}

impl std::ops::Deref for RunFixture {
    type Target = ContainerFixture;

    fn deref(&self) -> &ContainerFixture {
        &self.containers
    }
}

impl RunFixture {
    fn new() -> Option<Self> {
        let containers = ContainerFixture::new()?;
        Some(Self { image: containers.image(IMAGE), containers })
    }

    /// `tarpon run OPTIONS IMAGE COMMAND`.
    fn run(&self, options: &[&str], command: &[&str]) -> Output {
        self.tarpon.output("run", &[options, &[&self.image], command].concat()).unwrap()
    }

    /// Output of a shell in a container of the image, which must succeed.
    fn shell(&self, options: &[&str], script: &str) -> String {
        let output = self.run(&[&["--rm"], options].concat(), &["sh", "-c", script]);
        assert!(output.status.success(), "{}", printed(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn listed(&self) -> Value {
        serde_json::from_str(&self.tarpon.run("ps", &["-a", "--json"]).unwrap()).unwrap()
    }

    fn status(&self, name: &str) -> String {
        let listed = self.listed();
        let one = listed.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap_or(&Value::Null);
        one["status"].as_str().unwrap_or("none").to_owned()
    }

    /// Starts a container that waits for a signal and prints it.
    fn waiting(&self, name: &str, options: &[&str]) {
        let script = "trap 'echo asked; exit 3' TERM; echo ready; echo odd >&2; while :; do sleep 0.1; done";
        let started = self.run(&[&["-d", "--name", name], options].concat(), &["sh", "-c", script]);
        assert!(started.status.success(), "{}", printed(&started));
        assert_eq!(started.stdout, format!("{name}\n").as_bytes());
        until(|| self.tarpon.run("logs", &[name]).unwrap().contains("ready"));
    }

    /// Checks that no container, container directory, mount or process of a runtime is left.
    fn assert_nothing_is_left(&self) {
        assert_eq!(self.listed(), Value::Array(vec![]));
        let store = self.tarpon.store().canonicalize().unwrap();
        // The keeper of a detached container with --rm deletes the directory after the container is gone.
        until(|| {
            let entries = std::fs::read_dir(store.join("containers")).map(Iterator::collect::<Vec<_>>);
            let mut names = entries.unwrap_or_default().into_iter().map(|entry| entry.unwrap().file_name());
            // The lock and the remembered report of the runtime belong to no container.
            names.all(|name| [".lock", ".runtime"].iter().any(|kept| name == *kept))
        });
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(store.to_str().unwrap()), "{mounts}");
        assert_eq!(self.tarpon.status().unwrap(), Value::Array(vec![]));
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it never happened");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a command, and returns once it has printed a line.
fn printing(mut command: Command, line: &str) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
    assert_eq!(printed.trim_end(), line);
    child
}

fn signal(process: u32, signal: &str) {
    run(Command::new("kill").args([format!("-{signal}"), process.to_string()])).unwrap();
}

/// A script in the directory of the store.
fn script(fixture: &RunFixture, name: &str, text: &str) -> PathBuf {
    let path = fixture.tarpon.store().with_file_name(name);
    real::write_program(&path, text).unwrap();
    path
}

#[test]
fn a_container_ends_as_its_command_does_and_nothing_is_left() {
    let Some(fixture) = RunFixture::new() else { return };
    let cases: [(&[&str], i32); 6] = [
        (&["cat", "/etc/debian_version"], 0),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], 137),
        (&["nope"], 127),
        (&["/nope"], 127),
        (&["/etc/passwd"], 126),
    ];
    for (command, code) in cases {
        let output = fixture.run(&["--rm"], command);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", printed(&output));
        fixture.assert_nothing_is_left();
    }
    let version = fixture.run(&["--rm"], &["cat", "/etc/debian_version"]);
    assert!(version.stdout.starts_with(b"12."));
}

#[test]
fn a_container_has_the_options_of_the_command_line() {
    let Some(fixture) = RunFixture::new() else { return };
    let file = script(&fixture, "variables", "# some\nFROM_FILE=yes\nA=file\n");
    let options = ["-e", "A=1", "--env-file", file.to_str().unwrap(), "-e", "TARPON_STORE", "-w", "/usr/share"];
    let printed = fixture.shell(&options, "echo $A $FROM_FILE $PWD; test \"$TARPON_STORE\" && echo passed on");
    assert_eq!(printed, "1 yes /usr/share\npassed on\n");
    assert_eq!(fixture.shell(&["-u", "daemon:7"], "id -u; id -g; id -G"), "1\n7\n7\n");
    for option in ["--hostname", "-h"] {
        assert_eq!(fixture.shell(&[option, "box"], "cat /etc/hostname; uname -n"), "box\nbox\n");
    }
    assert!(fixture.shell(&["--hostname", "box"], "getent hosts box").contains("box"));
    assert_eq!(fixture.shell(&["--entrypoint", "[\"/bin/echo\", \"-n\"]"], "x"), "sh -c x");
    let capabilities = |options: &[&str]| fixture.shell(options, "grep CapBnd /proc/self/status").split_off(8);
    assert_eq!(capabilities(&[]).trim(), "00000000800405fb");
    assert_eq!(capabilities(&["--cap-drop", "all", "--cap-add", "CAP_CHOWN"]).trim(), "0000000000000001");
    assert_eq!(
        fixture.shell(&["--security-opt", "no-new-privileges"], "grep NoNew /proc/self/status"),
        "NoNewPrivs:\t1\n"
    );
    let filter = "grep Seccomp: /proc/self/status";
    assert_eq!(fixture.shell(&["--security-opt", "seccomp=unconfined"], filter), "Seccomp:\t0\n");
    fixture.shell(&["-d", "--name", "filtered"], "sleep 1000");
    let listed = fixture.listed();
    let runtime = listed[0]["record"]["runtime"].as_str().unwrap();
    let version = run(Command::new(runtime).arg("--version")).unwrap().to_ascii_lowercase();
    let filters = ["libseccomp:", "+seccomp"].iter().any(|word| version.contains(word));
    assert_eq!(listed[0]["record"]["filtered"], filters, "{version}");
    assert_eq!(fixture.shell(&[], filter), format!("Seccomp:\t{}\n", if filters { 2 } else { 0 }));
    fixture.tarpon.run("rm", &["-f", "filtered"]).unwrap();
    assert_eq!(fixture.shell(&["--network", "none"], "ls /sys/class/net"), "lo\n");
    fixture.assert_nothing_is_left();
}

#[test]
fn what_is_mounted_is_seen_and_what_is_read_only_is_not_written() {
    let Some(fixture) = RunFixture::new() else { return };
    let host = fixture.tarpon.store().with_file_name("host");
    std::fs::create_dir(&host).unwrap();
    std::fs::write(host.join("file"), "of the host\n").unwrap();
    let volume = format!("{}:/data/deep", host.display());
    let script = "cat /data/deep/file; echo new > /data/deep/made || echo refused";
    assert_eq!(fixture.shell(&["-v", &format!("{volume}:ro")], script), "of the host\nrefused\n");
    assert_eq!(fixture.shell(&["-v", &volume], script), "of the host\n");
    assert_eq!(std::fs::read_to_string(host.join("made")).unwrap(), "new\n");
    let script = "touch /x || echo root; touch /tmp/x && touch /srv/x && touch /data/x && cat /opt/motd";
    let options = ["--read-only", "--tmpfs", "/srv:size=1m", "-v", "/data"];
    let file = format!("{}:/opt/motd:ro", host.join("file").display());
    assert_eq!(fixture.shell(&[&options[..], &["-v", &file]].concat(), script), "root\nof the host\n");
    assert!(fixture.shell(&["--tmpfs", "/usr/share/base-files"], "ls /usr/share/base-files").contains("motd"));
    for (volume, code) in [("/nonexistent/x:/x", 125), ("./nonexistent:/x", 125), ("x:/x", 2), ("/usr:/x:odd", 2)] {
        let output = fixture.run(&["--rm", "-v", volume], &["true"]);
        assert_eq!(output.status.code(), Some(code), "{}", printed(&output));
    }
    fixture.assert_nothing_is_left();
}

#[test]
fn limits_are_kept_where_cgroups_allow_it() {
    let Some(fixture) = RunFixture::new() else { return };
    let output =
        fixture.run(&["--rm", "--pids-limit", "5"], &["sh", "-c", "for i in 1 2 3 4 5 6 7; do sleep 5 & done"]);
    let printed = printed(&output).to_ascii_lowercase();
    // Either the shell cannot fork, or tarpon reports that this machine does not support such limits.
    assert!(
        !output.status.success() && (printed.contains("fork") || printed.contains("no limit for pids")),
        "{printed}"
    );
    let output = fixture.run(&["--rm", "-m", "1K"], &["true"]);
    assert_eq!(output.status.code(), Some(125));
    fixture.assert_nothing_is_left();
}

#[test]
fn a_container_cannot_use_up_the_processes_of_the_host() {
    let Some(fixture) = RunFixture::new() else { return };
    let limit = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true";
    fixture.shell(&["-d", "--name", "usual"], "sleep 1000");
    let recorded = fixture.listed()[0]["record"]["process_limit"].clone();
    fixture.tarpon.run("rm", &["-f", "usual"]).unwrap();
    if recorded.is_null() {
        println!("skipped: the cgroups of this host limit no processes");
    } else {
        assert_eq!(recorded, 2048);
        assert_eq!(fixture.shell(&[], limit), "2048\n");
        assert_eq!(fixture.shell(&["--pids-limit", "7"], limit), "7\n");
        assert_ne!(fixture.shell(&["--pids-limit", "-1"], limit), "2048\n");
    }
    fixture.assert_nothing_is_left();
}

#[test]
fn options_of_podman_that_a_runner_needs_mean_the_same() {
    let Some(fixture) = RunFixture::new() else { return };
    assert_eq!(fixture.shell(&["--ulimit", "nofile=64:128"], "ulimit -Sn; ulimit -Hn"), "64\n128\n");
    assert_eq!(
        fixture.shell(&["--shm-size", "8M"], "df -k /dev/shm | tail -n 1 | tr -s ' ' | cut -d' ' -f2"),
        "8192\n"
    );
    let hosts = fixture.shell(&["--add-host", "db:10.9.8.7"], "getent hosts db");
    assert!(hosts.starts_with("10.9.8.7"), "{hosts}");

    let work = fixture.tarpon.store().with_file_name("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("file"), "of the host\n").unwrap();
    let inside = |options: &[&str], script: &str| {
        let mut command = fixture.tarpon.command("run");
        command.current_dir(&work).arg("--rm=true").args(options).args([&fixture.image, "sh", "-c", script]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    for option in [["-v", "./file:/data/file:ro"], ["-v", "../work:/data:z"], ["-v", ".:/data:Z"]] {
        assert_eq!(inside(&option, "cat /data/file"), "of the host\n", "{option:?}");
    }
    let mount = ["--mount", "type=bind,source=file,destination=/data/file,ro"];
    assert_eq!(inside(&mount, "cat /data/file; echo x > /data/file || echo refused"), "of the host\nrefused\n");
    let memory = ["--mount", "type=tmpfs,destination=/memory,tmpfs-size=1M"];
    assert_eq!(inside(&memory, "df -k /memory | tail -n 1 | tr -s ' ' | cut -d' ' -f2"), "1024\n");

    let file = work.join("name");
    let name = inside(&["--cidfile", "name", "--name", "named"], "true");
    assert_eq!((&*name, std::fs::read_to_string(&file).unwrap()), ("", "named".to_owned()));
    let twice = fixture.run(&["--rm", "--cidfile", file.to_str().unwrap()], &["true"]);
    assert!(
        twice.status.code() == Some(125) && printed(&twice).contains("there is a file already"),
        "{}",
        printed(&twice)
    );
    let other = work.join("other");
    let failed = fixture.run(&["--rm", "--cidfile", other.to_str().unwrap()], &["nope"]);
    assert!(failed.status.code() == Some(127) && !other.exists(), "{}", printed(&failed));

    if real::have(&["catatonit"]) {
        let script = "tr '\\0' ' ' < /proc/1/cmdline | cut -d' ' -f1,2; test $$ -gt 1 && echo below";
        assert_eq!(fixture.shell(&["--init"], script), "/dev/tarpon-init --\nbelow\n");
    } else {
        let none = fixture.run(&["--rm", "--init"], &["true"]);
        assert!(none.status.code() == Some(125) && printed(&none).contains("install catatonit"), "{}", printed(&none));
    }
    fixture.assert_nothing_is_left();
}

#[test]
fn scripts_get_names_codes_and_parts_of_logs() {
    let Some(fixture) = RunFixture::new() else { return };
    fixture.waiting("web", &[]);
    let done = fixture.run(&["-d", "--name", "done"], &["sh", "-c", "echo one; echo two; printf three; exit 7"]);
    assert!(done.status.success(), "{}", printed(&done));
    let tarpon = |subcommand: &str, arguments: &[&str]| fixture.tarpon.run(subcommand, arguments).unwrap();
    assert_eq!(tarpon("wait", &["done"]), "7\n");
    assert_eq!((tarpon("ps", &["-q"]), tarpon("ps", &["-aq"])), ("web\n".to_owned(), "done\nweb\n".to_owned()));
    assert_eq!(tarpon("ps", &["-q", "--filter", "status=exited"]), "done\n");
    assert_eq!(tarpon("ps", &["-aq", "--filter", "exited=0"]), "");
    let listed: Value = serde_json::from_str(&tarpon("ps", &["--format", "json", "--filter", "name=we"])).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &Value::from("web")));

    assert_eq!(tarpon("logs", &["--tail", "2", "done"]), "two\nthree");
    assert_eq!(tarpon("logs", &["--since", "1h", "done"]), "one\ntwo\nthree");
    assert_eq!(tarpon("logs", &["--since", "2100-01-01", "done"]), "");
    let timed = tarpon("logs", &["-t", "-n", "2", "done"]);
    let first = timed.lines().next().unwrap();
    assert!(first.ends_with("Z two") && first.starts_with("20"), "{timed}");

    // A prefix of the name suffices for commands that change nothing.
    assert_eq!(tarpon("exec", &["w", "echo", "inside"]), "inside\n");
    assert!(tarpon("logs", &["we"]).contains("ready"));
    for command in ["stop", "kill", "rm"] {
        let output = fixture.tarpon.output(command, &["we"]).unwrap();
        assert_eq!(output.status.code(), Some(3), "{command}: {}", printed(&output));
    }
    assert_eq!(fixture.status("web"), "running");
    fixture.tarpon.run("rm", &["-f", "web"]).unwrap();
    fixture.tarpon.run("rm", &["done"]).unwrap();

    // The exit code of a container that is removed when it ends.
    fixture.waiting("brief", &["--rm"]);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fixture.tarpon.run("wait", &["brief"]).unwrap());
        until(|| fixture.tarpon.store().join("containers/brief/waiters").exists());
        fixture.tarpon.run("stop", &["brief"]).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(waiting, "3\n");
    fixture.assert_nothing_is_left();
}

#[test]
fn a_detached_container_is_listed_read_entered_stopped_and_removed() {
    let Some(fixture) = RunFixture::new() else { return };
    fixture.waiting("web", &[]);
    assert_eq!(fixture.status("web"), "running");
    let logs = || fixture.tarpon.output("logs", &["web"]).unwrap();
    // Each output has a pipe of its own.
    until(|| !logs().stderr.is_empty());
    let logs = logs();
    assert_eq!((&*logs.stdout, &*logs.stderr), (&b"ready\n"[..], &b"odd\n"[..]));

    let script = "cat /proc/1/comm; echo $X; pwd; id -u; exit 4";
    let inside = fixture.tarpon.output("exec", &["-e", "X=1", "-w", "/tmp", "-u", "daemon", "web", "sh", "-c", script]);
    let inside = inside.unwrap();
    assert_eq!((&*inside.stdout, inside.status.code()), (&b"sh\n1\n/tmp\n1\n"[..], Some(4)), "{}", printed(&inside));
    let shown = "echo $HOME $SECRET";
    let shown = fixture.tarpon.run("exec", &["-u", "daemon", "-e", "SECRET=hush", "web", "sh", "-c", shown]).unwrap();
    assert!(shown.starts_with("/usr/sbin hush\n"), "{shown}");
    assert_eq!(fixture.tarpon.output("exec", &["web", "nope"]).unwrap().status.code(), Some(127));

    let refused = fixture.tarpon.output("rm", &["web"]).unwrap();
    assert!(!refused.status.success() && printed(&refused).contains("has not ended"));
    let twice = fixture.run(&["-d", "--name", "web"], &["true"]);
    assert!(twice.status.code() == Some(125) && printed(&twice).contains("there is a container web already"));

    let following = printing(
        {
            let mut command = fixture.tarpon.command("logs");
            command.args(["-f", "web"]);
            command
        },
        "ready",
    );
    fixture.tarpon.run("exec", &["web", "sh", "-c", "echo kept > /made"]).unwrap();
    fixture.tarpon.run("stop", &["web"]).unwrap();
    assert!(following.wait_with_output().unwrap().status.success(), "it ends with the container");
    assert_eq!(fixture.status("web"), "exited");
    let listed = fixture.listed();
    assert_eq!(listed[0]["record"]["state"]["code"], 3, "{listed}");
    assert_eq!(fixture.tarpon.run("logs", &["web"]).unwrap(), "ready\nasked\n");
    let store = fixture.tarpon.store();
    assert_eq!(std::fs::read_to_string(store.join("containers/web/upper/made")).unwrap(), "kept\n");
    assert_eq!(fixture.tarpon.status().unwrap(), Value::Array(vec![]), "it is not mounted any more");
    assert!(fixture.tarpon.output("exec", &["web", "true"]).unwrap().status.code() == Some(125));

    fixture.tarpon.run("rm", &["web"]).unwrap();
    fixture.assert_nothing_is_left();
    let gone = fixture.tarpon.output("stop", &["web"]).unwrap();
    assert!(gone.status.code() == Some(3) && printed(&gone).contains("there is no container web"));
}

#[test]
fn two_containers_of_an_image_do_not_see_each_other_and_fetch_it_once() {
    let Some(fixture) = RunFixture::new() else { return };
    // From here on everything that is read below is local.
    fixture.shell(&[], "sleep 0; touch /x; test -e /x");
    fixture.waiting("a", &[]);
    fixture.waiting("b", &["--rm"]);
    fixture.tarpon.run("exec", &["a", "touch", "/of-a"]).unwrap();
    let seen = fixture.tarpon.output("exec", &["b", "sh", "-c", "test -e /of-a"]).unwrap();
    assert_eq!(seen.status.code(), Some(1), "{}", printed(&seen));
    let status = fixture.tarpon.status().unwrap();
    let mounts = status.as_array().unwrap();
    assert_eq!(mounts.len(), 2);
    for mount in mounts {
        assert_eq!(mount["requests"], 0, "what the first one read is here: {status}");
    }
    fixture.tarpon.run("stop", &["-t", "0", "a"]).unwrap();
    assert_eq!(fixture.listed()[0]["record"]["state"]["code"], 137, "it was killed");
    fixture.tarpon.run("rm", &["-f", "a", "b"]).unwrap();
    fixture.assert_nothing_is_left();
}

#[test]
fn a_volume_of_the_image_can_be_written_and_has_what_the_image_has_there() {
    let Some(mut fixture) = RunFixture::new() else { return };
    let layout = fixture.tarpon.store().with_file_name("layout");
    let layout = format!("{}:v1", layout.display());
    let from = format!("docker://{}", fixture.image);
    run(Command::new("skopeo").args(["copy", "-q", "--src-tls-verify=false", &from, &format!("oci:{layout}")]))
        .unwrap();
    let volumes = ["--config.volume", "/usr/share/base-files", "--config.volume", "/data/new"];
    run(Command::new("umoci").args(["config", "--image", &layout]).args(volumes)).unwrap();
    fixture.image = format!("oci:{layout}");
    let script = "cat /usr/share/base-files/motd >/dev/null && touch /usr/share/base-files/x /data/new/x && touch /x || echo root";
    assert_eq!(fixture.shell(&["--read-only"], script), "root\n");
    fixture.assert_nothing_is_left();
    let kept = fixture.run(&["--name", "db"], &["sh", "-c", "echo kept > /data/new/x"]);
    assert!(kept.status.success(), "{}", printed(&kept));
    let folder = fixture.tarpon.store().join("containers/db");
    assert_eq!(std::fs::read_to_string(folder.join("upper/data/new/x")).unwrap(), "kept\n");
    assert_eq!(fixture.listed()[0]["record"]["volumes"], serde_json::json!(["/data/new", "/usr/share/base-files"]));
    fixture.tarpon.run("rm", &["db"]).unwrap();
    fixture.assert_nothing_is_left();
}

#[test]
fn signals_reach_the_container_and_end_it_once() {
    let Some(fixture) = RunFixture::new() else { return };
    for (sent, heard) in [("INT", "INT"), ("TERM", "TERM"), ("HUP", "HUP"), ("QUIT", "QUIT"), ("USR1", "USR1")] {
        let script = format!("trap 'exit 42' {heard}; echo ready; while :; do sleep 0.1; done");
        let mut command = fixture.tarpon.command("run");
        command.args(["--rm", &fixture.image, "sh", "-c", &script]);
        let running = printing(command, "ready");
        signal(running.id(), sent);
        let ended = running.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(42), "{sent}: {}", printed(&ended));
    }
    fixture.assert_nothing_is_left();
}

#[test]
fn input_and_terminals_are_passed_through() {
    let Some(fixture) = RunFixture::new() else { return };
    let mut command = fixture.tarpon.command("run");
    command.args(["--rm", "-i", &fixture.image, "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut cat = command.spawn().unwrap();
    std::io::Write::write_all(&mut cat.stdin.take().unwrap(), b"through\n").unwrap();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"through\n");
    assert_eq!(
        fixture.shell(&[], "cat; test -t 0 || echo no terminal"),
        "no terminal\n",
        "without -i there is no input"
    );
    let none = fixture.run(&["--rm", "-t"], &["true"]);
    assert!(none.status.code() == Some(125) && printed(&none).contains("-t requires a terminal"));

    // A terminal without a user.
    let shown = fixture.run(&["-d", "-t", "--name", "tty"], &["sh", "-c", "tty && echo TERM is $TERM; sleep 1000"]);
    assert!(shown.status.success(), "{}", printed(&shown));
    until(|| fixture.tarpon.run("logs", &["tty"]).unwrap().contains("TERM is xterm"));
    assert!(fixture.tarpon.run("logs", &["tty"]).unwrap().contains("/dev/pts/0"));
    fixture.tarpon.run("rm", &["-f", "tty"]).unwrap();

    if real::have(&["script"]) {
        let tarpon = tarpon_tests::tarpon::binary();
        let line = format!("{} run --rm -it {} sh -c 'tty; test -t 1 && exit 9'", tarpon.display(), fixture.image);
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TARPON_STORE", fixture.tarpon.store()).stdin(Stdio::null());
        let shown = command.output().unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).contains("/dev/pts/"), "{shown:?}");
        assert_eq!(shown.status.code(), Some(9));
    }
    fixture.assert_nothing_is_left();
}

#[test]
fn whatever_fails_on_the_way_leaves_nothing() {
    let Some(fixture) = RunFixture::new() else { return };
    let broken = script(&fixture, "broken-runtime", "#!/bin/sh\ntest \"$1\" = --version\n");
    let cases: [&[&str]; 6] = [
        &["-u", "nobody-of-this-name"],
        &["-v", "/nonexistent/x:/x"],
        &["--cap-add", "FLY"],
        &["--stop-signal", "SIG?"],
        &["-v", "/etc/passwd:/x/y/z", "-v", "/etc/group:/x"],
        &["--runtime", broken.to_str().unwrap()],
    ];
    for (number, options) in cases.into_iter().enumerate() {
        for detach in [&[][..], &["-d"]] {
            let output = fixture.run(&[options, detach].concat(), &["true"]);
            assert_eq!(output.status.code(), Some(125), "{options:?}: {}", printed(&output));
            let lines = printed(&output).lines().filter(|line| line.starts_with("tarpon: cannot run ")).count();
            assert_eq!(lines, 1, "case {number}: {}", printed(&output));
            fixture.assert_nothing_is_left();
        }
    }
}

#[test]
fn an_interrupt_of_a_start_ends_the_runtime_and_leaves_nothing() {
    let Some(fixture) = RunFixture::new() else { return };
    let begun = fixture.tarpon.store().with_file_name("begun");
    let text = "#!/bin/sh\ncase \"$*\" in *' run '*) ;; *) exit;; esac\n";
    let slow = script(&fixture, "slow-runtime", &format!("{text}echo $$ > {}\nsleep 1000\n", begun.display()));
    for detach in [&[][..], &["-d"]] {
        let mut command = fixture.tarpon.command("run");
        command.args(["--runtime", slow.to_str().unwrap()]).args(detach).args([&fixture.image, "true"]);
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until(|| std::fs::read_to_string(&begun).is_ok_and(|text| text.ends_with('\n')));
        let runtime: u32 = std::fs::read_to_string(&begun).unwrap().trim().parse().unwrap();
        signal(running.id(), "TERM");
        assert_eq!(running.wait().unwrap().code(), Some(130), "{detach:?}");
        assert!(!std::path::Path::new(&format!("/proc/{runtime}")).exists(), "{detach:?}: the runtime has ended");
        fixture.assert_nothing_is_left();
        std::fs::remove_file(&begun).unwrap();
    }
}

#[test]
fn what_a_killed_run_leaves_is_shown_and_can_be_removed() {
    let Some(fixture) = RunFixture::new() else { return };
    // Killed just before the container exists.
    let murderer = script(
        &fixture,
        "murderer",
        "#!/bin/sh\ncase \"$*\" in --version) exit;; *' run '*) kill -9 $PPID;; esac\nexit 1\n",
    );
    let killed = fixture.run(&["--name", "early", "--runtime", murderer.to_str().unwrap()], &["true"]);
    assert_eq!(killed.status.code(), None);
    assert_eq!(fixture.status("early"), "lost");
    fixture.tarpon.run("rm", &["-f", "early"]).unwrap();
    fixture.assert_nothing_is_left();

    // Killed while the container runs, which continues.
    let mut command = fixture.tarpon.command("run");
    command.args(["--name", "late", &fixture.image, "sh", "-c", "echo ready; exec sleep 7531"]);
    let mut running = printing(command, "ready");
    until(|| fixture.status("late") == "running");
    signal(running.id(), "KILL");
    running.wait().unwrap();
    assert_eq!(fixture.status("late"), "lost");
    let is_alive = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.flat_map(|process| std::fs::read(process.path().join("cmdline")));
        lines.any(|line| line == b"sleep\x007531\x00")
    };
    // The shell prints its line before it executes the program that is searched for.
    until(is_alive);
    fixture.tarpon.run("stop", &["-t", "0", "late"]).unwrap();
    assert_eq!(fixture.status("late"), "exited");
    until(|| !is_alive());
    fixture.tarpon.run("rm", &["late"]).unwrap();
    fixture.assert_nothing_is_left();
}

#[test]
fn a_container_whose_server_died_is_cleared_away() {
    let Some(fixture) = RunFixture::new() else { return };
    fixture.waiting("web", &[]);
    let server = fixture.tarpon.status().unwrap()[0]["server"].as_u64().unwrap();
    signal(u32::try_from(server).unwrap(), "KILL");
    fixture.tarpon.run("rm", &["-f", "web"]).unwrap();
    fixture.tarpon.run("recover", &[]).unwrap();
    fixture.assert_nothing_is_left();
}

#[test]
fn a_container_whose_server_is_killed_reads_what_is_not_local() {
    let Some(fixture) = RunFixture::new() else { return };
    for mode in ["native", "fuse"] {
        fixture.waiting(mode, &["--mode", mode]);
        let server = fixture.tarpon.status().unwrap()[0]["server"].as_u64().unwrap();
        signal(u32::try_from(server).unwrap(), "KILL");
        let script = "find /usr -xdev -type f | head -500 | xargs cat >/dev/null && echo read";
        assert_eq!(fixture.tarpon.run("exec", &[mode, "sh", "-c", script]).unwrap(), "read\n");
        let listed = fixture.listed();
        assert_eq!((&listed[0]["status"], &listed[0]["source_lost"]), (&"running".into(), &false.into()), "{listed}");
        fixture.tarpon.run("rm", &["-f", mode]).unwrap();
    }
    fixture.assert_nothing_is_left();
}

#[test]
fn containers_without_a_server_and_a_holder_keep_what_is_local_and_new_ones_start_at_once() {
    let Some(fixture) = RunFixture::new() else { return };
    let names: Vec<String> = (0..8).map(|number| format!("box{number}")).collect();
    for name in &names {
        fixture.waiting(name, &["--mode", "native"]);
        fixture
            .tarpon
            .run("exec", &[name, "sh", "-c", "cat /etc/debian_version /bin/cat >/dev/null && echo kept > /own"])
            .unwrap();
    }
    let status = fixture.tarpon.status().unwrap();
    assert_eq!((status.as_array().unwrap().len(), &status[7]["container"]), (8, &Value::from("box7")));
    let server = u32::try_from(status[0]["server"].as_u64().unwrap()).unwrap();
    let keep_what_is_local = || {
        for name in &names {
            let read = fixture.tarpon.run("exec", &[name, "cat", "/etc/debian_version", "/own"]).unwrap();
            assert!(read.starts_with("12.") && read.ends_with("\nkept\n"), "{name}: {read}");
        }
    };
    let tell = || {
        let listed = fixture.listed();
        let lost = |one: &&Value| one["source_lost"] == true && one["status"] == "running";
        assert_eq!(listed.as_array().unwrap().iter().filter(lost).count(), 8, "{listed}");
        assert_eq!(fixture.tarpon.run("ps", &[]).unwrap().matches(", source lost").count(), 8);
        let status = fixture.tarpon.status().unwrap();
        let lost = |one: &&Value| one["alive"] == false && one["container"].as_str().is_some();
        assert_eq!(status.as_array().unwrap().iter().filter(lost).count(), 8, "{status}");
        assert_eq!(fixture.tarpon.run("status", &[]).unwrap().matches("source lost: replace container box").count(), 8);
    };
    let pid = rustix::process::Pid::from_raw(server.cast_signed()).unwrap();
    tarpon_testkit::processes::kill_with_holder(&fixture.tarpon.store(), pid);
    until(|| {
        !std::path::Path::new(&format!("/proc/{server}/fd")).exists()
            || fixture.tarpon.status().unwrap()[0]["alive"] == false
    });
    keep_what_is_local();
    tell();

    // A new container starts, with a new server.
    assert_eq!(fixture.shell(&[], "cat /own 2>/dev/null; cat /etc/debian_version").get(..3), Some("12."));
    tell();
    fixture.tarpon.run("recover", &[]).unwrap();
    tell();
    // Objects that running containers read are not evicted.
    fixture.tarpon.run("cache", &["clear"]).unwrap();
    keep_what_is_local();
    let other = fixture.run(&["-d", "--name", "new"], &["sleep", "1000"]);
    assert!(other.status.success(), "{}", printed(&other));
    let listed = fixture.listed();
    let new = listed.as_array().unwrap().iter().find(|one| one["name"] == "new").unwrap();
    assert_eq!(new["source_lost"], false, "{listed}");

    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    fixture.tarpon.run("stop", &[&["-t", "0"], &all[..]].concat()).unwrap();
    fixture.tarpon.run("rm", &all).unwrap();
    fixture.tarpon.run("rm", &["-f", "new"]).unwrap();
    fixture.assert_nothing_is_left();
    assert_eq!(
        std::fs::read_dir(fixture.tarpon.store().join("mounts")).unwrap().count(),
        0,
        "nothing is protected any more"
    );
}
