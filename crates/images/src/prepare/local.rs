//! The local state of an image before its source is contacted: whether its record can be used, and whether its objects were hashed since
//! the machine booted.

use std::time::Duration;

use tarpon_oci::Digest;
use tarpon_store::{Checked, ImageRecord, ImageState, StoreError};
use tokio::sync::watch;

use crate::admission::Admission;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::{ImageRequest, Prepared, Pull};
use crate::images::Images;
use crate::progress::Progress;

/// Time between two progress lines about hashing objects. Shorter work prints none.
const HASHING_LINE: Duration = Duration::from_secs(1);

impl Images {
    /// The local state of the image that this name last referred to. An image that was not accepted under the demands of the policy is
    /// absent: its source proves that it fulfils them.
    pub(super) fn local(&self, request: &ImageRequest) -> Result<ImageState> {
        let admission = Admission::of(&request.source, &request.access)?;
        let state = self.named(request)?;
        let record = match &state {
            ImageState::Sound(record) | ImageState::Damaged { usable: Some(record), .. } => record,
            _ => return Ok(state),
        };
        match admission.is_noted(self.store(), &record.manifest)? {
            true => Ok(state),
            false if request.pull == Pull::Never => Err(admission.unproven()),
            false => Ok(ImageState::Absent),
        }
    }

    fn named(&self, request: &ImageRequest) -> Result<ImageState> {
        let step = "look in the store";
        let (name, platform) = (request.source.to_string(), request.platform.to_string());
        let Some(reference) = self.store().reference(&name, &platform).context(ErrorKind::Store, step)? else {
            return Ok(ImageState::Absent);
        };
        self.believed(&reference.manifest).context(ErrorKind::Store, step)
    }

    /// The local state of the image. A record derived from a lying index is removed, unless the image is mounted: then the finding is part
    /// of it.
    pub(crate) fn believed(&self, manifest: &Digest) -> std::result::Result<ImageState, StoreError> {
        let state = self.store().image_state(manifest)?;
        let is_removed = |record: &ImageRecord| {
            record.layers.iter().any(|layer| layer.verification.is_refuted())
                && self.store().remove_image(&record.manifest).is_ok()
        };
        Ok(match state {
            ImageState::Sound(record) if is_removed(&record) => ImageState::Absent,
            state => state,
        })
    }

    /// Hashes the local objects of the image, unless that was done since the machine booted: the server that mounts it then has nothing
    /// left to hash. Not for users who cannot mount in mode `native`: in mode `fuse` objects are hashed when they are opened.
    pub(super) async fn check_objects(&self, record: &ImageRecord, progress: &dyn Progress) -> Result<()> {
        if !rustix::process::geteuid().is_root() || self.store().knows_image(&record.manifest) {
            return Ok(());
        }
        let (store, manifest) = (self.store().clone(), record.manifest);
        let (sender, hashed) = watch::channel(tarpon_store::Progress::default());
        let mut check = tokio::task::spawn_blocking(move || {
            // Threads report in any order.
            let tell = |now: tarpon_store::Progress| {
                sender.send_if_modified(|last| {
                    let is_newer = now.objects > last.objects;
                    *last = if is_newer { now } else { *last };
                    is_newer
                });
            };
            store.check_image(&manifest, &tell)
        });
        let step = "check the image's objects";
        loop {
            tokio::select! {
                checked = &mut check => {
                    let checked = checked.context(ErrorKind::Store, step)?;
                    report(&checked.context(ErrorKind::Store, step)?, progress);
                    return Ok(());
                }
                () = tokio::time::sleep(HASHING_LINE) => {
                    let tarpon_store::Progress { objects, bytes } = *hashed.borrow();
                    // Nothing is hashed yet, or nothing has to be: the disk lists the files slowly.
                    if objects == 0 {
                        continue;
                    }
                    let mib = bytes >> 20;
                    progress.note(&format!("first use since the machine was started: hashed {objects} local files, {mib} MiB"));
                }
            }
        }
    }
}

fn report(checked: &Checked, progress: &dyn Progress) {
    let count = checked.bad_objects();
    if count > 0 {
        let s = if count == 1 { "" } else { "s" };
        progress.note(&format!("{count} damaged file{s} removed from the store: fetched again when read"));
    }
}

/// Reports that a damaged image is prepared again.
pub(super) fn note_damage(state: &ImageState, progress: &dyn Progress) {
    if let ImageState::Damaged { files, .. } = state {
        progress.note(&format!("the image is damaged in the store ({}): it is prepared again", files.join(", ")));
    }
}

/// The result of preparing an image again that was found in this state. If its source is unreachable, damage is reported, and what is
/// usable is used.
pub(super) fn with_damage(
    made: Result<Prepared>,
    state: ImageState,
    request: &ImageRequest,
    progress: &dyn Progress,
) -> Result<Prepared> {
    let (Err(error), ImageState::Damaged { usable, files }) = (&made, state) else { return made };
    let damage = format!("the image is damaged in the store: {}", files.join(", "));
    match usable {
        Some(record) if error.kind == ErrorKind::Unavailable => {
            let line = format!("{damage}; not prepared again: {error}");
            progress.note(&line);
            Ok(Prepared::of(request, record, vec![line]))
        }
        _ => Err(error.clone().because(format!("{}; {damage}", error.cause()))),
    }
}

/// The local image, if no source may be contacted.
pub(super) fn without_asking(state: ImageState, request: &ImageRequest, progress: &dyn Progress) -> Result<Prepared> {
    let (record, damage) = only_here(state)?;
    damage.iter().for_each(|line| progress.note(line));
    Ok(Prepared::of(request, record, damage.into_iter().collect()))
}

/// The record to use if no source may be contacted, and its damage that a mount does not need.
pub(super) fn only_here(state: ImageState) -> Result<(ImageRecord, Option<String>)> {
    match state {
        ImageState::Sound(record) => Ok((record, None)),
        ImageState::Damaged { usable: Some(record), files } => {
            Ok((record, Some(format!("the image is damaged in the store: {}", files.join(", ")))))
        }
        ImageState::Damaged { usable: None, files } => {
            let cause = format!("the image is damaged there: {}", files.join(", "));
            let hint = "the pull policy is \"never\"; without it the image would be prepared again";
            Err(Error::new(ErrorKind::Store, "look in the store", cause).hint(hint))
        }
        ImageState::Absent => Err(not_here()),
    }
}

fn not_here() -> Error {
    Error::new(ErrorKind::NotFound, "look in the store", "the image is not there")
        .hint("the pull policy is \"never\"; without it the image would be looked up in the registry")
}
