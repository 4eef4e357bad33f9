//! Objects of SOCI indexes: the digests of their chunks are those of the encoded bytes, and their names are not digests of their content.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use common::{World, noise};
use flate2::Compression;
use flate2::write::GzEncoder;
use tarpon_fetch::{BootPiece, BootWriter, Config};
use tarpon_layer::soci::{Options, index};
use tarpon_layer::{ChunkPlace, LayerIndex, Node};
use tarpon_oci::{Blob, Digest, Verified};
use tarpon_testkit::layers::{Dialect, Item, Ztoc, tar};
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, PackedLayer, Packer, Refusal, Then, table_of};

const KIB: usize = 1 << 10;
const SPAN: u64 = 200_000;

/// Files by name: a large one, some small ones of one size, and one that is a whole span and more of one byte.
fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::from([
        ("large".to_owned(), noise(1, 900 * KIB)),
        ("same".to_owned(), vec![7; 600 * KIB]),
        ("last".to_owned(), noise(2, 100 * KIB)),
    ]);
    files.extend((0..20).map(|number| (format!("small{number:02}"), noise(10 + number, 3000))));
    files
}

struct Soci {
    layer: PackedLayer,
    files: Vec<(Digest, Vec<u8>)>,
}

/// The layer of those files, with its ztoc as changed by `spoil`.
fn soci(spoil: impl FnOnce(&mut Ztoc)) -> Soci {
    use std::io::Write as _;
    let files = files();
    let items: Vec<Item> = files.iter().map(|(name, content)| Item::file(name, content)).collect();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(&tar(&items, Dialect::Pax)).unwrap();
    let bytes = Bytes::from(encoder.finish().unwrap());
    let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
    let mut ztoc = Ztoc::of(&bytes, SPAN);
    spoil(&mut ztoc);
    let index = index(&Verified::seal(ztoc.bytes()), blob, Options::default()).unwrap();
    let objects = index.entries.iter().map(|entry| match &entry.node {
        Node::File(file) => (file.object, files[str::from_utf8(entry.path.as_bytes()).unwrap()].clone()),
        _ => panic!("only files"),
    });
    Soci { files: objects.collect(), layer: PackedLayer { index, bytes, blob, form: Form::GzipStream } }
}

fn sound() -> Soci {
    soci(|_| ())
}

impl Soci {
    fn object(&self, content: &[u8]) -> Digest {
        self.files.iter().find(|(_, other)| other == content).unwrap().0
    }

    /// Places of the object's chunks in the blob.
    fn places(&self, object: &Digest) -> Vec<(u64, u64)> {
        places(&self.layer.index, object)
    }
}

fn places(index: &LayerIndex, object: &Digest) -> Vec<(u64, u64)> {
    let file = index.entries.iter().find_map(|entry| match &entry.node {
        Node::File(file) if file.object == *object => Some(**file),
        _ => None,
    });
    let file = file.unwrap();
    let chunks = &index.chunks[file.first_chunk as usize..][..file.chunk_count as usize];
    let place = |chunk: &tarpon_layer::Chunk| match chunk.place {
        ChunkPlace::Blob { offset, length, .. } => (offset, offset + length),
        ChunkPlace::Zeros => panic!("no zeros"),
    };
    chunks.iter().map(place).collect()
}

#[tokio::test(start_paused = true)]
async fn every_file_is_read_and_kept_under_no_name_that_is_not_its_digest() {
    let soci = sound();
    let world = World::new(&[&soci.layer]);
    for (object, content) in &soci.files {
        assert!(world.read(object, 0, 16 << 20).await.unwrap() == content[..]);
        world.quiet().await;
    }
    for (object, content) in &soci.files {
        let asked = world.asked();
        assert!(world.read(object, 0, 16 << 20).await.unwrap() == content[..]);
        assert_eq!(world.asked(), asked, "it was kept");
        assert!(world.store.object(object).is_none());
        let is_whole = soci.places(object).len() == 1;
        assert_eq!(world.store.object(&Digest::of(content)).is_some(), is_whole);
        assert_eq!(world.fetcher.open_local(object).is_some(), is_whole);
    }
    assert_eq!(world.image.stats().poisoned_objects, 0);
}

/// A span of 4 MiB may hold a thousand small files: more than the number of objects whose state is in memory.
#[tokio::test(start_paused = true)]
async fn many_small_files_of_a_span_are_fetched_once() {
    let soci = sound();
    let config = Config { live_objects: 4, ..Config::default() };
    let world = World::with(&[&soci.layer], MemoryStore::default(), config);
    let small: Vec<_> = soci.files.iter().filter(|(_, content)| content.len() == 3000).collect();
    let spans: std::collections::BTreeSet<_> = small.iter().flat_map(|(object, _)| soci.places(object)).collect();
    for (object, content) in small.iter().chain(&small) {
        assert!(world.read(object, 0, 3000).await.unwrap() == content[..]);
        world.quiet().await;
    }
    assert!(world.source.requests().len() <= spans.len(), "{:?}", world.source.requests());
}

/// The state after an eviction.
#[tokio::test(start_paused = true)]
async fn a_content_that_the_store_has_no_more_is_fetched_again() {
    let soci = sound();
    let world = World::new(&[&soci.layer]);
    let (object, content) = soci.files.iter().find(|(_, content)| content.len() == 3000).unwrap();
    world.read(object, 0, 3000).await.unwrap();
    world.quiet().await;
    world.store.evict(&Digest::of(content));
    world.fetcher.close_local(&Digest::of(content));
    assert!(world.read(object, 0, 3000).await.unwrap() == content[..]);
    assert_eq!(world.source.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn exactly_the_spans_are_requested() {
    let soci = sound();
    let world = World::new(&[&soci.layer]);
    let object = soci.object(&files()["large"]);
    let spans = soci.places(&object);
    assert!(spans.len() > 3);
    world.read(&object, 0, 16 << 20).await.unwrap();
    world.quiet().await;
    let (starts, ends): (Vec<u64>, Vec<u64>) = spans.into_iter().unzip();
    for (_, asked) in world.source.requests() {
        assert!(starts.contains(&asked.start) && ends.contains(&asked.end), "{asked:?}");
    }
    assert!(world.asked() <= ends[ends.len() - 1] - starts[0] + ends.len() as u64, "each once");
}

#[tokio::test(start_paused = true)]
async fn files_of_one_size_in_one_span_are_not_mixed_up() {
    let soci = sound();
    let world = World::new(&[&soci.layer]);
    let small: Vec<_> = soci.files.iter().filter(|(_, content)| content.len() == 3000).collect();
    let reads = small.iter().map(|(object, _)| world.read(object, 0, 3000));
    let all = futures::future::join_all(reads).await;
    for (bytes, (_, content)) in all.into_iter().zip(small) {
        assert!(bytes.unwrap() == content[..]);
    }
}

#[tokio::test(start_paused = true)]
async fn parts_of_one_byte_are_not_taken_for_each_other() {
    let soci = sound();
    let world = World::new(&[&soci.layer]);
    let object = soci.object(&files()["same"]);
    for at in [0, 599 << 10, 300 << 10] {
        assert!(world.read(&object, at, 1024).await.unwrap() == vec![7; 1024]);
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_are_requested_again_and_never_served() {
    let soci = sound();
    let world = World::new(&[&soci.layer]);
    let (object, content) = &soci.files[0];
    world.source.script([Then::Garbage.into()]);
    assert!(world.read(object, 0, 1000).await.unwrap() == content[..1000]);
    assert!(world.image.stats().digest_failures > 0);
    world.source.always(Then::Corrupt(soci.places(object)[1].0 + 5).into());
    let result = world.read(object, SPAN + 100_000, 1000).await;
    assert!(result.as_ref().is_err_and(|error| error.contains("wrong bytes")), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_span_whose_digest_is_another_is_not_decoded() {
    let soci = soci(|ztoc| ztoc.digests[1] = Digest::of(b"other").to_string());
    let world = World::new(&[&soci.layer]);
    let mut failed = 0;
    for (object, content) in &soci.files {
        match world.read(object, 0, 16 << 20).await {
            Ok(bytes) => assert!(bytes == content[..]),
            Err(_) => failed += 1,
        }
    }
    assert!((1..soci.files.len()).contains(&failed), "those in the span, and no others");
}

/// What a span decodes to is compared with nothing, so nothing else would notice that it is not all there.
#[tokio::test(start_paused = true)]
async fn a_span_that_matches_its_digest_and_holds_less_than_its_index_states_is_not_served() {
    let mut second = 0..0;
    let soci = soci(|ztoc| {
        ztoc.starts[2].decoded += 1000;
        let place = |start: usize| ztoc.starts[start].decoded - u64::try_from(ztoc.entries[0].offset).unwrap();
        second = place(1)..place(2);
    });
    let world = World::new(&[&soci.layer]);
    let content = &files()["large"];
    let object = soci.object(content);
    for at in [second.start, second.end - 1000] {
        let result = world.read(&object, at, 1000).await;
        assert!(result.as_ref().is_err_and(|error| error.contains("wrong bytes")), "{result:?}");
    }
    assert!(world.image.stats().digest_failures > 0);
    assert!(world.read(&object, 0, 100_000).await.unwrap() == content[..100_000], "the span before it");
}

/// The digests are those of bytes of the layer, and a boot pack has others.
#[tokio::test(start_paused = true)]
async fn a_boot_pack_is_not_asked_for_what_only_the_layer_can_prove() {
    let soci = sound();
    let mut writer = BootWriter::new(Vec::new()).unwrap();
    for (object, content) in soci.files.iter().filter(|(_, content)| content.len() == 3000) {
        writer.add(BootPiece { object: *object, offset: 0, length: 3000 }, &vec![0; content.len()]).unwrap();
    }
    let (index, pack) = writer.finish("default".into()).unwrap();
    let world = World::of(&[&soci.layer], [Bytes::from(pack)]);
    assert!(world.image.replay(&index));
    for (object, content) in soci.files.iter().filter(|(_, content)| content.len() == 3000) {
        assert!(world.read(object, 0, 3000).await.unwrap() == content[..]);
    }
    world.quiet().await;
    assert!(world.source.requests().iter().all(|(asked, _)| *asked == soci.layer.blob.digest));
    assert_eq!(world.image.stats().digest_failures, 0);
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_an_earlier_process_are_fetched_again() {
    let (soci, store) = (sound(), MemoryStore::default());
    let first = World::with(&[&soci.layer], store.clone(), Config::default());
    let (object, content) = &soci.files[0];
    first.read(object, 0, 16 << 20).await.unwrap();
    first.quiet().await;
    drop(first);
    store.rot();
    let second = World::with(&[&soci.layer], store, Config::default());
    assert!(second.fetcher.read_local(object, 0, 1000).is_none());
    assert!(second.read(object, 0, 16 << 20).await.unwrap() == content[..]);
}

#[tokio::test(start_paused = true)]
async fn a_store_without_room_does_not_fetch_a_span_for_each_read() {
    let soci = sound();
    let world = World::new(&[&soci.layer]);
    world.store.refuse(Some(Refusal::Full));
    let (object, content) = (soci.object(&files()["large"]), &files()["large"]);
    for at in (0..content.len()).step_by(10_000) {
        let end = (at + 10_000).min(content.len());
        assert!(world.read(&object, at as u64, 10_000).await.unwrap() == content[at..end]);
    }
    assert!(world.asked() < 3 * soci.layer.blob.size, "{} of {}", world.asked(), soci.layer.blob.size);
}

/// The names in a ztoc can be computed from it, and claimed for another image.
#[tokio::test(start_paused = true)]
async fn an_image_that_claims_such_a_name_changes_nothing_for_the_one_that_has_it() {
    let soci = sound();
    let (object, content) = &soci.files[0];
    for (lie, chunk) in
        [(noise(5, content.len()), 64 * KIB), (noise(5, content.len()), content.len()), (vec![0; 900 * KIB], KIB << 10)]
    {
        let mut packer = Packer::new(Form::Raw);
        let claimed = packer.object(&lie, chunk);
        packer.lie(&claimed, *object);
        let evil = packer.finish();
        for evil_first in [true, false] {
            let layers = if evil_first { [&evil, &soci.layer] } else { [&soci.layer, &evil] };
            let world = World::new(&layers[..1]);
            let before = world.read(object, 0, 1000).await;
            assert!(evil_first || before.unwrap() == content[..1000]);
            world.quiet().await;
            let source = Arc::new(MemorySource::new([layers[1].bytes.clone()]));
            let _other = world.fetcher.add_image(table_of(&layers[1..]), source, "other:latest");
            assert!(world.read(object, 0, 16 << 20).await.unwrap() == content[..]);
            world.quiet().await;
            assert!(world.read(object, 0, 16 << 20).await.unwrap() == content[..]);
        }
    }
}
