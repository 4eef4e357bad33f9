//! [`Podman`]: what Podman sees of a store, and how that changes.

use std::path::{Path, PathBuf};

use tarpon_client::Client;
use tarpon_client::protocol::{Backfill, DiffIds, LayersPart, MountRequest, MountStatus, PodmanNames};
use tarpon_images::Access;
use tarpon_images::progress::Progress;
use tarpon_images::{ImageRequest, Images, PolicyChoice, Prepared};
use tarpon_oci::{Digest, Reference, Source};

use super::forms::keep_forms;
use super::place::{self, image_folder};
use super::setup::{self, Setup};
use crate::{Error, ErrorKind, Result, ResultExt};

/// Stands for an image where the store of layers is listed among mounts.
const LAYERS: &str = "podman-layers";

/// Options of an image to expose to Podman.
#[derive(Debug, Clone, Default)]
pub struct PodmanRequest {
    /// Its name in Podman. None: its own.
    pub name: Option<String>,
    /// Whether the rest of it is fetched in the background.
    pub backfill: Backfill,
}

/// The images and layers of a store that Podman sees.
#[derive(Debug, Clone)]
pub struct Podman {
    images: Images,
    client: Client,
}

impl Podman {
    /// `client`: of the server of the same store.
    pub fn new(images: Images, client: Client) -> Self {
        Self { images, client }
    }

    /// Whether this user may expose images to Podman. To be checked before anything is fetched for it.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if not, [`ErrorKind::Refused`] if the store is isolated.
    pub fn may_show(&self) -> Result<()> {
        self.images.refuse_isolated("show images to Podman")?;
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::CannotMount, "show images to Podman", "only root may"))
    }

    /// Exposes a prepared image to Podman. Usable when it returns. Starts a server if none runs.
    pub async fn add(
        &self,
        request: &ImageRequest,
        prepared: &Prepared,
        wish: &PodmanRequest,
        progress: &dyn Progress,
    ) -> Result<MountStatus> {
        self.images.refuse_isolated("show the image to Podman")?;
        let name = full_name(&request.source, wish.name.as_deref())?;
        let config = self.images.store().image_config(prepared.manifest());
        let step = "load the image's record";
        let config = config.context(ErrorKind::Store, step)?;
        let id =
            *config.ok_or_else(|| Error::new(ErrorKind::Store, step, "it is not in the store, or damaged"))?.digest();
        keep_forms(&self.images, request, &prepared.record, false, progress).await?;
        let added = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let added = u64::try_from(added).unwrap_or(u64::MAX);
        let mount = MountRequest {
            podman: Some(PodmanNames { names: vec![name], added }),
            backfill: wish.backfill,
            ..MountRequest::for_image(prepared, image_folder(&self.images.store().podman_folder(), &id))
        };
        self.client.mount(mount)
    }

    /// The images exposed to Podman, even if their server is dead.
    pub fn images(&self) -> Result<Vec<MountStatus>> {
        Ok(self.client.mounts()?.into_iter().filter(|mount| mount.podman.is_some()).collect())
    }

    /// Adds the store to the `storage.conf` at `file`, or removes it with `undo`; with `layers`, the store of layers as well. Creates the
    /// folders that Podman then reads: it fails if one is missing.
    pub fn set_up(&self, file: &Path, layers: bool, undo: bool) -> Result<Setup> {
        if !undo {
            self.images.refuse_isolated("tell Podman of the store")?;
        }
        let (images, of_layers) = (self.images.store().podman_folder(), self.images.store().podman_layers_folder());
        let step = "make a directory for Podman's store";
        // A mounted folder is not to be written to, and is complete.
        let is_mounted = |folder: &Path| -> Result<bool> {
            let mounted = tarpon_mount::mount_at(folder).context(ErrorKind::Store, step)?;
            Ok(mounted.is_some_and(|mount| mount.is_ours()))
        };
        if !undo && !is_mounted(&images)? {
            place::make(&images).context(ErrorKind::Store, step)?;
        }
        if !undo && layers && !is_mounted(&of_layers)? {
            place::make_empty(&of_layers).context(ErrorKind::Store, step)?;
        }
        setup::change(file, &images, (layers || undo).then_some(&*of_layers), undo)
    }

    /// Whether the `storage.conf` at `file` names the store of images.
    pub fn reads(&self, file: &Path) -> bool {
        setup::names(file, &self.images.store().podman_folder())
    }

    /// Serves layers to Podman, from images that it pulls from now on, and again after a restart of the server. `access` is used for
    /// registries, since Podman does not pass its own. Starts a server if none runs.
    pub fn start_layers(&self, access: Access, diff_ids: DiffIds) -> Result<MountStatus> {
        self.images.refuse_isolated("serve layers to Podman")?;
        let folder = self.images.store().podman_layers_folder();
        self.client.mount(layers_request(access, diff_ids, folder)?)
    }

    /// Stops serving layers.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if images in Podman use served layers, unless `force`; [`ErrorKind::NotFound`] if none are served.
    pub fn stop_layers(&self, force: bool) -> Result<()> {
        let folder = self.images.store().podman_layers_folder();
        if !self.layers()?.iter().any(|mount| mount.mountpoint == folder) {
            return Err(Error::new(ErrorKind::NotFound, "unmount Podman's layers", "they are not served"));
        }
        self.client.podman_remove(&folder, None, force)
    }

    /// The store of layers and the images in it, even if their server is dead.
    pub fn layers(&self) -> Result<Vec<MountStatus>> {
        Ok(self.client.mounts()?.into_iter().filter(|mount| mount.layers.is_some()).collect())
    }

    /// Removes all images from Podman and stops serving layers to it.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if Podman uses any of them: then all stay.
    pub fn remove_all(&self) -> Result<()> {
        let (images, layers) = (self.images()?, self.layers()?);
        if images.is_empty() && layers.is_empty() {
            return Ok(());
        }
        self.client.podman_unused()?;
        images.iter().try_for_each(|image| self.remove(image, None, false))?;
        match self.stop_layers(false) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            stopped => stopped,
        }
    }

    /// Removes an image from Podman, or only this name of it, if it has others.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if a container uses it, unless `force`.
    pub fn remove(&self, image: &MountStatus, name: Option<&str>, force: bool) -> Result<()> {
        self.client.podman_remove(&image.mountpoint, name, force)
    }
}

/// The request for the store of layers in `folder`.
fn layers_request(access: Access, diff_ids: DiffIds, folder: PathBuf) -> Result<MountRequest> {
    let policy = policy_file(&access.policy)?;
    Ok(MountRequest {
        access,
        layers: Some(LayersPart::Store { diff_ids, policy }),
        // It belongs to no image: its record keeps nothing from eviction.
        ..MountRequest::new(LAYERS.to_owned(), Digest::of(b""), folder)
    })
}

/// The policy's file, absolute, because the server has another current directory. `None`: the host's policy.
fn policy_file(choice: &PolicyChoice) -> Result<Option<PathBuf>> {
    let step = "read the name of the policy";
    match choice {
        PolicyChoice::Host => Ok(None),
        PolicyChoice::File(file) => std::path::absolute(file).map(Some).context(ErrorKind::Other, step),
        PolicyChoice::Settled(_) => Err(Error::new(ErrorKind::Other, step, "it is known for a single image only")),
    }
}

/// The name as Podman writes it: with its registry, and with a digest instead of a tag where one was given.
fn full_name(source: &Source, name: Option<&str>) -> Result<String> {
    let step = "name the image";
    let reference = match (name, source) {
        (Some(name), _) => name.parse::<Reference>().context(ErrorKind::NotFound, step)?,
        (None, Source::Registry(reference)) => reference.clone(),
        (None, _) => {
            let cause = "an image of a layout or archive has no name in Podman".to_owned();
            return Err(Error::new(ErrorKind::NotFound, step, cause).hint("give it one: --name localhost/NAME:TAG"));
        }
    };
    Ok(match reference.digest() {
        Some(digest) => reference.pinned(*digest).to_string(),
        None => reference.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use tarpon_client::mount_record::SavedMount;

    use super::*;

    fn recorded(policy: PolicyChoice) -> Option<LayersPart> {
        let access = Access { policy, ..Access::default() };
        let request = layers_request(access, DiffIds::Claimed, PathBuf::from("/layers")).unwrap();
        let sent: MountRequest = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
        SavedMount::new(&sent).request.layers
    }

    #[test]
    fn the_named_policy_reaches_the_server_and_its_record_as_an_absolute_path() {
        let layers = |policy: Option<PathBuf>| Some(LayersPart::Store { diff_ids: DiffIds::Claimed, policy });
        let strict = PathBuf::from("/etc/strict.json");
        assert_eq!(recorded(PolicyChoice::File(strict.clone())), layers(Some(strict)));
        let here = std::env::current_dir().unwrap().join("strict.json");
        assert_eq!(recorded(PolicyChoice::File("strict.json".into())), layers(Some(here)));
        assert_eq!(recorded(PolicyChoice::Host), layers(None));
    }

    #[test]
    fn a_record_from_before_policies_is_still_read() {
        let old: LayersPart = serde_json::from_str(r#"{"store":{"diff_ids":"claimed"}}"#).unwrap();
        assert_eq!(old, LayersPart::Store { diff_ids: DiffIds::Claimed, policy: None });
    }
}
