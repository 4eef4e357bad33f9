//! The status of images that this server exposes.

use tarpon_client::mount_record::described;
use tarpon_client::protocol::{LayerVerification, MountRequest, MountStatus};

use super::images::LoadedImage;

/// The status of a mount or exposed image, as far as it is the same for all modes.
pub fn exposed(request: &MountRequest, image: &LoadedImage, alive: bool) -> MountStatus {
    let (record, transfers, counters) = (image.record_now(), image.transfers(), image.counters());
    let image_bytes = record.compressed_size();
    let verification = record.layers.into_iter().map(|layer| LayerVerification {
        digest: layer.digest,
        format: layer.format,
        state: layer.verification,
    });
    MountStatus {
        verification: verification.collect(),
        alive,
        server: std::process::id(),
        image_bytes,
        prepared_bytes: record.prepared_bytes,
        fetched_bytes: transfers.bytes,
        requests: transfers.requests,
        failed_reads: counters.failed_reads,
        last_error: counters.last_error.clone().filter(|_| counters.failed_reads > 0),
        endpoints: image.endpoints().status(),
        counters: serde_json::to_value(counters).unwrap_or_default(),
        ..described(request)
    }
}
