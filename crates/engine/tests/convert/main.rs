//! Conversions between registries and layouts on loopback: the output has the content of the input in another format, or there is none.
#![allow(clippy::unwrap_used, reason = "tests")]

mod checks;
mod refusals;
#[path = "../support/mod.rs"]
mod support;

use serde_json::{Value, json};
use tarpon_engine::oci::{Digest, media_type};
use tarpon_engine::{ConvertRequest, ErrorKind, LayerFormat, Outcome, Platforms};
use tarpon_registry::serve::Contents;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{ImageBuilder, Item, Layer};
use tarpon_testkit::registry::Auth;

use checks::{
    FORMATS, blob, changed, convert_app, docker, document, first_name, image, image_for, index, layout, only, request,
    run, tree,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_converted_image_has_the_same_tree_and_can_be_read_lazily() {
    let fixture = Fixture::with_image(&image()).await;
    let before = tree(&fixture.name("app:v1")).await;
    for format in FORMATS {
        for to in [layout(&fixture, "v1"), fixture.name("converted:v1")] {
            let done = convert_app(&fixture, &to, format).await.unwrap();
            assert_eq!(tree(&to).await, before, "{to} as {format}");
            assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Converted));
            let manifest = document(&to).await;
            assert_eq!(Digest::of(&blob(&to, &manifest["config"]).await).to_string(), manifest["config"]["digest"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_layer_of_the_result_is_in_the_format() {
    let fixture = Fixture::with_image(&image()).await;
    for (format, annotation) in FORMATS
        .into_iter()
        .zip(["containerd.io/snapshot/stargz/toc.digest", "io.github.containers.zstd-chunked.manifest-checksum"])
    {
        convert_app(&fixture, &layout(&fixture, "v1"), format).await.unwrap();
        let manifest = document(&layout(&fixture, "v1")).await;
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 2);
        assert!(layers.iter().all(|layer| layer["annotations"][annotation].is_string()), "{manifest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_keeps_everything_but_diff_ids() {
    let image = image();
    let fixture = Fixture::with_image(&image).await;
    let to = layout(&fixture, "v1");
    convert_app(&fixture, &to, LayerFormat::ZstdChunked).await.unwrap();
    let config = &document(&to).await["config"];
    assert_eq!(blob(&to, config).await, image.config, "zstd:chunked changes nothing in it");

    convert_app(&fixture, &to, LayerFormat::Estargz).await.unwrap();
    let manifest = document(&to).await;
    let config = String::from_utf8(blob(&to, &manifest["config"]).await.to_vec()).unwrap();
    let mut expected = String::from_utf8(image.config.clone()).unwrap();
    let parsed: Value = serde_json::from_str(&config).unwrap();
    for (old, new) in image.layers.iter().zip(parsed["rootfs"]["diff_ids"].as_array().unwrap()) {
        expected = expected.replace(&old.diff_id.to_string(), new.as_str().unwrap());
    }
    assert_eq!(config, expected, "byte for byte");
    assert_ne!(config.as_bytes(), image.config);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_depends_on_nothing_but_input_and_options() {
    let fixture = Fixture::with_image(&image()).await;
    for format in FORMATS {
        let mut digests = Vec::new();
        for (to, jobs) in [(layout(&fixture, "a"), 1), (fixture.name("b:v1"), 2), (layout(&fixture, "c"), 8)] {
            let request = ConvertRequest { jobs: Some(jobs), ..request(&fixture, &to, format) };
            digests.push(run(&request).await.unwrap().digest);
        }
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
        let harder = ConvertRequest { level: Some(1), ..request(&fixture, &layout(&fixture, "d"), format) };
        assert_ne!(run(&harder).await.unwrap().digest, digests[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_format_already_is_copied_and_keeps_its_digest() {
    let fixture = Fixture::with_image(&image()).await;
    for format in FORMATS {
        let first = convert_app(&fixture, &fixture.name("once:v1"), format).await.unwrap();
        let again = |to: String| ConvertRequest { source: fixture.name("once:v1"), ..request(&fixture, &to, format) };
        let done = run(&again(layout(&fixture, "twice"))).await.unwrap();
        assert_eq!(done.digest, first.digest);
        assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Copied), "{done:?}");
        let done = run(&again(layout(&fixture, "twice"))).await.unwrap();
        assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Reused), "{done:?}");
        let done = run(&ConvertRequest { force: true, ..again(layout(&fixture, "twice")) }).await.unwrap();
        assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Converted), "{done:?}");
        assert_eq!(tree(&layout(&fixture, "twice")).await, tree(&fixture.name("app:v1")).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_format_becomes_the_other() {
    let fixture = Fixture::with_image(&image()).await;
    let before = tree(&fixture.name("app:v1")).await;
    for (from, to) in [(FORMATS[0], FORMATS[1]), (FORMATS[1], FORMATS[0])] {
        convert_app(&fixture, &fixture.name("from:v1"), from).await.unwrap();
        let request =
            ConvertRequest { source: fixture.name("from:v1"), ..request(&fixture, &layout(&fixture, "to"), to) };
        run(&request).await.unwrap();
        assert_eq!(tree(&layout(&fixture, "to")).await, before, "{from} to {to}");
        let manifest = document(&layout(&fixture, "to")).await.to_string();
        let names = ["stargz/toc.digest", "zstd-chunked.manifest-checksum"];
        let claims: Vec<bool> = names.iter().map(|name| manifest.contains(name)).collect();
        assert_eq!(claims, [to == LayerFormat::Estargz, to == LayerFormat::ZstdChunked], "{manifest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_whose_contents_are_beside_the_image_get_them_inside() {
    let fixture = Fixture::with_image(&image()).await;
    let beside =
        ConvertRequest { keep_diff_id: true, ..request(&fixture, &fixture.name("beside:v1"), LayerFormat::Estargz) };
    run(&beside).await.unwrap();
    let inside = ConvertRequest {
        source: fixture.name("beside:v1"),
        ..request(&fixture, &layout(&fixture, "v1"), LayerFormat::Estargz)
    };
    let done = run(&inside).await.unwrap();
    assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Converted), "{done:?}");
    let direct = convert_app(&fixture, &layout(&fixture, "direct"), LayerFormat::Estargz).await.unwrap();
    assert_eq!(done.digest, direct.digest, "it does not matter what the layers were before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_occurs_twice_is_converted_once() {
    let layer = Layer::gzip(&[Item::file("file", "content")]);
    let fixture = Fixture::with_image(&ImageBuilder::new().layer(layer.clone()).layer(layer).build()).await;
    convert_app(&fixture, &layout(&fixture, "v1"), LayerFormat::ZstdChunked).await.unwrap();
    let layers = document(&layout(&fixture, "v1")).await["layers"].clone();
    assert_eq!(layers[0], layers[1]);
    assert_eq!(
        std::fs::read_dir(fixture.path("layout/blobs/sha256")).unwrap().count(),
        3,
        "layer, config and manifest"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_goes_in_and_oci_comes_out() {
    let image = changed(&image(), |manifest| manifest["annotations"] = json!({ "a": "kept" }));
    let mut contents = Contents::new();
    image.add_to(&mut contents, "app", "v1");
    contents.add_manifest(Some(("app", "docker")), media_type::DOCKER_MANIFEST, docker(&image));
    let fixture = Fixture::with_registry(contents, Auth::Anonymous).await;
    let to = layout(&fixture, "v1");
    for format in FORMATS {
        let request = ConvertRequest { source: fixture.name("app:docker"), ..request(&fixture, &to, format) };
        run(&request).await.unwrap();
        let manifest = document(&to).await;
        assert!(!manifest.to_string().contains("docker"), "{manifest}");
        assert_eq!(manifest["annotations"]["a"], "kept");
    }
}

async fn of_two_platforms() -> Fixture {
    let mut contents = Contents::new();
    index(&mut contents, &[("amd64", &image_for("amd64")), ("arm64", &image_for("arm64"))]);
    Fixture::with_registry(contents, Auth::Anonymous).await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_platforms_become_an_index_in_the_same_order_without_attestations() {
    let fixture = of_two_platforms().await;
    let to = fixture.name("converted:v1");
    let request = ConvertRequest { platforms: Platforms::All, ..request(&fixture, &to, LayerFormat::Estargz) };
    let done = run(&request).await.unwrap();
    assert_eq!(done.notes.len(), 1, "{:?}", done.notes);
    let index = document(&to).await;
    assert_eq!(index["annotations"]["whole"], "kept");
    let entries = index["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    for (entry, architecture) in entries.iter().zip(["amd64", "arm64"]) {
        assert_eq!(entry["platform"]["architecture"], architecture);
        assert_eq!(entry["platform"]["os.features"][0], "kept");
        assert_eq!(entry["annotations"]["of"], architecture);
    }
    assert_eq!(tree(&to).await, tree(&fixture.name("app:v1")).await, "linux/amd64 of both");

    let again = ConvertRequest { source: to, ..ConvertRequest { destination: layout(&fixture, "again"), ..request } };
    assert_eq!(run(&again).await.unwrap().digest, done.digest, "an index of converted images is copied");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_platform_becomes_a_single_manifest_and_two_an_index() {
    let fixture = of_two_platforms().await;
    let to = layout(&fixture, "v1");
    let with = |platforms| ConvertRequest { platforms, ..request(&fixture, &to, LayerFormat::ZstdChunked) };
    let one = run(&with(only("linux/arm64"))).await.unwrap();
    assert!(!one.is_index);
    assert_eq!(one.images[0].platform, "linux/arm64");
    let both = ["linux/arm64", "linux/amd64"].map(|platform| platform.parse().unwrap()).to_vec();
    assert!(run(&with(Platforms::These(both))).await.unwrap().is_index);
    let error = run(&with(only("linux/s390x"))).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_diff_ids_keep_the_config_and_put_the_contents_beside_the_image() {
    let image = image();
    let fixture = Fixture::with_image(&image).await;
    for to in [layout(&fixture, "v1"), fixture.name("converted:v1")] {
        let request = ConvertRequest { keep_diff_id: true, ..request(&fixture, &to, LayerFormat::Estargz) };
        let done = run(&request).await.unwrap();
        assert_eq!(done.external_toc.unwrap().tag, "v1-esgztoc");
        let manifest = document(&to).await;
        assert_eq!(manifest["config"]["digest"], Digest::of(&image.config).to_string());
        let contents = format!("{to}-esgztoc");
        let beside = document(&contents).await;
        for (number, layer) in manifest["layers"].as_array().unwrap().iter().enumerate() {
            let toc = &beside["layers"][number];
            assert_eq!(toc["annotations"]["containerd.io/snapshot/stargz/layer.digest"], layer["digest"]);
            assert_eq!(first_name(&blob(&contents, toc).await), "stargz.index.json");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prioritised_files_come_first_and_the_tree_stays() {
    let fixture = Fixture::with_image(&image()).await;
    let to = layout(&fixture, "v1");
    let prioritised = ["/linked", "opt/shown", "nowhere"].map(|path| path.as_bytes().to_vec()).to_vec();
    let request = ConvertRequest { prioritised, ..request(&fixture, &to, LayerFormat::Estargz) };
    let done = run(&request).await.unwrap();
    assert_eq!(done.notes, ["1 of 3 paths to come first are in no layer, or cannot be moved"]);
    assert_eq!(tree(&to).await, tree(&fixture.name("app:v1")).await);
    let layers = document(&to).await["layers"].clone();
    assert_eq!(first_name(&blob(&to, &layers[0]).await), "target", "what a hard link leads to comes before it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_mounts_blobs_of_another_of_its_repositories() {
    let fixture = Fixture::with_image(&image()).await;
    fixture.registry().model().allow_mounts();
    convert_app(&fixture, &fixture.name("once:v1"), LayerFormat::Estargz).await.unwrap();
    let request = ConvertRequest {
        source: fixture.name("once:v1"),
        ..request(&fixture, &fixture.name("twice:v1"), LayerFormat::Estargz)
    };
    let done = run(&request).await.unwrap();
    assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Reused), "{done:?}");
}
