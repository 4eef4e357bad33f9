//! The credentials of the user: `--creds`, the auth files of Podman and Docker, and credential helpers.
//!
//! A login changes these files ([`store_login`]); anything else only reads them.
//!
//! They are looked up for each token and never kept: a mount outlives passwords, and another login must take effect without a new mount.

mod authfile;
mod edit;
mod edit_lock;
mod helper;
mod secret;
mod source;
mod token_services;

use tarpon_blob::LogLimit;

pub use edit::{StoredIn, logged_in, remove_all_logins, remove_login, store_login};
pub use secret::{Credentials, Secret};
pub use source::{CredentialLookup, CredentialSource};

/// The limit of lines about unreadable files and helpers: they are queried for each token.
static UNREADABLE: LogLimit = LogLimit::new();
