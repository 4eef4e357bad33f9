//! Mounts that outlived their server: recorded so that the next server finds them, and mounted again by it.

use std::sync::Arc;

use tarpon_store::{Store, StoreError};

use super::mounts::Mounts;
use crate::protocol::{Access, MountRequest, Request, Response};

/// Records what is about to be mounted, without its secrets.
pub(super) fn write_record(store: &Store, request: &MountRequest) -> Result<(), StoreError> {
    let access = Access { creds: None, ..request.access.clone() };
    let request = MountRequest { access, ..request.clone() };
    // A request came in as JSON or will go out as such: it can be written.
    let text = serde_json::to_string(&request).unwrap_or_default();
    store.record_mount(&request.mountpoint, &request.manifest, &request.image, &text).map(drop)
}

/// Cleans up after a server that died, and mounts again what it had mounted and nobody has unmounted since.
pub(super) async fn recover(mounts: &Arc<Mounts>) {
    let swept = match mounts.store().sweep() {
        Ok(swept) => swept,
        Err(error) => return tracing::warn!(%error, "what an earlier server left was not swept"),
    };
    for dead in swept.dead_mounts {
        let mountpoint = dead.record.mountpoint;
        let was_there = match tarpon_mount::clear(&mountpoint) {
            Ok(was_there) => was_there,
            Err(error) => {
                tracing::warn!(%error, mountpoint = %mountpoint.display(), "a dead mount was not removed");
                continue;
            }
        };
        if let Err(error) = mounts.store().forget_mount(&mountpoint) {
            tracing::warn!(%error, "the record of a dead mount was not removed");
        }
        let request = serde_json::from_str::<MountRequest>(&dead.record.request);
        let (true, Ok(request)) = (was_there, request) else { continue };
        match super::answer(mounts, Request::Mount(request)).await {
            Response::Failed { step, cause, .. } => {
                tracing::warn!(mountpoint = %mountpoint.display(), "not mounted again: {step}: {cause}");
            }
            _ => tracing::info!(mountpoint = %mountpoint.display(), "mounted again"),
        }
    }
}
