//! Hints for images without a boot pack: the data fetched first, from the trace of the mount request and the landmarks of the image's
//! layers.

use tarpon_fetch::{Hint, ImageHandle};
use tarpon_store::LayerRecord;
use tarpon_trace::{Trace, pieces};

/// Starts to fetch what the hints name. A recorded trace takes precedence over the landmarks of the image's authors. `false`: there are no
/// hints, or others are being followed.
pub(super) fn follow(handle: &ImageHandle, layers: &[LayerRecord], trace: Option<&Trace>) -> bool {
    let traced = trace.map(pieces).unwrap_or_default().into_iter();
    let traced = traced.map(|piece| Hint::Object { object: piece.object, range: piece.range });
    let starts =
        layers.iter().filter_map(|layer| Some(Hint::LayerStart { layer: layer.digest, until: layer.prefetch? }));
    let (traced, starts): (Vec<Hint>, Vec<Hint>) = (traced.collect(), starts.collect());
    if traced.is_empty() && starts.is_empty() {
        return false;
    }
    let (pieces, landmarks) = (traced.len(), starts.len());
    let follows = handle.follow(traced.into_iter().chain(starts).collect());
    if follows {
        tracing::info!(image = handle.name(), pieces, landmarks, "hints say what is brought first");
    }
    follows
}
