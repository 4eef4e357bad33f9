//! Events about the preparation of images.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tarpon_engine::oci::Digest;
use tarpon_engine::{LayerPlan, Progress};

use crate::feed::{Feed, What};

/// Bytes that arrive between two progress events: a few events a second on a fast link.
const STEP: u64 = 8 << 20;

/// Sends the progress of an image to the feed.
pub(crate) struct Told {
    feed: Arc<Feed>,
    image: String,
    received: AtomicU64,
}

impl Told {
    pub(crate) fn new(feed: Arc<Feed>, image: String) -> Self {
        Self { feed, image, received: AtomicU64::new(0) }
    }
}

impl Progress for Told {
    fn resolved(&self, manifest: &Digest, layers: &[LayerPlan]) {
        let streamed = layers.iter().filter(|layer| layer.way.is_streamed());
        self.feed.tell(What::Resolved {
            image: self.image.clone(),
            manifest: manifest.to_string(),
            layers: layers.len(),
            to_fetch: streamed.map(|layer| layer.size).sum(),
        });
    }

    fn received(&self, _layer: usize, bytes: u64) {
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let now = before.saturating_add(bytes);
        if before / STEP != now / STEP {
            self.feed.tell(What::Fetched { image: self.image.clone(), bytes: now });
        }
    }

    fn layer_done(&self, layer: usize) {
        self.feed.tell(What::LayerDone { image: self.image.clone(), layer });
    }

    fn note(&self, line: &str) {
        self.feed.tell(What::Note { image: self.image.clone(), text: line.to_owned() });
    }
}
