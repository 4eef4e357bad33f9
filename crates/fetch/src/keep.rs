//! Keeps verified chunks: in the store while it accepts them, otherwise in a little memory (`bypass.rs`).
//!
//! Readers do not wait for this. A store that refuses (no room, failing disk) makes no read fail: reads continue from the source and
//! from memory.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use tarpon_blob::StoreError;
use tarpon_oci::Verified;

use crate::chunk::PieceChunk;
use crate::host::FetchHost;
use crate::image::Image;
use crate::journal::Event;
use crate::object::Object;

/// Counts an object as one that is being made a local file, until it is dropped: also if that panics, or never runs.
struct Publishing(Arc<FetchHost>);

impl Publishing {
    fn begin(host: &Arc<FetchHost>) -> Self {
        host.publishing.send_modify(|count| *count += 1);
        Self(host.clone())
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.0.publishing.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl FetchHost {
    /// Keeps a chunk for the next reader, and publishes the object with its last chunk.
    pub(crate) fn keep(self: &Arc<Self>, image: &Arc<Image>, chunk: &PieceChunk, bytes: &Verified<Bytes>) {
        let kept = match chunk {
            chunk if chunk.is_whole_object() => self.keep_whole(bytes),
            chunk if !chunk.names_content && chunk.is_all_of_object() => self.keep_content(chunk, bytes),
            chunk => self.keep_part(image, chunk, bytes),
        };
        match kept {
            Ok(()) if chunk.is_whole_object() => self.images.completed(&chunk.object),
            Ok(()) => {}
            Err(error) => {
                if !self.bypass.is_active() {
                    image.journal.note(Event::StoreRefused { reason: error.to_string() });
                }
                self.store_refused(&error);
                self.keep_in_memory(image, chunk, bytes);
            }
        }
    }

    fn keep_in_memory(&self, image: &Arc<Image>, chunk: &PieceChunk, bytes: &Verified<Bytes>) {
        image.tally.add(|counters| &counters.bypassed_chunks, 1);
        self.bypass.remember(chunk.name(image.id), bytes);
    }

    /// A chunk that is a whole object needs no partial file: its digest is the proof.
    fn keep_whole(&self, bytes: &Verified<Bytes>) -> Result<(), StoreError> {
        let mut writer = self.store.writer(bytes.len() as u64)?;
        writer
            .write_all(bytes)
            .map_err(|error| StoreError::Io { doing: format!("keeping {}", bytes.digest()), error })?;
        writer.publish(bytes.proof())
    }

    /// The only chunk of an object whose name is no digest: kept under the digest of its content.
    fn keep_content(&self, chunk: &PieceChunk, bytes: &Verified<Bytes>) -> Result<(), StoreError> {
        self.keep_whole(bytes)?;
        self.contents.learn(chunk.object, *bytes.digest());
        Ok(())
    }

    fn keep_part(
        self: &Arc<Self>,
        image: &Arc<Image>,
        chunk: &PieceChunk,
        bytes: &Verified<Bytes>,
    ) -> Result<(), StoreError> {
        let Some(object) = self.object_in(image, &chunk.object) else { return Ok(()) };
        object.partial(&*self.store)?.write_at(bytes, chunk.object_offset)?;
        object.mark_present(chunk.object_offset);
        self.publish_if_complete(&object);
        Ok(())
    }

    /// Publishes an object whose chunks are all local, in the background: the whole object is hashed.
    pub(crate) fn publish_if_complete(self: &Arc<Self>, object: &Arc<Object>) {
        if !object.claim_publishing(self.config.publish_zeros) {
            return;
        }
        let (host, object) = (self.clone(), object.clone());
        let counted = Publishing::begin(&host);
        self.runtime.spawn_blocking(move || {
            let _counted = counted;
            host.publish(&object);
        });
    }

    fn publish(&self, object: &Object) {
        let published = object.partial(&*self.store).and_then(|partial| partial.publish());
        // The verdict is recorded before publishing ends. So a reader that finds the partial file emptied always sees one of the two.
        if let Some(parts) = &object.parts
            && matches!(published, Ok(()) | Err(StoreError::Corrupt(_)))
        {
            self.was_hashed(object, parts.list, published.is_ok());
        }
        object.end_publishing();
        match published {
            Ok(()) => {
                self.images.completed(&object.id);
                self.forget_object(object);
            }
            Err(StoreError::Corrupt(_)) => {
                object.image.report_refuted(&object.id);
                self.forget_object(object);
            }
            Err(error) => self.store_refused(&error),
        }
    }
}
