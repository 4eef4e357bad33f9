//! Indexes of layers from outside of the layers: the artifacts that hold them, how they are found, and how they are compared with a layer.

pub mod artifact;
pub mod compare;
pub mod find;
pub mod pack;
pub mod places;
pub mod rules;
pub mod search_result;
pub mod soci;
pub(crate) mod whole;
