//! Shows again what a dead server showed, in its mount if that can be taken over.
//!
//! All images are loaded first: a tree that shrank and grew again would fail readers in between.

use std::collections::HashMap;
use std::sync::Arc;

use tarpon_client::protocol::MountRequest;
use tarpon_oci::Digest;
use tarpon_server::LoadedImage;

use super::store::{PodmanImageStore, Shown, State, stop_read_ahead};
use crate::Result;
use crate::clock::now;
use crate::layer_numbers::Diff;
use crate::saved_state::RestoreError;
use crate::store_fs::{LayerIdentity, StoreFs};
use crate::take_over::take_over;

impl PodmanImageStore {
    /// Shows the images on record, all at once. Returns the outcome of each.
    pub(super) fn show_again(&self, requests: &[MountRequest]) -> Vec<Result<Arc<LoadedImage>>> {
        // Not under the lock: loading takes as long as the disk takes.
        let loaded: Vec<_> = requests.iter().map(|request| self.load(request)).collect();
        let mut state = self.state.lock();
        let entered = loaded.into_iter().map(|loaded| {
            let entry = loaded?;
            let image = entry.image.clone();
            self.enter(&mut state, entry)?;
            Ok(image)
        });
        let entered: Vec<Result<_>> = entered.collect();
        state.shown = self.take_over(&mut state);
        if state.images.is_empty() {
            return entered;
        }
        if let Err(error) = self.attach(&mut state) {
            (state.images, state.retired) = Default::default();
            self.kept.clear();
            return entered.into_iter().map(|entered| entered.and(Err(error.clone()))).collect();
        }
        stop_read_ahead(&state);
        drop(state);
        for image in entered.iter().flatten() {
            image.begin_start(&[], true)();
        }
        entered
    }

    /// Continues the mount of the dead server, if there is one.
    fn take_over(&self, state: &mut State) -> Option<Shown> {
        let restored = if state.images.is_empty() { Err(RestoreError::Unwanted) } else { self.restored(state) };
        let adopt = |files| self.host.adopt_files(files, &self.folder);
        let (files, mounted) = take_over(&self.folder, restored, adopt)?;
        Some(Shown { files, mounted })
    }

    fn restored(&self, state: &mut State) -> std::result::Result<StoreFs, RestoreError> {
        let root = self.view(state, |_| true);
        // Containers may also use a form of a layer that is no longer shown.
        let layers: HashMap<Digest, &Diff> =
            state.images.values().flat_map(|entry| entry.layers()).map(|diff| (diff.digest(), diff)).collect();
        let find = |identity: &LayerIdentity| layers.get(&identity.content).map(|diff| (*diff).clone());
        StoreFs::restored(&self.kept.inherited(), find, root, now(), self.kept.save())
    }
}
