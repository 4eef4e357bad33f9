//! Obtains one layer: through its table of contents, by streaming, or by an index of a host that streamed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tarpon_blob::BlobSource;
use tarpon_layer::Allowance;
use tarpon_layer::toc::Claim;
use tarpon_oci::{ImageConfig, Verified};
use tarpon_store::{LayerKind, Store, Verification};

use super::layer::{Layer, Wanted, step};
use super::shared::{Copy, SharedLayers, Turn};
use super::stream::{StreamError, stream};
use super::stream_job::StreamJob;
use super::toc;
use crate::access;
use crate::error::{Error, ErrorKind, Result};
use crate::index::search_result::Usable;
use crate::progress::Progress;

/// A layer that is to be streamed.
pub(super) struct ToStream<'a> {
    pub(super) layer: &'a Wanted,
    /// Why a layer with a table of contents is streamed.
    pub(super) fallback: Option<String>,
    /// Whether an index of another host will do.
    pub(super) by_index: bool,
}

impl<'a> ToStream<'a> {
    /// Every byte of it must be seen.
    pub(super) fn whole(layer: &'a Wanted) -> Self {
        Self { layer, fallback: None, by_index: false }
    }
}

/// How a layer was obtained.
pub(super) enum Obtained {
    Streamed(Box<Layer>),
    Indexed(Box<Usable>),
}

/// The outcome of a layer's table of contents.
pub(super) enum ByToc {
    Indexed(Box<Layer>),
    MustStream { fallback: Option<String> },
}

/// Fetches and reads the table of contents of a layer that has one.
pub(super) async fn through_toc(
    layer: &Wanted,
    blobs: &dyn BlobSource,
    allowance: &Allowance,
    progress: &dyn Progress,
) -> Result<ByToc> {
    let Claim::Toc(claim) = &layer.claim else { return Ok(ByToc::MustStream { fallback: None }) };
    let received = AtomicU64::new(0);
    let count = |bytes| {
        received.fetch_add(bytes, Ordering::Relaxed);
        progress.received(layer.number, bytes);
    };
    let fetched = toc::fetch(claim, layer.blob, blobs, allowance, count).await;
    match fetched {
        Ok((index, prefetch)) => {
            progress.layer_done(layer.number);
            let compression = toc::compression(claim.format());
            Ok(ByToc::Indexed(Box::new(Layer {
                blob: layer.blob,
                compression,
                format: toc::kind(claim.format()),
                verification: Verification::Toc,
                diff_id: None,
                index,
                packed: None,
                prefetch,
                received: received.into_inner(),
                fallback: None,
            })))
        }
        Err(toc::TocFailure::NotLazy(reason)) => {
            let line = format!("layer {} is streamed, not read lazily: {reason}", layer.number + 1);
            progress.note(&line);
            Ok(ByToc::MustStream { fallback: Some(line) })
        }
        Err(toc::TocFailure::Refused(error)) => {
            Err(Error::new(ErrorKind::Refused, step(layer.number, &layer.blob.digest), error))
        }
        Err(toc::TocFailure::Source(error)) => Err(access::source(step(layer.number, &layer.blob.digest), error)),
    }
}

/// Where a layer is streamed to, and its allowance.
pub(super) struct Into {
    pub(super) store: Store,
    pub(super) allowance: Allowance,
}

/// Streams the layer, or finds that another host has done so.
pub(super) async fn obtain<'a>(
    ToStream { layer, fallback, by_index }: ToStream<'a>,
    config: &ImageConfig,
    source: Arc<dyn BlobSource>,
    into: Into,
    shared: Option<&SharedLayers>,
    progress: &dyn Progress,
) -> Result<(&'a Wanted, Obtained)> {
    let Some(shared) = shared else {
        let (streamed, _) = streamed(layer, fallback, config, source, into, None, progress).await?;
        return Ok((layer, Obtained::Streamed(Box::new(streamed))));
    };
    let (mut copy, _permit) = match shared.turn(layer.blob, by_index, &into.allowance).await {
        Turn::Indexed(usable) => {
            progress.layer_done(layer.number);
            return Ok((layer, Obtained::Indexed(usable)));
        }
        Turn::Stream { copy, permit } => (copy, permit),
    };
    let outcome = streamed(layer, fallback, config, source, into, copy.as_mut(), progress).await;
    match (outcome, copy) {
        (Ok((streamed, proof)), copy) => {
            if let Some(copy) = copy {
                shared.keep(copy, proof, &streamed, matches!(layer.claim, Claim::Plain));
            }
            Ok((layer, Obtained::Streamed(Box::new(streamed))))
        }
        (Err(error), copy) => {
            if let Some(copy) = copy {
                copy.release().await;
            }
            Err(error)
        }
    }
}

async fn streamed(
    layer: &Wanted,
    fallback: Option<String>,
    config: &ImageConfig,
    source: Arc<dyn BlobSource>,
    Into { store, allowance }: Into,
    copy: Option<&mut Copy>,
    progress: &dyn Progress,
) -> Result<(Layer, Verified<()>)> {
    let step = step(layer.number, &layer.blob.digest);
    let diff_id = *config
        .diff_ids
        .get(layer.number)
        .ok_or_else(|| Error::new(ErrorKind::Refused, step.clone(), "the config has no diffID for it"))?;
    let job = StreamJob {
        blob: layer.blob,
        diff_id,
        hides_toc_files: matches!(layer.claim, Claim::Toc(_)),
        source,
        store,
        must_keep: false,
        allowance,
    };
    let indexed = seen(job, copy, |bytes| progress.received(layer.number, bytes)).await;
    let (indexed, proof) = indexed.map_err(|error| super::stream::outward(step, error))?;
    progress.layer_done(layer.number);
    Ok((Layer { fallback, ..indexed }, proof))
}

/// The layer, every byte of which was seen, with the proof of its blob.
pub(super) async fn seen(
    job: StreamJob,
    copy: Option<&mut Copy>,
    received: impl Fn(u64) + Send + Sync,
) -> std::result::Result<(Layer, Verified<()>), StreamError> {
    let (blob, diff_id) = (job.blob, job.diff_id);
    let streamed = stream(job, copy, received).await?;
    let layer = Layer {
        blob,
        compression: streamed.compression,
        format: LayerKind::plain(streamed.compression),
        verification: Verification::DiffId,
        diff_id: Some(diff_id),
        index: streamed.index,
        packed: None,
        prefetch: None,
        received: blob.size,
        fallback: None,
    };
    Ok((layer, streamed.proof))
}
