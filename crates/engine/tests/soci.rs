//! Images with SOCI indexes on loopback: which index is used, what a mount reads through it, and that a bad one costs one line.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;

use serde_json::json;
use support::{EngineFixture, Notes, load, serve};
use tarpon_engine::oci::{Digest, media_type};
use tarpon_engine::{Engine, Error, ErrorKind, ImageRequest, IndexChoice, Prepared};
use tarpon_registry::serve::Contents;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Image, Item, Layer, SOCI_V1, SOCI_V2, Ztoc, soci_manifest, with_soci_index};
use tarpon_testkit::registry::Auth;
use tarpon_tree::Kind;
use tarpon_tree::erofs;

const SPAN: u64 = 50_000;

type Spoil = fn(&mut Ztoc);

/// A registry with one image, and an empty store.
struct SociFixture {
    fixture: Fixture,
    engine: Engine,
    notes: Notes,
}

impl SociFixture {
    async fn new(contents: Contents) -> Self {
        let fixture = Fixture::with_registry(contents, Auth::Anonymous).await;
        Self { engine: fixture.engine("store"), fixture, notes: Notes::default() }
    }

    fn request(&self, index: IndexChoice) -> ImageRequest {
        ImageRequest { index, ..self.fixture.request("app:v1") }
    }

    async fn prepare(&self, index: IndexChoice) -> Prepared {
        self.engine.prepare(&self.request(index), &self.notes).await.unwrap()
    }

    async fn pull(&self) -> Result<Vec<String>, Error> {
        let pulled = self.engine.pull(&self.request(IndexChoice::None), &self.notes).await?;
        Ok(pulled.record.layers.into_iter().map(|layer| layer.verification.to_string()).collect())
    }

    fn requests(&self) -> u64 {
        self.fixture.registry().stats().requests
    }

    /// Every file of the prepared image, read as a mount reads it.
    async fn files(&self, prepared: &Prepared) -> BTreeMap<String, Vec<u8>> {
        let served = serve(&self.engine, prepared).await;
        let mut wanted = Vec::new();
        let tree = erofs::Image::open(load(&self.engine, prepared).tree).unwrap();
        tree.lines(&mut |line| {
            if line.kind == Kind::File {
                wanted.push((String::from_utf8(line.path.to_vec()).unwrap(), line.object));
            }
        })
        .unwrap();
        let mut files = BTreeMap::new();
        for (path, object) in wanted {
            let content = match object {
                Some(object) => served.fetcher.read(&object, 0, 16 << 20).await.unwrap().into_bytes().to_vec(),
                None => Vec::new(),
            };
            files.insert(path, content);
        }
        files
    }
}

fn states(prepared: &Prepared) -> Vec<(&str, &str)> {
    prepared.record.layers.iter().map(|layer| (layer.format.as_str(), layer.verification.as_str())).collect()
}

fn content(seed: u32) -> Vec<u8> {
    (0..40_000_u32).flat_map(|n| format!("{} ", n.wrapping_mul(seed) >> 18).into_bytes()).collect()
}

/// Two layers, of which the upper one replaces and hides some of the lower one.
fn image() -> Image {
    let below = [
        Item::directory("etc").xattr("user.note", "noted"),
        Item::file("etc/large", content(2_654_435_761)).owner(7, 8).mtime(1_600_000_000, 500),
        Item::file("etc/gone", "gone"),
        Item::hard_link("linked", "etc/large"),
        Item::file("replaced", "below"),
        Item::file("empty", ""),
    ];
    let above = [
        Item::whiteout("etc/gone"),
        Item::file("replaced", content(40_503)).mode(0o4755),
        Item::symlink("link", "etc/large"),
        Item::char_device("null", 1, 3),
    ];
    Image::of([Layer::gzip(&below), Layer::gzip(&above)])
}

fn expected() -> BTreeMap<String, Vec<u8>> {
    let large = content(2_654_435_761);
    [("etc/large", large.clone()), ("linked", large), ("replaced", content(40_503)), ("empty", Vec::new())]
        .map(|(path, content)| (path.to_owned(), content))
        .into()
}

/// The image with a SOCI index of version 2 of its first `covered` layers, whose ztocs `spoil` has changed.
fn converted(covered: usize, spoil: impl Fn(&mut Ztoc)) -> (Contents, Image) {
    let (mut contents, image) = (Contents::new(), image());
    let ztocs = ztocs(&image, covered, spoil);
    let pairs: Vec<(&Layer, &[u8])> = image.layers.iter().zip(&ztocs).map(|(layer, ztoc)| (layer, &ztoc[..])).collect();
    let soci = soci_manifest(SOCI_V2, &pairs, None);
    let image = with_soci_index(&image, &soci);
    for ztoc in ztocs {
        contents.add_blob(ztoc);
    }
    contents.add_manifest(None, media_type::OCI_MANIFEST, soci);
    image.add_to(&mut contents, "app", "v1");
    (contents, image)
}

fn ztocs(image: &Image, covered: usize, spoil: impl Fn(&mut Ztoc)) -> Vec<Vec<u8>> {
    let ztoc = |layer: &Layer| {
        let mut ztoc = Ztoc::of(&layer.blob, SPAN);
        spoil(&mut ztoc);
        ztoc.bytes()
    };
    image.layers.iter().take(covered).map(ztoc).collect()
}

/// The unchanged image, with a SOCI index of version 1 about `subject` that the registry lists, and the index's digest.
fn referred(subject: &Image) -> (Contents, Digest) {
    let (mut contents, image) = (Contents::new(), image());
    let ztocs = ztocs(&image, 2, |_| ());
    let pairs: Vec<(&Layer, &[u8])> = image.layers.iter().zip(&ztocs).map(|(layer, ztoc)| (layer, &ztoc[..])).collect();
    let soci = soci_manifest(SOCI_V1, &pairs, Some(subject));
    let digest = Digest::of(&soci);
    let list = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_INDEX,
        "manifests": [{
            "mediaType": media_type::OCI_MANIFEST, "artifactType": SOCI_V1,
            "digest": digest.to_string(), "size": soci.len(),
        }],
    });
    let tag = format!("sha256-{}", image.digest().hex());
    contents.add_manifest(Some(("app", &tag)), media_type::OCI_INDEX, list.to_string());
    for ztoc in ztocs {
        contents.add_blob(ztoc);
    }
    contents.add_manifest(None, media_type::OCI_MANIFEST, soci);
    image.add_to(&mut contents, "app", "v1");
    (contents, digest)
}

const VERIFIED: (&str, &str) = ("soci", "soci-verified");
const STREAMED: (&str, &str) = ("tar+gzip", "diffID-verified");

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_names_its_index_is_read_by_it_without_an_option() {
    let fixture = SociFixture::new(converted(2, |_| ()).0).await;
    let prepared = fixture.prepare(IndexChoice::None).await;
    assert_eq!(states(&prepared), [VERIFIED; 2]);
    // The manifest; the config and the index; two ztocs.
    assert_eq!(fixture.requests(), 5, "{:?}", fixture.notes.take());
    assert_eq!(fixture.files(&prepared).await, expected());
    let checked = fixture.engine.store().verify(|_| ()).unwrap();
    assert!(checked.corrupt.is_empty() && checked.damaged_images.is_empty(), "{checked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_without_a_ztoc_is_streamed_beside_one_that_has_one() {
    let fixture = SociFixture::new(converted(1, |_| ()).0).await;
    let prepared = fixture.prepare(IndexChoice::None).await;
    assert_eq!(states(&prepared), [VERIFIED, STREAMED]);
    assert_eq!(fixture.files(&prepared).await, expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_the_registry_lists_is_used_only_if_the_user_allows_it() {
    let (contents, digest) = referred(&image());
    let fixture = SociFixture::new(contents).await;
    let before = fixture.requests();
    assert_eq!(states(&fixture.prepare(IndexChoice::None).await), [STREAMED; 2]);
    assert_eq!(fixture.requests() - before, 4, "manifest, config and layers: nobody asks for an index");
    for (choice, state) in [(IndexChoice::Registry, "index-trusted"), (IndexChoice::Pinned(digest), "index-pinned")] {
        let fixture = SociFixture::new(referred(&image()).0).await;
        let prepared = fixture.prepare(choice).await;
        assert_eq!(states(&prepared), [("soci", state); 2]);
        assert_eq!(fixture.notes.take().len(), 1);
        assert_eq!(fixture.files(&prepared).await, expected());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_about_another_image_is_not_used() {
    let other = Image::of([Layer::gzip(&[Item::file("other", "other")])]);
    let (_, digest) = referred(&other);
    for choice in [IndexChoice::Registry, IndexChoice::Pinned(digest)] {
        let fixture = SociFixture::new(referred(&other).0).await;
        assert_eq!(states(&fixture.prepare(choice).await), [STREAMED; 2]);
        let notes = fixture.notes.take();
        assert!(notes.iter().any(|note| note.contains("it is about another image")), "{notes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_ztoc_costs_its_layer_and_a_line() {
    let spoils: [(&str, Spoil); 4] = [
        ("a layer of", |ztoc| ztoc.compressed += 1),
        ("unknown version", |ztoc| ztoc.version = "2"),
        ("number of spans", |ztoc| drop(ztoc.digests.pop())),
        ("not where an entry", |ztoc| ztoc.entries.iter_mut().for_each(|entry| entry.offset += 1)),
    ];
    for (reason, spoil) in spoils {
        let fixture = SociFixture::new(converted(1, spoil).0).await;
        let prepared = fixture.prepare(IndexChoice::None).await;
        assert_eq!(states(&prepared), [STREAMED; 2]);
        let notes = fixture.notes.take();
        assert!(notes.len() == 1 && notes[0].contains(reason), "{notes:?}");
        assert_eq!(fixture.files(&prepared).await, expected());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_none_or_cannot_be_had_costs_a_line() {
    let config = image().config;
    let cases: [(&str, Vec<u8>); 3] = [
        ("no SOCI index", image().manifest),
        ("it is a application/vnd.amazon.soci.index.v1+json", soci_manifest(SOCI_V1, &[], None)),
        ("covers no layer", soci_manifest(SOCI_V2, &[], None)),
    ];
    for (reason, soci) in cases {
        let (mut contents, image) = (Contents::new(), with_soci_index(&image(), &soci));
        contents.add_manifest(None, media_type::OCI_MANIFEST, soci);
        image.add_to(&mut contents, "app", "v1");
        let fixture = SociFixture::new(contents).await;
        assert_eq!(states(&fixture.prepare(IndexChoice::None).await), [STREAMED; 2]);
        let notes = fixture.notes.take();
        assert!(notes.len() == 1 && notes[0].contains(reason), "{notes:?}");
    }
    let mut contents = Contents::new();
    with_soci_index(&image(), &config).add_to(&mut contents, "app", "v1");
    let fixture = SociFixture::new(contents).await;
    assert_eq!(states(&fixture.prepare(IndexChoice::None).await), [STREAMED; 2]);
    assert_eq!(fixture.notes.take().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_proves_the_index_and_takes_its_place() {
    let fixture = SociFixture::new(converted(2, |_| ()).0).await;
    fixture.prepare(IndexChoice::None).await;
    assert_eq!(fixture.pull().await.unwrap(), ["diffID-verified"; 2]);
    let asked = fixture.requests();
    let prepared = fixture.prepare(IndexChoice::None).await;
    assert_eq!(states(&prepared), [STREAMED; 2]);
    assert_eq!(fixture.files(&prepared).await, expected());
    assert_eq!(fixture.requests(), asked, "all of it is here, under the digests of its contents");
}

/// A mounted image continues to be read by its record, and the next pull finds everything in the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_of_a_mounted_image_is_made_good_by_the_next_one() {
    let fixture = SociFixture::new(converted(2, |_| ()).0).await;
    let prepared = fixture.prepare(IndexChoice::None).await;
    let (store, mountpoint) = (fixture.engine.store(), std::path::Path::new("/mounted"));
    store.record_mount(mountpoint, prepared.manifest(), "app:v1", "").unwrap();
    fixture.pull().await.unwrap();
    let kept = fixture.prepare(IndexChoice::None).await;
    assert_eq!(states(&kept), [VERIFIED; 2]);
    store.forget_mount(mountpoint).unwrap();
    assert_eq!(fixture.pull().await.unwrap(), ["diffID-verified"; 2]);
    let asked = fixture.requests();
    let prepared = fixture.prepare(IndexChoice::None).await;
    assert_eq!(fixture.files(&prepared).await, expected());
    assert_eq!(fixture.requests(), asked, "all of it is here");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_detects_a_false_index() {
    let lies: [Spoil; 5] = [
        |ztoc| ztoc.entries[1].mode = 0o777,
        |ztoc| ztoc.entries[1].size -= 1,
        |ztoc| ztoc.entries[3].name.push(b'x'),
        |ztoc| ztoc.entries[1].uid += 1,
        |ztoc| drop(ztoc.entries.pop()),
    ];
    for lie in lies {
        let fixture = SociFixture::new(converted(1, lie).0).await;
        let prepared = fixture.prepare(IndexChoice::None).await;
        assert_eq!(states(&prepared)[0], VERIFIED);
        let error = fixture.pull().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused, "{error}");
        assert!(fixture.engine.store().image(prepared.manifest()).unwrap().is_none(), "its record is removed");
        assert_eq!(fixture.pull().await.unwrap(), ["diffID-verified"; 2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_by_which_the_layers_do_not_fit_together_is_not_used() {
    // The hard link has no target then.
    let fixture = SociFixture::new(converted(2, |ztoc| ztoc.entries[1].name.push(b'x')).0).await;
    let prepared = fixture.prepare(IndexChoice::None).await;
    assert_eq!(states(&prepared), [STREAMED; 2]);
    let notes = fixture.notes.take();
    assert!(notes.last().is_some_and(|note| note.contains("/linked")), "{notes:?}");
    assert_eq!(fixture.files(&prepared).await, expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_of_the_layers_themselves_is_made_of_the_layers() {
    let fixture = SociFixture::new(converted(2, |ztoc| ztoc.entries[1].mode = 0o777).0).await;
    let made = fixture.engine.make_index(&fixture.request(IndexChoice::None), &[], &fixture.notes).await.unwrap();
    assert_eq!(made.layers.len(), 2, "{:?}", fixture.notes.take());
}
