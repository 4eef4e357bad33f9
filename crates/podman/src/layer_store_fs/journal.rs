//! [`Journal`]: the saved form of the node ids of a [`super::LayerStoreFs`].
//!
//! It is a head and a list of records, to which each change adds one: with 10,000 directories, writing all of them again
//! would take milliseconds of each lookup. The kernel's forgets are not recorded; when most records are of forgotten
//! directories, the journal is written again.

use serde::{Deserialize, Serialize};
use tarpon_layer::Timestamp;
use tarpon_oci::Digest;

use super::layers::LayerKey;
use crate::saved_state::RestoreError;

/// First bytes. Changes with the format.
const MAGIC: &[u8; 8] = b"tarpon l";
/// The magic, the last number of a directory, and the time.
const HEAD: usize = 28;
/// Position of the last number.
const LAST: usize = 8;
/// Directories are recorded up to this size: about 100,000. Others are stale after a restart and looked up again.
const DIRECTORY_BYTES: usize = 16 << 20;
/// Maximum size. Numbers of layers are recorded up to this size: mounts depend on them.
const MOST_BYTES: usize = 64 << 20;
/// Directories forgotten by the kernel that are always worth their records.
const FORGOTTEN: usize = 64;

/// A change of the node ids.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record {
    /// A directory got this number.
    Directory {
        /// The number.
        directory: u64,
        /// The number of the parent, 0 for the root.
        parent: u64,
        /// Its name.
        name: Vec<u8>,
        /// The image.
        image: String,
        /// The layer. `None`: it is the directory of the image.
        layer: Option<Digest>,
    },
    /// A layer got the next number.
    Layer {
        /// The image.
        image: String,
        /// The digest of the key.
        digest: Digest,
        /// The digest of its content.
        content: Digest,
    },
}

impl Record {
    /// A layer with this key and content.
    pub(super) fn layer(key: &LayerKey, content: Digest) -> Self {
        Self::Layer { image: key.image.to_string(), digest: key.digest, content }
    }
}

/// The records so far.
pub(super) struct Journal {
    bytes: Vec<u8>,
    /// Number of records of directories.
    directories: usize,
}

/// What a journal holds.
pub(super) struct Replay {
    /// The last number of a directory.
    pub(super) last: u64,
    /// The time of the file system's own directories and files.
    pub(super) since: Timestamp,
    /// The oldest first.
    pub(super) records: Vec<Record>,
}

impl Journal {
    pub(super) fn new(last: u64, since: Timestamp) -> Self {
        let mut bytes = Vec::with_capacity(HEAD);
        bytes.extend(MAGIC);
        bytes.extend(last.to_le_bytes());
        bytes.extend(since.seconds.to_le_bytes());
        bytes.extend(since.nanoseconds.to_le_bytes());
        Self { bytes, directories: 0 }
    }

    /// Records a directory and its number, which is the last one.
    pub(super) fn add_directory(&mut self, last: u64, record: &Record) {
        self.bytes[LAST..LAST + 8].copy_from_slice(&last.to_le_bytes());
        if self.add(record, DIRECTORY_BYTES) {
            self.directories += 1;
        }
    }

    /// Records a layer's number. `false`: there is no room.
    #[must_use]
    pub(super) fn add_layer(&mut self, record: &Record) -> bool {
        self.add(record, MOST_BYTES)
    }

    fn add(&mut self, record: &Record, most: usize) -> bool {
        // Serializing numbers, digests and texts cannot fail.
        let Ok(record) = postcard::to_allocvec(record) else { return false };
        let fits = self.bytes.len() + record.len() <= most;
        if fits {
            self.bytes.extend(record);
        }
        fits
    }

    /// Whether most of its directories are forgotten, when this many are not.
    pub(super) fn is_outdated(&self, directories: usize) -> bool {
        self.directories > 2 * directories + FORGOTTEN
    }

    /// The bytes for [`Journal::read`].
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads the journal of an earlier server.
    pub(super) fn read(bytes: &[u8]) -> Result<Replay, RestoreError> {
        if bytes.is_empty() {
            return Err(RestoreError::Missing);
        }
        if bytes.len() > MOST_BYTES {
            return Err(RestoreError::TooLarge);
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or(RestoreError::Format)?;
        let (last, rest) = rest.split_first_chunk().ok_or(RestoreError::Format)?;
        let (seconds, rest) = rest.split_first_chunk().ok_or(RestoreError::Format)?;
        let (nanoseconds, mut rest) = rest.split_first_chunk().ok_or(RestoreError::Format)?;
        let mut records = Vec::new();
        while !rest.is_empty() {
            let (record, behind) = postcard::take_from_bytes(rest).map_err(|_| RestoreError::Format)?;
            records.push(record);
            rest = behind;
        }
        let since = Timestamp { seconds: i64::from_le_bytes(*seconds), nanoseconds: u32::from_le_bytes(*nanoseconds) };
        Ok(Replay { last: u64::from_le_bytes(*last), since, records })
    }
}
