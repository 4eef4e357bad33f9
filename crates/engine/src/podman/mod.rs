//! Images in Podman's sight: one file system that Podman reads as an additional store of images, in the format of
//! containers/storage.
//!
//! ```text
//! add: prepare ─► layers as directories (forms) ─► record ──► server: images.json, layers.json, overlay/ID/diff … ─► StoreFs
//! ```
//!
//! Beside it, a store of layers, which Podman asks for each layer that it pulls, and of which it keeps what it finds ([`offer`], [`offered`]):
//!
//! ```text
//! podman pull ─► server ─► offer: prepare ─► layers by themselves (forms) ─► server: LAYER/{diff,info,blob} ─► LayerStoreFs
//! ```
//!
//! What is served is worked out anew of all added images with each change ([`documents`], [`shelf`]) and shown at once. What
//! Podman may take for true of other images as well is nothing that was not hashed as a whole ([`ids`]).

mod documents;
mod forms;
mod guard;
mod ids;
mod in_use;
mod listed;
mod offer;
mod offered;
mod place;
mod setup;
mod version;
mod view;

use std::path::Path;

use serde::{Deserialize, Serialize};
use tarpon_mount::{ModeChoice, Writable};
use tarpon_oci::{Digest, Reference, Source};

pub(crate) use self::guard::Guard;
pub use self::guard::guard;
pub(crate) use self::in_use::mounted as mounted_link;
pub(crate) use self::listed::Listed;
pub use self::offer::offer;
pub(crate) use self::offer::{Offer, ask};
pub(crate) use self::offered::Offered;
pub(crate) use self::place::{make as make_place, make_empty};
pub use self::setup::Setup;
pub use self::version::PodmanVersion;
pub(crate) use self::view::{View, own_links};
use crate::image::{ImageRequest, Prepared};
use crate::progress::Progress;
use crate::protocol::{Access, Backfill, DiffIds, LayersPart, MountRequest, MountStatus};
use crate::{Engine, Error, ErrorKind, Result};

/// What stands for an image where the store of layers is listed among mounts.
const LAYERS: &str = "podman-layers";

/// How Podman is to know an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodmanNames {
    /// Its names. None: it is known by its id only.
    pub names: Vec<String>,
    /// When it was added, in nanoseconds since 1970: of two that want one name, the later one has it.
    pub added: u64,
}

/// What is wanted of an image that is to be shown to Podman.
#[derive(Debug, Clone, Default)]
pub struct PodmanWish {
    /// Its name there. None: its own.
    pub name: Option<String>,
    /// Whether the rest of it is brought in the background.
    pub backfill: Backfill,
}

/// An image as Podman knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodmanImage {
    /// Its id: the digest of its config.
    pub id: Digest,
    /// Its names.
    pub names: Vec<String>,
}

impl Engine {
    /// Whether this user may show images to Podman, before anything is fetched for it.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if not, [`ErrorKind::Refused`] if the store is isolated.
    pub fn may_show_to_podman(&self) -> Result<()> {
        self.refuse_isolated("show images to Podman")?;
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::CannotMount, "show images to Podman", "only root may"))
    }

    /// Shows a prepared image to Podman. Usable when it returns. Starts a server if none runs.
    pub async fn podman_add(
        &self,
        request: &ImageRequest,
        prepared: &Prepared,
        wish: &PodmanWish,
        progress: &dyn Progress,
    ) -> Result<MountStatus> {
        self.refuse_isolated("show the image to Podman")?;
        let name = full_name(&request.source, wish.name.as_deref())?;
        let config = self.store().image_config(prepared.manifest());
        let failed = |cause: String| Error::new(ErrorKind::Store, "load the image's record", cause);
        let config = config.map_err(|error| failed(error.to_string()))?;
        let id = *config.ok_or_else(|| failed("it is not in the store, or damaged".into()))?.digest();
        self.keep_forms(request, &prepared.record, false, progress).await?;
        let added = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let added = u64::try_from(added).unwrap_or(u64::MAX);
        let mount = MountRequest {
            podman: Some(PodmanNames { names: vec![name], added }),
            backfill: wish.backfill,
            ..prepared.mount_on(image_place(&self.store().podman_folder(), &id))
        };
        self.client().mount(mount)
    }

    /// The images that Podman is shown, also if the server that showed them is dead.
    pub fn podman_images(&self) -> Result<Vec<MountStatus>> {
        Ok(self.mounts()?.into_iter().filter(|mount| mount.podman.is_some()).collect())
    }

    /// Tells Podman of the store, in the `storage.conf` at `file`, or no more with `undo`; with `layers`, of that of layers as well. Makes
    /// the folders that it then looks into: Podman fails where there is none.
    pub fn podman_setup(&self, file: &Path, layers: bool, undo: bool) -> Result<Setup> {
        if !undo {
            self.refuse_isolated("tell Podman of the store")?;
        }
        let (images, of_layers) = (self.store().podman_folder(), self.store().podman_layers_folder());
        let failed = |error| Error::new(ErrorKind::Store, "make a directory for Podman's store", error);
        // What is mounted is not to be written to, and has all of it.
        let is_mounted = |folder: &Path| {
            let mounted = tarpon_mount::mount_at(folder).map_err(failed)?;
            Ok(mounted.is_some_and(|mount| mount.is_ours()))
        };
        if !undo && !is_mounted(&images)? {
            place::make(&images).map_err(failed)?;
        }
        if !undo && layers && !is_mounted(&of_layers)? {
            place::make_empty(&of_layers).map_err(failed)?;
        }
        setup::change(file, &images, (layers || undo).then_some(&*of_layers), undo)
    }

    /// Whether the `storage.conf` at `file` names the store of images.
    pub fn podman_reads(&self, file: &Path) -> bool {
        setup::names(file, &self.store().podman_folder())
    }

    /// Serves layers to Podman, from images that it pulls from now on, and again after the server was started anew. `access` is how
    /// registries are asked, for Podman does not say how it does. Starts a server if none runs.
    pub fn podman_layers_start(&self, access: Access, diff_ids: DiffIds) -> Result<MountStatus> {
        self.refuse_isolated("serve layers to Podman")?;
        let request = MountRequest {
            image: LAYERS.to_owned(),
            // It is of no image: nothing is kept from eviction by its record.
            manifest: Digest::of(b""),
            mountpoint: self.store().podman_layers_folder(),
            mode: ModeChoice::Auto,
            writable: Writable::No,
            suid: false,
            dev: false,
            access,
            backfill: Backfill::Off,
            backfill_rate: None,
            credentials_lost: false,
            record: false,
            metrics: None,
            trace: None,
            podman: None,
            layers: Some(LayersPart::Store { diff_ids }),
            fallbacks: Vec::new(),
        };
        self.client().mount(request)
    }

    /// Serves layers no more.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if Podman has images with layers that are here, unless `force`; [`ErrorKind::NotFound`] if none are
    /// served.
    pub fn podman_layers_stop(&self, force: bool) -> Result<()> {
        let folder = self.store().podman_layers_folder();
        if !self.podman_layers()?.iter().any(|mount| mount.mountpoint == folder) {
            return Err(Error::new(ErrorKind::NotFound, "unmount Podman's layers", "they are not served"));
        }
        self.client().podman_remove(&folder, None, force)
    }

    /// The store of layers and the images in it, also if the server that served them is dead.
    pub fn podman_layers(&self) -> Result<Vec<MountStatus>> {
        Ok(self.mounts()?.into_iter().filter(|mount| mount.layers.is_some()).collect())
    }

    /// Takes all images away from Podman and serves it no layers any more.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if Podman uses any of them: then all stay.
    pub fn podman_remove_all(&self) -> Result<()> {
        let (images, layers) = (self.podman_images()?, self.podman_layers()?);
        if images.is_empty() && layers.is_empty() {
            return Ok(());
        }
        self.client().podman_unused()?;
        images.iter().try_for_each(|image| self.podman_remove(image, None, false))?;
        match self.podman_layers_stop(false) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            stopped => stopped,
        }
    }

    /// Takes an image away from Podman; only this name of it, if it has others.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if a container uses it, unless `force`.
    pub fn podman_remove(&self, image: &MountStatus, name: Option<&str>, force: bool) -> Result<()> {
        self.client().podman_remove(&image.mountpoint, name, force)
    }
}

/// Where an image is, for whoever lists mounts.
pub(crate) fn image_place(folder: &std::path::Path, id: &Digest) -> std::path::PathBuf {
    folder.join("overlay-images").join(id.hex())
}

/// The name as Podman writes it: with its registry, and with a digest instead of a tag where one was given.
fn full_name(source: &Source, name: Option<&str>) -> Result<String> {
    let invalid = |cause: String| Error::new(ErrorKind::NotFound, "name the image", cause);
    let reference = match (name, source) {
        (Some(name), _) => name.parse::<Reference>().map_err(|error| invalid(error.to_string()))?,
        (None, Source::Registry(reference)) => reference.clone(),
        (None, _) => {
            let cause = "an image of a layout or archive has no name in Podman".to_owned();
            return Err(invalid(cause).hint("give it one: --name localhost/NAME:TAG"));
        }
    };
    Ok(match reference.digest() {
        Some(digest) => reference.pinned(*digest).to_string(),
        None => reference.to_string(),
    })
}
