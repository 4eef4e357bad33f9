//! Everything works for an ordinary user, who enters a user namespace without noticing.

use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tarpon_tests::ordinary::{self, FIRST, Ordinary};
use tarpon_tests::real;
use tarpon_tests::wait::wait_for;

const IMAGE: &str = "dev/debian-base:zstdchunked";

fn image() -> String {
    format!("{}/{IMAGE}", real::registry().unwrap())
}

/// `None`, and the reason is printed, where there can be no ordinary user.
fn user() -> Option<Ordinary> {
    if let Some(reason) = ordinary::missing() {
        println!("skipped: {reason}");
        return None;
    }
    Some(Ordinary::new().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_container_runs_as_with_podman_and_its_users_are_those_of_the_user() {
    let Some(anna) = user() else { return };
    let script = "id -u; cat /proc/self/uid_map; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; ls -A /sys/firmware; touch /tmp/x";
    let shown = anna.tarpon(&["run", "--rm", &image(), "sh", "-c", script]).unwrap();
    let words: Vec<&str> = shown.split_whitespace().collect();
    let first = FIRST.to_string();
    assert_eq!(words[..7], ["0", "0", "4711", "1", "1", first.as_str(), "65536"], "{shown}");
    // The capabilities that Podman gives, and its filter of system calls.
    for line in ["CapEff:\t00000000800405fb", "CapBnd:\t00000000800405fb", "NoNewPrivs:\t0", "Seccomp:\t2"] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(shown.ends_with("Seccomp:\t2\n"), "/sys/firmware is masked: {shown}");
}

#[test]
fn a_container_in_the_background_is_used_committed_and_removed() {
    let Some(anna) = user() else { return };
    anna.tarpon(&["run", "-d", "--name", "one", &image(), "sleep", "1000"]).unwrap();
    assert!(anna.tarpon(&["ps"]).unwrap().contains("running since"));
    let write = "echo text > /root/file; chown 33:44 /root/file; stat -c '%u %g' /root/file";
    assert_eq!(anna.tarpon(&["exec", "one", "sh", "-c", write]).unwrap(), "33 44\n");
    let layout = format!("oci:{}:v1", anna.home().join("layout").display());
    anna.tarpon(&["commit", "one", &layout]).unwrap();
    anna.tarpon(&["rm", "-f", "one"]).unwrap();
    assert!(!anna.tarpon(&["ps", "-a"]).unwrap().contains("one"));
    anna.tarpon(&["push", &layout]).unwrap();
    // Under the name of the commit it is an image of the store.
    anna.run("cp", &["-r", "layout", "copy"]).unwrap();
    let (copy, show) = (layout.replace("layout", "copy"), "cat /root/file; stat -c '%u %g' /root/file");
    let shown = anna.tarpon(&["run", "--rm", &copy, "sh", "-c", show]).unwrap();
    assert_eq!(shown, "text\n33 44\n");
}

#[test]
fn a_writable_mount_is_in_the_namespace_and_a_read_only_one_on_the_host() {
    let Some(anna) = user() else { return };
    for name in ["rw", "ro"] {
        anna.run("mkdir", &[name]).unwrap();
    }
    anna.tarpon(&["mount", "--rw", &image(), "rw"]).unwrap();
    anna.tarpon(&["mount", &image(), "ro"]).unwrap();
    assert!(anna.run("ls", &["ro"]).unwrap().contains("etc") && anna.run("ls", &["rw"]).unwrap().is_empty());
    anna.tarpon(&["unshare", "sh", "-c", "rm -r rw/etc/apt && mkdir rw/etc/apt && touch rw/etc/apt/new"]).unwrap();
    assert_eq!(anna.tarpon(&["unshare", "ls", "rw/etc/apt"]).unwrap(), "new\n");
    assert!(anna.tarpon(&["status", "rw"]).unwrap().contains("/rw"));
    assert!(anna.tarpon(&["unshare", "tarpon", "status"]).unwrap().contains("/rw"));
    anna.tarpon(&["umount", "rw"]).unwrap();
    anna.tarpon(&["umount", "ro"]).unwrap();
    assert!(!anna.tarpon(&["unshare", "tarpon", "status"]).unwrap().contains("/rw"));
}

#[test]
fn in_the_namespace_the_kernel_reads_local_files_and_a_mount_outlives_its_server() {
    let Some(anna) = user() else { return };
    anna.run("mkdir", &["rw"]).unwrap();
    anna.tarpon(&["mount", "--rw", &image(), "rw"]).unwrap();
    let status = || -> serde_json::Value {
        serde_json::from_str(&anna.tarpon(&["unshare", "tarpon", "status", "--json"]).unwrap()).unwrap()
    };
    let (before, release) = (status(), rustix::system::uname());
    let mut version = release.release().to_string_lossy().into_owned();
    version.truncate(version.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(version.len()));
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let has_data_layers = (numbers.next(), numbers.next()) >= (Some(6), Some(16));
    assert_eq!(before[0]["mode"], if has_data_layers { "native" } else { "fuse" }, "Linux {version}");
    // Each step by itself, so that none fails unnoticed.
    let sums = "find rw/etc rw/usr/bin rw/usr/sbin -type f -perm -004 > list; xargs cat < list > all; sha256sum < all";
    let sum = anna.tarpon(&["unshare", "sh", "-ec", sums]).unwrap();
    anna.tarpon(&["unshare", "sh", "-c", "echo text > rw/etc/new; chmod 700 rw/usr/bin/env"]).unwrap();
    let server = before[0]["server"].to_string();
    anna.tarpon(&["unshare", "kill", "-9", &server]).unwrap();
    let shown = anna.tarpon(&["unshare", "sh", "-c", "rm rw/etc/new; chmod 755 rw/usr/bin/env"]).unwrap();
    assert_eq!((shown.as_str(), anna.tarpon(&["unshare", "sh", "-ec", sums]).unwrap()), ("", sum));
    assert_ne!(status()[0]["server"], before[0]["server"], "the successor serves it");
    anna.tarpon(&["umount", "rw"]).unwrap();
}

#[test]
fn commands_at_the_same_time_share_one_namespace() {
    let Some(anna) = user() else { return };
    anna.tarpon(&["pull", &image()]).unwrap();
    let image = image();
    let show = ["run", "--rm", &image, "readlink", "/proc/self/ns/user"];
    let shown: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| anna.tarpon(&show).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(shown.iter().all(|one| *one == shown[0] && one.starts_with("user:[")), "{shown:?}");
}

#[test]
fn without_subordinate_ids_the_container_has_one_user() {
    if let Some(reason) = ordinary::missing() {
        return println!("skipped: {reason}");
    }
    let anna = Ordinary::with("").unwrap();
    let shown = anna.tarpon(&["run", "--rm", &image(), "cat", "/proc/self/uid_map"]).unwrap();
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), ["0", "4711", "1"]);
}

#[test]
fn ids_that_newuidmap_refuses_are_one_line_with_a_hint() {
    if let Some(reason) = ordinary::missing() {
        return println!("skipped: {reason}");
    }
    // More than the kernel has.
    let anna = Ordinary::with("anna:4294967290:5\nberta:1:1\n").unwrap();
    let output = anna.output(&["unshare", "id"]).unwrap();
    let error = text(&output.stderr);
    let is_mapped = output.status.success();
    assert!(is_mapped || error.contains("/etc/subuid") && error.lines().count() == 2, "{error}");
}

#[test]
fn podman_runs_an_added_image_without_pulling_it() {
    let Some(anna) = user() else { return };
    if !real::have(&["podman"]) {
        return println!("skipped: podman is not installed");
    }
    let image = image();
    anna.tarpon(&["podman", "setup"]).unwrap();
    anna.tarpon(&["podman", "add", &image]).unwrap();
    let listed = anna.run("podman", &["images", "--format", "{{.Repository}}:{{.Tag}} {{.ReadOnly}}"]).unwrap();
    assert_eq!(listed.trim(), format!("{image} true"));
    let script = "rm -r /usr/share/doc; mkdir /usr/share/doc; ls -A /usr/share/doc; head -1 /etc/os-release";
    let options = ["run", "--rm", "--network=none", "--cgroups=disabled", "--pull=never", &image];
    let shown = anna.run("podman", &[&options[..], &["sh", "-c", script]].concat()).unwrap();
    assert!(shown.starts_with("PRETTY_NAME="), "{shown}");
    anna.tarpon(&["podman", "rm", &image]).unwrap();
    assert_eq!(anna.run("podman", &["images", "--quiet"]).unwrap(), "");
}

#[test]
fn podman_with_a_driver_without_additional_stores_is_not_changed() {
    let Some(anna) = user() else { return };
    if !real::have(&["podman"]) {
        return println!("skipped: podman is not installed");
    }
    anna.run("podman", &["--storage-driver=vfs", "images"]).unwrap();
    let output = anna.output(&["podman", "setup"]).unwrap();
    let error = text(&output.stderr);
    assert!(
        !output.status.success() && error.contains("driver vfs") && error.contains("podman system reset"),
        "{error}"
    );
    anna.run("podman", &["images"]).unwrap();
}

/// Prints what confines the process: a heading for each kind of fact, and lines in an order that does not depend on the runtime.
const CONFINEMENT: &str = r#"
echo '# status'; grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status
echo '# identities'; cat /proc/self/uid_map /proc/self/gid_map
echo '# mounts'; awk '{ split($0, half, " - "); split(half[2], kind, " "); print $5, kind[1], $6 }' /proc/self/mountinfo | sort
echo '# limits'; cat /proc/self/limits
echo '# hidden'; for path in /proc/acpi /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list /proc/timer_stats \
    /proc/sched_debug /proc/scsi /sys/firmware /sys/fs/selinux /sys/dev/block /sys/devices/virtual/powercap; do
    if [ -d "$path" ]; then echo "$path: $(ls -A "$path" | wc -l) entries"; else echo "$path: $(head -c 1 "$path" 2>&1 | wc -c) bytes"; fi
done
echo '# read-only'; for path in /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/irq/default_smp_affinity /proc/bus /proc/fs; do
    if [ -d "$path" ]; then touch "$path/x" 2>/dev/null; else (: >> "$path") 2>/dev/null; fi && echo "$path can be written"
done
echo '# settings'; cat /proc/sys/net/ipv4/ping_group_range /proc/sys/kernel/core_pattern; umask; echo "$PATH"
"#;

#[test]
fn a_container_is_confined_as_one_of_podman() {
    let Some(anna) = user() else { return };
    if !real::have(&["podman"]) {
        return println!("skipped: podman is not installed");
    }
    let image = image();
    anna.tarpon(&["podman", "setup"]).unwrap();
    anna.tarpon(&["podman", "add", &image]).unwrap();
    // The differences. Podman mounts its own file, and lets programs in these three gain privileges. tarpon shows a container on the
    // network of the host its own cgroup, too.
    let differs = |line: &&str, network: &str| {
        ["/etc/hostname ", "/etc/hosts ", "/etc/resolv.conf ", "/run/.containerenv "]
            .iter()
            .any(|own| line.starts_with(own))
            || network == "--network=host" && line.starts_with("/sys/fs/cgroup ")
    };
    for network in ["--network=none", "--network=host"] {
        let of_podman = ["run", "--rm", network, "--cgroups=disabled", "--pull=never", &image];
        let of_podman = anna.run("podman", &[&of_podman[..], &["sh", "-c", CONFINEMENT]].concat()).unwrap();
        let of_tarpon = anna.tarpon(&["run", "--rm", network, &image, "sh", "-c", CONFINEMENT]).unwrap();
        for line in of_tarpon.lines().filter(|line| line.starts_with("/etc/")) {
            assert!(line.contains(" rw,nosuid,nodev,noexec,"), "{line}");
        }
        let same =
            |text: &str| text.lines().filter(|line| !differs(line, network)).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(same(&of_tarpon), same(&of_podman), "{network}");
    }
}

#[test]
fn podman_pulls_layers_lazily() {
    let Some(anna) = user() else { return };
    if !real::have(&["podman"]) {
        return println!("skipped: podman is not installed");
    }
    let image = image();
    anna.tarpon(&["podman", "setup", "--layers"]).unwrap();
    anna.run("podman", &["pull", "--tls-verify=false", &image]).unwrap();
    let listed = || {
        let all: Value = serde_json::from_str(&anna.tarpon(&["podman", "layers", "ls", "--json"]).unwrap()).unwrap();
        all.as_array().unwrap().iter().find(|one| one["image"] == image).cloned().unwrap_or_default()
    };
    let pulled = listed();
    assert_eq!(pulled["fetched_bytes"], 0, "only the table of contents came: {pulled}");
    assert_ne!(pulled["layers"]["image"]["uses"], serde_json::json!({}), "{pulled}");
    let options = ["run", "--rm", "--network=none", "--cgroups=disabled", "--pull=never", &image];
    let script = "rm -r /usr/share/doc; mkdir /usr/share/doc; ls -A /usr/share/doc; head -1 /etc/os-release";
    let shown = anna.run("podman", &[&options[..], &["sh", "-c", script]].concat()).unwrap();
    assert!(shown.starts_with("PRETTY_NAME="), "{shown}");
    let (fetched, whole) = (listed()["fetched_bytes"].as_u64().unwrap(), pulled["image_bytes"].as_u64().unwrap());
    assert!(fetched > 0 && fetched < whole / 4, "{fetched} of {whole}");
    anna.run("podman", &["rmi", &image]).unwrap();
    anna.tarpon(&["podman", "layers", "stop"]).unwrap();
}

/// A daemon of the user, which listens at the path where its clients look. Dropping it ends it.
struct UsersDaemon<'a> {
    anna: &'a Ordinary,
    process: Child,
    socket: String,
}

impl<'a> UsersDaemon<'a> {
    fn start(anna: &'a Ordinary, before: &[&str]) -> Self {
        let socket = anna.home().join("tarpon.sock").display().to_string();
        let listen = format!("unix://{socket}");
        let mut command = anna.command(tarpon_tests::tarpon::binary());
        command.args([before, &["daemon", "--listen", &listen]].concat());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let daemon = Self { anna, process, socket };
        wait_for(Duration::from_secs(60), "the daemon", || {
            daemon.ask("GET", "stats", "").ok().filter(|printed| printed.ends_with("\n200"))
        });
        daemon
    }

    /// The answer to a request, with the HTTP status in the last line.
    fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
        let url = format!("http://localhost/v1/{path}");
        let usual = ["-sS", "-w", "\n%{http_code}", "--unix-socket", &self.socket, "-X", method, &url];
        let body = if body.is_empty() { vec![] } else { vec!["-d", body] };
        self.anna.run("curl", &[&usual[..], &body].concat())
    }
}

impl Drop for UsersDaemon<'_> {
    fn drop(&mut self) {
        // It is below nsenter, which ends with it.
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            let process = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            if let Some(process) = process.filter(|_| line.contains(&self.socket) && !line.starts_with("nsenter")) {
                let _gone_just_now = kill_process(process, Signal::TERM);
            }
        }
        let _status = self.process.wait();
    }
}

#[test]
fn a_daemon_of_the_user_mounts_on_the_host_and_runs_containers_in_a_namespace() {
    let Some(anna) = user() else { return };
    anna.run("mkdir", &["ro"]).unwrap();
    let mount = format!(r#"{{"image": "{}", "mountpoint": "{}/ro"}}"#, image(), anna.home().display());
    let run = format!(r#"{{"image": "{}", "name": "one", "command": ["sleep", "1000"]}}"#, image());
    {
        let daemon = UsersDaemon::start(&anna, &[]);
        let printed = daemon.ask("POST", "mounts", &mount).unwrap();
        assert!(printed.ends_with("\n201") && anna.run("ls", &["ro"]).unwrap().contains("etc"), "{printed}");
        let refused = daemon.ask("POST", "containers", &run).unwrap();
        assert!(refused.contains("tarpon unshare tarpon daemon") && !refused.ends_with("\n201"), "{refused}");
    }
    assert_eq!(anna.run("ls", &["ro"]).unwrap(), "", "a daemon that is ended unmounts");
    let daemon = UsersDaemon::start(&anna, &["unshare", "tarpon"]);
    let printed = daemon.ask("POST", "containers", &run).unwrap();
    assert!(printed.ends_with("\n201"), "{printed}");
    assert_eq!(anna.tarpon(&["exec", "one", "id", "-u"]).unwrap(), "0\n");
    let removed = daemon.ask("DELETE", "containers/one?force=true", "").unwrap();
    assert!(removed.ends_with("\n204"), "{removed}");
}
