//! The status of Podman's store of layers: one line for the mount, with what Podman had to pull instead, and one for each image.

use tarpon_client::mount_record::described;
use tarpon_client::protocol::MountStatus;
use tarpon_server::exposed;

use super::store::LayerStore;

/// The name used as the mode of these mounts.
pub(super) const MODE: &str = "podman-layers";

impl LayerStore {
    /// The mount and all images in it.
    pub(super) fn describe(&self) -> Vec<MountStatus> {
        let (alive, settings, images) = {
            let state = self.state.read();
            let alive = state.shown.as_ref().is_some_and(|shown| shown.mounted.is_attached());
            let images: Vec<_> =
                state.images.iter().map(|entry| (entry.request.clone(), entry.image.clone())).collect();
            (alive, state.settings.clone(), images)
        };
        // Outside the lock as well, because this reads from the disk.
        let mut all: Vec<_> = images
            .iter()
            .map(|(request, image)| MountStatus { mode: MODE.to_owned(), ..exposed(request, image, alive) })
            .collect();
        let store = settings.map(|settings| MountStatus {
            mode: MODE.to_owned(),
            alive,
            server: std::process::id(),
            fallbacks: self.finding.problems(),
            // Sums over all of its images.
            image_bytes: all.iter().map(|image| image.image_bytes).sum(),
            prepared_bytes: all.iter().map(|image| image.prepared_bytes).sum(),
            fetched_bytes: all.iter().map(|image| image.fetched_bytes).sum(),
            requests: all.iter().map(|image| image.requests).sum(),
            failed_reads: all.iter().map(|image| image.failed_reads).sum(),
            ..described(&settings)
        });
        all.extend(store);
        // Not under the lock: the end of a completion takes its own lock and then checks whether its image is shown here.
        all.iter_mut().for_each(|status| status.backfill = self.host.backfill_status(&status.manifest));
        all
    }
}
