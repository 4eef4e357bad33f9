//! Where images come from and go to: registries, OCI layouts and archives, all read by range through
//! [`tarpon_blob::BlobSource`], the first two also written ([`Destination`]).
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
//! What comes out of a source is unverified: who reads it checks digests. Only manifests and configs are checked here.
//! Not here: what layers mean, what is kept on this host, which ranges to ask for.

mod credentials;
mod destination;
mod error;
mod http;
mod local;
mod options;
mod referrers;
mod repository;
pub mod serve;
mod stats;
mod timing;
pub mod transport;

pub use credentials::{CredentialSource, Credentials, Secret};
pub use destination::{Destination, open_destination, open_destination_with};
pub use error::Error;
pub use http::{Challenge, ContentRange};
pub use options::AccessOptions;
pub use repository::{Repository, ResolvedImage, open, open_later, open_with};
pub use stats::Stats;
