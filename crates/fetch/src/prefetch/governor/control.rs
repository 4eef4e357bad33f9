//! Decides about an image after a reader had to wait, and starts the work.

use std::sync::Arc;

use super::decide::{Decision, Measurements};
use crate::host::FetchHost;
use crate::image::Image;
use crate::journal::Event;
use crate::prefetch::policy::Downloading;
use crate::prefetch::rules::{Prefetcher, Step};

impl FetchHost {
    /// Decides what to do about the rest of an image after one of its readers had to wait. Does not wait.
    pub(crate) fn govern(self: &Arc<Self>, image: &Arc<Image>) {
        if image.governor.decide().0 == Decision::Lazy {
            return;
        }
        let _runs_already = image.prefetch.start_download(|downloading| {
            self.runtime.spawn(self.clone().act(image.clone(), downloading)).abort_handle()
        });
    }

    async fn act(self: Arc<Self>, image: Arc<Image>, _downloading: Downloading) {
        let image = &image;
        let (mut decision, mut measured) = decide(image);
        if decision == Decision::Count {
            self.count_missing(image).await;
            (decision, measured) = decide(image);
        }
        match decision {
            Decision::Lazy | Decision::Count => {}
            Decision::Measure => self.measure_link(image).await,
            Decision::Whole => {
                announce(image, &measured);
                self.download_rest(image).await;
            }
        }
    }
}

/// The decision, if the policy lets the download begin.
fn decide(image: &Image) -> (Decision, Measurements) {
    let may = image.prefetch.may(Prefetcher::WholeImage, Step::First);
    let (decision, measured) = image.governor.decide();
    (if may { decision } else { Decision::Lazy }, measured)
}

/// Reports a whole download: in the counters, in the journal and in the log.
fn announce(image: &Image, measured: &Measurements) {
    image.tally.add(|counters| &counters.whole_downloads, 1);
    tracing::info!(image = %image.name, "the rest of the image is downloaded: {measured}");
    image
        .journal
        .note(Event::Switched { to: "the rest of the image is downloaded".to_owned(), reason: measured.to_string() });
}
