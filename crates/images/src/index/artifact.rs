//! The index artifact: where the files of an image's plain layers are, as one blob beside the image.
//!
//! | part | bytes | |
//! |---|---|---|
//! | magic | 16 | changes with the format |
//! | layers | 4 | how many, little-endian |
//! | of each layer | 56 | digest of its blob 32, its size 8, bytes of its index 8, compression 1, zeros 7 |
//! | the indexes | | each [packed](tarpon_layer::packed), as zstd |
//!
//! It contains indexes of layers and not the merged tree: the tree is made locally, by the code that makes all trees, so that the kernel
//! never mounts a foreign metadata image. Layers that are already known need no bytes of it.

use bytes::Bytes;
use tarpon_layer::decode::Compression;
use tarpon_layer::packed::{self, InvalidPacked};
use tarpon_layer::{Allowance, Excess, LayerIndex};
use tarpon_oci::{
    Artifact, Blob, Descriptor, Digest, ImageIndex, InvalidManifest, MediaType, NewArtifact, NewDescriptor, Verified,
    limits,
};

use crate::image::{DEFAULT_PROFILE, PREDICTED_PROFILE};

/// The kind of artifact.
pub const ARTIFACT_TYPE: &str = "application/vnd.tarpon.index.v1";
/// The type of the blob with the indexes of layers, which comes first.
pub(crate) const BLOB_TYPE: &str = "application/vnd.tarpon.index.layers.v1";
/// The type of the index of a boot pack.
pub(crate) const BOOT_INDEX_TYPE: &str = "application/vnd.tarpon.boot.index.v1";
/// The type of its frames.
const BOOT_FRAMES_TYPE: &str = "application/vnd.tarpon.boot.frames.v1";
/// The annotation of both that names the profile.
pub const PROFILE: &str = "dev.tarpon.boot.profile";
/// The annotation of the manifest that repeats its layers. Lists of referrers show annotations, so a reader of a list requests the blobs
/// together with the manifest, which saves a round trip.
const LAYERS: &str = "dev.tarpon.index.layers";
/// The annotation of the manifest with the version of the code that predicted the start of the image.
const PREDICTION: &str = "dev.tarpon.prediction";
/// Longest annotation of layers. It has room for forty boot packs, and a list of 4 MiB for those of 250 artifacts.
const LAYERS_BYTES: usize = 16 << 10;

const MAGIC: &[u8; 16] = b"tarpon-index\0\0\0\x01";
/// Bytes of a packed index decoded at a time.
const STEP: u64 = 64 << 10;
/// Memory for each byte of a packed index while it is read: an xattr without name and value has two bytes there and 32 here.
const COLUMNS: u64 = 16;

const HEADER: usize = 20;
const LAYER: usize = 56;
/// Written once, fetched by all users. Two thirds of an index are digests, so higher levels change nothing.
const ZSTD_LEVEL: i32 = 15;
const QUICK_ZSTD_LEVEL: i32 = 3;

/// A layer and its index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indexed {
    /// The layer.
    pub blob: Blob,
    /// How it is compressed.
    pub compression: Compression,
    /// Its files and their places.
    pub index: LayerIndex,
}

/// Why a blob is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidArtifact {
    /// Too short, too long, or of another version.
    #[error("it is not an index of this version")]
    Format,
    /// One of its layers is invalid.
    #[error("layer {0}: {1}")]
    Layer(Digest, InvalidPacked),
    /// One of its layers costs more than its size allows.
    #[error("layer {0}: {1}")]
    Excess(Digest, Excess),
}

/// The blob that holds these indexes.
pub fn blob(layers: &[Indexed]) -> Result<Bytes, String> {
    blob_at(ZSTD_LEVEL, layers)
}

/// As [`blob`], for hosts that wait for it: 2 % larger, in a tenth of the time.
pub fn quick_blob(layers: &[Indexed]) -> Result<Bytes, String> {
    blob_at(QUICK_ZSTD_LEVEL, layers)
}

fn blob_at(level: i32, layers: &[Indexed]) -> Result<Bytes, String> {
    let mut bytes = MAGIC.to_vec();
    let mut indexes = Vec::new();
    let count = u32::try_from(layers.len()).map_err(|error| error.to_string())?;
    bytes.extend_from_slice(&count.to_le_bytes());
    for layer in layers {
        let packed = zstd::bulk::compress(&packed::pack(&layer.index), level).map_err(|error| error.to_string())?;
        bytes.extend_from_slice(layer.blob.digest.as_bytes());
        bytes.extend_from_slice(&layer.blob.size.to_le_bytes());
        bytes.extend_from_slice(&(packed.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&[layer.compression.number(), 0, 0, 0, 0, 0, 0, 0]);
        indexes.extend_from_slice(&packed);
    }
    bytes.append(&mut indexes);
    Ok(bytes.into())
}

/// Reads the layers of a blob that `wanted` selects, each once: of one that is there again, the first index counts.
pub fn read(
    bytes: &[u8],
    wanted: impl Fn(&Blob) -> bool,
    allowance: &Allowance,
) -> Result<Vec<Indexed>, InvalidArtifact> {
    let (header, rest) = bytes.split_at_checked(HEADER).ok_or(InvalidArtifact::Format)?;
    let count = header.strip_prefix(MAGIC).and_then(|count| count.try_into().ok()).map(u32::from_le_bytes);
    let count = count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= limits::LAYERS);
    let (layers, mut indexes) =
        count.and_then(|count| rest.split_at_checked(count * LAYER)).ok_or(InvalidArtifact::Format)?;
    let mut found: Vec<Indexed> = Vec::new();
    for layer in layers.as_chunks::<LAYER>().0 {
        let (blob, compression, length) = described(layer).ok_or(InvalidArtifact::Format)?;
        let (packed, rest) = indexes.split_at_checked(length).ok_or(InvalidArtifact::Format)?;
        indexes = rest;
        if wanted(&blob) && found.iter().all(|known| known.blob.digest != blob.digest) {
            let index = index(packed, blob, allowance)?;
            found.push(Indexed { blob, compression, index });
        }
    }
    if indexes.is_empty() { Ok(found) } else { Err(InvalidArtifact::Format) }
}

fn described(layer: &[u8; LAYER]) -> Option<(Blob, Compression, usize)> {
    let (digest, rest) = layer.split_first_chunk::<32>()?;
    let (size, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let [compression, 0, 0, 0, 0, 0, 0, 0] = *rest else { return None };
    let compression = Compression::from_number(compression)?;
    let blob = Blob { digest: Digest::from_bytes(*digest), size: u64::from_le_bytes(*size) };
    Some((blob, compression, usize::try_from(u64::from_le_bytes(*length)).ok()?))
}

fn index(encoded: &[u8], blob: Blob, allowance: &Allowance) -> Result<LayerIndex, InvalidArtifact> {
    use std::io::Read;
    let invalid = |problem| InvalidArtifact::Layer(blob.digest, problem);
    let malformed = |_: std::io::Error| invalid(InvalidPacked::Malformed);
    let decoder = zstd::stream::read::Decoder::with_buffer(encoded).map_err(malformed)?;
    let mut decoder = decoder.take(limits::LAYER_INDEX_BYTES);
    let (mut bytes, mut memory) = (Vec::new(), allowance.share());
    // Memory follows the actual size, not the claimed one.
    loop {
        memory.take(STEP * COLUMNS).map_err(|excess| InvalidArtifact::Excess(blob.digest, excess))?;
        if decoder.by_ref().take(STEP).read_to_end(&mut bytes).map_err(malformed)? == 0 {
            break;
        }
    }
    packed::unpack_within(&bytes, blob, allowance).map_err(invalid)
}

/// The layers of the artifact that a list has as `entry`, as far as its annotation shows them. Nothing proves them: the manifest decides.
pub(super) fn listed_layers(entry: &Descriptor) -> Vec<Descriptor> {
    let Some(text) = entry.annotations.get(LAYERS).filter(|text| text.len() <= LAYERS_BYTES) else { return Vec::new() };
    let list = Bytes::from(format!(r#"{{"schemaVersion":2,"manifests":{text}}}"#));
    ImageIndex::parse(Verified::seal(list)).map(|list| list.manifests).unwrap_or_default()
}

/// The blob with the frames of the boot pack for a profile, among the layers of an artifact, and whether that start is predicted.
pub(super) fn boot_frames(layers: &[Descriptor], profile: &str) -> Option<(Blob, bool)> {
    let layer = of_start(layers, BOOT_FRAMES_TYPE, profile)?;
    let is_predicted = layer.annotations.get(PROFILE).is_some_and(|named| named == PREDICTED_PROFILE);
    Some((layer.blob(), is_predicted))
}

/// The blob with the index of the boot pack for a profile, among the layers of an artifact.
pub(super) fn boot_index<'a>(layers: &'a [Descriptor], profile: &str) -> Option<&'a Descriptor> {
    of_start(layers, BOOT_INDEX_TYPE, profile)
}

/// The part of a boot pack for a profile: of a recorded start, or for the default profile of the predicted one.
fn of_start<'a>(layers: &'a [Descriptor], part: &str, profile: &str) -> Option<&'a Descriptor> {
    let of = |profile: &str| {
        layers.iter().find(|layer| {
            layer.media_type == MediaType::Other(part.to_owned())
                && layer.annotations.get(PROFILE).is_some_and(|named| named == profile)
        })
    };
    of(profile).or_else(|| of(PREDICTED_PROFILE).filter(|_| profile == DEFAULT_PROFILE))
}

/// The descriptors of a boot pack: its index and its frames.
pub fn boot(profile: &str, index: Blob, frames: Blob) -> [NewDescriptor; 2] {
    [(BOOT_INDEX_TYPE, index), (BOOT_FRAMES_TYPE, frames)].map(|(media_type, blob)| {
        let mut descriptor = NewDescriptor::new(media_type, blob);
        descriptor.annotations.insert(PROFILE.to_owned(), profile.to_owned());
        descriptor
    })
}

/// The version of the code that predicted the start of the image for this index, also if nothing was predicted.
pub fn prediction(artifact: &Artifact) -> Option<u32> {
    artifact.annotations.get(PREDICTION)?.parse().ok()
}

/// The manifest of the artifact whose first blob is `blob`, about the image `subject`; `boots` are the descriptors of its
/// boot packs, `prediction` is what [`prediction`] returns of it.
pub fn manifest(
    blob: &[u8],
    boots: impl IntoIterator<Item = NewDescriptor>,
    subject: NewDescriptor,
    prediction: Option<u32>,
) -> Result<Verified<Bytes>, InvalidManifest> {
    let described = Blob { digest: Digest::of(blob), size: blob.len() as u64 };
    let layers: Vec<_> = std::iter::once(NewDescriptor::new(BLOB_TYPE, described)).chain(boots).collect();
    let repeated = serde_json::to_string(&layers)?;
    let repeated = (repeated.len() <= LAYERS_BYTES).then(|| (LAYERS.to_owned(), repeated));
    let prediction = prediction.map(|version| (PREDICTION.to_owned(), version.to_string()));
    let artifact = NewArtifact {
        artifact_type: ARTIFACT_TYPE.to_owned(),
        layers,
        annotations: repeated.into_iter().chain(prediction).collect(),
        subject: Some(subject),
    };
    artifact.manifest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Vec<Indexed> {
        let layer = |name: &[u8], compression| Indexed {
            blob: Blob { digest: Digest::of(name), size: 100 },
            compression,
            index: LayerIndex { dropped_xattrs: name.len() as u64, ..LayerIndex::default() },
        };
        vec![layer(b"one", Compression::Gzip), layer(b"three", Compression::Zstd), layer(b"", Compression::None)]
    }

    #[test]
    fn written_indexes_are_read_back_as_far_as_requested() {
        let bytes = blob(&layers()).unwrap();
        assert_eq!(read(&bytes, |_| true, &Allowance::default()).unwrap(), layers());
        let wanted = layers()[1].blob;
        assert_eq!(read(&bytes, |blob| *blob == wanted, &Allowance::default()).unwrap(), [layers()[1].clone()]);
        assert_eq!(blob(&layers()).unwrap(), bytes, "the same every time");
    }

    #[test]
    fn a_layer_that_is_described_several_times_is_read_once() {
        let [one, two, _] = &layers()[..] else { panic!("three layers") };
        let again = Indexed { compression: Compression::None, ..one.clone() };
        let bytes = blob(&[one.clone(), two.clone(), again]).unwrap();
        assert_eq!(read(&bytes, |_| true, &Allowance::default()).unwrap(), layers()[..2]);
    }

    fn entry(boots: usize) -> Descriptor {
        let pack = |number: usize| boot(&format!("profile {number}"), layers()[0].blob, layers()[1].blob);
        let subject = NewDescriptor::new("a/b", layers()[2].blob);
        let written = manifest(b"blob", (0..boots).flat_map(pack), subject, None).unwrap();
        let artifact = Artifact::parse(written).unwrap();
        let listed = serde_json::json!({
            "schemaVersion": 2,
            "manifests": [{"mediaType": "a/b", "digest": artifact.digest(), "size": 1, "annotations": artifact.annotations}],
        });
        let list = ImageIndex::parse(Verified::seal(listed.to_string().into())).unwrap();
        let entry = list.manifests[0].clone();
        let shown = listed_layers(&entry);
        assert!(shown.is_empty() || shown == artifact.layers);
        entry
    }

    #[test]
    fn an_entry_of_a_list_shows_the_layers_unless_they_are_too_many_or_none() {
        assert_eq!(listed_layers(&entry(0)).len(), 1);
        let shown = listed_layers(&entry(3));
        assert_eq!(shown.len(), 7);
        assert_eq!(boot_frames(&shown, "profile 2"), Some((layers()[1].blob, false)));
        assert_eq!(listed_layers(&entry(200)), []);
        for text in ["", "[", "{}", r#"[{"digest":"sha256:12"}]"#, "null"] {
            let annotations = [(LAYERS.to_owned(), text.to_owned())].into();
            assert_eq!(listed_layers(&Descriptor { annotations, ..entry(0) }), [], "{text}");
        }
    }

    #[test]
    fn no_damage_of_a_byte_is_more_than_an_error_or_another_sound_index() {
        let bytes = blob(&layers()).unwrap().to_vec();
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x55;
            let _ = read(&damaged, |_| true, &Allowance::default());
            assert!(read(&bytes[..place], |_| true, &Allowance::default()).is_err(), "cut at {place}");
        }
        assert!(read(&[&bytes[..], b"x"].concat(), |_| true, &Allowance::default()).is_err());
    }

    #[test]
    fn a_bomb_ends_at_the_limit() {
        let zeros = zstd::bulk::compress(&vec![0; 200 << 20], 1).unwrap();
        let blob = layers()[0].blob;
        assert!(index(&zeros, blob, &Allowance::default()).is_err());
    }
}
