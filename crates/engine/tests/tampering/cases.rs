//! The table of changes.

use serde_json::{Value, json};
use tarpon_engine::oci::Digest;
use tarpon_layer::{
    Attributes, Chunk, ChunkPlace, Codec, Device, Entry, FileContent, LayerIndex, LayerPath, Node, Xattr,
};

use crate::forge::{Artifact, Record};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) change: Change,
}

/// The target of the change.
pub(crate) enum Change {
    /// The artifact.
    Artifact(fn(&mut Artifact)),
    /// How the lower layer is described.
    Record(fn(&mut Record)),
    /// The claims about the lower layer.
    Lower(fn(&mut LayerIndex)),
    /// The claims about the upper layer.
    Upper(fn(&mut LayerIndex)),
    /// The manifest.
    Manifest(fn(&mut Value)),
}

impl Change {
    pub(crate) fn apply(&self, artifact: &mut Artifact) {
        match self {
            Self::Artifact(change) => change(artifact),
            Self::Record(change) => change(&mut artifact.layers[0]),
            Self::Lower(change) => change(&mut artifact.layers[0].index),
            Self::Upper(change) => change(&mut artifact.layers[1].index),
            Self::Manifest(change) => artifact.manifest = *change,
        }
    }
}

fn path(text: &str) -> LayerPath {
    LayerPath::from_normal(text.as_bytes()).unwrap()
}

fn place_of(index: &LayerIndex, name: &str) -> usize {
    index.entries.iter().position(|entry| entry.path == path(name)).unwrap()
}

fn entry<'a>(index: &'a mut LayerIndex, name: &str) -> &'a mut Entry {
    let place = place_of(index, name);
    &mut index.entries[place]
}

fn attributes<'a>(index: &'a mut LayerIndex, name: &str) -> &'a mut Attributes {
    &mut entry(index, name).attributes
}

fn content<'a>(index: &'a mut LayerIndex, name: &str) -> &'a mut FileContent {
    match &mut entry(index, name).node {
        Node::File(content) => content,
        other => panic!("{name} is {other:?}"),
    }
}

fn chunk<'a>(index: &'a mut LayerIndex, name: &str, number: usize) -> &'a mut Chunk {
    let FileContent { first_chunk, chunk_count, .. } = *content(index, name);
    assert!(number < chunk_count as usize, "{name} has {chunk_count} chunks");
    &mut index.chunks[first_chunk as usize + number]
}

/// Codec, offset, length, skip.
fn stretch(chunk: &mut Chunk) -> (&mut Codec, &mut u64, &mut u64, &mut u64) {
    match &mut chunk.place {
        ChunkPlace::Blob { codec, offset, length, skip } => (codec, offset, length, skip),
        ChunkPlace::Zeros => panic!("zeros have no place"),
    }
}

/// The chunk of the large file that lies behind the first checkpoint.
fn behind_checkpoint(index: &mut LayerIndex) -> &mut Chunk {
    let count = content(index, "large").chunk_count as usize;
    let is_deflate =
        |number: &usize| matches!(chunk(index, "large", *number).place, ChunkPlace::Blob { codec: Codec::Deflate, .. });
    let number = (0..count).find(is_deflate).unwrap();
    chunk(index, "large", number)
}

const fn case(name: &'static str, change: Change) -> Case {
    Case { name, change }
}

use Change::{Artifact as InArtifact, Lower, Manifest, Record as InRecord, Upper};

pub(crate) const CASES: &[Case] = &[
    // The header of the blob.
    case("header: another magic", InArtifact(|it| it.magic[0] ^= 1)),
    case("header: a later version", InArtifact(|it| it.magic[15] = 2)),
    case("header: fewer layers than there are", InArtifact(|it| it.count = Some(1))),
    case("header: more layers than there are", InArtifact(|it| it.count = Some(3))),
    case("header: more layers than there can be", InArtifact(|it| it.count = Some(u32::MAX))),
    // The records of the layers.
    case("layer: a digest that no layer has", InRecord(|it| it.digest = Digest::of(b"another"))),
    case("layer: another size", InRecord(|it| it.size += 1)),
    case("layer: a shorter index", InRecord(|it| it.length = |length| length - 1)),
    case("layer: a longer index", InRecord(|it| it.length = |length| length + 1)),
    case("layer: an index beyond all memory", InRecord(|it| it.length = |_| u64::MAX)),
    case("layer: another compression", InRecord(|it| it.compression ^= 3)),
    case("layer: an unknown compression", InRecord(|it| it.compression = 99)),
    case("layer: something where zeros are", InRecord(|it| it.zeros[6] = 1)),
    case(
        "layer: the index of the other layer",
        InArtifact(|it| {
            let [lower, upper] = &mut it.layers[..] else { panic!("two layers") };
            std::mem::swap(&mut lower.index, &mut upper.index);
        }),
    ),
    case(
        "layer: the same layer twice",
        InArtifact(|it| {
            let mut again = it.layers[0].clone();
            again.index = it.layers[1].index.clone();
            it.layers.insert(1, again);
        }),
    ),
    case("layer: one of them left out", InArtifact(|it| it.layers.truncate(1))),
    case("layer: in another order", InArtifact(|it| it.layers.reverse())),
    case("packed: another version", InRecord(|it| it.packed = |bytes| bytes[0] ^= 1)),
    case("packed: something behind it", InRecord(|it| it.packed = |bytes| bytes.push(0))),
    case("packed: cut off", InRecord(|it| it.packed = |bytes| bytes.truncate(bytes.len() / 2))),
    case("packed: nothing", InRecord(|it| it.packed = |bytes| bytes.clear())),
    case("packed: no zstd", InRecord(|it| it.compressed = |bytes| bytes[0] ^= 1)),
    // Entries.
    case("entry: another path", Lower(|it| entry(it, "etc/hello").path = path("etc/hallo"))),
    case("entry: a path below a file", Lower(|it| entry(it, "empty").path = path("etc/hello/x"))),
    case(
        "entry: a file is a link",
        Lower(|it| entry(it, "etc/hello").node = Node::Symlink(Box::new((*b"/etc/shadow").into()))),
    ),
    case("entry: a file is a directory", Lower(|it| entry(it, "etc/other").node = Node::Directory)),
    case(
        "entry: a file is another name",
        Lower(|it| entry(it, "etc/other").node = Node::HardLink(path("etc/hello").into())),
    ),
    case("entry: setuid", Lower(|it| attributes(it, "etc/hello").mode |= 0o4000)),
    case("entry: another mode of a directory", Lower(|it| attributes(it, "etc").mode = 0o777)),
    case("entry: a mode that no file has", Lower(|it| attributes(it, "etc/hello").mode = 0o17_777)),
    case("entry: another owner", Lower(|it| attributes(it, "etc/hello").uid = 0)),
    case("entry: another group", Lower(|it| attributes(it, "etc/hello").gid = 0)),
    case("entry: an owner that nobody is", Lower(|it| attributes(it, "etc/hello").uid = u32::MAX)),
    case("entry: another time", Lower(|it| attributes(it, "etc/hello").mtime.seconds += 1)),
    case("entry: another nanosecond", Lower(|it| attributes(it, "etc/hello").mtime.nanoseconds += 1)),
    case("entry: too many nanoseconds", Lower(|it| attributes(it, "etc/hello").mtime.nanoseconds = 1_000_000_000)),
    case("entry: another value of an xattr", Lower(|it| attributes(it, "note").xattrs[0].value = (*b"x").into())),
    case("entry: an xattr left out", Lower(|it| attributes(it, "note").xattrs.clear())),
    case(
        "entry: a capability",
        Lower(|it| {
            let value = [1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let xattr = Xattr { name: (*b"security.capability").into(), value: value.into() };
            attributes(it, "etc/hello").xattrs.push(xattr);
        }),
    ),
    case(
        "entry: an xattr for overlayfs",
        Lower(|it| {
            let xattr = Xattr { name: (*b"trusted.overlay.redirect").into(), value: (*b"/etc/shadow").into() };
            attributes(it, "etc/hello").xattrs.push(xattr);
        }),
    ),
    case(
        "entry: another target of a link",
        Lower(|it| entry(it, "link").node = Node::Symlink(Box::new((*b"etc/other").into()))),
    ),
    case("entry: a link to nowhere", Lower(|it| entry(it, "link").node = Node::Symlink(Box::default()))),
    case(
        "entry: another file under a name",
        Lower(|it| entry(it, "linked").node = Node::HardLink(path("etc/other").into())),
    ),
    case("entry: a name of no file", Lower(|it| entry(it, "linked").node = Node::HardLink(path("nowhere").into()))),
    case("entry: a name of itself", Lower(|it| entry(it, "linked").node = Node::HardLink(path("linked").into()))),
    case(
        "entry: another device",
        Lower(|it| {
            entry(it, "null").node = Node::CharDevice(Device { major: 1, minor: 1 });
        }),
    ),
    case("entry: a disk", Lower(|it| entry(it, "null").node = Node::BlockDevice(Device { major: 8, minor: 0 }))),
    case(
        "entry: the device that is a whiteout",
        Lower(|it| {
            entry(it, "null").node = Node::CharDevice(Device { major: 0, minor: 0 });
        }),
    ),
    case(
        "entry: a device that no kernel knows",
        Lower(|it| {
            entry(it, "null").node = Node::CharDevice(Device { major: u32::MAX, minor: 1 });
        }),
    ),
    // Contents.
    case("file: an object that does not exist", Lower(|it| content(it, "etc/hello").object = Digest::of(b"forged"))),
    case(
        "file: an object that does not exist, and its chunk",
        Lower(|it| {
            content(it, "etc/hello").object = Digest::of(b"forged");
            chunk(it, "etc/hello", 0).digest = Digest::of(b"forged");
        }),
    ),
    case(
        "file: the digest of another file",
        Lower(|it| {
            content(it, "etc/hello").object = content(it, "etc/other").object;
        }),
    ),
    case("file: another file altogether", Lower(|it| *content(it, "etc/hello") = *content(it, "etc/other"))),
    case(
        "file: the large file under the digest of a small one",
        Lower(|it| {
            content(it, "large").object = content(it, "etc/hello").object;
        }),
    ),
    case(
        "file: an object that does not exist, of many chunks",
        Lower(|it| {
            content(it, "large").object = Digest::of(b"forged");
        }),
    ),
    case(
        "file: the digest of nothing",
        Lower(|it| {
            content(it, "etc/hello").object = Digest::of(b"");
            chunk(it, "etc/hello", 0).digest = Digest::of(b"");
        }),
    ),
    case(
        "file: the digest of nothing, of many chunks",
        Lower(|it| {
            content(it, "large").object = Digest::of(b"");
        }),
    ),
    case("file: larger", Lower(|it| content(it, "large").size += 1)),
    case("file: smaller", Lower(|it| content(it, "large").size -= 1)),
    case("file: larger than files can be", Lower(|it| content(it, "large").size = u64::MAX)),
    case("file: empty", Lower(|it| content(it, "etc/hello").size = 0)),
    case(
        "file: without its last chunk",
        Lower(|it| {
            let count = content(it, "large").chunk_count as usize;
            content(it, "large").size -= chunk(it, "large", count - 1).size;
            content(it, "large").chunk_count -= 1;
        }),
    ),
    case("file: fewer chunks", Lower(|it| content(it, "large").chunk_count -= 1)),
    case("file: without chunks", Lower(|it| content(it, "large").chunk_count = 0)),
    case("file: more chunks", Lower(|it| content(it, "large").chunk_count += 1)),
    case("file: chunks of another file", Lower(|it| content(it, "etc/hello").first_chunk += 1)),
    case(
        "file: its chunks in another order",
        Lower(|it| {
            let first = content(it, "large").first_chunk as usize;
            let (one, other) = (it.chunks[first], it.chunks[first + 1]);
            it.chunks[first] = Chunk { object_offset: 0, ..other };
            it.chunks[first + 1] = Chunk { object_offset: other.size, ..one };
        }),
    ),
    // Chunks.
    case(
        "chunk: begins later in its file",
        Lower(|it| {
            chunk(it, "large", 0).size += 1;
            chunk(it, "large", 1).object_offset += 1;
            chunk(it, "large", 1).size -= 1;
        }),
    ),
    case("chunk: larger", Lower(|it| chunk(it, "large", 0).size += 1)),
    case("chunk: nothing", Lower(|it| chunk(it, "large", 0).size = 0)),
    case("chunk: a digest that does not exist", Lower(|it| chunk(it, "large", 1).digest = Digest::of(b"forged"))),
    case(
        "chunk: the digest of another chunk",
        Lower(|it| {
            chunk(it, "large", 1).digest = chunk(it, "large", 0).digest;
        }),
    ),
    case("chunk: the digest of nothing", Lower(|it| chunk(it, "large", 1).digest = Digest::of(b""))),
    case(
        "chunk: a digest of its own where it is the file",
        Lower(|it| {
            chunk(it, "etc/hello", 0).digest = chunk(it, "etc/other", 0).digest;
        }),
    ),
    case(
        "chunk: another file's digest and place",
        Lower(|it| {
            let other = *chunk(it, "etc/other", 0);
            *chunk(it, "etc/hello", 0) = other;
        }),
    ),
    case("chunk: one byte further", Lower(|it| *stretch(chunk(it, "etc/hello", 0)).1 += 1)),
    case(
        "chunk: the place of another",
        Lower(|it| {
            let place = chunk(it, "etc/other", 0).place;
            chunk(it, "etc/hello", 0).place = place;
        }),
    ),
    case("chunk: beyond the end of the layer", Lower(|it| *stretch(chunk(it, "large", 0)).1 = 1 << 40)),
    case("chunk: around the end of numbers", Lower(|it| *stretch(chunk(it, "large", 0)).1 = u64::MAX)),
    case("chunk: shorter in the layer", Lower(|it| *stretch(chunk(it, "large", 0)).2 = 1)),
    case("chunk: longer in the layer", Lower(|it| *stretch(chunk(it, "large", 0)).2 += 1)),
    case("chunk: longer than the layer", Lower(|it| *stretch(chunk(it, "large", 0)).2 = 1 << 30)),
    case("chunk: more is skipped", Lower(|it| *stretch(chunk(it, "etc/hello", 0)).3 += 1)),
    case("chunk: more is skipped than there is", Lower(|it| *stretch(chunk(it, "etc/hello", 0)).3 = 8 << 20)),
    case("chunk: not encoded at all", Lower(|it| *stretch(chunk(it, "etc/hello", 0)).0 = Codec::Raw)),
    case("chunk: in the other encoding", Lower(|it| *stretch(chunk(it, "etc/hello", 0)).0 = Codec::Zstd)),
    case(
        "chunk: from the middle of a stream that begins there",
        Lower(|it| {
            *stretch(chunk(it, "etc/hello", 0)).0 = Codec::Deflate;
        }),
    ),
    case(
        "chunk: through the whole layer, from another place",
        Lower(|it| {
            let chunk = chunk(it, "etc/hello", 0);
            chunk.place = ChunkPlace::Blob { codec: Codec::Stream, offset: 512, length: chunk.size, skip: 0 };
        }),
    ),
    case("chunk: zeros", Lower(|it| chunk(it, "etc/hello", 0).place = ChunkPlace::Zeros)),
    case("chunk: zeros in a large file", Lower(|it| chunk(it, "large", 1).place = ChunkPlace::Zeros)),
    // Checkpoints.
    case("checkpoint: another offset", Lower(|it| it.checkpoints[0].offset += 1)),
    case(
        "checkpoint: another offset, and its chunks",
        Lower(|it| {
            let (was, is) = (it.checkpoints[0].offset, it.checkpoints[0].offset + 1);
            it.checkpoints[0].offset = is;
            for chunk in &mut it.chunks {
                match &mut chunk.place {
                    ChunkPlace::Blob { codec: Codec::Deflate, offset, .. } if *offset == was => *offset = is,
                    _ => {}
                }
            }
        }),
    ),
    case("checkpoint: other bits", Lower(|it| it.checkpoints[0].used_bits = (it.checkpoints[0].used_bits + 1) % 8)),
    case("checkpoint: more bits than a byte has", Lower(|it| it.checkpoints[0].used_bits = 200)),
    case(
        "checkpoint: another window",
        Lower(|it| {
            it.checkpoints[0].window = zstd::bulk::compress(&[b'x'; 32 << 10], 1).unwrap().into();
        }),
    ),
    case(
        "checkpoint: a short window",
        Lower(|it| {
            it.checkpoints[0].window = zstd::bulk::compress(&[0; 100], 1).unwrap().into();
        }),
    ),
    case(
        "checkpoint: a window without end",
        Lower(|it| {
            it.checkpoints[0].window = zstd::bulk::compress(&vec![0; 16 << 20], 1).unwrap().into();
        }),
    ),
    case("checkpoint: a window that is none", Lower(|it| it.checkpoints[0].window = (*b"no zstd").into())),
    case("checkpoint: left out", Lower(|it| drop(it.checkpoints.remove(0)))),
    case("checkpoint: twice", Lower(|it| it.checkpoints.insert(0, it.checkpoints[0].clone()))),
    case(
        "checkpoint: one more that nobody needs",
        Lower(|it| {
            let mut one = it.checkpoints[0].clone();
            one.offset = 1 << 40;
            it.checkpoints.push(one);
        }),
    ),
    case(
        "checkpoint: a chunk begins at the wrong one",
        Lower(|it| {
            let last = it.checkpoints.last().unwrap().offset;
            let (_, offset, length, _) = stretch(behind_checkpoint(it));
            assert_ne!(*offset, last);
            (*offset, *length) = (last, 100);
        }),
    ),
    // The list of entries.
    case(
        "entries: in another order",
        Lower(|it| {
            let (one, other) = (place_of(it, "etc/hello"), place_of(it, "etc/other"));
            it.entries.swap(one, other);
        }),
    ),
    case(
        "entries: one left out",
        Lower(|it| {
            let place = place_of(it, "note");
            it.entries.remove(place);
        }),
    ),
    case(
        "entries: a directory left out",
        Lower(|it| {
            let place = place_of(it, "etc");
            it.entries.remove(place);
        }),
    ),
    case("entries: one twice", Lower(|it| it.entries.push(it.entries[0].clone()))),
    case(
        "entries: one more",
        Lower(|it| {
            let attributes = Attributes { mode: 0o755, ..Attributes::default() }.into();
            it.entries.push(Entry { path: path("backdoor"), node: Node::Directory, attributes });
        }),
    ),
    case("entries: none", Lower(|it| *it = LayerIndex::default())),
    case("entries: a whiteout left out", Upper(|it| it.entries.retain(|entry| entry.node != Node::Whiteout))),
    case("entries: an opaque directory left out", Upper(|it| it.entries.retain(|entry| entry.node != Node::Opaque))),
    case(
        "entries: a whiteout more",
        Upper(|it| {
            let (path, attributes) = (path("note"), Attributes::default().into());
            it.entries.push(Entry { path, node: Node::Whiteout, attributes });
        }),
    ),
    case(
        "entries: a whiteout of everything",
        Upper(|it| {
            let (path, attributes) = (path(""), Attributes::default().into());
            it.entries.push(Entry { path, node: Node::Whiteout, attributes });
        }),
    ),
    case(
        "entries: a name that means a whiteout",
        Upper(|it| {
            let (path, attributes) = (path(".wh.note"), Attributes::default().into());
            it.entries.push(Entry { path, node: Node::Fifo, attributes });
        }),
    ),
    case("entries: xattrs that were dropped", Lower(|it| it.dropped_xattrs += 1)),
    // The manifest of the artifact.
    case("manifest: another kind", Manifest(|it| it["artifactType"] = json!("application/vnd.example"))),
    case("manifest: no kind", Manifest(|it| drop(it.as_object_mut().unwrap().remove("artifactType")))),
    case("manifest: another type of blob", Manifest(|it| it["layers"][0]["mediaType"] = json!("application/x"))),
    case(
        "manifest: about another image",
        Manifest(|it| {
            it["subject"]["digest"] = json!(Digest::of(b"another").to_string());
        }),
    ),
    case("manifest: about an image of another size", Manifest(|it| it["subject"]["size"] = json!(1))),
    case(
        "manifest: about a list of images",
        Manifest(|it| {
            it["subject"]["mediaType"] = json!("application/vnd.oci.image.index.v1+json");
        }),
    ),
    case("manifest: about nothing", Manifest(|it| drop(it.as_object_mut().unwrap().remove("subject")))),
    case(
        "manifest: a blob that does not exist",
        Manifest(|it| {
            it["layers"][0]["digest"] = json!(Digest::of(b"nowhere").to_string());
        }),
    ),
    case(
        "manifest: a smaller blob",
        Manifest(|it| {
            it["layers"][0]["size"] = json!(it["layers"][0]["size"].as_u64().unwrap() - 1);
        }),
    ),
    case(
        "manifest: a larger blob",
        Manifest(|it| {
            it["layers"][0]["size"] = json!(it["layers"][0]["size"].as_u64().unwrap() + 1);
        }),
    ),
    case("manifest: a blob of terabytes", Manifest(|it| it["layers"][0]["size"] = json!(1_u64 << 42))),
    case("manifest: no blob", Manifest(|it| it["layers"] = json!([]))),
    case(
        "manifest: the blob twice",
        Manifest(|it| {
            let layer = it["layers"][0].clone();
            it["layers"].as_array_mut().unwrap().push(layer);
        }),
    ),
    case("manifest: a config", Manifest(|it| it["config"]["digest"] = json!(Digest::of(b"config").to_string()))),
    case("manifest: a list of manifests too", Manifest(|it| it["manifests"] = json!([]))),
    // The blob as a whole, with its digest corrected, and both behind their digests.
    case("blob: cut off", InArtifact(|it| it.blob = |bytes| bytes.truncate(bytes.len() - 1))),
    case("blob: only its header", InArtifact(|it| it.blob = |bytes| bytes.truncate(20))),
    case("blob: longer", InArtifact(|it| it.blob = |bytes| bytes.push(0))),
    case("blob: empty", InArtifact(|it| it.blob = |bytes| bytes.clear())),
    case("served: a blob that is not what its digest names", InArtifact(|it| it.served = |_, blob| blob[17] ^= 1)),
    case(
        "served: a manifest that is not what its digest names",
        InArtifact(|it| it.served = |manifest, _| manifest.push(b' ')),
    ),
];
