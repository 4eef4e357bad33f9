//! The saved form of [`Nodes`]: what a successor of this server cannot derive from the records of images.
//!
//! It holds no bytes of files: their digests identify them. Files that were replaced while open are lost with the server.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tarpon_fs::NodeId;
use tarpon_layer::Timestamp;
use tarpon_oci::Digest;

use super::nodes::{FileContent, LayerIdentity, Node, Nodes, What};
use crate::diff_fs::NODE_BITS;
use crate::layer_numbers::{LayerNumbers, inward};
use crate::saved_state::RestoreError;

/// First bytes. Changes with the format.
const MAGIC: &[u8; 8] = b"tarpon i";
/// Maximum size. A layer takes 360 bytes (measured), so this is a store of 180,000.
const MOST_BYTES: usize = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Saved<'n> {
    last: u64,
    /// In the order of their numbers.
    layers: Vec<LayerIdentity>,
    #[serde(borrow)]
    nodes: Vec<SavedNode<'n>>,
}

#[derive(Serialize, Deserialize)]
struct SavedNode<'n> {
    id: u64,
    parent: u64,
    mtime: (i64, u32),
    #[serde(borrow)]
    what: SavedKind<'n>,
}

#[derive(Serialize, Deserialize)]
enum SavedKind<'n> {
    Directory { uid: u32, gid: u32, names: Cow<'n, BTreeMap<String, u64>> },
    File(Digest),
    Link(&'n str),
}

/// The bytes for [`decode`].
pub(super) fn encode(nodes: &Nodes) -> Vec<u8> {
    let saved = Saved {
        last: nodes.last,
        layers: nodes.layers.keys().copied().collect(),
        nodes: nodes.nodes.iter().map(|(id, node)| save(*id, node)).collect(),
    };
    // Serializing numbers, digests and texts cannot fail; if it did, the successor would refuse what it finds.
    postcard::to_extend(&saved, MAGIC.to_vec()).unwrap_or_default()
}

fn save(id: u64, node: &Node) -> SavedNode<'_> {
    let what = match &node.what {
        What::Directory { uid, gid, names } => {
            SavedKind::Directory { uid: *uid, gid: *gid, names: Cow::Borrowed(names) }
        }
        What::File(content) => SavedKind::File(content.digest),
        What::Link(target) => SavedKind::Link(target),
    };
    SavedNode { id, parent: node.parent, mtime: (node.mtime.seconds, node.mtime.nanoseconds), what }
}

/// The nodes in `bytes`, without the bytes of files and without loaded layers.
pub(super) fn decode(bytes: &[u8]) -> Result<Nodes, RestoreError> {
    if bytes.is_empty() {
        return Err(RestoreError::Missing);
    }
    if bytes.len() > MOST_BYTES {
        return Err(RestoreError::TooLarge);
    }
    let saved = bytes.strip_prefix(MAGIC).ok_or(RestoreError::Format)?;
    let (saved, rest): (Saved<'_>, _) = postcard::take_from_bytes(saved).map_err(|_| RestoreError::Format)?;
    if !rest.is_empty() {
        return Err(RestoreError::Format);
    }
    if saved.last < NodeId::ROOT.0 || saved.last >> NODE_BITS != 0 {
        return Err(RestoreError::Damaged("the last node id"));
    }
    let layers = LayerNumbers::restored(saved.layers).ok_or(RestoreError::Damaged("numbers of layers"))?;
    let count = saved.nodes.len();
    let nodes: HashMap<u64, Node> = saved.nodes.into_iter().map(load).collect();
    let nodes = Nodes { nodes, last: saved.last, layers, ..Nodes::default() };
    if nodes.nodes.len() != count || nodes.nodes.keys().any(|id| *id < NodeId::ROOT.0 || *id > nodes.last) {
        return Err(RestoreError::Damaged("node ids"));
    }
    check_tree(&nodes)?;
    Ok(nodes)
}

fn load(saved: SavedNode<'_>) -> (u64, Node) {
    let what = match saved.what {
        SavedKind::Directory { uid, gid, names } => What::Directory { uid, gid, names: names.into_owned() },
        SavedKind::File(digest) => What::File(FileContent { digest, bytes: None }),
        SavedKind::Link(target) => What::Link(target.to_owned()),
    };
    let (seconds, nanoseconds) = saved.mtime;
    (saved.id, Node { parent: saved.parent, mtime: Timestamp { seconds, nanoseconds }, what })
}

/// Each node but the root has one name, in the directory that is its parent.
fn check_tree(nodes: &Nodes) -> Result<(), RestoreError> {
    let root = nodes.nodes.get(&NodeId::ROOT.0);
    if !root.is_some_and(|root| matches!(root.what, What::Directory { .. })) {
        return Err(RestoreError::Damaged("it has no root"));
    }
    let mut named = HashSet::new();
    for (id, node) in &nodes.nodes {
        let What::Directory { names, .. } = &node.what else { continue };
        for target in names.values() {
            let is_right = match inward(NodeId(*target)) {
                Some((number, node)) => node == NodeId::ROOT && nodes.layers.key(number).is_some(),
                None => {
                    let is_in_it = nodes.nodes.get(target).is_some_and(|target| target.parent == *id);
                    is_in_it && *target != NodeId::ROOT.0 && named.insert(*target)
                }
            };
            if !is_right {
                return Err(RestoreError::Damaged("the target of a name"));
            }
        }
    }
    if named.len() + 1 == nodes.nodes.len() { Ok(()) } else { Err(RestoreError::Damaged("names of nodes")) }
}
