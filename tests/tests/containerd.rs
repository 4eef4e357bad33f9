//! Real containerd on images that tarpon's snapshotter mounts: pulled as the kubelet pulls, run, kept over restarts, removed.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tarpon_oci::Digest;
use tarpon_testkit::layers::{EstargzOptions, Image, ImageBuilder, Item, estargz};
use tarpon_testkit::matrix;
use tarpon_tests::containerd::{self, Containerd};
use tarpon_tests::private_registry::PrivateRegistry;
use tarpon_tests::real::{self, run};
use tarpon_tests::wait::wait_for;

/// Options of a snapshotter that proxies containerd's CRI.
const PROXY: [&str; 3] = ["--cri-proxy", "--cri-address", "HERE/c.sock"];

fn fixture(options: &[&str]) -> Option<(Containerd, String)> {
    if let Some(reason) = Containerd::missing() {
        println!("skipped: {reason}");
        return None;
    }
    Some((Containerd::start(options).unwrap(), real::registry()?))
}

/// Size of an image's layers in bytes.
fn size(image: &str) -> u64 {
    let raw =
        run(Command::new("skopeo").args(["inspect", "--raw", "--tls-verify=false", &format!("docker://{image}")]));
    let manifest: serde_json::Value = serde_json::from_str(&raw.unwrap()).unwrap();
    manifest["layers"].as_array().unwrap().iter().map(|layer| layer["size"].as_u64().unwrap()).sum()
}

/// Lists the image as seen in a container, one entry per line: time of change, kind, mode, owner, link target, size and name. Then the
/// digest of the contents of some files.
const LOOK: &str = "cd / && find $(ls -d bin etc home lib opt q root sbin srv usr var 2>/dev/null) -xdev \
    -printf '%T@ %y %m %U %G %l ' -a \\( -type f -printf '%s' -o -true \\) -printf ' %p\\0' \
    | grep -zv ' etc/\\(hosts\\|hostname\\|resolv.conf\\)$' | sort -z | tr '\\n\\0' '?\\n' | cat -v; \
    find $(ls -d etc q usr/bin 2>/dev/null) -xdev -type f -exec sha256sum {} + | sort | sha256sum";

/// Fails with only the lines that differ: there are thousands.
fn assert_same(seen: &str, expected: &str, what: &str) {
    let lines = |text: &str, other: &str| -> Vec<String> {
        let others: HashSet<&str> = other.lines().collect();
        text.lines().filter(|line| !others.contains(line)).map(str::to_owned).collect()
    };
    assert_eq!(lines(seen, expected), lines(expected, seen), "{what}");
    assert_eq!(seen.lines().count(), expected.lines().count(), "{what}");
}

#[test]
fn a_pulled_image_runs_while_hardly_anything_of_it_was_fetched() {
    let Some((fixture, registry)) = fixture(&[]) else { return };
    for format in ["estargz", "zstdchunked"] {
        let image = format!("{registry}/dev/debian-base:{format}");
        fixture.pull(&image).unwrap();
        let content = fixture.ctr(&["content", "ls"]).unwrap();
        assert_eq!(content.lines().count(), 3, "a title, the manifest and the config, and no layer:\n{content}");
        let seen = fixture.run("tarpon", &image, "lazy", &["cat", "/etc/debian_version"]).unwrap();
        assert!(seen.starts_with("12"), "{seen}");
        let status: serde_json::Value = serde_json::from_str(&fixture.tarpon(&["status", "--json"]).unwrap()).unwrap();
        let mounts = status.as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["image"].as_str().unwrap().contains("debian-base")).unwrap();
        let fetched = mount["fetched_bytes"].as_u64().unwrap();
        assert!(fetched * 4 < size(&image), "{fetched} of {}", size(&image));
        let listed = fixture.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
        assert!(listed.contains("Committed"), "{listed}");
        fixture.remove(&image).unwrap();
        let listed = fixture.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
        assert!(!listed.contains("Committed"), "{listed}");
        let snapshots = fixture.tarpon.store().join("snapshotter");
        assert!(
            !fixture.mounts().unwrap().contains(snapshots.to_str().unwrap()),
            "it is still mounted:\n{}",
            fixture.logs()
        );
    }
}

/// The view of a container when containerd has unpacked the image for this snapshotter.
fn unpacked(fixture: &Containerd, snapshotter: &str, image: &str) -> String {
    // The pull service of containerd 2.x would make tarpon's snapshotter mount the layers.
    let local: &[&str] = if containerd::major().unwrap() < 2 { &[] } else { &["--local"] };
    let pull = [&["images", "pull"], local, &["--plain-http", "--snapshotter", snapshotter, image]].concat();
    fixture.ctr(&pull).unwrap();
    let seen = fixture.run_script(snapshotter, image, "unpacked", LOOK).unwrap();
    fixture.ctr(&["images", "rm", "--sync", image]).unwrap();
    seen
}

/// The entries of `dev/quirks` that were changed before 1970. Tarpon shows the times of the layer, as GNU tar and umoci do. Containerd
/// unpacks such an entry with the first second of 1970.
const BEFORE_1970: [&str; 6] = [
    "-1.0000000000 d 755 0 0   q/time/d1969-12-31_23-59-59",
    "-1.0000000000 f 644 0 0  20 q/time/f1969-12-31_23-59-59",
    "-1.0000000000 l 777 0 0 x  q/time/l1969-12-31_23-59-59",
    "-618105600.0000000000 d 755 0 0   q/time/d1950-06-01",
    "-618105600.0000000000 f 644 0 0  11 q/time/f1950-06-01",
    "-618105600.0000000000 l 777 0 0 x  q/time/l1950-06-01",
];

/// `seen`, with the time that containerd gives to each entry of [`BEFORE_1970`].
fn with_times_of_containerd(seen: &str) -> String {
    let line = |line: &str| match line.split_once(' ') {
        Some((_, rest)) if BEFORE_1970.contains(&line) => format!("0.0000000000 {rest}\n"),
        _ => format!("{line}\n"),
    };
    seen.lines().map(line).collect()
}

#[test]
fn a_container_sees_what_it_sees_with_containerd_s_own_snapshotter() {
    let all = ["redis:gzip", "quirks:zstdchunked", "redis:estargz", "quirks:gzip"];
    let tested = if matrix::is_full() { &all[..] } else { &all[..2] };
    for name in tested {
        // A separate containerd for each image: layers on top of one that containerd unpacked before would not be mounted.
        let Some((fixture, registry)) = fixture(&[]) else { return };
        let image = format!("{registry}/dev/{name}");
        fixture.pull(&image).unwrap();
        let lazy = fixture.run_script("tarpon", &image, "lazy", LOOK).unwrap();
        let status: serde_json::Value = serde_json::from_str(&fixture.tarpon(&["status", "--json"]).unwrap()).unwrap();
        assert!(!status.as_array().unwrap().is_empty(), "{name} is not mounted:\n{}", fixture.logs());
        fixture.remove(&image).unwrap();
        let before_1970: Vec<&str> = lazy.lines().filter(|line| line.starts_with('-')).collect();
        assert_eq!(before_1970, if name.starts_with("quirks") { BEFORE_1970.to_vec() } else { Vec::new() }, "{name}");
        let own = unpacked(&fixture, "overlayfs", &image);
        assert_same(&with_times_of_containerd(&lazy), &own, &format!("{name}, mounted by tarpon"));
        assert_same(&unpacked(&fixture, "tarpon", &image), &own, &format!("{name}, unpacked by containerd"));
    }
}

#[test]
fn an_image_whose_layers_came_with_another_one_is_those_layers_and_no_more() {
    let Some((fixture, registry)) = fixture(&[]) else { return };
    let (derived, base) = (format!("{registry}/dev/redis:estargz"), format!("{registry}/dev/debian-base:estargz"));
    fixture.pull(&derived).unwrap();
    fixture.pull(&base).unwrap();
    let seen = fixture.run_script("tarpon", &base, "base", LOOK).unwrap();
    let without =
        fixture.run("tarpon", &base, "without", &["sh", "-c", "command -v redis-server || echo none"]).unwrap();
    assert_eq!(without, "none\n");
    fixture.run("tarpon", &derived, "derived", &["redis-server", "--version"]).unwrap();
    fixture.remove(&derived).unwrap();
    fixture.run("tarpon", &base, "still", &["cat", "/etc/debian_version"]).unwrap();
    fixture.remove(&base).unwrap();
    assert_same(&seen, &unpacked(&fixture, "overlayfs", &base), "the base, mounted by tarpon");
}

#[test]
fn snapshots_are_there_after_the_snapshotter_and_the_server_were_killed() {
    let Some((mut fixture, registry)) = fixture(&[]) else { return };
    let image = format!("{registry}/dev/redis:estargz");
    fixture.pull(&image).unwrap();
    let version = ["redis-server", "--version"];
    fixture.run("tarpon", &image, "before", &version).unwrap();
    fixture.stop_snapshotter(true).unwrap();
    let status: serde_json::Value = serde_json::from_str(&fixture.tarpon(&["status", "--json"]).unwrap()).unwrap();
    let server = status[0]["server"].as_i64().unwrap();
    let server = rustix::process::Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    fixture.start_snapshotter(&[]).unwrap();
    let seen = fixture.run("tarpon", &image, "after", &version).unwrap();
    assert!(seen.starts_with("Redis server"), "{seen}");
    // As after a reboot: nothing is mounted, and no process remembers the mounts.
    fixture.stop_snapshotter(false).unwrap();
    let status: serde_json::Value = serde_json::from_str(&fixture.tarpon(&["status", "--json"]).unwrap()).unwrap();
    for mount in status.as_array().unwrap() {
        fixture.tarpon(&["umount", mount["mountpoint"].as_str().unwrap()]).unwrap();
    }
    fixture.start_snapshotter(&[]).unwrap();
    let seen = fixture.run("tarpon", &image, "anew", &version).unwrap();
    assert!(seen.starts_with("Redis server"), "{seen}");
}

#[test]
fn what_a_container_changed_can_be_committed_on_layers_that_are_mounted() {
    let Some((fixture, registry)) = fixture(&[]) else { return };
    let image = format!("{registry}/dev/debian-base:estargz");
    fixture.pull(&image).unwrap();
    let chain = fixture.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
    let top =
        chain.lines().find(|line| line.contains("Committed")).unwrap().split_whitespace().next().unwrap().to_owned();
    let snapshots = |arguments: &[&str]| fixture.ctr(&[&["snapshots", "--snapshotter", "tarpon"], arguments].concat());
    snapshots(&["prepare", "work", &top]).unwrap();
    let mount = snapshots(&["mounts", "/mnt", "work"]).unwrap();
    let upper = mount.split(',').find_map(|option| option.trim().strip_prefix("upperdir=")).unwrap().to_owned();
    std::fs::write(format!("{upper}/added"), "by hand").unwrap();
    snapshots(&["commit", "done", "work"]).unwrap();
    // Not a view: `ctr` creates views without a label that protects them from garbage collection.
    snapshots(&["prepare", "look", "done"]).unwrap();
    let mount = snapshots(&["mounts", "/mnt", "look"]).unwrap();
    let target = fixture.path("mnt");
    std::fs::create_dir(&target).unwrap();
    let mount = mount.trim().replace("/mnt", target.to_str().unwrap());
    let script = format!("{mount} && cat {0}/added {0}/etc/debian_version && umount {0}", target.display());
    let seen = run(&mut fixture.command(&["sh", "-c", &script])).unwrap();
    assert!(seen.starts_with("by hand12"), "{seen}");
    snapshots(&["rm", "look"]).unwrap();
    assert!(snapshots(&["rm", &top]).is_err(), "something lies on it");
    snapshots(&["rm", "done"]).unwrap();
}

#[test]
fn images_that_cannot_be_read_in_parts_are_left_to_containerd_if_that_is_wanted() {
    let Some((fixture, registry)) = fixture(&["--plain", "unpack"]) else { return };
    let image = format!("{registry}/dev/debian-base:gzip");
    fixture.pull(&image).unwrap();
    let logs = fixture.logs();
    assert!(logs.contains("containerd pulls and unpacks this layer"), "{logs}");
    let listed = fixture.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).unwrap();
    let name = listed.lines().find(|line| line.contains("Committed")).unwrap().split_whitespace().next().unwrap();
    let info = fixture.ctr(&["snapshots", "--snapshotter", "tarpon", "info", name]).unwrap();
    assert!(info.contains("tarpon/unpacked-because"), "{info}");
    let seen = fixture.run("tarpon", &image, "unpacked", &["cat", "/etc/debian_version"]).unwrap();
    assert!(seen.starts_with("12"), "{seen}");
}

#[test]
fn with_whole_an_image_is_verified_before_it_is_there() {
    let Some((fixture, registry)) = fixture(&["--whole"]) else { return };
    let image = format!("{registry}/dev/debian-base:estargz");
    fixture.pull(&image).unwrap();
    fixture.run("tarpon", &image, "whole", &["cat", "/etc/debian_version"]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&fixture.tarpon(&["status", "--json"]).unwrap()).unwrap();
    assert_eq!(status[0]["verification"][0]["state"], "diffID-verified");
    assert_eq!(status[0]["fetched_bytes"], 0, "nothing was left to be fetched");
}

/// How long a failed read may be remembered, on a busy machine.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Bytes of each file of a private image: nothing but what is read is fetched with it.
const FILE_BYTES: usize = 3 << 20;

/// An image of one layer with files of random bytes, and the chain ID of the layer.
fn private_image(name: &str) -> (Image, String) {
    let content = |file: &str| {
        let mut state = Digest::of(format!("{name} {file}").as_bytes());
        let mut content = Vec::new();
        while content.len() < FILE_BYTES {
            content.extend(state.hex().bytes());
            state = Digest::of(state.to_string().as_bytes());
        }
        content
    };
    let files = ["one", "two", "three", "four", "five"].map(|file| Item::file(file, content(file)));
    let image = ImageBuilder::new().layer(estargz(&files, EstargzOptions::default())).build();
    let config: serde_json::Value = serde_json::from_slice(&image.config).unwrap();
    let chain = config["rootfs"]["diff_ids"][0].as_str().unwrap().to_owned();
    (image, chain)
}

#[test]
fn private_images_are_read_with_the_credentials_of_their_pulls_and_of_no_other() {
    let lacking = Containerd::missing_programs().or_else(PrivateRegistry::missing);
    if let Some(reason) = lacking {
        println!("skipped: {reason}");
        return;
    }
    let mut fixture = Containerd::start(&PROXY).unwrap();
    let (alices, bobs) = ("first-0f-alice", "0nly-of-bob");
    let one = PrivateRegistry::start("alice", alices).unwrap();
    let other = PrivateRegistry::start("bob", bobs).unwrap();
    let ((one_image, one_chain), (other_image, other_chain)) = (private_image("one"), private_image("other"));
    let one_name = one.push(&one_image, "team/app:v1", alices).unwrap();
    let other_name = other.push(&other_image, "team/app:v1", bobs).unwrap();

    for refused in [None, Some(("alice", "wrong")), Some(("bob", bobs))] {
        fixture.pull_with(&one_name, refused).unwrap_err();
    }
    fixture.pull_with(&one_name, Some(("alice", alices))).unwrap();
    // The second image is pulled with the credentials of the first one, without any, and then with its own.
    for refused in [Some(("alice", alices)), None] {
        fixture.pull_with(&other_name, refused).unwrap_err();
    }
    let uses = || (one.log().unwrap().matches("bob").count(), other.log().unwrap().matches("alice").count());
    let uses_by_containerd = uses();
    fixture.pull_with(&other_name, Some(("bob", bobs))).unwrap();
    let content = fixture.ctr(&["content", "ls"]).unwrap();
    assert_eq!(content.lines().count(), 5, "a title, two manifests and two configs, and no layer:\n{content}");

    let one_layers = fixture.mounted_layers("first", &one_chain).unwrap();
    let other_layers = fixture.mounted_layers("second", &other_chain).unwrap();
    let read = |layers: &Path, file: &str| run(fixture.command(&["sha256sum"]).arg(layers.join(file)));
    for layers in [&one_layers, &other_layers] {
        read(layers, "one").unwrap();
    }
    // Of five files, `number` were fetched, and no more.
    let assert_fetched = |fixture: &Containerd, number: u64| {
        let status: serde_json::Value = serde_json::from_str(&fixture.tarpon(&["status", "--json"]).unwrap()).unwrap();
        for mount in status.as_array().unwrap() {
            let (fetched, all) = (mount["fetched_bytes"].as_u64().unwrap(), mount["image_bytes"].as_u64().unwrap());
            assert!(fetched > 0 && fetched * 5 < all * (number + 1), "{fetched} of {all}");
        }
        status[0]["server"].as_i64().unwrap()
    };
    assert_fetched(&fixture, 1);
    assert_eq!(uses(), uses_by_containerd, "neither registry sees the user of the other");

    // The password of the first image changes. What is local stays readable, and the rest after the next pull.
    let changed = "second-0f-alice";
    one.change_password(changed).unwrap();
    read(&one_layers, "one").unwrap();
    read(&one_layers, "two").unwrap_err();
    fixture.pull_with(&one_name, Some(("alice", alices))).unwrap_err();
    read(&one_layers, "two").unwrap_err();
    fixture.pull_with(&one_name, Some(("alice", changed))).unwrap();
    read(&one_layers, "three").unwrap();
    // Failed reads are remembered for two seconds.
    wait_for(REMEMBERED, "a file whose read has failed", || read(&one_layers, "two").ok());
    read(&other_layers, "two").unwrap();
    fixture.pull_with(&one_name, None).unwrap_err();
    fixture.pull_with(&one_name, Some(("alice", alices))).unwrap_err();

    // A restart of the snapshotter forgets them. The store's server has them, for what is mounted.
    fixture.stop_snapshotter(true).unwrap();
    fixture.start_snapshotter(&PROXY).unwrap();
    let read = |layers: &Path, file: &str| run(fixture.command(&["sha256sum"]).arg(layers.join(file)));
    for layers in [&one_layers, &other_layers] {
        read(layers, "four").unwrap();
    }
    // So has the next server.
    let server = assert_fetched(&fixture, 4);
    let server = rustix::process::Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    for layers in [&one_layers, &other_layers] {
        read(layers, "five").unwrap();
    }

    let (store, folder) = (fixture.tarpon.store(), fixture.path("."));
    for secret in [alices, changed, bobs] {
        let mut grep = Command::new("grep");
        let found = grep.args(["-rlF", "--devices=skip", secret]).args([&store, &folder]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{secret}");
    }
}

#[test]
fn the_proxy_answers_while_containerd_restarts() {
    if let Some(reason) = Containerd::missing_programs() {
        println!("skipped: {reason}");
        return;
    }
    let mut fixture = Containerd::start(&PROXY).unwrap();
    let pull = |fixture: &Containerd| format!("{:#}", fixture.pull_with("127.0.0.1:1/none:v1", None).unwrap_err());
    assert!(pull(&fixture).contains("failed to pull"), "containerd answers: {}", pull(&fixture));
    fixture.stop_containerd().unwrap();
    assert!(pull(&fixture).contains("containerd does not answer at"), "{}", pull(&fixture));
    fixture.start_containerd().unwrap();
    assert!(pull(&fixture).contains("failed to pull"), "{}", pull(&fixture));
}
