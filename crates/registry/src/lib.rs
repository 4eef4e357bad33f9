//! Sources and destinations of images: registries, OCI layouts and archives. All are read by range through
//! [`tarpon_blob::BlobSource`], and the first two can be written ([`Destination`]).
//!
//! ```no_run
//! # async fn example() -> Result<(), tarpon_registry::Error> {
//! # let source: tarpon_oci::Source = "debian:12".parse().unwrap();
//! let repository = tarpon_registry::open(&source, &tarpon_registry::AccessOptions::default()).await?;
//! let image = repository.resolve(&tarpon_oci::Platform::host()).await?;
//! let config = repository.config(&image).await?;
//! let blobs = repository.blobs();
//! # Ok(())
//! # }
//! ```
//!
//! The bytes of a source are unverified: the reader must check digests. Only manifests and configs are checked here. Out of scope:
//! the meaning of layers, the local store, and which ranges to request.

mod credentials;
mod destination;
mod error;
mod http;
mod local;
mod login;
mod options;
mod referrers;
mod registries;
mod repository;
pub mod serve;
mod stats;
mod timing;
pub mod transport;

pub use credentials::{CredentialLookup, CredentialSource, Credentials, Secret};
pub use credentials::{StoredIn, logged_in, remove_all_logins, remove_login, store_login};
pub use destination::{Destination, open_destination, open_destination_with};
pub use error::Error;
pub use http::{Challenge, ContentRange};
pub use local::images_in;
pub use login::{check_login, check_login_over};
pub use options::AccessOptions;
pub use registries::{
    Address, ContainerdHosts, Endpoint, EndpointCredentials, Header, Registries, RegistriesError, RegistriesPaths,
    StatedEndpoints,
};
pub use repository::{
    OpenedEndpoint, Repository, ResolvedImage, open, open_anonymously, open_later, open_mirrored_with, open_with,
};
pub use stats::{EndpointAccount, EndpointCounts, Stats};
