//! [`RegistriesError`]: why the configuration cannot be used.

use std::path::PathBuf;

/// Why the configuration cannot be used, or what it forbids.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    /// A file cannot be read.
    #[error("{}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file is invalid.
    #[error("{}: {why}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// A file of tarpon's own configuration of endpoints is invalid.
    #[error("{}: {why}", file.display())]
    InvalidEndpoints {
        /// The file.
        file: PathBuf,
        /// Why, with the number of the line.
        why: String,
    },
    /// The image is of a blocked registry.
    #[error("{} blocks {prefix}", file.display())]
    Blocked {
        /// The blocked prefix.
        prefix: String,
        /// The file.
        file: PathBuf,
    },
    /// A mirror or a location does not lead to a valid name.
    #[error("{}: the location {location} leads to {name:?}: {why}", file.display())]
    Location {
        /// The location.
        location: String,
        /// The name with it.
        name: String,
        /// The file.
        file: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// Several search registries may have the image, and the configuration forbids to try them.
    #[error("{name:?} is a short name that may mean {}", candidates.join(" or "))]
    Ambiguous {
        /// The name as written.
        name: String,
        /// The full names.
        candidates: Vec<String>,
    },
}
