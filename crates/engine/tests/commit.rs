//! Commits and pushes with a scripted registry.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use support::EngineFixture;
use tarpon_engine::oci::{Document, Platform, Source};
use tarpon_engine::{
    Access, CommitReport, CommitRequest, CommitSource, Commits, Committed, Engine, Error, ErrorKind, ImageRequest,
    LayerFormat, Pull, PushRequest, Pushed, PushedOutcome, Silent,
};
use tarpon_registry::AccessOptions;
use tarpon_registry::serve::Contents;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Image, ImageBuilder, Item, Layer};
use tarpon_testkit::registry::{Auth, Fault};

/// A registry with an image, a store, and an upper directory over the image.
struct CommitFixture {
    fixture: Fixture,
    engine: Engine,
}

impl std::ops::Deref for CommitFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl CommitFixture {
    async fn new(auth: Auth) -> Self {
        let mut contents = Contents::new();
        image().add_to(&mut contents, "base", "v1");
        let fixture = Fixture::with_registry(contents, auth).await;
        let fixture = Self { engine: fixture.engine("store"), fixture };
        fixture.directory("upper/dir");
        std::fs::set_permissions(fixture.upper(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(fixture.upper().join("dir/new"), "new").unwrap();
        mknodat(CWD, fixture.upper().join("old"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        fixture
    }

    fn upper(&self) -> PathBuf {
        self.path("upper")
    }

    fn at(&self, name: &str) -> Source {
        self.name(name).parse().unwrap()
    }

    fn layout_source(&self) -> Source {
        self.layout_name().parse().unwrap()
    }

    fn base(&self) -> ImageRequest {
        self.fixture.request("base:v1")
    }

    fn request(&self, name: &Source) -> CommitRequest {
        CommitRequest {
            source: CommitSource::Upper { directory: self.upper(), base: Some(Box::new(self.base())) },
            image: name.clone(),
            access: Access::default(),
            format: None,
            changes: Vec::new(),
            author: None,
            message: None,
            timestamp: Some(1_700_000_000),
            pause: true,
        }
    }

    async fn commit(&self, name: &Source) -> CommitReport {
        self.engine.commit(&self.request(name), &Silent).await.unwrap()
    }

    async fn push(&self, name: &Source, to: &Source) -> Result<Pushed, Error> {
        let request = PushRequest {
            image: name.clone(),
            destination: to.clone(),
            access: Access::default(),
            base_access: Access::default(),
        };
        self.engine.push(&request, Arc::new(Silent)).await
    }

    fn committed(&self) -> Vec<Committed> {
        Commits::of(self.engine.store()).list().unwrap()
    }
}

fn layer() -> Layer {
    let items = [Item::file("old", "old"), Item::directory("dir/"), Item::file("dir/kept", vec![7; 100_000])];
    Layer::gzip(&items)
}

fn image() -> Image {
    let image = ImageBuilder::new().layer(layer()).config("Cmd", json!(["serve"])).config("Odd", json!([1.5])).build();
    let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    manifest["annotations"] = json!({"com.amazon.soci.index-digest": image.digest().to_string(), "odd": "kept"});
    Image { manifest: manifest.to_string().into_bytes(), ..image }
}

async fn document(image: &Source) -> Option<Value> {
    let repository = tarpon_registry::open(image, &AccessOptions::default()).await.ok()?;
    match repository.root(&Platform::host()).await.ok()? {
        Document::Manifest(manifest) => serde_json::from_slice(&manifest.bytes).ok(),
        Document::Index(_) => None,
    }
}

fn outcomes(pushed: &Pushed) -> Vec<PushedOutcome> {
    pushed.layers.iter().map(|layer| layer.outcome).collect()
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder)
        .map(|entries| entries.filter(|entry| entry.as_ref().unwrap().file_name() != ".lock").count())
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_image_is_the_old_one_with_a_layer_more() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    let name = fixture.at("new:v1");
    for format in [LayerFormat::Estargz, LayerFormat::ZstdChunked] {
        let request = CommitRequest { format: Some(format), message: Some("why".into()), ..fixture.request(&name) };
        let report = fixture.engine.commit(&request, &Silent).await.unwrap();
        assert_eq!((report.format, report.entries), (format, 3));
        let pushed = fixture.push(&name, &name).await.unwrap();
        assert_eq!(pushed.digest, report.committed.digest);
        assert_eq!(outcomes(&pushed), [PushedOutcome::WasThere, PushedOutcome::Uploaded]);
        assert_eq!(pushed.downloaded_bytes, 0);

        let manifest = document(&name).await.unwrap();
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
        let annotations = manifest["annotations"].as_object().unwrap();
        assert_eq!(annotations["odd"], "kept");
        assert!(!annotations.contains_key("com.amazon.soci.index-digest"), "it was of other layers");
        let repository = tarpon_registry::open(&name, &AccessOptions::default()).await.unwrap();
        let image = repository.resolve(&"linux/amd64".parse().unwrap()).await.unwrap();
        let config: Value = serde_json::from_slice(&repository.config(&image).await.unwrap().bytes).unwrap();
        assert_eq!(config["config"], json!({"Cmd": ["serve"], "Odd": [1.5]}));
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        let history = config["history"].as_array().unwrap();
        assert_eq!(history.len(), 2, "as many entries as layers: {history:?}");
        assert_eq!(history[1]["comment"], "why");

        let prepared = fixture
            .engine
            .prepare(&ImageRequest { text: name.to_string(), source: name.clone(), ..fixture.base() }, &Silent)
            .await
            .unwrap();
        let tree = fixture.engine.open_tree(&prepared).unwrap();
        assert!(tree.find(b"old").is_err() && tree.find(b"dir/kept").is_ok() && tree.find(b"dir/new").is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_registry_does_not_take_over_is_streamed_past_the_store() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    let name = fixture.at("new:v1");
    fixture.commit(&name).await;
    let pushed = fixture.push(&name, &fixture.layout_source()).await.unwrap();
    assert_eq!(outcomes(&pushed), [PushedOutcome::Streamed, PushedOutcome::Uploaded]);
    assert_eq!(pushed.downloaded_bytes, pushed.layers[0].size);
    assert!(document(&fixture.layout_source()).await.is_some());

    // Another registry than the base's.
    let other = CommitFixture::new(Auth::Anonymous).await;
    let pushed = fixture.push(&name, &other.at("copied:v1")).await.unwrap();
    assert_eq!(pushed.layers.len(), 2);
    assert!(document(&other.at("copied:v1")).await.is_some());
    assert_eq!(other.registry().model().open_uploads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_fails_shows_nothing_and_can_be_repeated() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    let name = fixture.at("new:v1");
    let report = fixture.commit(&name).await;
    let before = fixture.committed();
    fixture.registry().model().allow_mounts();
    // Whether the layer below can be mounted, and whether the new one exists; one of them after the greeting of its session.
    let questions = || std::iter::repeat_n(Fault::Pass, 3);
    for status in [403, 404] {
        fixture.registry().script(questions().chain([Fault::Status(status)]));
        let error = fixture.push(&name, &name).await.unwrap_err();
        assert!(error.step.starts_with("push layer 2"), "{error}");
        assert!(document(&name).await.is_none(), "{status}");
    }
    assert_eq!(fixture.committed(), before, "it was not pushed");
    fixture.registry().script(questions().chain([Fault::Pass, Fault::TakeAndBreak(100)]));
    let pushed = fixture.push(&name, &name).await.unwrap();
    assert_eq!(pushed.digest, report.committed.digest);
    assert_eq!(fixture.committed()[0].pushed, Some(name.to_string()));
    assert_eq!(fixture.registry().model().open_uploads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_without_permission_is_an_error() {
    let open = CommitFixture::new(Auth::Anonymous).await;
    let closed = CommitFixture::new(Auth::Basic).await;
    let name = open.at("new:v1");
    open.commit(&name).await;
    let error = open.push(&name, &closed.at("new:v1")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied, "{error}");
    assert!(error.hint.unwrap().contains("log in"));
    let error = closed.engine.commit(&closed.request(&name), &Silent).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied, "the base's manifest is not to be had: {error}");
    assert_eq!(files(&closed.engine.store().commits_folder()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_files_and_words_give_the_same_digest() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    let first = fixture.commit(&fixture.at("a:v1")).await.committed.digest;
    let again = fixture.commit(&fixture.layout_source()).await.committed.digest;
    assert_eq!(first, again);
    let other = CommitRequest { author: Some("somebody".into()), ..fixture.request(&fixture.at("a:v1")) };
    assert_ne!(fixture.engine.commit(&other, &Silent).await.unwrap().committed.digest, first);
    assert_eq!(fixture.committed().len(), 2, "the same name is replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_only_here_is_no_image_to_be_mounted() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    let name = fixture.at("new:v1");
    fixture.commit(&name).await;
    let request = ImageRequest { text: name.to_string(), source: name.clone(), ..fixture.base() };
    let error = fixture.engine.prepare(&request, &Silent).await.unwrap_err();
    assert!(error.cause().to_string().contains("not pushed") && error.hint.unwrap().contains("tarpon push"));
    // A push under another name does not change what the name means elsewhere.
    fixture.push(&name, &fixture.at("other:v1")).await.unwrap();
    for pull in [Pull::Missing, Pull::Always] {
        let request = ImageRequest { pull, ..request.clone() };
        assert!(
            fixture.engine.prepare(&request, &Silent).await.unwrap_err().cause().to_string().contains("not pushed")
        );
        let of_upper = CommitSource::Upper { directory: fixture.upper(), base: Some(Box::new(request)) };
        let on_top = CommitRequest { source: of_upper, ..fixture.request(&fixture.at("next:v1")) };
        assert!(fixture.engine.commit(&on_top, &Silent).await.unwrap_err().cause().to_string().contains("not pushed"));
    }
    fixture.push(&name, &name).await.unwrap();
    fixture.engine.prepare(&request, &Silent).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_was_damaged_in_the_store_is_not_pushed() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    let name = fixture.at("new:v1");
    let report = fixture.commit(&name).await;
    let hex = report.committed.layer.hex();
    let commits = fixture.engine.store().commits_folder();
    let place =
        std::fs::read_dir(&commits).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    let blob = place.join("blobs/sha256").join(hex);
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let error = fixture.push(&name, &name).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Store, "{error}");
    assert!(error.hint.unwrap().contains("commit again"));
    assert!(document(&name).await.is_none());
    assert_eq!(fixture.registry().model().open_uploads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upper_that_is_no_layer_leaves_nothing() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    std::fs::write(fixture.upper().join("dir/.wh.x"), "").unwrap();
    let error = fixture.engine.commit(&fixture.request(&fixture.at("new:v1")), &Silent).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
    assert!(error.cause().to_string().starts_with("/dir/.wh.x: "), "{error}");
    assert_eq!(files(&fixture.engine.store().commits_folder()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upper_that_never_stands_still_is_an_error_unless_that_is_wanted() {
    let fixture = CommitFixture::new(Auth::Anonymous).await;
    // Reading it takes longer than the scheduler lets the writer wait on a busy machine.
    std::fs::write(fixture.upper().join("large"), vec![7; 16 << 20]).unwrap();
    let name = fixture.at("new:v1");
    let (busy, stop) = (fixture.upper().join("dir/busy"), Arc::new(AtomicBool::new(false)));
    let (begun, begins) = std::sync::mpsc::channel();
    let writer = {
        let (busy, stop) = (busy.clone(), stop.clone());
        std::thread::spawn(move || {
            std::fs::write(&busy, "first").unwrap();
            begun.send(()).unwrap();
            // In place: a file that becomes shorter while it is read is another error.
            let busy = std::fs::OpenOptions::new().write(true).open(&busy).unwrap();
            while !stop.load(Ordering::Relaxed) {
                busy.write_all_at(b"again", 0).unwrap();
            }
        })
    };
    begins.recv().unwrap();
    let torn = fixture.engine.commit(&fixture.request(&name), &Silent).await;
    let taken = fixture.engine.commit(&CommitRequest { pause: false, ..fixture.request(&name) }, &Silent).await;
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let error = torn.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict, "{error}");
    assert!(error.cause().to_string().starts_with("/dir/busy changed while it was read"), "{error}");
    assert!(error.hint.unwrap().contains("--pause=false"));
    assert!(taken.unwrap().notes[0].starts_with("/dir/busy changed while it was read"));
    assert_eq!(fixture.commit(&name).await.notes, Vec::<String>::new(), "now it stands still");
}
