//! Real Podman on images in tarpon's additional image store: listed, run, built on and pulled, also after the server is killed.

use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;
use tarpon_tests::expected::Expected;
use tarpon_tests::podman::{Podman, wait_until};
use tarpon_tests::real::{self, run};

/// A store that shows images to Podman.
struct ImageStore(Podman);

impl std::ops::Deref for ImageStore {
    type Target = Podman;

    fn deref(&self) -> &Podman {
        &self.0
    }
}

impl ImageStore {
    /// `None` if these tests cannot run here.
    fn new() -> Option<Self> {
        Podman::new(&[]).map(Self)
    }

    fn add(&self, name: &str) {
        self.0.add(&self.image(name)).unwrap();
    }

    /// Number of layers in Podman's own store.
    fn own_layers(&self) -> usize {
        self.0.own_layers().len()
    }

    fn is_mounted(&self) -> bool {
        self.0.is_mounted("podman")
    }

    fn place(&self) -> PathBuf {
        self.tarpon.store().join("podman").canonicalize().unwrap()
    }

    /// Images as listed in `images.json`.
    fn listed(&self) -> Vec<Value> {
        let text = std::fs::read(self.place().join("overlay-images/images.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap().as_array().unwrap().clone()
    }

    fn layers(&self) -> Vec<Value> {
        let text = std::fs::read(self.place().join("overlay-layers/layers.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap().as_array().unwrap().clone()
    }
}

fn failed(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn images_are_listed_as_they_are_and_run_without_being_pulled() {
    let Some(fixture) = ImageStore::new() else { return };
    for name in ["debian-base:gzip", "redis:zstdchunked", "redis:estargz"] {
        fixture.add(name);
        let image = fixture.image(name);
        let raw = run(Command::new("skopeo").args(["inspect", "--tls-verify=false", &format!("docker://{image}")]));
        let expected: Value = serde_json::from_str(&raw.unwrap()).unwrap();
        let shown: Value = serde_json::from_str(&fixture.podman(&["inspect", &image])).unwrap();
        assert_eq!(shown[0]["Digest"], expected["Digest"], "{name}");
        assert_eq!(shown[0]["RepoTags"], serde_json::json!([image]));
        assert_eq!(shown[0]["Created"], expected["Created"]);
        assert_eq!(shown[0]["Config"]["Env"], expected["Env"]);
        let id = shown[0]["Id"].as_str().unwrap();
        let file = fixture.place().join("overlay-images").join(id).join("manifest");
        let manifest: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(manifest["config"]["digest"], format!("sha256:{id}"));
    }
    assert_eq!(fixture.images().len(), 3);
    for name in ["redis:zstdchunked", "redis:estargz"] {
        let version = fixture.container(&[], &fixture.image(name), &["redis-server", "--version"]);
        assert!(version.starts_with("Redis server"), "{version}");
    }
    fixture.container(&[], &fixture.image("debian-base:gzip"), &["cat", "/etc/debian_version"]);
    assert_eq!(fixture.own_layers(), 0, "nothing was pulled");
    let status = fixture.tarpon.status().unwrap();
    let redis = status.as_array().unwrap().iter().find(|at| at["image"] == fixture.image("redis:estargz").as_str());
    let (fetched, all) = (&redis.unwrap()["fetched_bytes"], &redis.unwrap()["image_bytes"]);
    assert!(fetched.as_u64() < all.as_u64().map(|all| all / 2), "{fetched} of {all}");
}

#[test]
fn what_is_built_on_an_image_holds_what_is_new_and_pulls_find_the_layers_here() {
    let Some(fixture) = ImageStore::new() else { return };
    for name in ["redis:gzip", "redis:estargz"] {
        fixture.add(name);
        let folder = fixture.folder.path().join("build");
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("FROM {}\nRUN echo built > /etc/built && rm /etc/passwd-\n", fixture.image(name));
        std::fs::write(folder.join("Containerfile"), text).unwrap();
        let before = fixture.own_layers();
        let folder = folder.to_str().unwrap();
        run(&mut fixture.command(&[
            "buildah",
            "bud",
            "--pull-never",
            "--isolation",
            "chroot",
            "-t",
            "localhost/built",
            folder,
        ]))
        .unwrap();
        assert_eq!(fixture.own_layers() - before, 1, "the layers of {name} are those that are here");
        let seen = fixture.container(&[], "localhost/built", &["sh", "-c", "cat /etc/built; ls /etc/passwd"]);
        assert_eq!(seen, "built\n/etc/passwd\n");
        fixture.podman(&["rmi", "localhost/built"]);
    }
    assert_eq!(fixture.own_layers(), 0);
    fixture.pull(&fixture.image("redis:gzip")).unwrap();
    assert_eq!(fixture.own_layers(), 0, "all layers of a pulled image are here");
    fixture.container(&[], &fixture.image("redis:gzip"), &["redis-server", "--version"]);
    if !real::has_tag(&fixture.registry, "dev/nginx", "gzip") {
        return println!("skipped: pulling dev/nginx, which the registry does not have");
    }
    // Only the base image's layers are shared.
    fixture.pull(&fixture.image("nginx:gzip")).unwrap();
    let layers = fixture.own_layers();
    assert!(layers > 0);
    fixture.container(&[], &fixture.image("nginx:gzip"), &["nginx", "-t"]);
    let config: Value = serde_json::from_str(&fixture.podman(&["inspect", &fixture.image("nginx:gzip")])).unwrap();
    assert!(layers < config[0]["RootFS"]["Layers"].as_array().unwrap().len());
}

#[test]
fn user_namespaces_see_their_own_owners() {
    let Some(fixture) = ImageStore::new() else { return };
    fixture.add("redis:gzip");
    let seen = fixture.container(
        &["--uidmap", "0:100000:1000", "--gidmap", "0:100000:1000"],
        &fixture.image("redis:gzip"),
        &["sh", "-c", "cat /proc/self/uid_map; stat -c %u /etc/passwd; test \"$(stat -c %u /data)\" != 0 && echo own"],
    );
    let words: Vec<&str> = seen.split_whitespace().collect();
    assert_eq!(words, ["0", "100000", "1000", "0", "own"]);
}

#[test]
fn the_layers_make_the_image_in_both_forms() {
    let Some(fixture) = ImageStore::new() else { return };
    for name in ["debian-base", "redis", "manylayers", "quirks"] {
        let image = format!("dev/{name}:gzip");
        if !real::has_tag(&fixture.registry, &format!("dev/{name}"), "gzip") {
            continue; // one that only a full set of images has
        }
        fixture.add(&format!("{name}:gzip"));
        let expected = Expected::of(&fixture.registry, &image).unwrap();
        let layers = fixture.layers();
        let listed = fixture.listed();
        let full = fixture.image(&format!("{name}:gzip"));
        let mut images = listed.iter();
        let image = images.find(|image| image["names"][0] == full.as_str()).unwrap();
        let top = image["layer"].as_str().unwrap();
        let overlay = fixture.place().join("overlay");
        expected.assert_stack(&fixture.stack(&overlay, top), "gzip", true, name);
        let record = layers.iter().find(|layer| layer["id"] == top).unwrap();
        let is_same =
            |layer: &&Value| layer["diff-digest"] == record["diff-digest"] && layer["parent"] == record["parent"];
        let first = layers.iter().find(is_same).unwrap()["id"].as_str().unwrap();
        let is_only = layers.iter().filter(is_same).count() == 1;
        assert_eq!(is_only, first == top, "who looks for a layer's digest finds it alone");
        expected.assert_stack(&fixture.stack(&overlay, first), "gzip", is_only, &format!("{name}, each layer alone"));
    }
}

#[test]
fn podman_goes_on_when_the_server_is_killed_and_images_come_back() {
    let Some(fixture) = ImageStore::new() else { return };
    fixture.add("debian-base:gzip");
    assert!(fixture.is_mounted());
    let (image, server) = (fixture.image("debian-base:gzip"), fixture.server());
    fixture.container(&["--detach", "--name", "reader"], &image, &["sleep", "1000"]);
    fixture.signal_server(Signal::KILL);
    // The container reads what is not local from a successor.
    fixture.podman(&["exec", "reader", "sh", "-c", "find /usr -xdev -type f | head -500 | xargs cat >/dev/null"]);
    assert_ne!(fixture.server(), server);
    assert_eq!(fixture.images().len(), 1);
    fixture.podman(&["rm", "--force", "-t", "0", "reader"]);
    fixture.kill_server_with_holder();
    let dead = fixture.tarpon.run("podman", &["ls"]).unwrap();
    assert!(dead.contains("dead: run `tarpon recover`"), "{dead}");
    fixture.tarpon.run("recover", &[]).unwrap();
    assert_eq!(fixture.images().len(), 1);
    fixture.container(&[], &fixture.image("debian-base:gzip"), &["true"]);
    // An orderly end does not remove the images.
    fixture.signal_server(Signal::TERM);
    wait_until("the server ends", || !fixture.is_mounted());
    wait_until("it is recovered", || fixture.tarpon.run("recover", &[]).is_ok() && fixture.is_mounted());
    assert_eq!(fixture.images().len(), 1);
}

#[test]
fn an_image_that_a_container_uses_is_not_taken_away_and_names_move() {
    let Some(fixture) = ImageStore::new() else { return };
    fixture.add("redis:gzip");
    let image = fixture.image("redis:gzip");
    fixture.container(&["--detach", "--name", "sleeper"], &image, &["sleep", "1000"]);
    let refusal = failed(&fixture.tarpon.output("podman", &["rm", &image]).unwrap());
    assert!(refusal.contains("a container uses it"), "{refusal}");
    fixture.add("debian-base:gzip");
    let conf = fixture.conf();
    let undo = ["setup", "--undo", "--file", conf.to_str().unwrap()];
    let refusal = failed(&fixture.tarpon.output("podman", &undo).unwrap());
    assert!(refusal.contains("a container uses it"), "{refusal}");
    assert_eq!(fixture.listed().len(), 2, "no image is taken away if one cannot be");
    assert!(std::fs::read_to_string(&conf).unwrap().contains("additionalimagestores"));
    fixture.tarpon.run("podman", &["rm", &fixture.image("debian-base:gzip")]).unwrap();
    fixture.podman(&["rm", "--force", "-t", "0", "sleeper"]);
    for name in ["debian-base:gzip", "redis:gzip"] {
        let image = fixture.image(name);
        let add = ["add", "--quiet", "--tls-verify=false", "--name", "localhost/moving:1", &image];
        fixture.tarpon.run("podman", &add).unwrap();
    }
    let mut names: Vec<usize> = fixture.listed().iter().map(|image| image["names"].as_array().unwrap().len()).collect();
    names.sort_unstable();
    assert_eq!(names, [0, 2], "the older image goes on without a name");
    fixture.tarpon.run("podman", &["rm", "localhost/moving:1"]).unwrap();
    fixture.container(&[], &image, &["true"]);
    fixture.tarpon.run("podman", &["rm", "--all"]).unwrap();
    assert_eq!(fixture.images().len(), 0);
    wait_until("nothing is mounted", || !fixture.is_mounted());
    fixture.tarpon.run("podman", &undo).unwrap();
    assert!(!std::fs::read_to_string(fixture.conf()).unwrap().contains("additionalimagestores"));
}
