//! [`Record`]: one entry of a table of contents in its written form, and [`Kept`]: a compact form of it that waits for the facts
//! about its content, which are known when the blob is written.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use tarpon_oci::Digest;

use super::error::Unrepresentable;
use super::header::Facts;
use super::time;
use crate::index::{Device, Timestamp};
use crate::tar::{TarEntry, TarKind};
use crate::toc::Format;

/// An entry of the TOC without its [`Content`]. The keys are in the order of containers/storage.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) link_name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) mode: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) size: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) uid: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gid: u32,
    #[serde(skip_serializing_if = "Option::is_none", rename = "modtime")]
    pub(super) modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "accesstime")]
    pub(super) accessed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "changetime")]
    pub(super) changed: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) dev_major: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) dev_minor: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) xattrs: BTreeMap<String, String>,
    /// For a file without content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
}

/// The content of a file, or of a chunk: the keys after those of [`Record`].
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Content {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) offset: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) end_offset: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) chunk_size: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) chunk_offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunk_digest: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunk_type: Option<&'static str>,
}

/// A record as JSON, until its content is known.
#[derive(Debug)]
pub(super) struct Kept {
    /// Without the closing brace.
    head: Box<[u8]>,
    /// Range of the name in it, in quotes.
    name: Range<usize>,
    /// Number of the file.
    pub(super) file: Option<usize>,
}

impl Kept {
    /// Its bytes in the JSON, at least.
    pub(super) fn bytes(&self) -> u64 {
        self.head.len() as u64
    }

    /// Memory of it, in a list that doubles when it is full.
    pub(super) fn cost(&self) -> u64 {
        (2 * size_of::<Option<Self>>() + self.head.len()) as u64
    }

    pub(super) fn of(record: &Record, file: Option<usize>) -> io::Result<Self> {
        let mut head = serde_json::to_vec(record)?;
        head.pop();
        let start = start_of(record.kind).len();
        let name = start..start + serde_json::to_vec(&record.name)?.len();
        Ok(Self { head: head.into(), name, file })
    }

    /// Appends the record.
    pub(super) fn write(&self, content: &Content, json: &mut Vec<u8>) -> io::Result<()> {
        json.extend_from_slice(&self.head);
        end(content, json)
    }

    /// Appends the record of a further chunk.
    pub(super) fn write_chunk(&self, content: &Content, json: &mut Vec<u8>) -> io::Result<()> {
        json.extend_from_slice(start_of("chunk").as_bytes());
        json.extend_from_slice(&self.head[self.name.clone()]);
        end(content, json)
    }
}

/// The JSON of a record up to its name.
fn start_of(kind: &str) -> String {
    format!(r#"{{"type":"{kind}","name":"#)
}

/// Ends a record with the fields of its content.
fn end(content: &Content, json: &mut Vec<u8>) -> io::Result<()> {
    let tail = serde_json::to_vec(content)?;
    match tail.split_first() {
        Some((_, rest)) if rest != b"}" => {
            json.push(b',');
            json.extend_from_slice(rest);
        }
        _ => json.push(b'}'),
    }
    Ok(())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Record {
    /// The entry without the fields of its content.
    pub(super) fn of(entry: &TarEntry, facts: Facts, format: Format) -> Result<Self, Unrepresentable> {
        let (kind, device) = match entry.kind {
            TarKind::File => ("reg", None),
            TarKind::HardLink => ("hardlink", None),
            TarKind::Symlink => ("symlink", None),
            TarKind::CharDevice(device) => ("char", Some(device)),
            TarKind::BlockDevice(device) => ("block", Some(device)),
            TarKind::Directory => ("dir", None),
            TarKind::Fifo => ("fifo", None),
        };
        let mut xattrs = BTreeMap::new();
        for (name, value) in facts.xattrs {
            xattrs.insert(text(name, Unrepresentable::Xattr)?, BASE64.encode(value));
        }
        let attributes = &entry.attributes;
        // In eStargz, a missing time means the epoch. containers/storage writes the epoch explicitly.
        let is_written = format == Format::ZstdChunked || attributes.mtime != Timestamp::default();
        let modified = Some(attributes.mtime).filter(|_| is_written);
        let mut record = Self {
            kind,
            name: text(entry.name.clone(), Unrepresentable::Name)?,
            link_name: text(entry.link.clone(), Unrepresentable::Link)?,
            mode: facts.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            modified: modified.map(time).transpose()?,
            xattrs,
            ..Self::default()
        };
        if let Some(Device { major, minor }) = device {
            (record.dev_major, record.dev_minor) = (major.into(), minor.into());
        }
        // containers/storage compares these with the tar, although some are meaningless.
        if format == Format::ZstdChunked && facts.is_ordinary {
            record.link_name = String::from_utf8(facts.link).map_err(|_| Unrepresentable::Link)?;
            (record.dev_major, record.dev_minor) = (facts.major, facts.minor);
            record.accessed = facts.accessed.map(time).transpose()?;
            record.changed = facts.changed.map(time).transpose()?;
        }
        Ok(record)
    }
}

fn text(bytes: Vec<u8>, problem: Unrepresentable) -> Result<String, Unrepresentable> {
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\u{fffd}')).ok_or(problem)
}

fn time(time: Timestamp) -> Result<String, Unrepresentable> {
    time::format(time).ok_or(Unrepresentable::Time)
}
