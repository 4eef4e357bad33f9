//! [`Objects`] implemented by the fetcher.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use tarpon_fetch::{Fetcher, ObjectBytes, ReadError};
use tarpon_oci::Digest;

use crate::{Errno, Objects};

impl Objects for Fetcher {
    fn size(&self, object: &Digest) -> Option<u64> {
        self.object_size(object)
    }

    fn hold(&self, object: &Digest) -> Option<u64> {
        self.hold_inode(object)
    }

    fn release(&self, object: &Digest) {
        self.release_inode(object);
    }

    fn starting_with(&self, start: u64, bits: u32) -> Vec<Digest> {
        self.objects_starting_with(start, bits)
    }

    fn read_local(&self, object: &Digest, offset: u64, length: usize) -> Result<Option<Bytes>, Errno> {
        Fetcher::read_local(self, object, offset, length as u64).map(answer).transpose()
    }

    fn read(&self, object: Digest, offset: u64, length: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
        let fetcher = self.clone();
        Box::pin(async move { answer(Fetcher::read(&fetcher, &object, offset, length as u64).await) })
    }

    fn page_in(&self, object: &Digest, offset: u64, length: usize) -> Option<Bytes> {
        Fetcher::page_in(self, object, offset, length as u64).map(ObjectBytes::into_bytes)
    }

    fn check_local(&self, object: &Digest) -> Option<BoxFuture<'static, ()>> {
        Fetcher::check_local(self, object).map(|hashed| Box::pin(hashed) as BoxFuture<'static, ()>)
    }

    fn open_local(&self, object: &Digest) -> Option<Arc<File>> {
        Fetcher::open_local(self, object).map(|local| local.file)
    }
}

/// Converts a result for the reader; the reason of an error goes to the log.
fn answer(read: Result<ObjectBytes, ReadError>) -> Result<Bytes, Errno> {
    read.map(ObjectBytes::into_bytes).map_err(|error| {
        tracing::debug!(%error, "a read failed");
        Errno::from(&error)
    })
}
