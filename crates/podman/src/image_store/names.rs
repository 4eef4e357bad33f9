//! The names of images, each of which belongs to one image.

use std::collections::BTreeMap;

use tarpon_client::protocol::MountRequest;
use tarpon_oci::Digest;

use super::entry::Images;

/// Names of images, by the images' ids.
pub(super) type Names = BTreeMap<Digest, Vec<String>>;

/// Makes names unique. The image added later gets a name, and the other one continues without it, as in Podman. Returns the previous names
/// of the images that lost some.
pub(super) fn settle_names(images: &mut Images, id: Digest, request: &mut MountRequest) -> Names {
    let mut poorer = Names::new();
    let Some(podman) = &mut request.podman else { return poorer };
    if let Some(same) = images.get(&id) {
        let more: Vec<_> = same.names().iter().filter(|name| !podman.names.contains(name)).cloned().collect();
        podman.names.extend(more);
    }
    for (other_id, other) in images.iter_mut().filter(|(other, _)| **other != id) {
        if other.added() > podman.added {
            podman.names.retain(|name| !other.names().contains(name));
        } else if let Some(others) = &mut other.request.podman
            && others.names.iter().any(|name| podman.names.contains(name))
        {
            poorer.insert(*other_id, others.names.clone());
            others.names.retain(|name| !podman.names.contains(name));
        }
    }
    poorer
}

/// Undoes [`settle_names`].
pub(super) fn give_back(images: &mut Images, names: Names) {
    for (id, names) in names {
        if let Some(podman) = images.get_mut(&id).and_then(|entry| entry.request.podman.as_mut()) {
            podman.names = names;
        }
    }
}
