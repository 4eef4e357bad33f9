//! An image in a layout, and the result of preparing it with a forged index.

use std::fmt;
use std::io::Write;
use std::path::Path;

use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tarpon_engine::oci::{Compression, Digest, media_type};
use tarpon_engine::store::Verification;
use tarpon_engine::{Access, Engine, ImageRequest, IndexChoice, Prepared, Silent};
use tarpon_fetch::{Fetcher, ReadError};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};

use crate::forge::{Artifact, Built};
use crate::support::{self, EngineFixture, Notes, Served, load, serve};

/// Bytes of one read: several for the large file, so that bytes served before it is complete are covered too.
const READ: u64 = 256 << 10;

/// An image with an honest index, to compare forged ones with.
pub(crate) struct HonestIndex {
    image: Image,
    /// The index.
    pub(crate) artifact: Artifact,
    /// The tree that the layers give.
    tree: Vec<u8>,
    pub(crate) lazy_objects: usize,
}

/// The result of an index.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    /// The tree that is mounted is that of the layers.
    is_true: bool,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// The image is not mounted.
    Refused(String),
    /// The index is unused: the layers were streamed.
    Streamed(String),
    /// It is used, possibly for some layers only.
    Used {
        reads: Reads,
        /// Findings of checking the index.
        check: Vec<String>,
        /// Whether pulling the image raised the alarm.
        pull: bool,
    },
}

/// The result of reading all files.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Why objects cannot be read, one entry each.
    unread: Vec<String>,
    /// Whether wrong bytes of those objects were served before.
    others: bool,
    /// Objects that are zeros by the index, and something else by their names.
    zeros: usize,
}

impl Verdict {
    pub(crate) fn is_true(&self) -> bool {
        let unread = matches!(&self.outcome, Outcome::Used { reads, .. } if !reads.unread.is_empty());
        self.is_true && !unread
    }

    /// Whether the other one ends alike, whatever its messages.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(&self.outcome) == std::mem::discriminant(&other.outcome)
    }

    /// What must hold of every case.
    pub(crate) fn assert_safe(&self, case: &str) {
        match &self.outcome {
            Outcome::Refused(_) => {}
            Outcome::Streamed(_) => assert!(self.is_true, "{case}: what was streamed is not the image"),
            Outcome::Used { check, pull, reads } => {
                assert_eq!(reads.zeros, 0, "{case}: a file of something reads as zeros");
                assert!(self.is_true || !check.is_empty(), "{case}: checking the index finds nothing");
                assert!(self.is_true || *pull, "{case}: pulling the image finds nothing");
                assert!(
                    !reads.others || !check.is_empty(),
                    "{case}: bytes of something else, and checking finds nothing"
                );
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Refused(why) => write!(f, "refused: {why}"),
            Outcome::Streamed(why) => write!(f, "streamed instead: {why}"),
            Outcome::Used { reads, check, pull } => {
                let mut parts = Vec::new();
                // How many, and after how many pieces, depends on which are fetched together.
                if !reads.unread.is_empty() {
                    parts.push("objects cannot be read".to_owned());
                }
                parts.extend(check.iter().map(|difference| format!("found by check ({difference})")));
                if *pull {
                    parts.push("found by pull".to_owned());
                }
                if parts.is_empty() {
                    parts.push("changes nothing".to_owned());
                }
                f.write_str(&parts.join(", "))
            }
        }
    }
}

impl HonestIndex {
    pub(crate) async fn new() -> Self {
        let image = image();
        let fixture = Fixture::with_layout(&image);
        let (engine, request) = (fixture.engine("store"), request(&fixture, IndexChoice::None));
        let made = engine.make_index(&request, &[], &Silent).await.unwrap();
        let layout = tarpon_engine::oci::Source::OciLayout { directory: fixture.layout(), tag: None };
        let digest = engine.publish_index(&made, &layout, &Access::default(), None).await.unwrap();
        let blob = |digest: &str| std::fs::read(blob_path(&fixture.layout(), digest)).unwrap();
        let manifest = blob(&digest.to_string());
        let document: Value = serde_json::from_slice(&manifest).unwrap();
        let artifact = Artifact::read(&manifest, &blob(document["layers"][0]["digest"].as_str().unwrap()));
        let prepared = engine.prepare(&request, &Silent).await.unwrap();
        let lazy_objects = serve(&engine, &prepared).await.objects.len();
        Self { image, artifact, tree: load(&engine, &prepared).tree.as_ref().to_vec(), lazy_objects }
    }

    /// Prepares the image with a forged artifact in a new store, reads everything, and checks everything.
    pub(crate) async fn verdict(&self, artifact: &Artifact, choose: impl Fn(Digest) -> IndexChoice) -> Verdict {
        let fixture = Fixture::with_layout(&self.image);
        let built = artifact.built();
        add_to_layout(&built, &fixture.layout());
        let digest = built.manifest.0;
        let (engine, request) = (fixture.engine("store"), request(&fixture, choose(digest)));
        let notes = Notes::default();
        let prepared = match engine.prepare(&request, &notes).await {
            Err(error) => {
                return Verdict { outcome: Outcome::Refused(neutral(&error, &fixture, &digest)), is_true: false };
            }
            Ok(prepared) => prepared,
        };
        let is_true = load(&engine, &prepared).tree.as_ref() == self.tree;
        if prepared.record.layers.iter().all(|layer| layer.verification == Verification::DiffId) {
            let notes = notes.take().join("; ");
            return Verdict { outcome: Outcome::Streamed(neutral(&notes, &fixture, &digest)), is_true };
        }
        let reads = self.read_all(&engine, &prepared).await;
        // In a store of its own: what it reads must not help.
        let check = match fixture.engine("checker").check_index(&request, &digest, &Silent).await {
            Ok(checked) => checked.differences,
            Err(error) => vec![error.to_string()],
        };
        let check = check.iter().map(|difference| neutral(difference, &fixture, &digest)).collect();
        let pull = engine.pull(&request, &Silent).await.is_err();
        if pull {
            assert!(engine.store().image(prepared.manifest()).unwrap().is_none(), "the record of a lie is gone");
        }
        let after = engine.prepare(&request, &Silent).await.unwrap();
        assert!(load(&engine, &after).tree.as_ref() == self.tree, "after a pull the tree is that of the layers");
        Verdict { outcome: Outcome::Used { reads, check, pull }, is_true }
    }

    /// Reads every object of the image in pieces, exactly as a mount would.
    ///
    /// Pieces are served as soon as their own digests match, which the index names too. So a publisher that lies about the whole can make
    /// readers see other bytes until all of them are local: then the object is never read again.
    async fn read_all(&self, engine: &Engine, prepared: &Prepared) -> Reads {
        let Served { fetcher, image: _image, objects } = serve(engine, prepared).await;
        let mut reads = Reads::default();
        for (object, size) in objects {
            let (bytes, failure) = read_whole(&fetcher, &object, size).await;
            if !self.content(&object).is_some_and(|content| content.starts_with(&bytes)) && !bytes.is_empty() {
                reads.others = true;
            }
            let failure = match failure {
                None if Digest::of(&bytes) == object => continue,
                // Nothing is fetched for them, so nothing is hashed.
                None if bytes.iter().all(|byte| *byte == 0) => {
                    reads.zeros += 1;
                    continue;
                }
                None => refusal(&fetcher, &object).await,
                Some(failure) => failure,
            };
            assert!(fetcher.open_local(&object).is_none(), "{object} is kept as something else");
            reads.unread.push(failure.to_string());
        }
        reads
    }

    /// The image's content of this name.
    fn content(&self, object: &Digest) -> Option<Vec<u8>> {
        let contents = items().into_iter().flatten().map(|item| item.content().to_vec());
        contents.into_iter().find(|content| Digest::of(content) == *object)
    }
}

/// The readable part of an object, and why it ends early.
async fn read_whole(fetcher: &Fetcher, object: &Digest, size: u64) -> (Vec<u8>, Option<ReadError>) {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        match fetcher.read(object, bytes.len() as u64, READ).await {
            Ok(piece) => bytes.extend_from_slice(&piece.into_bytes()),
            Err(error) => return (bytes, Some(error)),
        }
    }
    (bytes, None)
}

/// Reads an object that does not match its name until the background check detects that.
async fn refusal(fetcher: &Fetcher, object: &Digest) -> ReadError {
    loop {
        match fetcher.read(object, 0, 1).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => return error,
        }
    }
}

fn request(fixture: &Fixture, index: IndexChoice) -> ImageRequest {
    ImageRequest { index, ..support::request(&fixture.layout_name()) }
}

fn blob_path(layout: &Path, digest: &str) -> std::path::PathBuf {
    layout.join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap())
}

/// Adds an artifact to a layout.
fn add_to_layout(Built { manifest, blob }: &Built, layout: &Path) {
    let index = layout.join("index.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    document["manifests"].as_array_mut().unwrap().push(json!({
        "mediaType": media_type::OCI_MANIFEST, "digest": manifest.0.to_string(), "size": manifest.1.len(),
    }));
    std::fs::write(index, document.to_string()).unwrap();
    for (digest, bytes) in [manifest, blob, &(Digest::of(b"{}"), b"{}".to_vec())] {
        std::fs::write(blob_path(layout, &digest.to_string()), bytes).unwrap();
    }
}

/// Text without the parts that differ between runs or versions of a compressor: paths, digests, sizes.
fn neutral(text: &(impl fmt::Display + ?Sized), fixture: &Fixture, index: &Digest) -> String {
    let text = text.to_string().replace(&fixture.folder().display().to_string(), "TMP");
    let words: Vec<&str> = text.split(' ').collect();
    let is_number = |word: &str| word.parse::<u64>().is_ok();
    let neutral = |(at, word): (usize, &&str)| match word.split_once("sha256:") {
        Some((before, digest)) => {
            let name = if digest.starts_with(&index.hex()) { "INDEX" } else { "DIGEST" };
            format!("{before}{name}{}", &digest[64..])
        }
        None if is_number(word) && words.get(at + 1) == Some(&"bytes") => "N".to_owned(),
        None if is_number(word) && at > 0 && words[at - 1] == "of" => "N".to_owned(),
        None => (*word).to_owned(),
    };
    words.iter().enumerate().map(neutral).collect::<Vec<_>>().join(" ")
}

/// Two layers, gzip and zstd, with some of everything. The large file has several spans that refer to earlier ones.
fn items() -> [Vec<Item>; 2] {
    let lines = (0..130_000_u32).map(|n| format!("{n} {:08x} the tarpon\n", n.wrapping_mul(2_654_435_761)));
    let large: String = lines.collect();
    let below = vec![
        Item::directory("etc").mode(0o755),
        Item::file("etc/hello", "hello\n").owner(7, 8).mtime(1_700_000_000, 5),
        Item::file("etc/other", "other\n").mtime(1_700_000_001, 0),
        Item::file("etc/gone", "gone"),
        Item::directory("opt"),
        Item::file("opt/hidden", "hidden"),
        Item::file("large", large),
        Item::file("note", "with an xattr").xattr("user.note", b"\x00\xff"),
        Item::symlink("link", "etc/hello"),
        Item::hard_link("linked", "etc/hello"),
        Item::char_device("null", 1, 3),
        Item::fifo("pipe"),
        Item::file("empty", ""),
    ];
    let above = vec![
        Item::whiteout("etc/gone"),
        Item::opaque("opt"),
        Item::file("opt/shown", "shown"),
        Item::file("second", "of the second layer"),
    ];
    [below, above]
}

fn image() -> Image {
    let [below, above] = items().map(|items| tar(&items, Dialect::Pax));
    // In many blocks, unlike the output of the fastest level.
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&below).unwrap();
    let lower = Layer { blob: encoder.finish().unwrap(), ..Layer::plain(&below, Compression::Gzip) };
    Image::of([lower, Layer::plain(&above, Compression::Zstd)])
}
