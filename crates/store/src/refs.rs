//! References: the name and platform of an image, so that it can be resolved offline.
//!
//! A file is named by the sha256 of source and platform (a source may be a path of 4096 bytes, too long for a file name),
//! and contains both.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tarpon_oci::{Digest, Hasher};

use crate::StoreError;
use crate::files::{self, io_error, read_record};
use crate::sealed;
use crate::store::Store;

/// The result of the last resolution of a reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefRecord {
    /// The reference in its canonical spelling, with its transport.
    pub source: String,
    /// `os/architecture[/variant]`.
    pub platform: String,
    /// Digest of the image's manifest.
    pub manifest: Digest,
    /// Time of the resolution, in seconds since 1970.
    pub resolved: u64,
}

impl Store {
    /// The last resolution of `source` for this platform. A damaged record counts as none.
    pub fn reference(&self, source: &str, platform: &str) -> Result<Option<RefRecord>, StoreError> {
        let text = read_record(self.shared.storage(), &self.reference_path(source, platform))?;
        let record = text.and_then(|text| sealed::unseal::<RefRecord>(&text).ok());
        Ok(record.filter(|record| record.source == source && record.platform == platform))
    }

    /// Records the image that `source` resolves to.
    pub fn set_reference(&self, source: &str, platform: &str, manifest: &Digest) -> Result<(), StoreError> {
        let record = RefRecord {
            source: source.to_owned(),
            platform: platform.to_owned(),
            manifest: *manifest,
            resolved: self.shared.seconds(),
        };
        let path = self.reference_path(source, platform);
        let text = sealed::seal(&record).map_err(|error| io_error("writing", &path)(error.into()))?;
        let (folder, name) = (self.shared.layout.name("refs"), reference_name(source, platform));
        files::replace(self.shared.storage(), &folder, &name, &text).map_err(|error| self.shared.refuse(error))
    }

    /// All references, by source and platform.
    pub fn references(&self) -> Result<Vec<RefRecord>, StoreError> {
        let mut records = Vec::new();
        for part in self.parts()? {
            records.extend(part.own_references()?);
        }
        records.sort_by(|a, b| (&a.source, &a.platform).cmp(&(&b.source, &b.platform)));
        Ok(records)
    }

    fn own_references(&self) -> Result<Vec<RefRecord>, StoreError> {
        let folder = self.shared.layout.name("refs");
        let mut records = Vec::new();
        for name in files::list_records(self.shared.storage(), &folder)? {
            let text = read_record(self.shared.storage(), &folder.join(&name))?;
            records.extend(text.and_then(|text| sealed::unseal::<RefRecord>(&text).ok()));
        }
        Ok(records)
    }

    /// Removes every reference to an image.
    pub(crate) fn forget_references(&self, manifest: &Digest) -> Result<(), StoreError> {
        for record in self.own_references()?.iter().filter(|record| record.manifest == *manifest) {
            files::unlink(self.shared.storage(), &self.reference_path(&record.source, &record.platform))?;
        }
        Ok(())
    }

    fn reference_path(&self, source: &str, platform: &str) -> PathBuf {
        self.shared.layout.name("refs").join(reference_name(source, platform))
    }
}

fn reference_name(source: &str, platform: &str) -> String {
    let mut hasher = Hasher::new();
    hasher.update(source.as_bytes());
    // Neither contains a line break, so the two cannot be confused.
    hasher.update(b"\n");
    hasher.update(platform.as_bytes());
    hasher.finish().hex()
}
