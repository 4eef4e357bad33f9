//! Checks that each entry, by itself, is valid in a file system.
//!
//! The layer readers check more than this. The properties that the merge and the EROFS writer rely on are checked again here.

use tarpon_layer::{Device, Entry, LayerIndex, Node};
use tarpon_oci::limits;

use super::{MergeError, Problem};

/// Checks all entries of all layers, and that they are not too many.
pub(super) fn entries(layers: &[LayerIndex]) -> Result<(), MergeError> {
    let count = layers.iter().fold(0, |sum: usize, layer| sum.saturating_add(layer.entries.len()));
    if count > limits::IMAGE_ENTRIES {
        return Err(MergeError::TooManyEntries);
    }
    for (layer, index) in layers.iter().enumerate() {
        for entry in &index.entries {
            let wrong = |problem| MergeError::Entry { layer, path: entry.path.clone(), problem };
            problem_of(entry).map_or(Ok(()), |problem| Err(wrong(problem)))?;
        }
    }
    Ok(())
}

fn problem_of(entry: &Entry) -> Option<Problem> {
    if entry.path.is_root() && !matches!(entry.node, Node::Directory | Node::Opaque) {
        return Some(Problem::RootNotDirectory);
    }
    let nanoseconds = entry.attributes.mtime.nanoseconds;
    if nanoseconds >= 1_000_000_000 {
        return Some(Problem::Nanoseconds(nanoseconds));
    }
    match &entry.node {
        Node::File(content) if content.size > limits::FILE_BYTES => Some(Problem::FileSize(content.size)),
        Node::Symlink(target) if !is_target(target) => Some(Problem::SymlinkTarget),
        Node::CharDevice(Device { major: 0, minor: 0 }) => Some(Problem::Device { major: 0, minor: 0 }),
        Node::CharDevice(Device { major, minor }) | Node::BlockDevice(Device { major, minor })
            if *major >= 1 << 12 || *minor >= 1 << 20 =>
        {
            Some(Problem::Device { major: *major, minor: *minor })
        }
        _ => None,
    }
}

fn is_target(target: &[u8]) -> bool {
    (1..=limits::SYMLINK_BYTES).contains(&target.len()) && !target.contains(&0)
}
