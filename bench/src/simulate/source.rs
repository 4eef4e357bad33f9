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

use super::clock::Moment;
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
    has_begun: bool,
    /// The request for what was not requested early.
    packets: Option<mpsc::Receiver<Packet>>,
}

impl Answer {
    async fn next(&mut self) -> Option<Bytes> {
        let start = self.left.start;
        // Of a layer the first packet arrives, and then the rest at once: the planner holds the packets of a span until it has all of
        // them, and those of ten thousand hosts need too much memory here.
        let is_rest = !self.is_pack && self.packets.is_some() && self.has_begun;
        loop {
            if self.left.is_empty() {
                return None;
            }
            let packet = self.packet().await?;
            self.has_begun = true;
            self.left.start = packet.range.end;
            self.source.network.clock.until(packet.arrived).await;
            self.undone += packet.range.end - packet.range.start;
            if !is_rest || self.left.is_empty() {
                self.decode(packet.arrived).await;
                let [start, end] = [start, packet.range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
                return Some(self.bytes.slice(start..end));
            }
        }
    }

    /// Spans of a layer are large: one is decoded when all of it is here. Frames of a pack are small.
    async fn decode(&mut self, arrived: Moment) {
        if self.is_pack || self.left.is_empty() {
            let clock = self.source.network.clock;
            let work = work_of(std::mem::take(&mut self.undone), self.source.per_mib);
            self.source.processors.run(&clock, arrived.max(clock.now()), work).await;
        }
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
        let mut answer =
            Answer { source, wanted, is_pack, bytes, left: range, undone: 0, has_begun: false, packets: None };
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
