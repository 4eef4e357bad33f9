//! The referrers of a manifest in a layout: manifests in `index.json`, and the index under the tag that registries without a list
//! of referrers use.

use std::sync::Arc;

use bytes::Bytes;
use tarpon_blob::SourceError;
use tarpon_oci::{Descriptor, Digest, Document, ImageIndex, MediaType, Verified, limits};

use super::blobs::blocking;
use super::layout::is_called;
use super::{Local, LocalBlobs, Root};
use crate::http::fallback_tag;
use crate::referrers::of_kind;

impl Local {
    /// The manifest or index `digest`, of any kind.
    pub(crate) async fn manifest(&self, digest: &Digest) -> Result<Verified<Bytes>, SourceError> {
        let opened = self.opened().await?;
        if let Root::Docker(made_up) = &opened.root
            && made_up.digest() == digest
        {
            return Ok(made_up.clone());
        }
        let (blobs, digest) = (opened.blobs.clone(), *digest);
        blocking(move || blobs.read_manifest(blobs.named(&digest)?)).await
    }

    /// The manifests of kind `kind` whose subject is `subject`. Unreadable ones are skipped: they may have any subject.
    pub(crate) async fn referrers(&self, subject: &Digest, kind: &str) -> Result<Vec<Descriptor>, SourceError> {
        let opened = self.opened().await?;
        let Root::Layout(index) = &opened.root else { return Ok(Vec::new()) };
        let entries = index.manifests().iter().take(limits::REFERRERS).cloned().collect();
        let (blobs, subject, kind) = (opened.blobs.clone(), *subject, kind.to_owned());
        blocking(move || Ok(find(&blobs, entries, &subject, &kind))).await
    }
}

fn find(blobs: &Arc<LocalBlobs>, entries: Vec<Descriptor>, subject: &Digest, kind: &str) -> Vec<Descriptor> {
    let (lists, manifests): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| is_called(entry, &fallback_tag(subject)));
    let listed = lists.iter().filter_map(|list| list_of(blobs, list)).flatten();
    let naming = manifests.into_iter().filter_map(|entry| naming(blobs, entry, subject));
    let mut found: Vec<Descriptor> = Vec::new();
    for referrer in of_kind(listed.chain(naming).collect(), kind, false) {
        if found.iter().all(|known| known.digest != referrer.digest) {
            found.push(referrer);
        }
    }
    found
}

/// The entries of the index `list`.
fn list_of(blobs: &LocalBlobs, list: &Descriptor) -> Option<Vec<Descriptor>> {
    let bytes = blobs.read_manifest(list.blob()).ok()?;
    Some(ImageIndex::parse(bytes).ok()?.manifests)
}

/// `entry` with its kind, if its manifest has the subject `subject`.
fn naming(blobs: &LocalBlobs, entry: Descriptor, subject: &Digest) -> Option<Descriptor> {
    if entry.media_type != MediaType::Manifest {
        return None;
    }
    let bytes = blobs.read_manifest(entry.blob()).ok()?;
    let Document::Manifest(manifest) = Document::parse(bytes, None).ok()? else { return None };
    let is_about = manifest.subject.is_some_and(|named| named.digest == *subject);
    is_about.then_some(Descriptor { artifact_type: manifest.artifact_type, ..entry })
}
