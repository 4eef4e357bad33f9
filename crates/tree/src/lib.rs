//! Layers merged to one tree, and that tree as an EROFS metadata image.
//!
//! ```text
//! LayerIndex… ──merge──► Tree ──erofs::write──► bytes ──erofs::Image──► inodes, names, xattrs, objects
//! ```
//!
//! [`merge`] applies the whiteout rules of the OCI image specification. Its result has no trace of layers except the place of each
//! object. [`erofs::write`] returns the image that the kernel mounts and that [`erofs::Image`] reads in place, so that both mount
//! modes show one tree.
//!
//! [`delta`] is the reverse: the changes of one layer to those below, in the form that overlayfs needs. With [`underlay`] below it,
//! that is the layer by itself. [`Stack`] finds the changes of each layer of an image.
//!
//! Pure: no I/O, no clock, no visible randomness. The same layers give the same bytes.

mod delta;
mod dump;
pub mod erofs;
mod hide_objects;
mod kind;
mod merge;
mod objects;
mod tree;
mod underlay;
mod xattr;

pub use delta::delta;
pub use dump::Line;
pub use kind::Kind;
pub use merge::{MergeError, Problem, Stack, merge};
pub use tree::{Counts, DentryId, Inode, Object, Tree};
pub use underlay::underlay;
