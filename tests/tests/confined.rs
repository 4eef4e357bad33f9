//! The processes that receive, decode and parse bytes of strangers have no rights beyond that.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, RawPid};
use tarpon_testkit::layers::{EstargzOptions, Image, Item, estargz};
use tarpon_testkit::processes;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;
use tarpon_tests::wait;

const IMAGE: &str = "dev/debian-base";
/// What takes longer hangs.
const HUNG: Duration = Duration::from_secs(60);

fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait::wait_for(HUNG, what, poll)
}

fn pid(raw: u32) -> Pid {
    RawPid::try_from(raw).ok().and_then(Pid::from_raw).unwrap()
}

/// The fields of `/proc/PID/status` that show confinement.
fn status(process: Pid) -> Vec<(String, String)> {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let fields = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(name, _)| fields.contains(name)).map(|(name, value)| (name.into(), value.trim().into())).collect()
}

fn confined() -> Vec<(String, String)> {
    reduced_to(NONE)
}

const NONE: &str = "0000000000000000";
/// chown, dac_override, dac_read_search, fowner, fsetid, kill, setgid, setuid, setpcap, linux_immutable, sys_chroot, sys_ptrace,
/// sys_admin, sys_resource, mknod, setfcap, mac_admin.
const MOUNTER: u64 = 0x2892c03ff;

fn reduced_to(capabilities: &str) -> Vec<(String, String)> {
    [
        ("CapInh", NONE),
        ("CapPrm", capabilities),
        ("CapEff", capabilities),
        ("CapBnd", capabilities),
        ("CapAmb", NONE),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into()
}

/// The four user IDs.
const OWN_USER: &str = "2147450880 2147450880 2147450880 2147450880";

fn user(process: Pid) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    ids.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn limit(process: Pid, name: &str) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.as_raw_nonzero())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Reads files until the server needs bytes that are not local.
fn read_some(root: &Path) {
    for entry in std::fs::read_dir(root.join("usr/bin")).unwrap().flatten().take(50) {
        let _link_to_nothing = std::fs::read(entry.path());
    }
}

#[test]
fn the_worker_of_a_server_has_no_capability_no_core_and_a_filter_of_system_calls() {
    if let Some(reason) = real::missing() {
        return println!("skipped: {reason}");
    }
    let registry = real::registry().unwrap();
    for mode in ["native", "fuse"] {
        let mut tarpon = Tarpon::new().unwrap();
        let root = tarpon.mount(&format!("{registry}/{IMAGE}:zstdchunked"), &["--mode", mode]).unwrap();
        read_some(&root);
        let server = *processes::servers(&tarpon.store()).first().unwrap();
        let worker = wait_for("a worker runs", || processes::workers_of(server).first().copied());
        wait_for("it is confined", || (status(worker) == confined()).then_some(()));
        assert_eq!(user(worker), OWN_USER);
        assert_eq!(limit(worker, "Max core file size"), "0 0");
        assert_ne!(limit(worker, "Max data size"), "unlimited unlimited");
        tarpon.run("umount", &[&root.to_string_lossy()]).unwrap();
        wait_for("the worker ends with its server", || status(worker).is_empty().then_some(()));
    }
}

#[test]
fn a_server_of_root_and_its_holder_keep_what_mounts_need() {
    if let Some(reason) = real::missing() {
        return println!("skipped: {reason}");
    }
    let mut tarpon = Tarpon::new().unwrap();
    let root = tarpon.mount(&format!("{}/{IMAGE}:zstdchunked", real::registry().unwrap()), &[]).unwrap();
    let server = *processes::servers(&tarpon.store()).first().unwrap();
    let holder = wait_for("a holder runs", || processes::holders(&tarpon.store()).first().copied());
    // In a container the tests have fewer of them.
    let ours = status(rustix::process::getpid()).into_iter().find(|(name, _)| name == "CapPrm").unwrap().1;
    let kept = format!("{:016x}", u64::from_str_radix(&ours, 16).unwrap() & MOUNTER);
    assert_eq!(status(server), reduced_to(&kept));
    assert_eq!(status(holder), reduced_to(&kept));
    tarpon.run("umount", &[&root.to_string_lossy()]).unwrap();
}

#[test]
fn an_image_is_prepared_by_a_confined_process_that_ends_with_its_command() {
    if let Some(reason) = real::missing() {
        return println!("skipped: {reason}");
    }
    // A registry that accepts a connection and is silent.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/silent:1", silent.local_addr().unwrap());
    let tarpon = Tarpon::new().unwrap();
    let mut command =
        tarpon.command("pull").args(["--tls-verify=false", &image]).stderr(Stdio::piped()).spawn().unwrap();
    let (mut connection, _) = silent.accept().unwrap();
    assert_ne!(connection.read(&mut [0; 1]).unwrap(), 0, "a request arrives");
    let worker = wait_for("a worker runs", || processes::workers_of(pid(command.id())).first().copied());
    assert_eq!(status(worker), confined());
    command.kill().unwrap();
    command.wait().unwrap();
    wait_for("the worker ends with its command", || status(worker).is_empty().then_some(()));
}

#[test]
fn root_reads_a_layout_that_only_its_owner_may_read() {
    if let Some(reason) = real::missing() {
        return println!("skipped: {reason}");
    }
    const OWNER: u32 = 65_534;
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    let layer = estargz(&[Item::file("hello", b"world")], EstargzOptions::default());
    Image::of([layer]).write_layout("1", &layout);
    let paths = std::process::Command::new("find").arg(folder.path()).output().unwrap().stdout;
    for path in String::from_utf8(paths).unwrap().lines() {
        std::os::unix::fs::chown(path, Some(OWNER), Some(OWNER)).unwrap();
    }
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut tarpon = Tarpon::new().unwrap();
    let root = tarpon.mount(&format!("oci:{}:1", layout.display()), &[]).unwrap();
    assert_eq!(std::fs::read(root.join("hello")).unwrap(), b"world");
    tarpon.run("umount", &[&root.to_string_lossy()]).unwrap();
}
