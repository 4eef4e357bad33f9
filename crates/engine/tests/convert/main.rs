//! Conversions between registries and layouts on loopback: the output has the content of the input in another format, or there is none.
#![allow(clippy::unwrap_used, reason = "tests")]

mod lab;
mod refusals;

use serde_json::{Value, json};
use tarpon_engine::oci::{Digest, media_type};
use tarpon_engine::{ConvertRequest, ErrorKind, LayerFormat, Outcome, Platforms};
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{ImageBuilder, Item};

use lab::{FORMATS, Lab, add, changed, docker, first_name, image, image_for, index, only, plain, run};

#[tokio::test(flavor = "multi_thread")]
async fn a_converted_image_has_the_same_tree_and_can_be_read_lazily() {
    let lab = Lab::with(&image()).await;
    let before = lab.tree(&lab.at("app:v1")).await;
    for format in FORMATS {
        for to in [lab.layout("v1"), lab.at("converted:v1")] {
            let done = lab.convert(&to, format).await.unwrap();
            assert_eq!(lab.tree(&to).await, before, "{to} as {format}");
            assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Converted));
            let manifest = lab.document(&to).await;
            assert_eq!(Digest::of(&lab.blob(&to, &manifest["config"]).await).to_string(), manifest["config"]["digest"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_layer_of_the_result_is_in_the_format() {
    let lab = Lab::with(&image()).await;
    for (format, annotation) in FORMATS
        .into_iter()
        .zip(["containerd.io/snapshot/stargz/toc.digest", "io.github.containers.zstd-chunked.manifest-checksum"])
    {
        lab.convert(&lab.layout("v1"), format).await.unwrap();
        let manifest = lab.document(&lab.layout("v1")).await;
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 2);
        assert!(layers.iter().all(|layer| layer["annotations"][annotation].is_string()), "{manifest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_keeps_everything_but_diff_ids() {
    let image = image();
    let lab = Lab::with(&image).await;
    let to = lab.layout("v1");
    lab.convert(&to, LayerFormat::ZstdChunked).await.unwrap();
    let config = &lab.document(&to).await["config"];
    assert_eq!(lab.blob(&to, config).await, image.config, "zstd:chunked changes nothing in it");

    lab.convert(&to, LayerFormat::Estargz).await.unwrap();
    let manifest = lab.document(&to).await;
    let config = String::from_utf8(lab.blob(&to, &manifest["config"]).await.to_vec()).unwrap();
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
    let lab = Lab::with(&image()).await;
    for format in FORMATS {
        let mut digests = Vec::new();
        for (to, jobs) in [(lab.layout("a"), 1), (lab.at("b:v1"), 2), (lab.layout("c"), 8)] {
            let request = ConvertRequest { jobs: Some(jobs), ..lab.request(&to, format) };
            digests.push(run(&request).await.unwrap().digest);
        }
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
        let harder = ConvertRequest { level: Some(1), ..lab.request(&lab.layout("d"), format) };
        assert_ne!(run(&harder).await.unwrap().digest, digests[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_format_already_is_copied_and_keeps_its_digest() {
    let lab = Lab::with(&image()).await;
    for format in FORMATS {
        let first = lab.convert(&lab.at("once:v1"), format).await.unwrap();
        let again = |to: String| ConvertRequest { source: lab.at("once:v1"), ..lab.request(&to, format) };
        let done = run(&again(lab.layout("twice"))).await.unwrap();
        assert_eq!(done.digest, first.digest);
        assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Copied), "{done:?}");
        let done = run(&again(lab.layout("twice"))).await.unwrap();
        assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Reused), "{done:?}");
        let done = run(&ConvertRequest { force: true, ..again(lab.layout("twice")) }).await.unwrap();
        assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Converted), "{done:?}");
        assert_eq!(lab.tree(&lab.layout("twice")).await, lab.tree(&lab.at("app:v1")).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_format_becomes_the_other() {
    let lab = Lab::with(&image()).await;
    let before = lab.tree(&lab.at("app:v1")).await;
    for (from, to) in [(FORMATS[0], FORMATS[1]), (FORMATS[1], FORMATS[0])] {
        lab.convert(&lab.at("from:v1"), from).await.unwrap();
        let request = ConvertRequest { source: lab.at("from:v1"), ..lab.request(&lab.layout("to"), to) };
        run(&request).await.unwrap();
        assert_eq!(lab.tree(&lab.layout("to")).await, before, "{from} to {to}");
        let manifest = lab.document(&lab.layout("to")).await.to_string();
        let names = ["stargz/toc.digest", "zstd-chunked.manifest-checksum"];
        let claims: Vec<bool> = names.iter().map(|name| manifest.contains(name)).collect();
        assert_eq!(claims, [to == LayerFormat::Estargz, to == LayerFormat::ZstdChunked], "{manifest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_whose_contents_are_beside_the_image_get_them_inside() {
    let lab = Lab::with(&image()).await;
    let beside = ConvertRequest { keep_diff_id: true, ..lab.request(&lab.at("beside:v1"), LayerFormat::Estargz) };
    run(&beside).await.unwrap();
    let inside = ConvertRequest { source: lab.at("beside:v1"), ..lab.request(&lab.layout("v1"), LayerFormat::Estargz) };
    let done = run(&inside).await.unwrap();
    assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Converted), "{done:?}");
    let direct = lab.convert(&lab.layout("direct"), LayerFormat::Estargz).await.unwrap();
    assert_eq!(done.digest, direct.digest, "it does not matter what the layers were before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_occurs_twice_is_converted_once() {
    let layer = plain(&[Item::file("file", "content")]);
    let lab = Lab::with(&ImageBuilder::new().layer(layer.clone()).layer(layer).build()).await;
    lab.convert(&lab.layout("v1"), LayerFormat::ZstdChunked).await.unwrap();
    let layers = lab.document(&lab.layout("v1")).await["layers"].clone();
    assert_eq!(layers[0], layers[1]);
    assert_eq!(std::fs::read_dir(lab.path("layout/blobs/sha256")).unwrap().count(), 3, "layer, config and manifest");
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_goes_in_and_oci_comes_out() {
    let image = changed(&image(), |manifest| manifest["annotations"] = json!({ "a": "kept" }));
    let mut contents = Contents::new();
    add(&mut contents, "app", &image);
    contents.add_manifest(Some(("app", "docker")), media_type::DOCKER_MANIFEST, docker(&image));
    let lab = Lab::new(contents).await;
    let to = lab.layout("v1");
    for format in FORMATS {
        let request = ConvertRequest { source: lab.at("app:docker"), ..lab.request(&to, format) };
        run(&request).await.unwrap();
        let manifest = lab.document(&to).await;
        assert!(!manifest.to_string().contains("docker"), "{manifest}");
        assert_eq!(manifest["annotations"]["a"], "kept");
    }
}

async fn of_two_platforms() -> Lab {
    let mut contents = Contents::new();
    index(&mut contents, &[("amd64", &image_for("amd64")), ("arm64", &image_for("arm64"))]);
    Lab::new(contents).await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_platforms_become_an_index_in_the_same_order_without_attestations() {
    let lab = of_two_platforms().await;
    let to = lab.at("converted:v1");
    let request = ConvertRequest { platforms: Platforms::All, ..lab.request(&to, LayerFormat::Estargz) };
    let done = run(&request).await.unwrap();
    assert_eq!(done.notes.len(), 1, "{:?}", done.notes);
    let index = lab.document(&to).await;
    assert_eq!(index["annotations"]["whole"], "kept");
    let entries = index["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    for (entry, architecture) in entries.iter().zip(["amd64", "arm64"]) {
        assert_eq!(entry["platform"]["architecture"], architecture);
        assert_eq!(entry["platform"]["os.features"][0], "kept");
        assert_eq!(entry["annotations"]["of"], architecture);
    }
    assert_eq!(lab.tree(&to).await, lab.tree(&lab.at("app:v1")).await, "linux/amd64 of both");

    let again = ConvertRequest { source: to, ..ConvertRequest { destination: lab.layout("again"), ..request } };
    assert_eq!(run(&again).await.unwrap().digest, done.digest, "an index of converted images is copied");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_platform_becomes_a_single_manifest_and_two_an_index() {
    let lab = of_two_platforms().await;
    let to = lab.layout("v1");
    let with = |platforms| ConvertRequest { platforms, ..lab.request(&to, LayerFormat::ZstdChunked) };
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
    let lab = Lab::with(&image).await;
    for to in [lab.layout("v1"), lab.at("converted:v1")] {
        let request = ConvertRequest { keep_diff_id: true, ..lab.request(&to, LayerFormat::Estargz) };
        let done = run(&request).await.unwrap();
        assert_eq!(done.external_toc.unwrap().tag, "v1-esgztoc");
        let manifest = lab.document(&to).await;
        assert_eq!(manifest["config"]["digest"], Digest::of(&image.config).to_string());
        let contents = format!("{to}-esgztoc");
        let beside = lab.document(&contents).await;
        for (number, layer) in manifest["layers"].as_array().unwrap().iter().enumerate() {
            let toc = &beside["layers"][number];
            assert_eq!(toc["annotations"]["containerd.io/snapshot/stargz/layer.digest"], layer["digest"]);
            assert_eq!(first_name(&lab.blob(&contents, toc).await), "stargz.index.json");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prioritised_files_come_first_and_the_tree_stays() {
    let lab = Lab::with(&image()).await;
    let to = lab.layout("v1");
    let prioritised = ["/linked", "opt/shown", "nowhere"].map(|path| path.as_bytes().to_vec()).to_vec();
    let request = ConvertRequest { prioritised, ..lab.request(&to, LayerFormat::Estargz) };
    let done = run(&request).await.unwrap();
    assert_eq!(done.notes, ["1 of 3 paths to come first are in no layer, or cannot be moved"]);
    assert_eq!(lab.tree(&to).await, lab.tree(&lab.at("app:v1")).await);
    let layers = lab.document(&to).await["layers"].clone();
    assert_eq!(first_name(&lab.blob(&to, &layers[0]).await), "target", "what a hard link leads to comes before it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_mounts_blobs_of_another_of_its_repositories() {
    let lab = Lab::with(&image()).await;
    lab.registry.allow_mounts();
    lab.convert(&lab.at("once:v1"), LayerFormat::Estargz).await.unwrap();
    let request =
        ConvertRequest { source: lab.at("once:v1"), ..lab.request(&lab.at("twice:v1"), LayerFormat::Estargz) };
    let done = run(&request).await.unwrap();
    assert!(done.images[0].layers.iter().all(|layer| layer.outcome == Outcome::Reused), "{done:?}");
}
