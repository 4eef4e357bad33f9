//! Records of mounts: `status` lists them, `recover` repairs them, and they protect images from eviction.
//!
//! A record protects its image until it is removed, even if its server is dead: the mount may still exist, and reads from
//! it work for as long as the objects exist.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tarpon_oci::Digest;

use crate::StoreError;
use crate::files::{self, io_error, read_record};
use crate::process::ProcessId;
use crate::sealed;
use crate::store::Store;

/// The stored record of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// Mount point, absolute.
    #[serde(with = "path_text")]
    pub mountpoint: PathBuf,
    /// Digest of the image's manifest.
    pub image: Digest,
    /// Tenant of the content: the sha256 of the tenant's name; `None` in a shared store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Digest>,
    /// The reference that was mounted.
    pub reference: String,
    /// The original request to the server: enough for a successor to mount it again. Holds no secrets.
    pub request: String,
    /// Time of the mount, in seconds since 1970.
    pub created: u64,
    /// The process that serves it.
    pub server: ProcessId,
    /// Whether that process is in a user namespace of an ordinary user: the mount is visible there only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_user_namespace: bool,
}

/// A mount record, and whether its server is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The record.
    pub record: MountRecord,
    /// Whether the process that serves it still runs.
    pub live: bool,
}

/// An image in its part of the store: its tenant, and its manifest.
pub(crate) type Content = (Option<Digest>, Digest);

impl MountRecord {
    /// The content that the mount shows.
    pub(crate) fn content(&self) -> Content {
        (self.tenant, self.image)
    }
}

impl Store {
    /// The image of this part.
    pub(crate) fn content(&self, manifest: &Digest) -> Content {
        (self.shared.layout.tenant().copied(), *manifest)
    }

    /// Records a mount that this process serves, of content of this handle. Returns once no eviction runs that does not
    /// know of it.
    pub fn record_mount(
        &self,
        mountpoint: &Path,
        image: &Digest,
        reference: &str,
        request: &str,
    ) -> Result<MountRecord, StoreError> {
        let record = MountRecord {
            mountpoint: mountpoint.to_owned(),
            image: *image,
            tenant: self.shared.layout.tenant().copied(),
            reference: reference.to_owned(),
            request: request.to_owned(),
            created: self.shared.seconds(),
            server: ProcessId::current(self.shared.durability.boot()),
            in_user_namespace: self.in_user_namespace(),
        };
        self.write_mount(&record)?;
        self.shared.wait_for_eviction()?;
        Ok(record)
    }

    /// Replaces the request in the record of a mount that this process serves. Does not wait for an eviction, because the record protects
    /// the image already. `None`: this process has no record of this content at `mountpoint`; [`Store::record_mount`] writes one.
    pub fn update_mount_record(
        &self,
        mountpoint: &Path,
        image: &Digest,
        request: &str,
    ) -> Result<Option<MountRecord>, StoreError> {
        let path = self.shared.layout.name("mounts").join(self.mount_name(mountpoint));
        let text = read_record(self.shared.storage(), &path)?;
        let known = text.and_then(|text| sealed::unseal::<MountRecord>(&text).ok());
        let this = ProcessId::current(self.shared.durability.boot());
        let is_ours = |known: &MountRecord| known.content() == self.content(image) && known.server == this;
        let Some(known) = known.filter(is_ours) else { return Ok(None) };
        let record = MountRecord { request: request.to_owned(), ..known };
        self.write_mount(&record)?;
        Ok(Some(record))
    }

    fn write_mount(&self, record: &MountRecord) -> Result<(), StoreError> {
        let folder = self.shared.layout.name("mounts");
        let text = sealed::seal(record).map_err(|error| io_error("writing", &folder)(error.into()))?;
        files::replace(self.shared.storage(), &folder, &self.mount_name(&record.mountpoint), &text)
            .map_err(|error| self.shared.refuse(error))
    }

    /// Removes the record of the mount at `mountpoint`, if it exists.
    pub fn forget_mount(&self, mountpoint: &Path) -> Result<(), StoreError> {
        let path = self.shared.layout.name("mounts").join(self.mount_name(mountpoint));
        files::unlink(self.shared.storage(), &path)
    }

    /// The recorded mounts of servers in this user namespace, of all tenants, by mountpoint.
    pub fn mounts(&self) -> Result<Vec<Mount>, StoreError> {
        let mut mounts = self.all_mounts()?;
        mounts.retain(|mount| mount.record.in_user_namespace == self.in_user_namespace());
        Ok(mounts)
    }

    /// All recorded mounts, of all tenants, by mountpoint. Damaged records are left out (`sweep` removes them).
    /// The record of a dead server's mount protects its image until [`Store::forget_mount`]: unmount it first.
    pub fn all_mounts(&self) -> Result<Vec<Mount>, StoreError> {
        let folder = self.shared.layout.name("mounts");
        let boot = self.shared.durability.boot();
        let mut mounts = Vec::new();
        for name in files::list_records(self.shared.storage(), &folder)? {
            let text = read_record(self.shared.storage(), &folder.join(&name))?;
            let record = text.and_then(|text| sealed::unseal::<MountRecord>(&text).ok());
            mounts.extend(record.map(|record| Mount { live: record.server.is_alive(boot), record }));
        }
        mounts.sort_by(|a, b| a.record.mountpoint.cmp(&b.record.mountpoint));
        Ok(mounts)
    }

    /// The same path is another directory in another namespace.
    fn mount_name(&self, mountpoint: &Path) -> String {
        let of = if self.in_user_namespace() { "userns-" } else { "" };
        format!("{of}{}.json", Digest::of(mountpoint.as_os_str().as_bytes()).hex())
    }
}

/// A path as text: unchanged if it is UTF-8 without `%`, else with `%` and the invalid bytes as `%XX`.
mod path_text {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn escape(path: &Path) -> String {
        let mut text = String::new();
        for chunk in path.as_os_str().as_bytes().utf8_chunks() {
            text.push_str(&chunk.valid().replace('%', "%25"));
            chunk.invalid().iter().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
        }
        text
    }

    pub(super) fn unescape(text: &str) -> Option<PathBuf> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut parts = text.split('%');
        bytes.extend_from_slice(parts.next()?.as_bytes());
        for part in parts {
            bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
            bytes.extend_from_slice(part.get(2..)?.as_bytes());
        }
        Some(OsString::from_vec(bytes).into())
    }

    pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(path))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        let text = String::deserialize(deserializer)?;
        unescape(&text).ok_or_else(|| serde::de::Error::custom("bad escape in a path"))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn every_path_survives_its_text() {
        for bytes in [&b"/mnt/a b"[..], b"/100%", b"/\xff\xfe%41", "/käse".as_bytes(), b""] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            assert_eq!(path_text::unescape(&path_text::escape(&path)), Some(path));
        }
        assert_eq!(path_text::unescape("/%4"), None);
        assert_eq!(path_text::unescape("/%zz"), None);
    }
}
