//! [`HostSource`]: the blobs of the image as a simulated host receives them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::Blob;
use tokio::sync::mpsc;

use super::early::EarlyPack;
use super::flow::Packet;
use super::image::SimulatedImage;
use super::link::{Processors, work_of};
use super::network::{Client, Network, Wanted};

/// The image's blobs, through the network and a processor of the host.
#[derive(Clone)]
pub(super) struct HostSource {
    pub(super) image: Arc<SimulatedImage>,
    pub(super) network: Arc<Network>,
    pub(super) client: Arc<Client>,
    pub(super) processors: Arc<Processors>,
    pub(super) early: Arc<EarlyPack>,
    /// Processor time for each MiB that arrives.
    pub(super) per_mib: Duration,
}

/// An answer that is being received.
struct Answer {
    source: HostSource,
    wanted: Wanted,
    is_pack: bool,
    bytes: Bytes,
    left: Range<u64>,
    /// Bytes that have arrived and are not decoded.
    undone: u64,
    /// The request for what was not requested early.
    packets: Option<mpsc::Receiver<Packet>>,
}

impl Answer {
    async fn next(&mut self) -> Option<Bytes> {
        if self.left.is_empty() {
            return None;
        }
        let packet = self.packet().await?;
        self.left.start = packet.range.end;
        let clock = self.source.network.clock;
        clock.until(packet.arrived).await;
        let [start, end] = [packet.range.start, packet.range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
        self.undone += packet.range.end - packet.range.start;
        // Spans of a layer are large: one is decoded when all of it is here. Frames of a pack are small.
        if self.is_pack || self.left.is_empty() {
            let work = work_of(std::mem::take(&mut self.undone), self.source.per_mib);
            self.source.processors.run(&clock, packet.arrived.max(clock.now()), work).await;
        }
        Some(self.bytes.slice(start..end))
    }

    async fn packet(&mut self) -> Option<Packet> {
        if self.is_pack
            && self.packets.is_none()
            && let Some(packet) = self.source.early.next(&self.left).await
        {
            return Some(packet);
        }
        let Self { source, wanted, left, packets, .. } = self;
        let request = || source.network.get(&source.client, *wanted, left.clone(), source.network.clock.now());
        packets.get_or_insert_with(request).recv().await
    }
}

impl BlobSource for HostSource {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let Some((name, bytes)) = self.image.blob(&blob.digest) else {
            let error = SourceError::new(Fault::NotFound, format!("the simulated image has no blob {}", blob.digest));
            return async { Err(error) }.boxed();
        };
        let is_pack = blob == self.image.pack.blob;
        let (source, wanted, bytes) = (self.clone(), Wanted::Blob(name, blob.size), bytes.clone());
        let mut answer = Answer { source, wanted, is_pack, bytes, left: range, undone: 0, packets: None };
        if !is_pack {
            // Sent now, and not when the answer is read.
            let now = self.network.clock.now();
            answer.packets = Some(self.network.get(&self.client, wanted, answer.left.clone(), now));
        }
        let parts = stream::unfold(answer, |mut answer| async move { Some((Ok(answer.next().await?), answer)) });
        async move { Ok(parts.boxed()) }.boxed()
    }

    fn name(&self) -> String {
        "simulated".to_owned()
    }
}
