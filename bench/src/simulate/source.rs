//! [`HostSource`]: the blobs of the image as a simulated host receives them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::Blob;

use super::image::SimulatedImage;
use super::link::Processors;
use super::network::{Client, Network, Wanted};

/// The image's blobs, through the network and a processor of the host.
pub(super) struct HostSource {
    pub(super) image: Arc<SimulatedImage>,
    pub(super) network: Arc<Network>,
    pub(super) client: Arc<Client>,
    pub(super) processors: Arc<Processors>,
    /// Processor time for each MiB that arrives.
    pub(super) per_mib: Duration,
}

impl BlobSource for HostSource {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let Some((name, bytes)) = self.image.blob(&blob.digest) else {
            let error = SourceError::new(Fault::NotFound, format!("the simulated image has no blob {}", blob.digest));
            return async { Err(error) }.boxed();
        };
        let clock = self.network.clock;
        let packets = self.network.get(&self.client, Wanted::Blob(name, blob.size), range, clock.now());
        let (processors, per_mib, bytes) = (self.processors.clone(), self.per_mib, bytes.clone());
        let parts = stream::unfold(packets, move |mut packets| {
            let (processors, bytes) = (processors.clone(), bytes.clone());
            async move {
                let packet = packets.recv().await?;
                clock.until(packet.arrived).await;
                let [start, end] = [packet.range.start, packet.range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
                let work = per_mib.mul_f64((end - start) as f64 / f64::from(1 << 20));
                processors.run(&clock, packet.arrived, work).await;
                Some((Ok(bytes.slice(start..end)), packets))
            }
        });
        async move { Ok(parts.boxed()) }.boxed()
    }

    fn name(&self) -> String {
        "simulated".to_owned()
    }
}
