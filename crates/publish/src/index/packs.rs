//! The existing boot packs beside an image.
//!
//! An index is replaced as a whole by the next one, which therefore takes over the packs of profiles for which it has none itself. A pack
//! can also replace the trace when the pack of a rebuilt image is made.

use bytes::Bytes;
use tarpon_fetch::BootIndex;
use tarpon_images::access;
use tarpon_images::index::artifact::prediction;
use tarpon_images::index::find::{boot_index, boots};
use tarpon_images::index::places::IndexPlaces;
use tarpon_oci::{Artifact, Digest, Verified};
use tarpon_registry::{Repository, ResolvedImage};

use super::boot::{BootPack, Start};
use super::newest::newest;
use crate::Result;

/// Maximum number of packs taken over from an index: far more profiles than users record, and each costs a request.
pub(super) const BOOT_PACKS: usize = 16;

/// A pack in an index.
pub(super) struct Published {
    pub(super) pack: BootPack,
    pub(super) start: Start,
}

/// The packs found, and a line about each unreadable one.
#[derive(Default)]
pub(super) struct Packs {
    /// The version of the prediction for the index that has them.
    pub(super) prediction: Option<u32>,
    pub(super) packs: Vec<Published>,
    pub(super) notes: Vec<String>,
}

/// The packs that the next index of the image takes over: those of the first repository that has any, in the order in which a mount looks for
/// an index.
///
/// # Errors
/// As [`published`].
pub(super) async fn kept(places: &IndexPlaces<'_>, repository: &Repository, image: &ResolvedImage) -> Result<Packs> {
    let mut notes = Vec::new();
    for (number, place) in places.list().iter().enumerate() {
        let known = published(&*places.open(number)?, image).await?;
        notes.extend(known.notes);
        if !known.packs.is_empty() {
            let of_place = |published: Published| Published { pack: published.pack.at(&place.source), ..published };
            return Ok(Packs { packs: known.packs.into_iter().map(of_place).collect(), notes, ..known });
        }
    }
    let own = published(repository, image).await?;
    notes.extend(own.notes);
    Ok(Packs { notes, ..own })
}

/// The packs of the newest index of the image that the registry lists, each profile once.
///
/// # Errors
/// When the registry temporarily fails to return its list, or a listed index. Treating that as absent would lose the packs.
async fn published(repository: &Repository, image: &ResolvedImage) -> Result<Packs> {
    let newest = newest(repository, image.manifest.digest()).await;
    let newest = newest.map_err(|error| access::registry("look for the image's boot packs", error))?;
    let line = |(digest, reason): (Digest, String)| format!("the index {digest} is passed over: {reason}");
    let notes: Vec<String> = newest.passed_over.into_iter().map(line).collect();
    match newest.index {
        Some((_, artifact)) => Ok(of_index(repository, &artifact, notes).await),
        None => Ok(Packs { notes, ..Packs::default() }),
    }
}

async fn of_index(repository: &Repository, artifact: &Artifact, notes: Vec<String>) -> Packs {
    let mut found = Packs { prediction: prediction(artifact), notes, ..Packs::default() };
    for (number, (profile, layer)) in boots(artifact).enumerate() {
        if found.packs.iter().any(|known| known.pack.profile == profile) {
            continue; // requests for this profile get the pack before it
        }
        let read = if number < BOOT_PACKS {
            boot_index(repository, layer).await.and_then(|bytes| pack(bytes, profile))
        } else {
            Err(format!("the index has more than {BOOT_PACKS}"))
        };
        match read {
            Ok(pack) => found.packs.push(pack),
            Err(reason) => found.notes.push(format!("the boot pack {profile} is not kept: {reason}")),
        }
    }
    found
}

/// A pack under the name in its index, by which it is requested.
fn pack(bytes: Verified<Bytes>, profile: &str) -> std::result::Result<Published, String> {
    let index = BootIndex::read(&bytes).map_err(|error| error.to_string())?;
    let index = BootIndex { profile: profile.to_owned(), ..index };
    let start = Start::packed(&index);
    Ok(Published { pack: BootPack::published(bytes, &index), start })
}
