//! Recorded starts: real containers on the real kernel, their traces, and starts from a boot pack.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tarpon_testkit::processes;
use tarpon_tests::real::{self, run};
use tarpon_tests::tarpon::Tarpon;

const IMAGE: &str = "dev/debian-base:gzip";
/// How long a pack of half a megabyte may take from loopback.
const PATIENCE: Duration = Duration::from_secs(30);

/// The image under a unique name, so that artifacts published with it belong to one test; `None` if these tests cannot run here.
fn image(name: &str) -> Option<String> {
    if let Some(reason) = real::missing_for_containers() {
        println!("skipped: {reason}");
        return None;
    }
    let registry = real::registry()?;
    let own = format!("{registry}/dev-record/{name}:gzip");
    copy(&format!("{registry}/{IMAGE}"), &own);
    Some(own)
}

fn copy(from: &str, to: &str) {
    let mut command = Command::new("skopeo");
    command.args(["copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false"]);
    run(command.args([format!("docker://{from}"), format!("docker://{to}")])).unwrap();
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Records `command` in `image`, which must succeed; returns the JSON output.
fn recorded(tarpon: &Tarpon, options: &[&str], image: &str, command: &[&str]) -> Value {
    let recorded =
        tarpon.run("record", &[&["--json", "--timeout", "60"], options, &[image, "--"], command].concat()).unwrap();
    assert_nothing_is_left(tarpon);
    json(&recorded)
}

/// Checks that no mount, container directory or trace is left.
fn assert_nothing_is_left(tarpon: &Tarpon) {
    assert_eq!(tarpon.status().unwrap(), json("[]"));
    let store = tarpon.store().canonicalize().unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(store.to_str().unwrap()), "{mounts}");
    let names = std::fs::read_dir(store.join("run")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> =
        names.filter(|name| ["record-", "trace-"].iter().any(|of| name.to_string_lossy().starts_with(of))).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Whether a process with these arguments runs.
fn is_running(arguments: &[&str]) -> bool {
    running(arguments).is_some()
}

/// The process with these arguments, if one runs.
fn running(arguments: &[&str]) -> Option<Pid> {
    let wanted = arguments.join("\0") + "\0";
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    let found =
        processes.find(|process| std::fs::read(process.join("cmdline")).is_ok_and(|line| line == wanted.as_bytes()));
    found?.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw)
}

/// The server of the store, once it serves.
fn server(tarpon: &Tarpon) -> Pid {
    let began = Instant::now();
    loop {
        let status = tarpon.status().unwrap();
        let server = status[0]["server"].as_u64().and_then(|server| Pid::from_raw(i32::try_from(server).unwrap()));
        if let Some(server) = server.filter(|_| status[0]["alive"] == true) {
            return server;
        }
        assert!(began.elapsed() < PATIENCE, "{status}");
    }
}

/// Ends the step of the recorded command that waits in `sleep SECONDS`, once it is there.
fn end_step(seconds: &str) {
    let began = Instant::now();
    while running(&["sleep", seconds]).is_none() {
        assert!(began.elapsed() < PATIENCE, "the command does not come to sleep {seconds}");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(running(&["sleep", seconds]).unwrap(), Signal::TERM).unwrap();
}

/// Runs a command in a mounted image with the environment that the container had.
fn chroot(root: &Path, command: &[&str]) -> String {
    let mut chroot = Command::new("chroot");
    run(chroot.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg(root).args(command)).unwrap()
}

/// Mounts the image in an empty store by its list in the registry, and waits until the pack is local.
fn started(image: &str, options: &[&str], pack_bytes: u64) -> (Tarpon, PathBuf) {
    let mut tarpon = Tarpon::new().unwrap();
    let root = tarpon.mount(image, &[&["--index", "registry"], options].concat()).unwrap();
    let began = Instant::now();
    while counter(&tarpon, "bytes_trace") < pack_bytes {
        assert!(began.elapsed() < PATIENCE, "{}", tarpon.status().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    (tarpon, root)
}

fn counter(tarpon: &Tarpon, name: &str) -> u64 {
    tarpon.status().unwrap()[0]["counters"][name].as_u64().unwrap()
}

fn pack<'a>(report: &'a Value, profile: &str) -> &'a Value {
    report["index"]["boots"].as_array().unwrap().iter().find(|pack| pack["profile"] == profile).unwrap()
}

#[test]
fn a_recorded_start_comes_out_of_its_pack_and_of_nothing_else() {
    let Some(image) = image("pack") else { return };
    let recorder = Tarpon::new().unwrap();
    let file = recorder.store().with_extension("trace");
    let command = ["cat", "/etc/debian_version"];
    let report = recorded(&recorder, &["--push", "-o", file.to_str().unwrap()], &image, &command);
    assert_eq!((&report["exit"], &report["profile"]), (&Value::from(0), &Value::from("default")));

    let trace = json(&recorder.run("trace", &["show", "--json", file.to_str().unwrap()]).unwrap());
    assert_eq!(trace["command"], serde_json::json!(command));
    let files: Vec<&str> =
        trace["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert!(files.contains(&"/usr/bin/cat") && files.contains(&"/etc/debian_version"), "{files:?}");
    // The program, its libraries and its argument; and the user database, which is read before.
    let is_expected = |file: &&str| {
        let libraries = ["/usr/bin/cat", "/etc/debian_version", "/etc/ld.so.cache", "/etc/passwd", "/etc/group"];
        libraries.contains(file) || file.contains("/libc.so.") || file.contains("/ld-linux")
    };
    assert!(files.iter().all(is_expected), "{files:?}");

    let bytes = pack(&report, "default")["size"].as_u64().unwrap();
    assert!(bytes * 20 < report["index"]["layers_size"].as_u64().unwrap(), "{bytes}");
    for mode in ["native", "fuse"] {
        let (mut tarpon, root) = started(&image, &["--mode", mode], bytes);
        assert!(chroot(&root, &command).starts_with("12."));
        assert_eq!(counter(&tarpon, "bytes_fetched"), bytes, "mode {mode}");
        tarpon.unmount(&root).unwrap();
    }
}

#[test]
fn packs_are_kept_and_taken_over_by_another_version_of_the_image() {
    let Some(image) = image("versions") else { return };
    let tarpon = Tarpon::new().unwrap();
    recorded(&tarpon, &["--push", "--profile", "who"], &image, &["id", "-u"]);
    let report = recorded(&tarpon, &["--push"], &image, &["cat", "/etc/debian_version"]);
    assert_eq!(pack(&report, "who")["fit"], Value::Null, "as it was");
    let made = json(&tarpon.run("index", &["--push", "--json", &image]).unwrap());
    assert_eq!(made["index_digest"], report["index"]["index_digest"]);

    // Other layers, the same files.
    let other = image.replace(":gzip", ":zstdchunked");
    copy(&format!("{}/dev/debian-base:zstdchunked", real::registry().unwrap()), &other);
    let taken = json(&tarpon.run("record", &["--push", "--json", "--from", &image, &other]).unwrap());
    for profile in ["default", "who"] {
        let fit = &pack(&taken, profile)["fit"];
        assert_eq!((&fit["files"], &fit["bytes"]), (&fit["kept_files"], &fit["kept_bytes"]));
    }
    let bytes = pack(&taken, "who")["size"].as_u64().unwrap();
    let (mut reader, root) = started(&other, &["--profile", "who"], bytes);
    assert_eq!(chroot(&root, &["id", "-u"]), "0\n");
    assert_eq!(counter(&reader, "bytes_fetched"), bytes);
    reader.unmount(&root).unwrap();
}

#[test]
fn a_start_is_over_when_a_line_matches_or_time_has_passed() {
    let Some(image) = image("until") else { return };
    let tarpon = Tarpon::new().unwrap();
    // Not by its name, which is in the command too.
    let (file, late) = ("/usr/share/base-files/motd", "cat /usr/share/base-files/mot?");
    let script = format!("echo not yet; cat /etc/debian_version; echo is up; sleep 4321; {late}");
    let trace = tarpon.store().with_extension("trace");
    let trace = trace.to_str().unwrap();
    for until in [["--until-log", "^is up$"], ["--for", "8"]] {
        let report = recorded(&tarpon, &[&until[..], &["-o", trace]].concat(), &image, &["sh", "-c", &script]);
        assert_eq!(report["exit"], Value::Null, "it was stopped");
        let shown = tarpon.run("trace", &["show", trace]).unwrap();
        assert!(shown.contains("/etc/debian_version") && !shown.contains(file), "{until:?}: {shown}");
        assert!(!is_running(&["sleep", "4321"]));
    }
}

#[test]
fn a_container_that_fails_or_ends_too_early_is_an_error_that_names_its_exit_code() {
    let Some(image) = image("failures") else { return };
    let tarpon = Tarpon::new().unwrap();
    let trace = tarpon.store().with_extension("trace");
    let trace = trace.to_str().unwrap();
    let cases: [(&[&str], &str, &str); 5] = [
        (&["--push"], "exit 7", "the container failed with exit code 7"),
        (&["-o", trace], "exec /nonexistent", "the container failed with exit code 127"),
        (&["--until-log", "never", "-o", trace], "exit 7", "ended with exit code 7 before it was ready"),
        (&["--until-port", "9", "-o", trace], "exit 0", "ended with exit code 0 before it was ready"),
        (&["--until-http", "9/health", "-o", trace], "exit 0", "ended with exit code 0 before it was ready"),
    ];
    for (options, script, reason) in cases {
        let output = tarpon.output("record", &[options, &[&image, "--", "sh", "-c", script]].concat()).unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert_eq!(printed.lines().filter(|line| line.contains(reason)).count(), 1, "{printed}");
        assert_nothing_is_left(&tarpon);
    }
    let report = tarpon.output("record", &["--json", "-o", trace, &image, "--", "sh", "-c", "exit 7"]).unwrap();
    assert_eq!(json(&String::from_utf8_lossy(&report.stdout))["exit"], 7);
    let listed = Tarpon::new().unwrap().output("ls", &["--index", "registry", &format!("{image}:/etc")]).unwrap();
    let printed = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(printed.contains("lists none"), "nothing was published: {printed}");
}

#[test]
fn a_recording_that_is_interrupted_takes_its_container_along() {
    let Some(image) = image("interrupted") else { return };
    let tarpon = Tarpon::new().unwrap();
    let trace = tarpon.store().with_extension("trace");
    let mut command = tarpon.command("record");
    command.args(["--until-log", "never", "-o"]).arg(&trace).arg(&image);
    command.args(["--", "sh", "-c", "echo here; exec sleep 8765"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recording = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(recording.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    run(Command::new("kill").args(["-INT", &recording.id().to_string()])).unwrap();
    let ended = recording.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(!trace.exists() && !is_running(&["sleep", "8765"]));
    assert_nothing_is_left(&tarpon);
}

#[test]
fn a_recording_whose_server_was_killed_is_cleared_away_and_not_mounted_again() {
    let Some(image) = image("killed") else { return };
    let tarpon = Tarpon::new().unwrap();
    let mut command = tarpon.command("record");
    command.args(["--until-log", "never", "--push"]).arg(&image);
    command.args(["--", "sh", "-c", "echo here; exec sleep 8764"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recording = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(recording.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    processes::kill_with_holder(&tarpon.store(), server(&tarpon));
    run(Command::new("kill").args(["-INT", &recording.id().to_string()])).unwrap();
    let ended = recording.wait_with_output().unwrap();
    assert!(!ended.status.success() && !is_running(&["sleep", "8764"]));
    tarpon.run("recover", &[]).unwrap();
    assert_nothing_is_left(&tarpon);
}

#[test]
fn a_recording_goes_on_when_its_server_is_killed_or_upgraded() {
    let Some(image) = image("continued") else { return };
    let tarpon = Tarpon::new().unwrap();
    let file = tarpon.store().with_extension("trace");
    let files = ["/etc/debian_version", "/etc/issue", "/etc/profile"];
    // Between two files it waits until the test ends the first program, and then the second.
    let steps = files.map(|file| format!("cat {file}")).join("; sleep 8763; sleep 8762; ");
    let mut command = tarpon.command("record");
    command.args(["--json", "--timeout", "60", "-o"]).arg(&file).args([&image, "--", "sh", "-c", &steps]);
    let recording = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pauses = [true, false].map(|is_killed| {
        end_step("8763");
        let paused = Instant::now();
        let before = server(&tarpon);
        if is_killed {
            kill_process(before, Signal::KILL).unwrap();
        } else {
            tarpon.run("server", &["upgrade"]).unwrap();
        }
        let began = Instant::now();
        while server(&tarpon) == before {
            assert!(began.elapsed() < PATIENCE, "no successor serves");
        }
        let pause = paused.elapsed();
        end_step("8762");
        pause
    });
    let ended = recording.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));

    let trace = json(&tarpon.run("trace", &["show", "--json", file.to_str().unwrap()]).unwrap());
    let touched = trace["files"].as_array().unwrap();
    let times = files.map(|path| {
        let file = touched.iter().find(|file| file["path"] == path);
        file.unwrap_or_else(|| panic!("{path} is missing: {trace}"))["first_micros"].as_u64().unwrap()
    });
    for (pair, pause) in times.windows(2).zip(pauses) {
        let between = pair[1].checked_sub(pair[0]).map(Duration::from_micros);
        assert!(between >= Some(pause), "{times:?} µs, {pauses:?}");
    }
    assert!(touched.iter().any(|file| file["path"] == "/usr/bin/cat"), "{trace}");
    assert_nothing_is_left(&tarpon);
}

/// A start by a command that reads a few programs and libraries.
fn start(tarpon: &Tarpon, options: &[&str], image: &str) {
    let command = ["/bin/sh", "-c", "tar --version && sed --version && grep --version"];
    let arguments = [&["--rm", "--network", "none", "--index", "registry"], options, &[image], &command].concat();
    tarpon.run("run", &arguments).unwrap();
}

/// The learned traces.
fn learned(tarpon: &Tarpon) -> Vec<Value> {
    json(&tarpon.run("trace", &["ls", "--json"]).unwrap()).as_array().unwrap().clone()
}

#[test]
fn a_start_is_learned_and_its_trace_is_listed_exported_and_removed() {
    let Some(image) = image("learned") else { return };
    let tarpon = Tarpon::new().unwrap();
    tarpon.run("index", &["--push", &image]).unwrap();
    start(&tarpon, &["--no-learn"], &image);
    assert_eq!(learned(&tarpon), Vec::<Value>::new());
    tarpon.run("cache", &["clear"]).unwrap();
    start(&tarpon, &[], &image);
    let traces = learned(&tarpon);
    let [trace] = &traces[..] else { panic!("{traces:?}") };
    assert_eq!(trace["image"], image.as_str());
    assert_eq!(trace["command"][0], "/bin/sh");
    assert!(trace["files"].as_u64().unwrap() > 5, "{trace}");
    let id = trace["id"].as_str().unwrap();
    let exported = tarpon.run("trace", &["export", id]).unwrap();
    assert!(exported.lines().count() > 5, "{exported}");
    tarpon.run("trace", &["rm", id]).unwrap();
    assert_eq!(learned(&tarpon), Vec::<Value>::new());
    assert_nothing_is_left(&tarpon);
}
