//! The host's policy on images: `containers-policy.json(5)`, as Podman, Skopeo and CRI-O read it.
//!
//! ```text
//! choice     which file is the policy ─► Policy
//! config     the file, parsed strictly
//! scope      the names under which an image is looked up in it ─► requirements
//! demands    the requirements for one image, with their keys: data that another process can check
//! identity   whether a signature was made for the image's name
//! payload    what a signature signs
//! key        public keys
//! signing_key, attachment    new signatures
//! ```
//!
//! Nothing is requested here. `tarpon-images` fetches signatures, and has them checked in the process that parses what it received.

mod attachment;
mod choice;
mod config;
mod cosign_key;
mod demands;
mod identity;
mod key;
mod payload;
mod scope;
mod signing_key;
mod strict;

pub use attachment::{Attached, Attachment, SIGNATURE, signature_tag};
pub use choice::{PolicyChoice, PolicyError};
pub use config::{InvalidPolicy, Policy};
pub use demands::{Demands, Refusal, Signature};
pub use key::PublicKey;
pub use payload::{InvalidPayload, Payload};
pub use signing_key::{InvalidKey, SigningKey};
