//! The index of a boot pack: which frame holds which bytes of which object.
//!
//! | part | bytes | |
//! |---|---|---|
//! | magic | 16 | changes with the format |
//! | frames | 40 | digest of the blob that holds them 32, its size 8 |
//! | counts | 12 | frames 4, pieces 4, bytes of the profile's name 4 |
//! | of each frame | 8 | encoded bytes 4, pieces in it 4; frames follow each other without gaps |
//! | of each piece | 44 | object 32, place in it 8, bytes 4; in a frame one follows the other |
//! | profile | | name, UTF-8 |
//!
//! All numbers are little-endian. The index is a blob of its own, so that it can be checked and read before the first frame
//! arrives, and frames can be requested in any order.

use tarpon_layer::ObjectId;
use tarpon_oci::{Blob, Digest, limits};

const MAGIC: &[u8; 16] = b"tarpon-boot\0\0\0\0\x01";
const HEADER: usize = 16 + 40 + 12;
const FRAME: usize = 8;
const PIECE: usize = 44;

/// Frames of a pack: at a quarter of a MiB each, 16 GiB of touched bytes.
pub const BOOT_FRAMES: usize = 1 << 16;
/// Pieces of a pack: with everything else they stay within [`limits::BOOT_INDEX_BYTES`].
pub const BOOT_PIECES: usize = 170_000;
/// Bytes of a profile's name.
pub const PROFILE_BYTES: usize = 128;

const _: () =
    assert!((HEADER + BOOT_FRAMES * FRAME + BOOT_PIECES * PIECE + PROFILE_BYTES) as u64 <= limits::BOOT_INDEX_BYTES);

/// The contents of a boot pack, in the order of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootIndex {
    /// The profile of the recorded start.
    pub profile: String,
    /// The blob of its frames.
    pub blob: Blob,
    /// The frames, in the order of first touch.
    pub frames: Vec<BootFrame>,
}

/// A zstd frame and its decoded contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootFrame {
    /// Encoded bytes.
    pub length: u32,
    /// Its pieces, one after the other.
    pub pieces: Vec<BootPiece>,
}

/// A part of an object, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootPiece {
    /// The object.
    pub object: ObjectId,
    /// Offset in it.
    pub offset: u64,
    /// Length in bytes, at least one.
    pub length: u32,
}

/// The bytes are not a valid index of a boot pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a boot pack of this version: {0}")]
pub struct InvalidBootIndex(&'static str);

impl BootIndex {
    /// Serialises the index. Does not check what [`BootIndex::read`] would refuse.
    pub fn write(&self) -> Vec<u8> {
        let pieces: usize = self.frames.iter().map(|frame| frame.pieces.len()).sum();
        let mut bytes = Vec::with_capacity(HEADER + self.frames.len() * FRAME + pieces * PIECE + self.profile.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(self.blob.digest.as_bytes());
        bytes.extend_from_slice(&self.blob.size.to_le_bytes());
        for count in [self.frames.len(), pieces, self.profile.len()] {
            bytes.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
        }
        for frame in &self.frames {
            bytes.extend_from_slice(&frame.length.to_le_bytes());
            bytes.extend_from_slice(&u32::try_from(frame.pieces.len()).unwrap_or(u32::MAX).to_le_bytes());
        }
        for piece in self.frames.iter().flat_map(|frame| &frame.pieces) {
            bytes.extend_from_slice(piece.object.as_bytes());
            bytes.extend_from_slice(&piece.offset.to_le_bytes());
            bytes.extend_from_slice(&piece.length.to_le_bytes());
        }
        bytes.extend_from_slice(self.profile.as_bytes());
        bytes
    }

    /// Reads an index whose digest was checked.
    ///
    /// # Errors
    /// [`InvalidBootIndex`]: another version, counts over the limits or different from the contents, frames that do not add up to
    /// their blob, pieces that decode to more than a chunk may.
    pub fn read(bytes: &[u8]) -> Result<Self, InvalidBootIndex> {
        let invalid = InvalidBootIndex;
        let rest = bytes.strip_prefix(MAGIC).ok_or(invalid("wrong magic"))?;
        let (header, rest) = rest.split_first_chunk::<52>().ok_or(invalid("it is truncated"))?;
        let mut header = Fields(header);
        let blob = Blob { digest: Digest::from_bytes(header.take()), size: u64::from_le_bytes(header.take()) };
        let [frames, pieces, named] = [(); 3].map(|()| u32::from_le_bytes(header.take()) as usize);
        if frames > BOOT_FRAMES || pieces > BOOT_PIECES || named > PROFILE_BYTES || blob.size > limits::BLOB_BYTES {
            return Err(invalid("a count or the size of the blob is over its limit"));
        }
        let (frames, rest) = rest.split_at_checked(frames * FRAME).ok_or(invalid("frames are missing"))?;
        let (pieces, profile) = rest.split_at_checked(pieces * PIECE).ok_or(invalid("pieces are missing"))?;
        if profile.len() != named {
            return Err(invalid("its length does not match its counts"));
        }
        let profile = str::from_utf8(profile).map_err(|_| invalid("the name of its profile is not UTF-8"))?.to_owned();
        let mut pieces = pieces.as_chunks::<PIECE>().0.iter().map(piece);
        let frames = frames.as_chunks::<FRAME>().0.iter().map(|described| frame(described, &mut pieces));
        let frames: Vec<BootFrame> = frames.collect::<Result<_, _>>()?;
        if pieces.next().is_some() {
            return Err(invalid("more pieces than its frames have"));
        }
        if frames.iter().map(|frame| u64::from(frame.length)).sum::<u64>() != blob.size {
            return Err(invalid("its frames do not add up to its blob"));
        }
        Ok(Self { profile, blob, frames })
    }
}

/// Takes arrays off the front of a header of exactly matching size.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk::<N>() else { return [0; N] };
        self.0 = rest;
        *field
    }
}

fn frame(described: &[u8; FRAME], pieces: &mut impl Iterator<Item = BootPiece>) -> Result<BootFrame, InvalidBootIndex> {
    let mut fields = Fields(described);
    let [length, count] = [(); 2].map(|()| u32::from_le_bytes(fields.take()));
    let pieces: Vec<BootPiece> = pieces.take(count as usize).collect();
    if pieces.len() != count as usize || pieces.is_empty() {
        return Err(InvalidBootIndex("a frame has no pieces, or fewer than it states"));
    }
    let decoded: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
    if length == 0 || u64::from(length) > limits::CHUNK_ENCODED_BYTES || decoded > limits::CHUNK_BYTES {
        return Err(InvalidBootIndex("the size of a frame is out of bounds"));
    }
    if pieces.iter().any(|piece| piece.length == 0 || piece.offset >= limits::FILE_BYTES) {
        return Err(InvalidBootIndex("a piece is empty or outside of any object"));
    }
    Ok(BootFrame { length, pieces })
}

fn piece(described: &[u8; PIECE]) -> BootPiece {
    let mut fields = Fields(described);
    BootPiece {
        object: ObjectId::from_bytes(fields.take()),
        offset: u64::from_le_bytes(fields.take()),
        length: u32::from_le_bytes(fields.take()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of one frame of this length for each list of pieces: the offset and the length of each.
    fn index(length: u32, frames: &[&[(u64, u32)]]) -> BootIndex {
        let object = ObjectId::of(b"an object");
        let piece = |&(offset, length): &(u64, u32)| BootPiece { object, offset, length };
        let frame = |pieces: &&[(u64, u32)]| BootFrame { length, pieces: pieces.iter().map(piece).collect() };
        let size = u64::from(length) * frames.len() as u64;
        let blob = Blob { digest: Digest::of(b"frames"), size };
        BootIndex { profile: "default".into(), blob, frames: frames.iter().map(frame).collect() }
    }

    fn is_read(index: &BootIndex) -> bool {
        let read = BootIndex::read(&index.write());
        assert!(read.as_ref().is_err() || read.as_ref() == Ok(index));
        read.is_ok()
    }

    #[test]
    fn a_pack_may_have_as_many_frames_and_pieces_and_as_long_a_name_as_the_limits_and_not_more() {
        let frames = |count: usize| index(1, &vec![&[(0, 1)][..]; count]);
        assert!(is_read(&frames(BOOT_FRAMES)) && !is_read(&frames(BOOT_FRAMES + 1)));
        let pieces = |count: usize| index(1, &[&vec![(0, 1); count]]);
        assert!(is_read(&pieces(BOOT_PIECES)) && !is_read(&pieces(BOOT_PIECES + 1)));
        let named = |length: usize| BootIndex { profile: "x".repeat(length), ..pieces(1) };
        assert!(is_read(&named(PROFILE_BYTES)) && !is_read(&named(PROFILE_BYTES + 1)));
    }

    #[test]
    fn a_frame_has_some_bytes_and_is_not_larger_than_a_chunk_encoded_or_decoded() {
        let encoded = |length: u64| index(u32::try_from(length).unwrap(), &[&[(0, 1)]]);
        assert!(!is_read(&encoded(0)));
        let most = limits::CHUNK_ENCODED_BYTES;
        assert!(is_read(&encoded(most)) && !is_read(&encoded(most + 1)));
        // Half of it in each of two pieces.
        let decoded = |length: u64| {
            let half = u32::try_from(length / 2).unwrap();
            index(1, &[&[(0, half), (0, u32::try_from(length).unwrap() - half)]])
        };
        let most = limits::CHUNK_BYTES;
        assert!(is_read(&decoded(most)) && !is_read(&decoded(most + 1)));
    }

    #[test]
    fn a_piece_has_some_bytes_of_an_object() {
        let last = limits::FILE_BYTES - 1;
        assert!(is_read(&index(1, &[&[(0, 1), (last, 1)]])));
        assert!(!is_read(&index(1, &[&[(0, 1), (0, 0)]])));
        assert!(!is_read(&index(1, &[&[(0, 1), (last + 1, 1)]])));
        assert!(!is_read(&index(1, &[&[]])), "a frame of none");
    }

    #[test]
    fn frames_divide_all_pieces_and_all_bytes_among_themselves() {
        let good = index(5, &[&[(0, 1), (1, 1)], &[(2, 1)]]);
        assert!(is_read(&good));
        for size in [9, 11] {
            assert!(!is_read(&BootIndex { blob: Blob { size, ..good.blob }, ..good.clone() }));
        }
        // The number of pieces of the first frame.
        for count in [1, 3] {
            let mut bytes = good.write();
            assert_eq!(std::mem::replace(&mut bytes[HEADER + 4], count), 2);
            assert!(BootIndex::read(&bytes).is_err(), "{count}");
        }
    }
}
