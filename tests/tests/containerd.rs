//! Real containerd on images that tarpon's snapshotter mounts for it: pulled as the kubelet pulls, run, kept over restarts, removed.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tarpon_tests::containerd::Containerd;
use tarpon_tests::real::{self, run};

fn bed(options: &[&str]) -> Option<(Containerd, String)> {
    if let Some(reason) = Containerd::missing() {
        println!("skipped: {reason}");
        return None;
    }
    Some((Containerd::start(options).unwrap(), real::registry()?))
}

/// Bytes of the layers of an image.
fn size(image: &str) -> u64 {
    let raw =
        run(Command::new("skopeo").args(["inspect", "--raw", "--tls-verify=false", &format!("docker://{image}")]));
    let manifest: serde_json::Value = serde_json::from_str(&raw.unwrap()).unwrap();
    manifest["layers"].as_array().unwrap().iter().map(|layer| layer["size"].as_u64().unwrap()).sum()
}

/// What a container sees of its image: all names, kinds, modes, owners, sizes and link targets, and contents of some.
const LOOK: &str = "cd / && find $(ls -d bin etc home lib opt q root sbin srv usr var 2>/dev/null) -xdev -printf '%p %y %m %U %G %l %T@ ' -a \\( -type f -printf '%s' -o -true \\) -printf '\\n' \
    | grep -v '^etc/\\(hosts\\|hostname\\|resolv.conf\\)' | sort | sha256sum; find $(ls -d etc q usr/bin 2>/dev/null) -xdev -type f -exec sha256sum {} + | sort | sha256sum";

#[test]
fn a_pulled_image_runs_while_hardly_anything_of_it_was_fetched() {
    let Some((bed, registry)) = bed(&[]) else { return };
    for format in ["estargz", "zstdchunked"] {
        let image = format!("{registry}/dev/debian-base:{format}");
        bed.pull(&image).unwrap();
        let content = bed.ctr(&["content", "ls"]).unwrap();
        assert_eq!(content.lines().count(), 3, "a title, the manifest and the config, and no layer:\n{content}");
        let seen = bed.run("tarpon", &image, "lazy", &["cat", "/etc/debian_version"]).unwrap();
        assert!(seen.starts_with("12"), "{seen}");
        let status: serde_json::Value = serde_json::from_str(&bed.tarpon(&["status", "--json"]).unwrap()).unwrap();
        let mounts = status.as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["image"].as_str().unwrap().contains("debian-base")).unwrap();
        let fetched = mount["fetched_bytes"].as_u64().unwrap();
        assert!(fetched * 4 < size(&image), "{fetched} of {}", size(&image));
        let listed = bed.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
        assert!(listed.contains("Committed"), "{listed}");
        bed.remove(&image).unwrap();
        let listed = bed.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
        assert!(!listed.contains("Committed"), "{listed}");
        assert!(!bed.mounts().unwrap().contains("/snapshotter/"), "nothing of it is mounted any more");
    }
}

/// What a container sees of an image when containerd has unpacked it for this snapshotter.
fn unpacked(bed: &Containerd, snapshotter: &str, image: &str) -> String {
    bed.ctr(&["images", "pull", "--plain-http", "--snapshotter", snapshotter, image]).unwrap();
    let seen = bed.run(snapshotter, image, "unpacked", &["sh", "-c", LOOK]).unwrap();
    bed.ctr(&["images", "rm", "--sync", image]).unwrap();
    seen
}

/// Starts a workload; says whether it became ready, and what it said otherwise.
fn becomes_ready(bed: &Containerd, image: &str, workload: &[&str]) -> Result<(), String> {
    let [_, _, script, kind, value, seconds, name, network] = workload[..] else { panic!("{workload:?}") };
    let options: &[&str] = if network == "host" { &["--net-host"] } else { &[] };
    let mut command = bed.container("tarpon", options, image, name, &["sh", "-c", &format!("exec 2>&1; {script}")]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (tell, told) = mpsc::channel();
    let output = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let until = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let is_said = |line: &str| {
        value.split('|').any(|said| match said.strip_prefix('^') {
            Some(begin) => line.starts_with(begin),
            None => line.contains(said),
        })
    };
    let mut said = String::new();
    let ready = loop {
        match told.recv_timeout(Duration::from_millis(20)) {
            Ok(line) if kind == "stdout" && is_said(&line) => break Ok(()),
            Ok(line) => said.push_str(&format!("{line}\n")),
            Err(RecvTimeoutError::Disconnected) => break Err(format!("{name} of {image} ended:\n{said}")),
            Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                break Err(format!("{name} of {image}:\n{said}"));
            }
            Err(RecvTimeoutError::Timeout)
                if kind == "tcp" && TcpStream::connect(format!("127.0.0.1:{value}")).is_ok() =>
            {
                break Ok(());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    // It may have ended by itself.
    let _ = bed.ctr(&["task", "kill", "--signal", "SIGKILL", name]);
    drop(told);
    child.wait().unwrap();
    let _closed = reader.join().unwrap();
    ready
}

#[test]
fn each_workload_becomes_ready_in_each_format_that_the_registry_has() {
    let Some((bed, registry)) = bed(&[]) else { return };
    let table = include_str!("../../fixtures/corpus/workloads.tsv");
    let mut last = String::new();
    let mut count = 0;
    for workload in table.lines().filter(|line| !line.starts_with('#')) {
        let workload: Vec<&str> = workload.split('\t').collect();
        if workload[0].starts_with("dev/quirks") {
            // These check themselves by what was recorded when they were built, of which not all went into their layers.
            continue;
        }
        for format in ["gzip", "zstdchunked", "estargz"] {
            if !real::has_tag(&registry, workload[0], format) {
                println!("skipped: {} as {format}, which the registry does not have", workload[0]);
                continue;
            }
            let image = format!("{registry}/{}:{format}", workload[0]);
            if last != image {
                bed.pull(&image).unwrap();
                last.clone_from(&image);
            }
            becomes_ready(&bed, &image, &workload).unwrap_or_else(|why| panic!("{why}"));
            count += 1;
        }
    }
    println!("{count} starts of workloads");
    let unpacked = bed.logs().contains("containerd pulls and unpacks this layer");
    assert!(!unpacked, "all of them were mounted");
}

#[test]
fn a_container_sees_what_it_sees_with_containerd_s_own_snapshotter() {
    let Some((bed, registry)) = bed(&[]) else { return };
    for name in ["redis:gzip", "redis:estargz", "quirks:gzip", "quirks:zstdchunked"] {
        let image = format!("{registry}/dev/{name}");
        bed.pull(&image).unwrap();
        let lazy = bed.run("tarpon", &image, "lazy", &["sh", "-c", LOOK]).unwrap();
        bed.remove(&image).unwrap();
        let own = unpacked(&bed, "overlayfs", &image);
        assert_eq!(lazy, own, "{name}, mounted by tarpon");
        assert_eq!(unpacked(&bed, "tarpon", &image), own, "{name}, unpacked by containerd");
    }
}

#[test]
fn an_image_whose_layers_came_with_another_one_is_those_layers_and_no_more() {
    let Some((bed, registry)) = bed(&[]) else { return };
    let (derived, base) = (format!("{registry}/dev/redis:estargz"), format!("{registry}/dev/debian-base:estargz"));
    bed.pull(&derived).unwrap();
    bed.pull(&base).unwrap();
    let seen = bed.run("tarpon", &base, "base", &["sh", "-c", LOOK]).unwrap();
    let without = bed.run("tarpon", &base, "without", &["sh", "-c", "command -v redis-server || echo none"]).unwrap();
    assert_eq!(without, "none\n");
    bed.run("tarpon", &derived, "derived", &["redis-server", "--version"]).unwrap();
    bed.remove(&derived).unwrap();
    bed.run("tarpon", &base, "still", &["cat", "/etc/debian_version"]).unwrap();
    bed.remove(&base).unwrap();
    assert_eq!(unpacked(&bed, "overlayfs", &base), seen);
}

#[test]
fn snapshots_are_there_after_the_snapshotter_and_the_server_were_killed() {
    let Some((mut bed, registry)) = bed(&[]) else { return };
    let image = format!("{registry}/dev/redis:estargz");
    bed.pull(&image).unwrap();
    let version = ["redis-server", "--version"];
    bed.run("tarpon", &image, "before", &version).unwrap();
    bed.stop_snapshotter(true).unwrap();
    let status: serde_json::Value = serde_json::from_str(&bed.tarpon(&["status", "--json"]).unwrap()).unwrap();
    let server = status[0]["server"].as_i64().unwrap();
    let server = rustix::process::Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    bed.start_snapshotter(&[]).unwrap();
    let seen = bed.run("tarpon", &image, "after", &version).unwrap();
    assert!(seen.starts_with("Redis server"), "{seen}");
    // As after the machine was started anew: nothing is mounted, and nobody remembers that it was.
    bed.stop_snapshotter(false).unwrap();
    let status: serde_json::Value = serde_json::from_str(&bed.tarpon(&["status", "--json"]).unwrap()).unwrap();
    for mount in status.as_array().unwrap() {
        bed.tarpon(&["umount", mount["mountpoint"].as_str().unwrap()]).unwrap();
    }
    bed.start_snapshotter(&[]).unwrap();
    let seen = bed.run("tarpon", &image, "anew", &version).unwrap();
    assert!(seen.starts_with("Redis server"), "{seen}");
}

#[test]
fn what_a_container_changed_can_be_committed_on_layers_that_are_mounted() {
    let Some((bed, registry)) = bed(&[]) else { return };
    let image = format!("{registry}/dev/debian-base:estargz");
    bed.pull(&image).unwrap();
    let chain = bed.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
    let top =
        chain.lines().find(|line| line.contains("Committed")).unwrap().split_whitespace().next().unwrap().to_owned();
    let snapshots = |arguments: &[&str]| bed.ctr(&[&["snapshots", "--snapshotter", "tarpon"], arguments].concat());
    snapshots(&["prepare", "work", &top]).unwrap();
    let mount = snapshots(&["mounts", "/mnt", "work"]).unwrap();
    let upper = mount.split(',').find_map(|option| option.trim().strip_prefix("upperdir=")).unwrap().to_owned();
    std::fs::write(format!("{upper}/added"), "by hand").unwrap();
    snapshots(&["commit", "done", "work"]).unwrap();
    // No view: `ctr` makes those without a label that keeps them from being collected as garbage.
    snapshots(&["prepare", "look", "done"]).unwrap();
    let mount = snapshots(&["mounts", "/mnt", "look"]).unwrap();
    let target = bed.path("mnt");
    std::fs::create_dir(&target).unwrap();
    let mount = mount.trim().replace("/mnt", target.to_str().unwrap());
    let script = format!("{mount} && cat {0}/added {0}/etc/debian_version && umount {0}", target.display());
    let seen = run(&mut bed.command(&["sh", "-c", &script])).unwrap();
    assert!(seen.starts_with("by hand12"), "{seen}");
    snapshots(&["rm", "look"]).unwrap();
    assert!(snapshots(&["rm", &top]).is_err(), "something lies on it");
    snapshots(&["rm", "done"]).unwrap();
}

#[test]
fn images_that_cannot_be_read_in_parts_are_left_to_containerd_if_that_is_wanted() {
    let Some((bed, registry)) = bed(&["--plain", "unpack"]) else { return };
    let image = format!("{registry}/dev/debian-base:gzip");
    bed.pull(&image).unwrap();
    let logs = bed.logs();
    assert!(logs.contains("containerd pulls and unpacks this layer"), "{logs}");
    let listed = bed.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
    let name = listed.lines().find(|line| line.contains("Committed")).unwrap().split_whitespace().next().unwrap();
    let info = bed.ctr(&["snapshots", "--snapshotter", "tarpon", "info", name]).unwrap();
    assert!(info.contains("tarpon/unpacked-because"), "{info}");
    let seen = bed.run("tarpon", &image, "unpacked", &["cat", "/etc/debian_version"]).unwrap();
    assert!(seen.starts_with("12"), "{seen}");
}

#[test]
fn with_whole_an_image_is_verified_before_it_is_there() {
    let Some((bed, registry)) = bed(&["--whole"]) else { return };
    let image = format!("{registry}/dev/debian-base:estargz");
    bed.pull(&image).unwrap();
    bed.run("tarpon", &image, "whole", &["cat", "/etc/debian_version"]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&bed.tarpon(&["status", "--json"]).unwrap()).unwrap();
    assert_eq!(status[0]["verification"][0]["state"], "diffID-verified");
    assert_eq!(status[0]["fetched_bytes"], 0, "nothing was left to be fetched");
}
