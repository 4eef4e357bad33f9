//! Makes a [`Shape`] from an image in a registry that has an index and a boot pack, and the trace of a start.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tarpon_fetch::BootIndex;
use tarpon_harness::http;
use tarpon_layer::packed;
use tarpon_layer::{Chunk, ChunkPlace, Codec, Node, ObjectId};
use tarpon_oci::{Blob, Digest};
use tarpon_trace::Trace;

use super::shape::{ChunkShape, FrameShape, Shape, TouchShape};

const ACCEPT: &str = "Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json\r\n";
/// Bytes of the artifact before its indexes: a header of 20, and 56 of its only layer.
const ARTIFACT_HEADER: usize = 76;

/// The image in a registry.
struct Image<'a> {
    registry: &'a str,
    name: &'a str,
}

impl Image<'_> {
    fn get(&self, path: &str) -> Result<Vec<u8>> {
        let path = format!("/v2/{}/{path}", self.name);
        let answer = http::request(self.registry, "GET", &path, ACCEPT, b"")?;
        ensure!(answer.status == 200, "{} answers {path} with {}", self.registry, answer.status);
        Ok(answer.body)
    }

    fn manifest(&self, reference: &str) -> Result<(Value, u64)> {
        let bytes = self.get(&format!("manifests/{reference}"))?;
        Ok((serde_json::from_slice(&bytes).context("a manifest is no JSON")?, bytes.len() as u64))
    }
}

/// The shape of the start in this trace, of an image with one layer.
pub(super) fn shape(registry: &str, name: &str, tag: &str, trace: &Path) -> Result<Shape> {
    let image = Image { registry, name };
    let trace = std::fs::read(trace).with_context(|| format!("cannot read {}", trace.display()))?;
    let trace = Trace::read(&trace).context("the trace is invalid")?;
    let (manifest, manifest_bytes) = image.manifest(tag)?;
    let layers = manifest["layers"].as_array().context("the manifest has no layers")?;
    ensure!(layers.len() == 1, "the image has {} layers; one is supported", layers.len());
    let layer = blob(&layers[0])?;
    let (referrers, referrers_bytes) = image.manifest(&trace.header.manifest.to_string().replace(':', "-"))?;
    let newest = referrers["manifests"].as_array().and_then(|all| all.last()).context("the image has no index")?;
    let (artifact, artifact_bytes) = image.manifest(newest["digest"].as_str().context("the index has no digest")?)?;
    let part = |kind: &str| {
        let parts = artifact["layers"].as_array().into_iter().flatten();
        let mut found = parts.filter(|part| part["mediaType"].as_str().is_some_and(|media| media.contains(kind)));
        found.next().with_context(|| format!("the index has no {kind}"))
    };
    let (index, boot) = (blob(part("index.layers")?)?, blob(part("boot.index")?)?);
    let fetched = image.get(&format!("blobs/{}", index.digest))?;
    let packed = zstd::stream::decode_all(fetched.get(ARTIFACT_HEADER..).context("the index is too short")?)?;
    let index_of_layer = packed::unpack(&packed, layer).context("the index is invalid")?;
    let boot_index = BootIndex::read(&image.get(&format!("blobs/{}", boot.digest))?)?;
    let documents = [
        ("manifest", manifest_bytes),
        ("config", blob(&manifest["config"])?.size),
        ("referrers", 0),
        ("referrers-tag", referrers_bytes),
        ("artifact", artifact_bytes),
        ("index", index.size),
        ("boot-index", boot.size),
    ];
    let mut shape = Shape {
        image: format!("{name}:{tag}"),
        layer_bytes: layer.size,
        documents: documents.map(|(name, bytes)| (name.to_owned(), bytes)).into(),
        ..Shape::default()
    };
    let mut numbers = HashMap::<ObjectId, usize>::new();
    for entry in &index_of_layer.entries {
        let Node::File(file) = &entry.node else { continue };
        let first = file.first_chunk as usize;
        let chunks =
            index_of_layer.chunks.get(first..first + file.chunk_count as usize).context("chunks are missing")?;
        if !chunks.is_empty() && !numbers.contains_key(&file.object) {
            numbers.insert(file.object, shape.objects.len());
            shape.objects.push(chunks.iter().map(chunk).collect());
        }
    }
    let number = |object: &ObjectId| numbers.get(object).copied().with_context(|| format!("no file has {object}"));
    for frame in &boot_index.frames {
        let part = |piece: &tarpon_fetch::BootPiece| Ok((number(&piece.object)?, piece.offset, piece.length));
        let parts = frame.pieces.iter().map(part).collect::<Result<_>>()?;
        shape.frames.push(FrameShape { length: frame.length, parts });
    }
    // What a reader waited is not its work. Two reads may wait at once, and then the time between them is less.
    let (mut before, mut stall) = (Duration::ZERO, Duration::ZERO);
    for touch in &trace.touches {
        let think = touch.at.saturating_sub(before).saturating_sub(stall);
        shape.touches.push(TouchShape { object: number(&touch.object)?, range: touch.range.clone(), think });
        (before, stall) = (touch.at, touch.stall);
    }
    Ok(shape)
}

fn chunk(chunk: &Chunk) -> ChunkShape {
    match chunk.place {
        ChunkPlace::Blob { codec, offset, length, skip } if codec != Codec::Stream => {
            ChunkShape { size: chunk.size, offset, length, skip }
        }
        _ => ChunkShape { size: chunk.size, offset: 0, length: 0, skip: 0 },
    }
}

fn blob(descriptor: &Value) -> Result<Blob> {
    let digest: Digest = descriptor["digest"].as_str().context("a descriptor has no digest")?.parse()?;
    Ok(Blob { digest, size: descriptor["size"].as_u64().context("a descriptor has no size")? })
}
