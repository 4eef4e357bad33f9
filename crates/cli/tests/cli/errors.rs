//! Error messages: one line with the image, the step and the cause, and an exit code by the kind of failure. Nothing is
//! mounted, and no half-written data stays.

use std::fmt::Write;

use tarpon_oci::{Compression, Digest};
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Image, ImageBuilder, Item, Layer};
use tarpon_testkit::registry::{Auth, Fault};

use crate::world::{World, small_image};

/// Runs all commands; each must exit with `code`.
fn transcripts(world: &World, code: i32, runs: &[&[&str]]) -> String {
    let mut all = String::new();
    for run in runs {
        let transcript = world.transcript(run);
        assert!(transcript.ends_with(&format!("exit {code}\n")), "expected exit {code}:\n{transcript}");
        writeln!(all, "{transcript}").expect("a String takes it");
    }
    all
}

fn good_contents() -> Contents {
    let mut contents = Contents::new();
    small_image().add_to(&mut contents, "app", "v1");
    contents
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let world = World::new();
    insta::assert_snapshot!(transcripts(
        &world,
        2,
        &[
            &["frobnicate"],
            &["mount"],
            &["mount", "alpine"],
            &["mount", "--mode", "fast", "alpine", "/mnt"],
            &["mount", "--pull", "sometimes", "alpine", "/mnt"],
            &["mount", "--platform", "linux", "alpine", "/mnt"],
            &["mount", "--store-size", "plenty", "alpine", "/mnt"],
            &["mount", "--store-size", "10", "alpine", "/mnt"],
            &["mount", "--backfill-rate", "10M", "alpine", "/mnt"],
            &["mount", "--creds", "alice", "alpine", "/mnt"],
            &["mount", "--tls-verify=maybe", "alpine", "/mnt"],
            &["mount", "alpine/UPPER", "/mnt"],
            &["mount", "alpine:bad tag", "/mnt"],
            &["mount", "alpine@sha256:1234", "/mnt"],
            &["mount", "dir:/srv/image", "/mnt"],
            &["ls", ":/etc"],
            &["umount"],
            &["umount", "--all", "/mnt"],
            &["inspect", "--raw", "--json", "alpine"],
            &["completions", "tcsh"],
            &["daemon", "--learn-after", "5"],
            &["daemon", "--learn", "keep", "--publish-private"],
            &["daemon", "--sign-by-key", "TMP/key"],
            &["cache"],
        ]
    ));
}

#[test]
fn an_operand_that_fails_does_not_keep_the_others_in_the_store() {
    let world = World::serving(good_contents(), Auth::Anonymous);
    let digest = small_image().digest().to_string();
    for operands in [["HOST/nothing:v1", "HOST/app:v1"], ["HOST/app:v1", "HOST/nothing:v1"]] {
        world.stdout(&["--quiet", "pull", "HOST/app:v1"]);
        let output = world.output(&[&["cache", "rm", "--json"], &operands[..]].concat());
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(3) && printed.contains("/nothing:v1: the store has no such image"),
            "{printed}"
        );
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert_eq!(report["images"], serde_json::json!([digest]), "{operands:?}: {report}");
    }
    let output = world.output(&["cache", "rm", "HOST/app:v1"]);
    assert!(output.status.code() == Some(3) && output.stdout.is_empty(), "there is nothing to report");
    world.assert_untouched();
}

#[test]
fn a_variable_without_effect_is_not_an_error() {
    let world = World::new();
    // This is no directory, so that the daemon ends.
    std::fs::write(world.path("file"), "").expect("written");
    let mut command = world.command(&["daemon", "--listen", "unix://TMP/file/api.sock"]);
    let output = command.env("TARPON_LEARN_AFTER", "5").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_missing_object_exits_with_3() {
    let mut contents = good_contents();
    let foreign = ImageBuilder::new().layer(small_image().layers[0].clone()).architecture("s390x").build();
    let index = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{}","size":{},"platform":{{"os":"linux","architecture":"s390x"}}}}]}}"#,
        foreign.digest(),
        foreign.manifest.len()
    );
    foreign.add_to(&mut contents, "foreign", "image");
    contents.add_manifest(Some(("foreign", "v1")), tarpon_oci::media_type::OCI_INDEX, index);
    let hollow = Image::of([hollow_layer()]);
    let lost = hollow.layers[0].descriptor().digest;
    for (_, blob) in hollow.blobs().into_iter().filter(|(digest, _)| *digest != lost) {
        contents.add_blob(blob);
    }
    contents.add_manifest(Some(("hollow", "v1")), tarpon_oci::media_type::OCI_MANIFEST, hollow.manifest);
    let world = World::serving(contents, Auth::Anonymous);
    world.directory("mnt");
    insta::assert_snapshot!(transcripts(
        &world,
        3,
        &[
            &["mount", "HOST/nothing:v1", "TMP/mnt"],
            &["mount", "HOST/app:v2", "TMP/mnt"],
            &["mount", "HOST/app", "TMP/mnt"],
            &["mount", "--platform", "linux/amd64", "HOST/foreign:v1", "TMP/mnt"],
            &["mount", "HOST/hollow:v1", "TMP/mnt"],
            &["mount", "--pull", "never", "HOST/app:v1", "TMP/mnt"],
            &["mount", "HOST/app:v1", "TMP/nowhere"],
            &["mount", "oci:TMP/no-layout:v1", "TMP/mnt"],
            &["mount", "oci-archive:TMP/no-archive.tar", "TMP/mnt"],
            &["inspect", "HOST/app:v2"],
            &["ls", "HOST/app:v2:/etc"],
            &["umount", "TMP/mnt"],
            &["umount", "TMP/nowhere"],
            &["status", "TMP/mnt"],
            &["why", "TMP/mnt"],
            &["why", "TMP/nowhere"],
            &["cache", "rm", "HOST/app:v1"],
        ]
    ));
    world.assert_untouched();
}

/// A layer that no other image has.
fn hollow_layer() -> Layer {
    let items = [Item::file("only-here", "x")];
    Layer::plain(&tarpon_testkit::layers::tar(&items, tarpon_testkit::layers::Dialect::Pax), Compression::Gzip)
}

#[test]
fn a_path_missing_in_the_image_exits_with_3() {
    let world = World::serving(good_contents(), Auth::Anonymous);
    insta::assert_snapshot!(transcripts(
        &world,
        3,
        &[&["--quiet", "ls", "HOST/app:v1:/nowhere"], &["ls", "HOST/app:v1:/etc/hello/below"],]
    ));
}

#[test]
fn denied_access_exits_with_4() {
    let world = World::serving(good_contents(), Auth::Basic);
    world.directory("mnt");
    insta::assert_snapshot!(transcripts(
        &world,
        4,
        &[
            &["mount", "HOST/app:v1", "TMP/mnt"],
            &["mount", "--creds", "alice:wrong", "HOST/app:v1", "TMP/mnt"],
            &["inspect", "HOST/app:v1"],
            &["ls", "HOST/app:v1"],
        ]
    ));
    world.server().script([Fault::Status(403)]);
    insta::assert_snapshot!("forbidden", transcripts(&world, 4, &[&["inspect", "HOST/app:v1"]]));
    world.assert_untouched();
}

#[test]
fn no_message_contains_the_password() {
    let world = World::serving(good_contents(), Auth::Basic);
    world.directory("mnt");
    let mut command = world.command(&["mount", "--creds", "alice:0pen-sesame", "HOST/app:v1", "TMP/mnt"]);
    let output = command.env("RUST_LOG", "trace").output().expect("it runs");
    assert_eq!(output.status.code(), Some(4));
    let printed = [output.stdout, output.stderr].concat();
    assert!(!String::from_utf8_lossy(&printed).contains("sesame"));
    assert!(!String::from_utf8_lossy(&printed).contains("YWxpY2U6"), "not in base64 either");
}

#[test]
fn a_registry_that_fails_exits_with_5() {
    let world = World::serving(good_contents(), Auth::Anonymous);
    world.directory("mnt");
    // Nothing listens on port 1 of loopback.
    insta::assert_snapshot!(
        "connection_refused",
        transcripts(&world, 5, &[&["mount", "127.0.0.1:1/app:v1", "TMP/mnt"]])
    );
    world.server().script(vec![Fault::Status(503); 16]);
    insta::assert_snapshot!("server_errors", transcripts(&world, 5, &[&["mount", "HOST/app:v1", "TMP/mnt"]]));
    world.assert_untouched();
}

#[test]
fn an_untrusted_image_exits_with_6() {
    let mut contents = good_contents();
    let oci = "application/vnd.oci.image.manifest.v1+json";
    contents.add_manifest(Some(("bad", "no-json")), oci, "{\"schemaVersion\": 2,");
    contents.add_manifest(Some(("bad", "old")), oci, r#"{"schemaVersion":1,"fsLayers":[]}"#);
    let with_layer = |media_type: &str, size: usize| {
        let image = small_image();
        let layer = image.layers[0].descriptor();
        String::from_utf8(image.manifest)
            .expect("JSON")
            .replace("application/vnd.oci.image.layer.v1.tar+gzip", media_type)
            .replace(&format!("\"size\":{}", layer.size), &format!("\"size\":{size}"))
    };
    let layer_size = usize::try_from(small_image().layers[0].descriptor().size).expect("small");
    let foreign = with_layer("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", layer_size);
    contents.add_manifest(Some(("bad", "foreign-layer")), oci, foreign);
    contents.add_manifest(Some(("bad", "unknown-layer")), oci, with_layer("application/x-cpio", layer_size));
    let longer = with_layer("application/vnd.oci.image.layer.v1.tar+gzip", layer_size + 100);
    contents.add_manifest(Some(("bad", "truncated-layer")), oci, longer);
    let no_tar = Layer::plain(&[b'x'; 1024], Compression::Gzip);
    Image::of([no_tar]).add_to(&mut contents, "bad", "no-tar");
    let mut wrong_diff_id = small_image().layers[0].clone();
    wrong_diff_id.diff_id = Digest::of(b"something else");
    Image::of([wrong_diff_id]).add_to(&mut contents, "bad", "diff-id");

    let world = World::serving(contents, Auth::Anonymous);
    world.directory("mnt");
    let image = small_image();
    image.write_layout("v1", &world.directory("layout"));
    let layer = image.layers[0].descriptor();
    let blob = world.path("layout").join("blobs/sha256").join(layer.digest.hex());
    let mut wrong = image.layers[0].blob.clone();
    wrong[20] ^= 1;
    std::fs::write(blob, wrong).expect("written");
    insta::assert_snapshot!(transcripts(
        &world,
        6,
        &[
            &["--quiet", "mount", "HOST/bad:no-json", "TMP/mnt"],
            &["--quiet", "mount", "HOST/bad:old", "TMP/mnt"],
            &["--quiet", "mount", "HOST/bad:foreign-layer", "TMP/mnt"],
            &["--quiet", "mount", "HOST/bad:unknown-layer", "TMP/mnt"],
            &["--quiet", "mount", "HOST/bad:truncated-layer", "TMP/mnt"],
            &["--quiet", "mount", "HOST/bad:no-tar", "TMP/mnt"],
            &["--quiet", "mount", "HOST/bad:diff-id", "TMP/mnt"],
            &["--quiet", "mount", "oci:TMP/layout:v1", "TMP/mnt"],
        ]
    ));
    world.assert_untouched();
}

#[test]
fn a_mount_point_that_is_not_a_directory_exits_with_3() {
    let world = World::serving(good_contents(), Auth::Anonymous);
    std::fs::write(world.path("file"), "").expect("written");
    insta::assert_snapshot!(transcripts(&world, 3, &[&["mount", "HOST/app:v1", "TMP/file"]]));
    world.assert_untouched();
}

#[test]
fn an_unusable_store_exits_with_8() {
    let world = World::new();
    std::fs::write(world.path("file"), "").expect("written");
    std::fs::write(world.directory("photos").join("holiday.jpg"), "").expect("written");
    world.directory("mnt");
    insta::assert_snapshot!(transcripts(
        &world,
        8,
        &[
            &["--store", "TMP/photos", "mount", "alpine", "TMP/mnt"],
            &["--store", "TMP/photos", "cache", "clear"],
            &["--store", "TMP/file", "status"],
        ]
    ));
    assert!(world.path("photos/holiday.jpg").exists());
}
