//! Indexes of unconverted images: created, published, found, used, verified, and ignored when something is wrong with them.

use tarpon_oci::Digest;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const IMAGE: &str = "dev/debian-base:gzip";
const OTHER: &str = "dev/redis:gzip";

/// The registry; `None` if these tests cannot run here.
fn registry() -> Option<String> {
    if let Some(reason) = real::missing() {
        println!("skipped: {reason}");
        return None;
    }
    real::registry()
}

fn pushed_index(reference: &str) -> serde_json::Value {
    let made = Tarpon::new().unwrap().run("index", &["--push", "--json", reference]).unwrap();
    serde_json::from_str(&made).unwrap()
}

fn states(tarpon: &Tarpon) -> Vec<String> {
    let status = tarpon.status().unwrap();
    let layers = status[0]["verification"].as_array().unwrap().clone();
    layers.iter().map(|layer| layer["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_unconverted_image_is_lazy_by_its_index_and_proven_by_a_pull() {
    let Some(registry) = registry() else { return };
    let reference = format!("{registry}/{IMAGE}");
    let index = pushed_index(&reference);
    let (bytes, layers) = (index["index_size"].as_u64().unwrap(), index["layers_size"].as_u64().unwrap());
    assert!(bytes * 100 <= layers, "{bytes} bytes of index for {layers}");

    let mut listed = Tarpon::new().unwrap();
    let root = listed.mount(&reference, &["--index", "registry"]).unwrap();
    assert_eq!(states(&listed), ["index-trusted"]);
    listed.unmount(&root).unwrap();

    let mut tarpon = Tarpon::new().unwrap();
    let root = tarpon.mount(&reference, &["--index", index["index_digest"].as_str().unwrap()]).unwrap();
    let release = std::fs::read(root.join("usr/lib/os-release")).unwrap();
    assert!(release.starts_with(b"PRETTY_NAME"));
    assert_eq!(states(&tarpon), ["index-pinned"]);
    let fetched = tarpon.status().unwrap()[0]["fetched_bytes"].as_u64().unwrap();
    assert!(fetched * 10 < layers, "{fetched} bytes for one file of {layers}");

    tarpon.run("pull", &[&reference]).unwrap();
    assert_eq!(states(&tarpon), ["diffID-verified"]);
    let shell = std::fs::read(root.join("usr/bin/dash")).unwrap();
    assert_eq!(tarpon.status().unwrap()[0]["fetched_bytes"].as_u64().unwrap(), fetched, "all of it is here");
    tarpon.unmount(&root).unwrap();

    let mut eager = Tarpon::new().unwrap();
    eager.run("pull", &[&reference]).unwrap();
    let root = eager.mount(&reference, &["--pull", "never"]).unwrap();
    assert_eq!(Digest::of(&std::fs::read(root.join("usr/bin/dash")).unwrap()), Digest::of(&shell));
    eager.unmount(&root).unwrap();
}

#[test]
fn an_index_that_cannot_be_used_costs_one_line() {
    let Some(registry) = registry() else { return };
    let reference = format!("{registry}/{IMAGE}");
    let manifest = pushed_index(&reference)["manifest_digest"].as_str().unwrap().to_owned();
    let of_another = pushed_index(&format!("{registry}/{OTHER}"))["index_digest"].as_str().unwrap().to_owned();
    let nowhere = Digest::of(b"no such index").to_string();
    for index in [manifest, of_another, nowhere] {
        let mut tarpon = Tarpon::new().unwrap();
        let shown = tarpon.output("ls", &["--index", &index, &format!("{reference}:/etc")]).unwrap();
        let printed = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert!(shown.status.success(), "{printed}");
        let lines = printed.lines().filter(|line| line.contains("is not used"));
        assert_eq!(lines.count(), 1, "{printed}");
        let root = tarpon.mount(&reference, &[]).unwrap();
        assert_eq!(states(&tarpon), ["diffID-verified"], "it was streamed instead");
        tarpon.unmount(&root).unwrap();
    }
}

#[test]
fn what_was_evicted_of_a_streamed_layer_comes_back_by_range() {
    let Some(registry) = registry() else { return };
    let reference = format!("{registry}/{IMAGE}");
    let mut tarpon = Tarpon::new().unwrap();
    tarpon.run("pull", &[&reference]).unwrap();
    // As if each object had been evicted.
    for folder in std::fs::read_dir(tarpon.store().join("objects")).unwrap() {
        for object in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            std::fs::remove_file(object.unwrap().path()).unwrap();
        }
    }
    let root = tarpon.mount(&reference, &["--pull", "never"]).unwrap();
    assert!(std::fs::read(root.join("usr/lib/os-release")).unwrap().starts_with(b"PRETTY_NAME"));
    let status = &tarpon.status().unwrap()[0];
    let (fetched, all) = (status["fetched_bytes"].as_u64().unwrap(), status["image_bytes"].as_u64().unwrap());
    assert!(fetched > 0 && fetched * 10 < all, "{fetched} of {all}");
    tarpon.unmount(&root).unwrap();
}
