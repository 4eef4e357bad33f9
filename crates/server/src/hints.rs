//! Hints for images without a boot pack: the data fetched first, from the trace of the mount request and the landmarks of the image's
//! layers.

use tarpon_fetch::{Hint, ImageHandle};
use tarpon_store::LayerRecord;
use tarpon_trace::{Trace, pieces};

/// The hints of a trace.
pub(super) fn of_trace(trace: &Trace) -> Vec<Hint> {
    pieces(trace).into_iter().map(|piece| Hint::Object { object: piece.object, range: piece.range }).collect()
}

/// The hints of the authors of these layers.
pub(super) fn of_landmarks(layers: &[LayerRecord]) -> Vec<Hint> {
    let start = |layer: &LayerRecord| Some(Hint::LayerStart { layer: layer.digest, until: layer.prefetch? });
    layers.iter().filter_map(start).collect()
}

/// Starts to fetch what the hints name. A recorded trace takes precedence over the landmarks of the image's authors. `false`: there are no
/// hints, or others are being followed.
pub(super) fn follow(handle: &ImageHandle, layers: &[LayerRecord], trace: Option<&Trace>) -> bool {
    let (traced, starts) = (trace.map(of_trace).unwrap_or_default(), of_landmarks(layers));
    if traced.is_empty() && starts.is_empty() {
        return false;
    }
    let (pieces, landmarks) = (traced.len(), starts.len());
    let follows = handle.follow(traced.into_iter().chain(starts).collect());
    if follows {
        tracing::info!(image = handle.name(), pieces, landmarks, "prefetch order set from hints");
    }
    follows
}
