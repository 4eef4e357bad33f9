//! Counts what is kept of a server's mounts.

use super::kept::{ImageCounters, ImageKey, SavedCounters, Transfers};
use crate::mount_table::MountTable;

impl MountTable {
    /// Keeps the counters for the successor. They are at least as high as those that were read before this call. Call it before numbers are
    /// shown to anyone: a counter that falls is a reset to Prometheus.
    pub(crate) fn keep_counters(&self) {
        if self.holding.is_held() {
            self.domains.whole().counters.keep(&self.holding, || self.counted());
        }
    }

    fn counted(&self) -> SavedCounters {
        let mut counted = SavedCounters::of_host(self.domains.whole().images.fetcher().stats());
        counted.endpoints = self.domains.whole().counters.endpoints.counts();
        for domain in self.domains.all() {
            let folder = domain.store.objects_folder();
            for image in domain.images.all() {
                let (transfers, stats) = (image.transfers(), image.counters());
                if transfers != Transfers::default() || stats != Default::default() {
                    let key = ImageKey::new(&folder, image.handle().name(), image.record.manifest);
                    let endpoints = image.endpoints().sums();
                    counted.images.push(ImageCounters { key, transfers, stats, endpoints });
                }
            }
        }
        for served in self.places.mounted() {
            counted.add_mount(&served.request.mountpoint, served.counts());
        }
        counted
    }
}
