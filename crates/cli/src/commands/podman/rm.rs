//! `tarpon podman rm`.

use clap::Args;
use tarpon_engine::MountStatus;

use crate::commands::each::each;
use crate::commands::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon podman rm docker.io/library/redis:7
  tarpon podman rm 1f2e3d4c5b6a                by image ID or a prefix of it
  tarpon podman rm --all";

/// Minimum number of digits of an image ID.
const ID_DIGITS: usize = 8;

/// Remove images from Podman
///
/// Fetched data stays in the store. Fails while a running container uses an image, as far as this can be detected.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Rm {
    /// Remove all images
    #[arg(short, long, conflicts_with = "images")]
    all: bool,
    /// Also remove images in use; once the last image is removed, their containers can read local data only
    #[arg(short, long)]
    force: bool,
    /// Image names or IDs
    #[arg(value_name = "IMAGE", required_unless_present = "all")]
    images: Vec<String>,
}

impl Rm {
    pub(super) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let images = session.engine().podman().images().doing(|| "cannot list the images")?;
        let doing = |name: &str| format!("cannot remove {name} from Podman");
        if self.all {
            return each(&images, |image| {
                session.engine().podman().remove(image, None, self.force).doing(|| doing(&image.image))
            });
        }
        each(&self.images, |name| {
            let (image, its_name) = find(&images, name)
                .ok_or_else(|| Failure::new(Exit::NotFound, format_args!("{}: no such image", doing(name))))?;
            session.engine().podman().remove(image, its_name, self.force).doing(|| doing(name))
        })
    }
}

/// The matching image, and the name that matched, if it was not the ID.
fn find<'i>(images: &'i [MountStatus], wanted: &str) -> Option<(&'i MountStatus, Option<&'i str>)> {
    let full = wanted.parse::<tarpon_oci::Reference>().map(|name| name.to_string()).ok();
    let by_name = |image: &'i MountStatus| {
        let names = &image.podman.as_ref()?.names;
        let name = names.iter().find(|name| *name == wanted || Some(*name) == full.as_ref())?;
        Some((image, Some(name.as_str())))
    };
    let wanted_id = wanted.strip_prefix("sha256:").unwrap_or(wanted);
    let has_id = |image: &&MountStatus| {
        let id = image.podman.as_ref().map(|podman| podman.id.hex());
        wanted_id.len() >= ID_DIGITS && id.is_some_and(|id| id.starts_with(wanted_id))
    };
    images.iter().find_map(by_name).or_else(|| images.iter().find(has_id).map(|image| (image, None)))
}
