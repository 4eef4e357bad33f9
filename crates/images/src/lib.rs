//! Images of this host: from a reference to a record in the store.
//!
//! ```text
//! images       the images of one store: the handle for all below
//! admission    whether the host's policy accepts an image
//! access       credentials and connections to registries, layouts and archives
//! sources      images that are read again, and the process that receives their bytes
//! preparer     another process that prepares
//! prepare      resolve, index the layers, merge, record
//! index        indexes of layers from outside of the layers
//! inspect      the description of an image
//! survey       sizes of layers and files of many images, and how often the same ones occur
//! tree_view    the names in a prepared image
//! prefix       the lowest layers of an image as an image of their own
//! tiers        the tier, in which hosts share layers
//! tenant       which content an image may use in an isolated store
//! commits      committed images that are kept until they are pushed
//! ```
//!
//! Nothing is mounted here, and no process is started.

pub mod access;
pub mod admission;
mod auth_files;
pub mod commits;
mod error;
mod flights;
mod image;
mod images;
pub mod index;
mod inspect;
mod lock_file;
mod login;
pub mod object_paths;
pub mod origin;
mod prefix;
mod preparations;
pub mod prepare;
pub mod preparer;
pub mod progress;
mod registries;
#[cfg(test)]
mod slow;
pub mod sources;
mod survey;
pub mod tenant;
pub mod tiers;
mod tree_view;

pub use access::Access;
pub use admission::Admission;
pub use auth_files::auth_files;
pub use commits::{Commits, Committed};
pub use error::{Cause, Error, ErrorKind, Result, ResultExt};
pub use flights::Flights;
pub use image::{DEFAULT_PROFILE, ImageRequest, IndexChoice, LayerLimits, PREDICTED_PROFILE, Prepared, Pull};
pub use images::{Images, open_store};
pub use inspect::{Inspection, LayerInspection};
pub use lock_file::LockFile;
pub use login::{Login, log_out, log_out_of_all, logged_in};
pub use prepare::preparation::Pulled;
pub use progress::{LayerPlan, LayerWay, Progress, Silent};
pub use registries::RegistriesChoice;
pub use survey::{Quantiles, Survey, SurveyTotals, SurveyedImage, images_in};
pub use tarpon_policy::PolicyChoice;
pub use tarpon_registry::{ContainerdHosts, Credentials, RegistriesPaths, StatedEndpoints, StoredIn};
pub use tree_view::{Item, TreeView};
