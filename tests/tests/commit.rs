//! Images from written layers: committed, pushed, and checked with other tools against the tree that was seen while it was written.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::mount::MountFlags;
use serde_json::Value;
use tarpon_tests::containers::ContainerFixture;
use tarpon_tests::dump::{Difference, Dump, compare, dump};
use tarpon_tests::real::{self, run};

const IMAGE: &str = "dev/debian-base";

/// Every kind of change to an image's files.
const SCRIPT: &str = r"
set -e
echo new > /new; echo 'with a newline' > '/root/a
b'
rm /etc/debian_version; rm -r /usr/share/doc; mkdir /usr/share/doc; echo less > /usr/share/doc/only
mv /etc/issue /etc/issue.old; echo changed >> /etc/issue.net
rm -r /opt; echo file > /opt; rm /bin/sync 2>/dev/null || rm /usr/bin/sync
mkdir /usr/bin/sync; echo inside > /usr/bin/sync/inside
echo linked > /srv/one; ln /srv/one /srv/two; ln -s ../etc/passwd /srv/link; mkfifo -m 640 /srv/fifo
ln /etc/shells /srv/shells
chown 70000:3000000 /srv/one; chmod 4750 /usr/bin/wc; chmod 700 /var/log; touch -d 1969-07-20T20:17:40.5Z /srv/old
touch /srv/.hidden; mkdir -p /srv/deep/er/still; echo empty > /dev/null; : > /srv/empty
";

/// Containers to commit.
struct CommitFixture(ContainerFixture);

impl std::ops::Deref for CommitFixture {
    type Target = ContainerFixture;

    fn deref(&self) -> &ContainerFixture {
        &self.0
    }
}

impl std::ops::DerefMut for CommitFixture {
    fn deref_mut(&mut self) -> &mut ContainerFixture {
        &mut self.0
    }
}

impl CommitFixture {
    fn new() -> Option<Self> {
        ContainerFixture::new().map(Self)
    }

    fn image(&self, tag: &str) -> String {
        format!("{}/{IMAGE}:{tag}", self.registry)
    }

    /// A name in the registry that no other test uses.
    fn name(&self, name: &str) -> String {
        format!("{}/committed-{}/{name}:v1", self.registry, std::process::id())
    }

    fn tarpon(&self, subcommand: &str, arguments: &[&str]) -> String {
        self.tarpon.run(subcommand, arguments).unwrap()
    }

    fn json(&self, subcommand: &str, arguments: &[&str]) -> Value {
        self.json_of(subcommand, &[&["--json", "--quiet"], arguments].concat())
    }

    fn json_of(&self, subcommand: &str, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.tarpon(subcommand, arguments)).unwrap()
    }

    fn upper(&self, container: &str) -> PathBuf {
        self.tarpon.store().join("containers").join(container).join("upper")
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The kernel's overlay of an upper directory over an image. Unmounted when dropped.
struct Merged {
    folder: tempfile::TempDir,
}

impl Merged {
    fn new(lower: &Path, upper: &Path) -> Self {
        let folder = real::scratch().unwrap();
        let at = |name: &str| folder.path().join(name);
        run(Command::new("cp").arg("-a").arg(upper).arg(at("upper"))).unwrap();
        for name in ["work", "merged"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), at("upper").display(), at("work").display());
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("overlay", at("merged"), "overlay", MountFlags::empty(), Some(options.as_c_str()))
            .unwrap();
        Self { folder }
    }

    fn dump(&self) -> Dump {
        dump(&self.folder.path().join("merged")).unwrap()
    }
}

impl Drop for Merged {
    fn drop(&mut self) {
        let merged = self.folder.path().join("merged");
        let _ = rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Entries that are no difference: the runtime creates some as mount points, and eStargz adds others.
const NO_CHANGE: [&[u8]; 5] =
    [b"etc/hosts", b"etc/hostname", b"etc/resolv.conf", b".no.prefetch.landmark", b"stargz.index.json"];

/// Unaccepted differences. `format`: of the new layer.
fn wrong(format: &str, expected: &Dump, actual: &Dump) -> Vec<Difference> {
    let mut found = compare(expected, actual);
    found.retain(|one| {
        let (Some(was), Some(is)) = (expected.get(&one.path), actual.get(&one.path)) else {
            return !NO_CHANGE.contains(&&one.path[..]);
        };
        match one.field {
            // The layer has no entry for the root unless it was changed; a container's root always has mode 0755.
            "mtime" | "mode" if one.path.is_empty() => false,
            "mtime" if was.mtime.0 < 0 && is.mtime == (0, 0) => false, // Others know no times before 1970.
            // eStargz's table of contents has whole seconds.
            "mtime" if format == "estargz" => was.mtime.0 != is.mtime.0,
            _ => true,
        }
    });
    found
}

#[test]
fn what_a_container_wrote_is_what_others_pull() {
    let Some(mut fixture) = CommitFixture::new() else { return };
    for (tag, format) in [("estargz", "estargz"), ("zstdchunked", "zstd-chunked"), ("gzip", "zstd-chunked")] {
        let (base, name) = (fixture.image(tag), fixture.name(tag));
        let ran = fixture.tarpon.output("run", &["--name", tag, &base, "bash", "-c", SCRIPT]).unwrap();
        assert!(ran.status.success(), "{}", printed(&ran));
        let upper = fixture.upper(tag);
        run(Command::new("setfattr").args(["-n", "user.note", "-v", "kept"]).arg(upper.join("new"))).unwrap();
        run(Command::new("setcap").arg("cap_net_raw+ep").arg(upper.join("usr/bin/wc"))).unwrap();

        let committed = fixture.json("commit", &[tag, &name]);
        let pushed = fixture.json("push", &[&name]);
        assert_eq!(committed["digest"], pushed["digest"]);
        assert_eq!(pushed["downloaded_bytes"], 0, "nothing of the base is fetched: {pushed}");
        assert_eq!(pushed["uploaded_bytes"], committed["layer_bytes"]);
        let outcomes: Vec<&str> =
            pushed["layers"].as_array().unwrap().iter().map(|l| l["outcome"].as_str().unwrap()).collect();
        assert_eq!((outcomes.first(), outcomes.last()), (Some(&"mounted"), Some(&"uploaded")), "{outcomes:?}");

        let root = fixture.tarpon.mount(&base, &["--suid", "--dev"]).unwrap();
        let merged = Merged::new(&root, &upper);
        let expected = merged.dump();
        let (_, unpacked) = real::unpacked(&fixture.registry, name.split_once('/').unwrap().1).unwrap();
        assert_same(&wrong(format, &expected, &unpacked), "umoci", tag);
        let mounted = fixture.tarpon.mount(&name, &["--suid", "--dev"]).unwrap();
        assert_same(&wrong(format, &expected, &dump(&mounted).unwrap()), "tarpon", tag);
        drop(merged);
        for mount in [mounted, root] {
            fixture.tarpon.unmount(&mount).unwrap();
        }
        let seen = fixture.tarpon("run", &["--rm", &name, "cat", "/new", "/usr/share/doc/only", "/opt"]);
        assert_eq!(seen, "new\nless\nfile\n");
    }
}

fn assert_same(wrong: &[Difference], whose: &str, tag: &str) {
    let shown: Vec<String> = wrong.iter().take(20).map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{whose} on {tag}: {} differences:\n{}", wrong.len(), shown.join("\n"));
}

/// A private mount namespace with the cgroups that crun needs.
const ALONE: &str = "umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup; exec \"$@\"";

#[test]
fn podman_runs_a_committed_image_as_it_was_committed() {
    let Some(fixture) = CommitFixture::new() else { return };
    if !real::have(&["podman", "unshare"]) {
        println!("skipped: podman is not installed");
        return;
    }
    let name = fixture.name("podman");
    fixture.tarpon(
        "run",
        &["--name", "box", &fixture.image("gzip"), "sh", "-c", "echo hello > /root/new; rm /etc/debian_version"],
    );
    let changes = [
        "-c",
        "ENV WHO=world",
        "-c",
        "WORKDIR /root",
        "-c",
        "CMD [\"sh\", \"-c\", \"cat new; echo $WHO; ls /etc/debian_version\"]",
    ];
    fixture.tarpon("commit", &[&changes[..], &["-q", "-a", "somebody", "-m", "why", "box", &name]].concat());
    fixture.tarpon("push", &["-q", &name]);
    // Podman needs short paths.
    let store = tempfile::Builder::new().prefix("tc-").tempdir_in("/tmp").unwrap();
    let podman = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "--propagation",
            "slave",
            "sh",
            "-c",
            ALONE,
            "sh",
            "podman",
            "--cgroup-manager",
            "cgroupfs",
        ]);
        command.arg("--root").arg(store.path().join("root")).arg("--runroot").arg(store.path().join("run"));
        command.args(["--storage-driver", "overlay"]).args(arguments).output().unwrap()
    };
    let limits =
        ["--cgroups=disabled", "--ulimit", "nproc=1000:1000", "--ulimit", "nofile=1000:1000", "--network", "none"];
    let ran = podman(&[&["run", "--rm", "-q", "--tls-verify=false"], &limits[..], &[&name]].concat());
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "hello\nworld\n", "{}", printed(&ran));
    assert!(!ran.status.success() && printed(&ran).contains("/etc/debian_version"), "{}", printed(&ran));
    let history = podman(&["history", "--format", "{{.Comment}}", &name]);
    assert!(String::from_utf8_lossy(&history.stdout).starts_with("why\n"), "{}", printed(&history));
    podman(&["rmi", "-f", &name]);
    let _ = rustix::mount::unmount(store.path().join("root/overlay"), rustix::mount::UnmountFlags::DETACH);
}

#[test]
fn what_was_not_pushed_is_kept_and_is_no_image_yet() {
    let Some(fixture) = CommitFixture::new() else { return };
    let name = fixture.name("life");
    let list = || fixture.json_of("cache", &["ls", "--committed", "--json"]);
    fixture.tarpon("run", &["--name", "box", &fixture.image("estargz"), "touch", "/new"]);
    fixture.tarpon("commit", &["-q", "box", &name]);
    let refused = fixture.tarpon.output("run", &["--rm", &name, "true"]).unwrap();
    assert!(
        printed(&refused).contains("not pushed") && printed(&refused).contains(&format!("tarpon push {name}")),
        "{}",
        printed(&refused)
    );
    for clearing in [["cache", "gc"], ["cache", "clear"]] {
        fixture.tarpon(clearing[0], &clearing[1..]);
    }
    assert_eq!(list()[0]["pushed"], Value::Null);
    let kept = fixture.tarpon.output("cache", &["rm", &name]).unwrap();
    assert_eq!(kept.status.code(), Some(6), "{}", printed(&kept));
    fixture.tarpon("push", &["-q", &name]);
    fixture.tarpon("run", &["--rm", &name, "ls", "/new"]);
    assert_eq!(list()[0]["pushed"], Value::from(name.as_str()));
    // From now on the name refers to the new image.
    fixture.tarpon("run", &["--name", "next", &name, "touch", "/newer"]);
    fixture.tarpon("commit", &["-q", "next", &name]);
    fixture.tarpon("push", &["-q", &name]);
    fixture.tarpon("run", &["--rm", &name, "ls", "/new", "/newer"]);
    fixture.tarpon("cache", &["gc"]);
    assert_eq!(list(), Value::Array(vec![]));
    let unknown = fixture.tarpon.output("push", &[&name]).unwrap();
    assert_eq!(unknown.status.code(), Some(3), "{}", printed(&unknown));
}

#[test]
fn the_upper_directory_of_a_mount_becomes_a_layer_and_goes_anywhere() {
    let Some(mut fixture) = CommitFixture::new() else { return };
    let work = real::scratch().unwrap();
    let (upper, layout) = (work.path().join("upper"), format!("oci:{}:v1", work.path().join("layout").display()));
    let image = fixture.image("zstdchunked");
    let root = fixture.tarpon.mount(&image, &[&format!("--rw={}", upper.display())]).unwrap();
    std::fs::write(root.join("new"), "new").unwrap();
    std::fs::remove_dir_all(root.join("usr/share")).unwrap();
    let upper_path = upper.to_str().unwrap().to_owned();
    let committed = fixture.json("commit", &[&upper_path, &layout]);
    assert_eq!(committed["base"], fixture.image("zstdchunked").as_str());
    fixture.tarpon.unmount(&root).unwrap();
    let after = fixture.json("commit", &[&upper_path, &layout]);
    assert_eq!(after["base"], committed["base"], "the base is remembered beside the directory");
    assert_eq!(after["base_digest"], committed["base_digest"]);
    let other = work.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let unnamed = fixture.tarpon.output("commit", &[other.to_str().unwrap(), &layout]).unwrap();
    assert!(printed(&unnamed).contains("--base IMAGE"), "{}", printed(&unnamed));
    let stamped = |name: &str| {
        let arguments = ["--base", &fixture.image("zstdchunked"), "--timestamp", "1700000000", &upper_path, name];
        fixture.json("commit", &arguments)["digest"].clone()
    };
    assert_eq!(stamped(&layout), stamped(&fixture.name("elsewhere")), "the digest depends on what is said alone");
    // A layout cannot reuse a registry's blobs: the base is streamed from its registry.
    let pushed = fixture.json("push", &[&layout]);
    assert_eq!(pushed["layers"][0]["outcome"], "streamed");
    assert_eq!(pushed["downloaded_bytes"], pushed["layers"][0]["size"]);
    let mounted = fixture.tarpon.mount(&layout, &[]).unwrap();
    assert_eq!(std::fs::read(mounted.join("new")).unwrap(), b"new");
    assert!(mounted.join("usr/bin").exists() && !mounted.join("usr/share").exists());
    fixture.tarpon.unmount(&mounted).unwrap();
}

#[test]
fn a_container_can_be_committed_while_it_runs_and_its_volumes_are_no_part_of_it() {
    let Some(fixture) = CommitFixture::new() else { return };
    let name = fixture.name("running");
    let script = "echo data > /data/file; echo here > /here; touch /root/ready; while :; do sleep 0.1; done";
    fixture.tarpon(
        "run",
        &[
            "-d",
            "--name",
            "box",
            "-v",
            "/data",
            "-v",
            "/usr:/mnt/host:ro",
            &fixture.image("estargz"),
            "sh",
            "-c",
            script,
        ],
    );
    let began = std::time::Instant::now();
    while !fixture.upper("box").join("root/ready").exists() {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "it never wrote anything");
        std::thread::yield_now();
    }
    let committed = fixture.json("commit", &["box", &name]);
    let running: Value = serde_json::from_str(&fixture.tarpon("ps", &["--json"])).unwrap();
    assert!(running.to_string().contains("running"), "it goes on: {running}");
    // Without cgroups the runtime cannot pause the container, and a note reports that.
    let notes = committed["notes"].to_string();
    assert!(notes == "[]" || notes.contains("the container runs on"), "{notes}");
    fixture.tarpon("push", &["-q", &name]);
    let seen = fixture.tarpon("run", &["--rm", &name, "sh", "-c", "cat /here; ls -A /data /mnt 2>/dev/null; true"]);
    assert_eq!(seen, "here\n/mnt:\n", "neither the volume nor the place of a mount");
}

#[test]
fn what_no_layer_can_hold_is_refused_by_name() {
    let Some(fixture) = CommitFixture::new() else { return };
    let name = fixture.name("refused");
    for (file, words) in
        [("/root/.wh.file", "/root/.wh.file: a name that begins with .wh."), ("/root/$(printf '\\377')", "not UTF-8")]
    {
        fixture.tarpon("run", &["--name", "box", &fixture.image("estargz"), "sh", "-c", &format!("touch {file}")]);
        let output = fixture.tarpon.output("commit", &["box", &name]).unwrap();
        assert_eq!(output.status.code(), Some(6), "{}", printed(&output));
        assert!(printed(&output).contains(words), "{}", printed(&output));
        fixture.tarpon("rm", &["box"]);
    }
    let missing = fixture.tarpon.output("commit", &["nobody", &name]).unwrap();
    assert_eq!(missing.status.code(), Some(3), "{}", printed(&missing));
    let left = std::fs::read_dir(fixture.tarpon.store().join("commits")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).filter(|name| name != ".lock").collect();
    assert!(left.is_empty(), "{left:?}");
}
