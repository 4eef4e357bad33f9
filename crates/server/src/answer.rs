//! Executes the requests of clients.

use std::sync::Arc;

use tarpon_client::protocol::{Request, Response};

use super::images::PackPlace;
use super::metrics;
use super::mount_table::MountTable;
use crate::{Error, ErrorKind, Result};

/// Executes a request. Mounting blocks for milliseconds in the kernel.
pub(super) fn carry_out(mounts: &Arc<MountTable>, request: Request) -> Result<Response> {
    match request {
        Request::Mount { request, namespaces } => {
            namespaces.check()?;
            let is_new = metrics::expose(mounts, &request)?;
            let mounted = mounts.mount(*request);
            if is_new && mounted.is_err() && !mounts.has_mount_with_metrics() {
                mounts.endpoint.close();
            }
            let status = mounted?;
            mounts.holding.wait_until_held();
            Ok(Response::Mounted(Box::new(status)))
        }
        Request::GetReady { image, access, attempt } => {
            mounts.get_ready(image, access, attempt).map(|()| Response::PrefetchStarted)
        }
        Request::NotReady { image, access } => mounts.not_ready(&image, &access).map(|()| Response::PrefetchStarted),
        Request::PrefetchPack { image, access, pack, place } => {
            mounts.prefetch_pack(image, access, PackPlace { blob: pack, place }).map(|()| Response::PrefetchStarted)
        }
        Request::RenewCredentials { mountpoint, access } => {
            mounts.renew_credentials(&mountpoint, &access).map(|()| Response::Renewed)
        }
        Request::Unmount { mountpoint, only_unused } => {
            mounts.unmount(&mountpoint, only_unused).map(|how| Response::Unmounted { how })
        }
        Request::PodmanRemove { mountpoint, name, force } => {
            mounts.withdraw(&mountpoint, name.as_deref(), force).map(|how| Response::Unmounted { how })
        }
        Request::PodmanUnused => mounts.refuse_if_exhibits_are_used().map(|()| Response::Unused),
        Request::Trace { mountpoint } => mounts.trace(&mountpoint).map(|file| Response::Trace { file }),
        Request::Why { mountpoint } => mounts.why(&mountpoint).map(|account| Response::Why(Box::new(account))),
        Request::Scrub => Ok(Response::Scrub(mounts.scrub.status().unwrap_or_default())),
        Request::Mend => mounts.mend().map(Response::Mended),
        Request::Hold => Ok(Response::Held),
        // Served by the listener, because it takes long.
        Request::BringStart(_) => Err(Error::new(ErrorKind::Other, "serve the request", "it has no single answer")),
        Request::HandOver { successor } => mounts.hand_over(successor).map(|()| Response::HandingOver),
        Request::Upgrade => mounts.upgrade(),
        Request::Status => Ok(Response::Status { mounts: mounts.status() }),
        Request::StatusOf { mountpoint } => {
            // A user may compare it with a later one.
            mounts.keep_counters();
            Ok(Response::Status { mounts: mounts.status_of(&mountpoint).into_iter().collect() })
        }
    }
}

/// As [`carry_out`], on a thread of its own so that reads go on.
pub(super) async fn answer(mounts: &Arc<MountTable>, request: Request) -> Response {
    let mounts = mounts.clone();
    let done = tokio::task::spawn_blocking(move || carry_out(&mounts, request))
        .await
        .unwrap_or_else(|error| Err(Error::new(ErrorKind::Other, "serve the request", error)));
    done.unwrap_or_else(Response::Failed)
}

/// The error of a response other than the expected one.
pub(super) fn failure(response: Response) -> Error {
    match response {
        Response::Failed(error) => error,
        other => Error::new(ErrorKind::Other, "ask the server", format!("an answer to another question: {other:?}")),
    }
}
