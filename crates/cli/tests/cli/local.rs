//! Reading an image without mounting it, on the image of the demo: listings, JSON structure, the store.

use crate::world::World;

/// A world with the demo's image.
fn world() -> World {
    let world = World::new();
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo/image.tar");
    std::fs::copy(archive, world.path("image.tar")).expect("copied");
    world
}

const IMAGE: &str = "oci-archive:TMP/image.tar";

fn in_image(path: &str) -> String {
    format!("{IMAGE}:{path}")
}

#[test]
fn inspect_shows_layers_and_which_are_lazy() {
    let world = world();
    insta::assert_snapshot!(world.stdout(&["inspect", "--platform", "linux/amd64", IMAGE]));
    insta::assert_snapshot!("inspect_json", world.stdout(&["inspect", "--platform", "linux/amd64", "--json", IMAGE]));
}

#[test]
fn images_are_compared_by_their_layers_and_files() {
    let world = world();
    let stats = |options: &[&str]| {
        let arguments = [&["--quiet", "inspect", "--stats", "--platform", "linux/amd64"], options, &[IMAGE, IMAGE]];
        world.stdout(&arguments.concat())
    };
    let text = stats(&[]);
    // The table of images is as wide as the name of the temporary folder.
    let (common, images) = text.split_once("\nIMAGE ").expect("a table of images");
    insta::assert_snapshot!("inspect_stats", common);
    assert_eq!(images.lines().count(), 3, "{images}");
    let json: serde_json::Value = serde_json::from_str(&stats(&["--json"])).expect("JSON");
    let totals = &json["totals"];
    assert_eq!(totals["layers"].as_u64(), totals["distinct_layers"].as_u64().map(|distinct| 2 * distinct));
    assert_eq!(json["images"][0], json["images"][1]);
    let failed = world.output(&["inspect", "--stats", "./TMP"]);
    assert_eq!(failed.status.code(), Some(3), "a folder that is not there");
    let failed = world.output(&["inspect", IMAGE, IMAGE]);
    assert_eq!(failed.status.code(), Some(2), "several images without --stats");
}

#[test]
fn inspect_gives_manifest_and_config_byte_for_byte() {
    let world = world();
    let document = |option| {
        let output = world.output(&["inspect", "--platform", "linux/arm64", option, IMAGE]);
        assert!(output.status.success());
        output.stdout
    };
    let inspected = world.stdout(&["inspect", "--platform", "linux/arm64", "--json", IMAGE]);
    let inspected: serde_json::Value = serde_json::from_str(&inspected).expect("JSON");
    let manifest = document("--raw");
    assert_eq!(inspected["manifest_digest"], tarpon_oci::Digest::of(&manifest).to_string());
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    assert_eq!(manifest["config"]["digest"], tarpon_oci::Digest::of(&document("--config")).to_string());
}

#[test]
fn ls_lists_like_ls() {
    let world = world();
    let ls = |options: &[&str], path: &str| {
        let image = in_image(path);
        let arguments = [&["--quiet", "ls", "--platform", "linux/amd64"], options, &[image.as_str()]].concat();
        world.stdout(&arguments)
    };
    insta::assert_snapshot!("ls_root", ls(&[], "/"));
    insta::assert_snapshot!("ls_long", ls(&["-l"], "/usr/share/almanac"));
    insta::assert_snapshot!("ls_setuid", ls(&["-l"], "/usr/libexec"));
    insta::assert_snapshot!("ls_recursive", ls(&["-R"], "/etc"));
    insta::assert_snapshot!("ls_json", ls(&["--json"], "/bin"));
    assert_eq!(ls(&[], "/etc/os-release"), "os-release\n");
    assert_eq!(ls(&["-l"], "/etc/os-release").split_whitespace().last(), Some("../usr/lib/os-release"));
    assert_eq!(ls(&[], "/usr/share/almanac/squares/20"), "400.txt\n", "links are followed without -l");
}

#[test]
fn a_listed_image_is_in_the_store() {
    let world = world();
    world.stdout(&["--quiet", "ls", "--platform", "linux/amd64", IMAGE]);
    let images: serde_json::Value = serde_json::from_str(&world.stdout(&["cache", "ls", "--json"])).expect("JSON");
    assert_eq!(images[0]["references"][0], IMAGE);
    assert_eq!(world.stdout(&["cache", "verify"]).lines().count(), 1);

    std::fs::remove_file(world.path("image.tar")).expect("removed");
    assert!(world.stdout(&["ls", "--platform", "linux/amd64", IMAGE]).contains("usr\n"), "it needs its source no more");

    assert!(world.stdout(&["cache", "rm", IMAGE]).starts_with("removed 1 image and "));
    assert_eq!(world.stdout(&["cache", "ls"]), "no images\n");
    world.assert_untouched();
}

#[test]
fn damage_in_the_store_is_found_and_exits_with_8() {
    let world = world();
    world.stdout(&["--quiet", "ls", "--platform", "linux/amd64", IMAGE]);
    let object = first_file(&world.path("store/objects")).expect("the plain layer's files are kept");
    let mut permissions = std::fs::metadata(&object).expect("there").permissions();
    #[allow(clippy::permissions_set_readonly_false, reason = "a file of this test alone")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&object, permissions).expect("set");
    std::fs::write(&object, "not what its name says").expect("written");

    let output = world.output(&["cache", "verify"]);
    assert_eq!(output.status.code(), Some(8));
    assert!(String::from_utf8_lossy(&output.stdout).contains("corrupt object sha256:"));
    assert_eq!(world.output(&["cache", "verify"]).status.code(), Some(0), "it was taken out");
}

fn first_file(folder: &std::path::Path) -> Option<std::path::PathBuf> {
    std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() { first_file(&path) } else { Some(path) }
    })
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let world = world();
    let image = in_image("/usr/share/almanac/numbers");
    let mut command = world.command(&["--quiet", "ls", "-R", "--json", &image]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
}
