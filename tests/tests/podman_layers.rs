//! Real Podman that pulls layers lazily from tarpon's store of layers: pulls, runs, pushes and removals, also after the
//! server is killed.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tarpon_tests::expected::Expected;
use tarpon_tests::podman::{Podman, wait_until};
use tarpon_tests::real::{self, run};

/// The formats in which a layer can be read in parts.
const SEEKABLE: [&str; 2] = ["estargz", "zstdchunked"];

fn fixture() -> Option<Podman> {
    Podman::new(&["--layers"]).filter(Podman::has_lazy_layers)
}

/// The listed mount of this image, if it exists.
fn listed(fixture: &Podman, image: &str) -> Option<Value> {
    let all: Value = serde_json::from_str(&fixture.tarpon.run("podman", &["layers", "ls", "--json"]).unwrap()).unwrap();
    all.as_array().unwrap().iter().find(|mount| mount["image"] == image).cloned()
}

/// Number of uses of each layer of the image.
fn uses(fixture: &Podman, image: &str) -> Vec<u64> {
    let Some(told) = listed(fixture, image) else { return Vec::new() };
    told["layers"]["image"]["uses"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).collect()
}

fn pull(fixture: &Podman, name: &str) -> String {
    let image = fixture.image(name);
    fixture.pull(&image).unwrap();
    image
}

#[test]
fn pulled_images_run_and_nothing_was_fetched_but_what_they_read() {
    let Some(fixture) = fixture() else { return };
    // In the other order, Podman would already have the one layer of the base image, as part of the other image.
    for (name, program) in [("debian-base", &["cat", "/etc/passwd"][..]), ("redis", &["redis-server", "--version"])] {
        for format in SEEKABLE {
            let image = pull(&fixture, &format!("{name}:{format}"));
            assert!(fixture.all_layers_are_lazy(), "{image}");
            let pulled = listed(&fixture, &image).unwrap();
            assert_eq!(pulled["fetched_bytes"], 0, "{image}: only its tables of contents came, to another process");
            let seen = fixture.container(&[], &image, program);
            assert!(seen.starts_with("Redis server") || seen.starts_with("root:"), "{seen}");
            let (fetched, all) = (&listed(&fixture, &image).unwrap()["fetched_bytes"], &pulled["image_bytes"]);
            assert!(fetched.as_u64() < all.as_u64().map(|all| all / 4), "{image}: {fetched} of {all}");
        }
    }
}

#[test]
fn what_podman_has_is_what_the_images_hold() {
    let Some(fixture) = fixture() else { return };
    for name in ["debian-base", "redis", "quirks"] {
        let expected = Expected::of(&fixture.registry, &format!("dev/{name}:gzip")).unwrap();
        for format in SEEKABLE {
            let tag = format!("dev/{name}:{format}");
            if !real::has_tag(&fixture.registry, &format!("dev/{name}"), format) {
                println!("skipped: {tag}, which the registry does not have");
                continue;
            }
            let image = pull(&fixture, &format!("{name}:{format}"));
            assert!(fixture.all_layers_are_lazy(), "{image}");
            let shown: Value = serde_json::from_str(&fixture.podman(&["inspect", &image])).unwrap();
            let layers = fixture.folder.path().join("root/overlay-images/images.json");
            let images: Value = serde_json::from_slice(&std::fs::read(layers).unwrap()).unwrap();
            let record = images.as_array().unwrap().iter().find(|image| image["id"] == shown[0]["Id"]).unwrap();
            let seen = fixture.stack(&fixture.folder.path().join("root/overlay"), record["layer"].as_str().unwrap());
            expected.assert_stack(&seen, format, false, &tag);
        }
    }
}

#[test]
fn other_images_are_pulled_as_a_whole_and_the_reason_is_listed() {
    let Some(fixture) = fixture() else { return };
    let image = pull(&fixture, "redis:gzip");
    assert!(!fixture.all_layers_are_lazy());
    fixture.container(&[], &image, &["redis-server", "--version"]);
    let listed = fixture.tarpon.run("podman", &["ls"]).unwrap();
    assert!(listed.contains(&format!("pulled by Podman itself: {image}: ")), "{listed}");
    assert!(listed.contains("has no table of contents"), "{listed}");
    let status = fixture.tarpon.run("status", &[]).unwrap();
    assert!(status.contains("ok, with fallbacks"), "{status}");
    let missing = fixture.podman_command(&["pull", "--tls-verify=false", &fixture.image("none:1")]).output().unwrap();
    assert!(!missing.status.success());
}

#[test]
fn an_image_that_was_streamed_before_is_not_pulled_again() {
    let Some(fixture) = fixture() else { return };
    let image = fixture.image("debian-base:gzip");
    fixture.tarpon.run("pull", &["--quiet", "--tls-verify=false", &image]).unwrap();
    pull(&fixture, "debian-base:gzip");
    assert!(fixture.all_layers_are_lazy());
    assert_eq!(uses(&fixture, &image), [1]);
    let shown: Value = serde_json::from_str(&fixture.podman(&["inspect", &image])).unwrap();
    let layers = fixture.own_layers();
    assert_eq!(layers[0]["diff-digest"], shown[0]["RootFS"]["Layers"][0], "it was hashed");
}

#[test]
fn removed_images_are_let_go_and_uses_outlive_servers() {
    let Some(fixture) = fixture() else { return };
    let image = pull(&fixture, "redis:estargz");
    let counted = uses(&fixture, &image);
    assert!(counted.len() > 1 && counted.iter().all(|count| *count == 1), "{counted:?}");
    let server = fixture.server();
    fixture.signal_server(Signal::KILL);
    fixture.container(&[], &image, &["redis-server", "--version"]);
    assert_ne!(fixture.server(), server);
    assert_eq!((fixture.images().len(), uses(&fixture, &image)), (1, counted.clone()));
    fixture.kill_server_with_holder();
    let dead = fixture.tarpon.run("podman", &["layers", "ls"]).unwrap();
    assert!(dead.contains("dead: run `tarpon recover`"), "{dead}");
    fixture.tarpon.run("recover", &[]).unwrap();
    assert_eq!(uses(&fixture, &image), counted);
    fixture.container(&[], &image, &["redis-server", "--version"]);
    fixture.signal_server(Signal::TERM);
    wait_until("the server ends", || !fixture.is_mounted("podman-layers"));
    wait_until("it is recovered", || fixture.tarpon.run("recover", &[]).is_ok() && fixture.is_mounted("podman-layers"));
    assert_eq!(uses(&fixture, &image), counted);
    let refused = fixture.tarpon.output("podman", &["layers", "stop"]).unwrap();
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("Podman has images that cannot run without it"), "{refused}");
    fixture.podman(&["rmi", &image]);
    assert!(listed(&fixture, &image).is_none(), "nothing of it is used any more");
    // It can be pulled again at once.
    pull(&fixture, "redis:estargz");
    assert_eq!(uses(&fixture, &image), counted);
    fixture.podman(&["rmi", &image]);
    fixture.tarpon.run("podman", &["layers", "stop"]).unwrap();
    wait_until("nothing is mounted", || !fixture.is_mounted("podman-layers"));
    assert_eq!(fixture.images().len(), 0);
    fixture.tarpon.run("podman", &["setup", "--undo", "--file", fixture.conf().to_str().unwrap()]).unwrap();
    assert!(!fixture.conf_text().contains("additionallayerstores"));
}

#[test]
fn layers_that_were_not_hashed_have_no_digest_of_the_images_config() {
    let Some(fixture) = fixture() else { return };
    for format in SEEKABLE {
        let image = pull(&fixture, &format!("debian-base:{format}"));
        let shown: Value = serde_json::from_str(&fixture.podman(&["inspect", &image])).unwrap();
        let claimed = shown[0]["RootFS"]["Layers"].as_array().unwrap();
        let layers = fixture.own_layers();
        assert!(layers.iter().all(|layer| !claimed.contains(&layer["diff-digest"])), "{layers:?}");
        assert!(layers.iter().all(|layer| layer["compressed-diff-digest"].is_null()), "{layers:?}");
        let pushed = fixture.podman_command(&["push", "--quiet", &image, &target(&fixture)]).output().unwrap();
        assert!(
            String::from_utf8_lossy(&pushed.stderr).contains("Digest did not match"),
            "the error is printed, and nothing is pushed"
        );
    }
}

/// A push target: an OCI layout.
fn target(fixture: &Podman) -> String {
    format!("oci:{}/pushed:1", fixture.folder.path().display())
}

#[test]
fn with_claimed_diff_ids_podman_pushes_what_it_reads_from_the_store() {
    let Some(fixture) = fixture() else { return };
    fixture.tarpon.run("podman", &["layers", "start", "--claimed-diff-ids"]).unwrap();
    for format in SEEKABLE {
        let image = pull(&fixture, &format!("debian-base:{format}"));
        assert!(fixture.all_layers_are_lazy(), "{image}");
        fixture.podman(&["push", "--quiet", &image, &target(&fixture)]);
        let config = run(Command::new("skopeo").args(["inspect", "--config", &target(&fixture)])).unwrap();
        let pushed: Value = serde_json::from_str(&config).unwrap();
        let shown: Value = serde_json::from_str(&fixture.podman(&["inspect", &image])).unwrap();
        assert_eq!(
            pushed["rootfs"]["diff_ids"], shown[0]["RootFS"]["Layers"],
            "{image}: every byte of the tar was compared"
        );
    }
}

#[test]
fn a_podman_that_loses_layers_is_distinguished_from_others() {
    let Some(fixture) = Podman::new(&[]) else { return };
    let folder = fixture.folder.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let podman = folder.join("podman");
    real::write_program(&podman, "#!/bin/sh\necho podman version 5.6.2\n").unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut setup = fixture.tarpon.command("podman");
    setup.args(["setup", "--layers", "--file"]).arg(fixture.conf()).env("PATH", path);
    let done = setup.output().unwrap();
    let printed = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && printed.contains("Podman 5.6 loses the layers"), "{printed}");
    assert!(!fixture.conf_text().contains("additionallayerstores"));
    assert!(fixture.conf_text().contains("additionalimagestores"));
}
