//! Recovers mounts that outlived their server: finds them by their records. Adopts those whose connections were held, which their users
//! do not notice, and mounts the others again.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use tarpon_client::mount_record::{SavedMount, dead};
use tarpon_client::protocol::{MountRequest, MountStatus, Request, Response};
use tarpon_store::{Mount, MountRecord};

use super::answer::answer;
use super::holding::credentials_of;
use super::mount_table::{MountTable, STOPPED};

/// Adopts the mounts whose connections were held: their readers wait, so nothing here needs the network. Returns the records of the other
/// mounts.
pub(super) async fn adopt_held(mounts: &Arc<MountTable>) -> Vec<MountRecord> {
    let left = mounts.store().mounts().unwrap_or_else(|error| {
        tracing::warn!(%error, "the records of an earlier server's mounts cannot be read");
        Vec::new()
    });
    let adopted = adopt(mounts, &left).await;
    let left = left.into_iter().filter(|left| !adopted.contains(&left.record.mountpoint)).collect();
    let left = show_again(mounts, left).await;
    mounts.host().end_inheritance();
    mounts.domains.whole().counters.forget_mounts();
    left
}

/// Cleans up after a dead server, and mounts again what it had mounted and was not unmounted since.
pub(super) async fn mount_again(mounts: &Arc<MountTable>, left: Vec<MountRecord>) {
    if let Err(error) = mounts.store().sweep() {
        tracing::warn!(%error, "what an earlier server left was not swept");
    }
    for record in left {
        if let Err(problem) = again(mounts, &record).await {
            remember(mounts, &record, problem);
        }
    }
    // Sweeps what the dead mounts held until now.
    mounts.host().sweep();
}

/// Adopts the mounts whose connections were held. Returns their paths.
async fn adopt(mounts: &Arc<MountTable>, left: &[Mount]) -> HashSet<PathBuf> {
    let candidates = left.iter().filter_map(|left| {
        let saved = SavedMount::read(&left.record)?;
        let was = saved.kernel.filter(|was| mounts.host().can_adopt(was))?;
        Some((with_credentials(mounts, saved.request), was))
    });
    let (mounts, candidates) = (mounts.clone(), candidates.collect::<Vec<_>>());
    let adopted = tokio::task::spawn_blocking(move || {
        // All images first: they share a connection, and requests for any of them arrive as soon as it is served.
        let loaded = candidates.into_iter().filter(|(request, _)| is_loaded(&mounts, request)).collect::<Vec<_>>();
        let adopted = loaded.into_iter().filter_map(|(mut request, was)| {
            super::metrics::serve_again(&mounts, &mut request);
            let mountpoint = request.mountpoint.clone();
            match mounts.adopt(request, &was) {
                Ok(true) => Some(mountpoint),
                Ok(false) => None,
                Err(error) => {
                    tracing::warn!(mountpoint = %mountpoint.display(), "not adopted: {error}");
                    None
                }
            }
        });
        adopted.collect()
    })
    .await;
    adopted.unwrap_or_default()
}

fn is_loaded(mounts: &MountTable, request: &MountRequest) -> bool {
    let loaded = mounts.domains.of(&request.image, &request.access).and_then(|domain| domain.images.load(request));
    loaded
        .inspect_err(|error| tracing::warn!(image = request.image, "the image of a mount is not loaded: {error}"))
        .is_ok()
}

/// The request of a mount with its credentials, which are held and in no record.
fn with_credentials(mounts: &MountTable, mut request: MountRequest) -> MountRequest {
    let held = mounts.holding.inherited_state(&credentials_of(&request.mountpoint));
    if let Some(creds) = held.and_then(|held| String::from_utf8(held).ok()) {
        (request.access.creds, request.credentials_lost) = (Some(creds), false);
    }
    request
}

/// Mounts it again, or removes its record if it was unmounted.
async fn again(mounts: &Arc<MountTable>, record: &MountRecord) -> Result<(), String> {
    let saved = SavedMount::read(record);
    if mounts.may_run_on(&record.mountpoint) {
        // It has a mount namespace of its own, in which a new mount would not appear. The record protects the data it reads from eviction.
        return Err(
            "its container runs without it: what is local can be read there, and the rest in a new container".into()
        );
    }
    if let Some(was) = saved.as_ref().and_then(|saved| saved.kernel.as_ref()) {
        mounts.host().end_left(&record.mountpoint, was);
    }
    let was_there = tarpon_mount::clear(&record.mountpoint).map_err(|error| error.to_string())?;
    // A mount that failed to recover earlier is not mounted any more, but still wanted.
    if !was_there && saved.as_ref().is_none_or(|saved| saved.problem.is_none()) {
        mounts.forget(&record.mountpoint);
        return Ok(());
    }
    let is_of_a_container = record.mountpoint.starts_with(mounts.store().containers_folder());
    if is_of_a_container || saved.as_ref().is_some_and(|saved| is_not_wanted(saved, record)) {
        // The container has ended, or the user has removed the mount point meanwhile.
        mounts.forget(&record.mountpoint);
        return Ok(());
    }
    let mut saved = saved.ok_or("its record is of another version")?;
    if saved.request.record {
        // The recorded trace is lost, and so is the mount that its container reads.
        mounts.forget(&record.mountpoint);
        remove_place(mounts, record);
        return Ok(());
    }
    super::metrics::serve_again(mounts, &mut saved.request);
    match answer(mounts, Request::mount(saved.request)).await {
        Response::Failed(error) => Err(error.to_string()),
        _ => {
            tracing::info!(mountpoint = %record.mountpoint.display(), "mounted again");
            Ok(())
        }
    }
}

/// Whether it was intact when its server was stopped, and its directory was removed since.
fn is_not_wanted(saved: &SavedMount, record: &MountRecord) -> bool {
    let is_gone = || std::fs::metadata(&record.mountpoint).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    saved.problem.as_deref() == Some(STOPPED) && is_gone()
}

/// Exposes again what is on record in exhibits. Returns the other records.
async fn show_again(mounts: &Arc<MountTable>, left: Vec<Mount>) -> Vec<MountRecord> {
    let (mut exposed, mut others) = (Vec::new(), Vec::new());
    for Mount { record, .. } in left {
        match SavedMount::read(&record).filter(|saved| mounts.exhibit_for(&saved.request).is_some()) {
            Some(mut saved) => {
                super::metrics::serve_again(mounts, &mut saved.request);
                exposed.push((record, saved.request));
            }
            None => others.push(record),
        }
    }
    let records: Vec<_> = exposed.iter().map(|(record, _)| record.clone()).collect();
    let table = mounts.clone();
    match tokio::task::spawn_blocking(move || table.restore_exhibits(exposed)).await {
        Ok(outcomes) => {
            let failed = outcomes.into_iter().filter_map(|(record, outcome)| Some((record, outcome.err()?)));
            failed.for_each(|(record, error)| remember(mounts, &record, error.to_string()));
        }
        Err(error) => records.iter().for_each(|record| remember(mounts, record, error.to_string())),
    }
    others
}

/// Removes the directory that was created for a recording, when nothing of it is mounted any more.
fn remove_place(mounts: &MountTable, record: &MountRecord) {
    let place = record.mountpoint.parent().filter(|place| place.parent() == Some(&mounts.store().server_folder()));
    if let Some(Err(error)) = place.map(std::fs::remove_dir_all) {
        tracing::warn!(%error, "the directory of a recording stays behind");
    }
}

/// Keeps the mount on record, so that it can be retried once the problem is solved.
fn remember(mounts: &MountTable, record: &MountRecord, problem: String) {
    tracing::warn!(mountpoint = %record.mountpoint.display(), "not mounted again: {problem}");
    if let Some(saved) = SavedMount::read(record) {
        let saved = SavedMount { problem: Some(problem.clone()), ..saved };
        if let Err(error) = saved.write(&mounts.store().of_mount(record)) {
            tracing::warn!(%error, "a mount that could not be made again is not remembered");
        }
    }
    let status = dead(mounts.store(), record);
    mounts.add_lost(MountStatus { problem: Some(problem), ..status });
}
