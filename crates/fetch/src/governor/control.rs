//! Decides about an image after a reader had to wait, and starts the work.

use std::sync::Arc;

use super::decide::{Decision, Measurements};
use super::state::WorkGuard;
use crate::host::Host;
use crate::image::Image;
use crate::journal::Event;

impl Host {
    /// Decides what to do about the rest of an image after one of its readers had to wait. Does not wait.
    pub(crate) fn govern(self: &Arc<Self>, image: &Arc<Image>) {
        let lazy = || image.governor.decide().0 == Decision::Lazy;
        if lazy() || image.source.is_local() || self.bypass.is_active() {
            return;
        }
        let Some(working) = image.governor.claim() else { return };
        let task = self.runtime.spawn(self.clone().act(image.clone(), working));
        image.governor.started(task.abort_handle());
    }

    async fn act(self: Arc<Self>, image: Arc<Image>, _working: WorkGuard) {
        let image = &image;
        let (mut decision, mut measured) = image.governor.decide();
        if decision == Decision::Count {
            self.count_missing(image).await;
            (decision, measured) = image.governor.decide();
        }
        match decision {
            Decision::Lazy | Decision::Count => {}
            Decision::Measure => self.bring_one(image).await,
            Decision::Whole => {
                announce(image, &measured);
                self.bring_rest(image).await;
            }
        }
    }
}

/// Reports a whole download: in the counters, in the journal and in the log.
fn announce(image: &Image, measured: &Measurements) {
    image.tally.add(|counters| &counters.whole_downloads, 1);
    tracing::info!(image = %image.name, "the rest of the image is brought whole: {measured}");
    image.journal.note(Event::Switched {
        to: "the rest of the image is brought whole".to_owned(),
        reason: measured.to_string(),
    });
}
