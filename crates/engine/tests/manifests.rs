//! Well-formed manifests and configs that make false claims about sound layers. Each case has its verdict: refused for a reason, or mounted
//! with the layers' real content. The verdicts are a snapshot; the malformed ones are those of `oci`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use serde_json::{Value, json};
use support::EngineFixture;
use tarpon_engine::Silent;
use tarpon_engine::oci::{Compression, Digest, media_type};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, EstargzOptions, Item, Layer, estargz, tar};
use tarpon_tree::erofs;

/// The documents that the cases change: the manifest, and the config that it names.
struct Documents {
    manifest: Value,
    config: Value,
    /// All blobs; a case may add one.
    blobs: BTreeMap<String, Vec<u8>>,
}

type Case = (&'static str, fn(&mut Documents));

/// Two layers, plain gzip and eStargz.
fn documents() -> Documents {
    let plain = Layer::plain(&tar(&[Item::file("plain", "one")], Dialect::Pax), Compression::Gzip);
    let lazy = estargz(&[Item::file("lazy", "three")], EstargzOptions::default());
    let layers = [plain, lazy];
    let descriptors: Vec<Value> = layers.iter().map(descriptor).collect();
    let diff_ids: Vec<String> = layers.iter().map(|layer| layer.diff_id.to_string()).collect();
    let blobs = layers.into_iter().map(|layer| (Digest::of(&layer.blob).to_string(), layer.blob)).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {}, "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST,
        "config": { "mediaType": media_type::OCI_CONFIG }, "layers": descriptors,
    });
    Documents { manifest, config, blobs }
}

fn descriptor(layer: &Layer) -> Value {
    json!({
        "mediaType": layer.compression.layer_media_type(), "digest": Digest::of(&layer.blob).to_string(),
        "size": layer.blob.len(), "annotations": layer.annotations,
    })
}

fn diff_ids(documents: &mut Documents) -> &mut Vec<Value> {
    documents.config["rootfs"]["diff_ids"].as_array_mut().unwrap()
}

fn layers(documents: &mut Documents) -> &mut Vec<Value> {
    documents.manifest["layers"].as_array_mut().unwrap()
}

fn resize(documents: &mut Documents, layer: usize, by: i64) {
    let size = &mut documents.manifest["layers"][layer]["size"];
    *size = (size.as_i64().unwrap() + by).into();
}

/// Replaces the blob of a layer by another one with its own size.
fn replace(documents: &mut Documents, layer: usize, blob: Vec<u8>) {
    let digest = Digest::of(&blob).to_string();
    documents.manifest["layers"][layer]["digest"] = digest.clone().into();
    documents.manifest["layers"][layer]["size"] = blob.len().into();
    documents.blobs.insert(digest, blob);
}

const TOC: &str = "containerd.io/snapshot/stargz/toc.digest";

/// New ones go to the end: numbers stay.
const CASES: &[Case] = &[
    ("00 nothing is wrong", |_| ()),
    ("01 plain layer, one byte less", |case| resize(case, 0, -1)),
    ("02 plain layer, one byte more", |case| resize(case, 0, 1)),
    ("03 plain layer of no bytes", |case| case.manifest["layers"][0]["size"] = 0.into()),
    ("04 lazy layer, one byte less", |case| resize(case, 1, -1)),
    ("05 lazy layer, one byte more", |case| resize(case, 1, 1)),
    ("06 lazy layer of no bytes", |case| case.manifest["layers"][1]["size"] = 0.into()),
    ("07 layer that nobody has", |case| case.manifest["layers"][0]["digest"] = Digest::of(b"none").to_string().into()),
    ("08 layer of other bytes", |case| {
        let digest = case.manifest["layers"][0]["digest"].as_str().unwrap().to_owned();
        let other = case.blobs[&digest].iter().rev().copied().collect();
        case.blobs.insert(digest, other);
    }),
    ("09 wrong diffID", |case| diff_ids(case)[0] = Digest::of(b"other").to_string().into()),
    ("10 wrong diffID of a lazy layer", |case| diff_ids(case)[1] = Digest::of(b"other").to_string().into()),
    // The lazy layer's is correct: layers are read in parallel, and a single error is the same each time.
    ("11 diffID of another layer", |case| diff_ids(case)[0] = diff_ids(case)[1].clone()),
    ("12 a diffID too few", |case| drop(diff_ids(case).pop())),
    ("13 a diffID too many", |case| diff_ids(case).push(Digest::of(b"more").to_string().into())),
    ("14 no diffID", |case| diff_ids(case).clear()),
    ("15 diffID of another algorithm", |case| diff_ids(case)[0] = format!("sha512:{}", "0".repeat(128)).into()),
    ("16 root file system of another type", |case| case.config["rootfs"]["type"] = "snapshots".into()),
    ("17 a layer twice", |case| {
        let (layer, id) = (layers(case)[0].clone(), diff_ids(case)[0].clone());
        layers(case).push(layer);
        diff_ids(case).push(id);
    }),
    ("18 a layer twice, with two diffIDs", |case| {
        let layer = layers(case)[0].clone();
        layers(case).push(layer);
        diff_ids(case).push(Digest::of(b"other").to_string().into());
    }),
    ("19 a layer twice, once without its table", |case| {
        let (mut layer, id) = (layers(case)[1].clone(), diff_ids(case)[1].clone());
        layer["annotations"] = json!({});
        layers(case).push(layer);
        diff_ids(case).push(id);
    }),
    ("20 a layer twice, with two sizes", |case| {
        let (mut layer, id) = (layers(case)[0].clone(), diff_ids(case)[0].clone());
        layer["size"] = 7.into();
        layers(case).push(layer);
        diff_ids(case).push(id);
    }),
    ("21 table with another digest", |case| {
        case.manifest["layers"][1]["annotations"][TOC] = Digest::of(b"other").to_string().into();
    }),
    ("22 table of a layer that has none", |case| {
        case.manifest["layers"][0]["annotations"] = json!({ TOC: Digest::of(b"none").to_string() });
    }),
    ("23 table whose digest is none", |case| case.manifest["layers"][1]["annotations"][TOC] = "sha256:12".into()),
    ("24 lazy layer without its annotation", |case| case.manifest["layers"][1]["annotations"] = json!({})),
    ("25 gzip called zstd", |case| {
        case.manifest["layers"][0]["mediaType"] = Compression::Zstd.layer_media_type().into();
    }),
    ("26 gzip called a tar", |case| {
        case.manifest["layers"][0]["mediaType"] = Compression::None.layer_media_type().into();
    }),
    ("27 eStargz called zstd", |case| {
        case.manifest["layers"][1]["mediaType"] = Compression::Zstd.layer_media_type().into();
    }),
    ("28 layer that is text", |case| replace(case, 0, b"hello world\n".repeat(100))),
    ("29 layer that is the config", |case| {
        let config = case.config.to_string().into_bytes();
        replace(case, 0, config);
    }),
    ("30 layer that is cut short", |case| {
        let digest = case.manifest["layers"][0]["digest"].as_str().unwrap().to_owned();
        let blob = case.blobs[&digest].clone();
        replace(case, 0, blob[..blob.len() / 2].to_vec());
    }),
    ("31 config with keys twice in two cases", |case| {
        let ids = case.config["rootfs"]["diff_ids"].clone();
        case.config["RootFS"] = json!({ "type": "layers", "diff_ids": ids });
    }),
    ("32 config of another system", |case| case.config["os"] = "windows".into()),
    ("33 SOCI index that is no digest", |case| {
        case.manifest["annotations"] = json!({ "com.amazon.soci.index-digest": "latest" });
    }),
    ("34 SOCI index that nobody has", |case| {
        case.manifest["annotations"] = json!({ "com.amazon.soci.index-digest": Digest::of(b"none").to_string() });
    }),
    ("35 subject that nobody has", |case| {
        let digest = Digest::of(b"none").to_string();
        case.manifest["subject"] = json!({ "mediaType": media_type::OCI_MANIFEST, "digest": digest, "size": 4 });
    }),
    ("36 links of a layer to itself", |case| case.manifest["layers"][0]["urls"] = json!(["http://127.0.0.1:1/blob"])),
];

impl Documents {
    /// The files of a layout that holds the image.
    fn files(mut self) -> BTreeMap<String, Vec<u8>> {
        let config = self.config.to_string().into_bytes();
        self.manifest["config"]["digest"] = Digest::of(&config).to_string().into();
        self.manifest["config"]["size"] = config.len().into();
        let manifest = self.manifest.to_string().into_bytes();
        let index = json!({ "schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": [{
            "mediaType": media_type::OCI_MANIFEST, "digest": Digest::of(&manifest).to_string(), "size": manifest.len(),
        }] });
        for document in [config, manifest] {
            self.blobs.insert(Digest::of(&document).to_string(), document);
        }
        let blobs = self.blobs.into_iter().map(|(digest, blob)| (digest.replace("sha256:", "blobs/sha256/"), blob));
        let fixed = [("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })), ("index.json", index)];
        blobs.chain(fixed.map(|(name, value)| (name.to_owned(), value.to_string().into_bytes()))).collect()
    }
}

/// The result of the case when it is prepared, and when it is pulled.
async fn verdict(case: fn(&mut Documents)) -> String {
    let fixture = Fixture::new();
    let mut documents = documents();
    case(&mut documents);
    for (path, bytes) in documents.files() {
        let path = fixture.layout().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let request = support::request(&format!("oci:{}", fixture.layout().display()));
    let mut verdict = String::new();
    for way in ["prepared", "pulled"] {
        let engine = fixture.engine(way);
        let record = match way {
            "prepared" => engine.prepare(&request, &Silent).await.map(|prepared| prepared.record),
            _ => engine.pull(&request, &Silent).await.map(|pulled| pulled.record),
        };
        let shown = match record {
            Ok(record) => {
                let loaded = engine.store().load_image(&record.manifest).unwrap().unwrap();
                listing(loaded.tree.as_ref())
            }
            Err(error) => {
                assert!(engine.store().images().unwrap().is_empty(), "a record of what was refused");
                format!("{:?}: {error}", error.kind).replace(&fixture.folder().display().to_string(), "FOLDER")
            }
        };
        writeln!(verdict, "   {way}: {shown}").unwrap();
    }
    verdict
}

/// The files of a tree, with the digests of their contents.
fn listing(tree: &[u8]) -> String {
    let mut names = Vec::new();
    let mut take = |line: tarpon_tree::Line<'_>| {
        let content = line.object.map(|object| match object {
            object if object == Digest::of(b"one") => "one",
            object if object == Digest::of(b"three") => "three",
            // If an eStargz layer does not declare its format, the table of contents is an ordinary file.
            _ if line.path == b"stargz.index.json" => "table",
            _ => "?",
        });
        names.extend(content.map(|content| format!("/{}={content}", line.path.escape_ascii())));
    };
    erofs::Image::open(tree).unwrap().lines(&mut take).unwrap();
    format!("shown, {}", names.join(" "))
}

#[tokio::test]
async fn every_false_manifest_has_its_verdict() {
    let mut verdicts = String::new();
    for (name, case) in CASES {
        let verdict = verdict(*case).await;
        assert!(!verdict.contains("=?"), "{name}: bytes that no layer has\n{verdict}");
        write!(verdicts, "{name}\n{verdict}").unwrap();
    }
    // Digests of compressed layers depend on the compressor.
    let digest = regex::Regex::new("sha256:[0-9a-f]{64}").unwrap();
    insta::assert_snapshot!(digest.replace_all(&verdicts, "DIGEST"));
}
