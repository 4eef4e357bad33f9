//! [`PackElsewhere`]: the source of an image whose boot pack is in an index repository.

use std::ops::Range;
use std::sync::Arc;

use futures::future::BoxFuture;
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_oci::{Blob, Digest};

/// Reads one blob, the boot pack, from another source than all others.
pub(super) struct PackElsewhere {
    pub(super) blob: Blob,
    /// The source of the pack.
    pub(super) pack: Arc<dyn BlobSource>,
    /// The source of the layers.
    pub(super) rest: Arc<dyn BlobSource>,
}

impl PackElsewhere {
    fn of(&self, blob: Blob) -> &dyn BlobSource {
        if blob == self.blob { &*self.pack } else { &*self.rest }
    }
}

impl BlobSource for PackElsewhere {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.of(blob).read(blob, range)
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.of(blob).probe(blob, at)
    }

    fn distrust(&self, blob: &Digest) -> bool {
        if *blob == self.blob.digest { self.pack.distrust(blob) } else { self.rest.distrust(blob) }
    }

    fn name(&self) -> String {
        self.rest.name()
    }

    fn is_local(&self) -> bool {
        self.rest.is_local()
    }
}
