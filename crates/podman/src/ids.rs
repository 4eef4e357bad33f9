//! The names that containers/storage gives to layers.
//!
//! Two layers of one diffID are one layer to Podman, whatever images they are in: `podman pull` of another image uses the layer that it
//! finds here instead of fetching it. So the diffID that a config names is given only to layers of which every byte was hashed locally and
//! whose entries were read from these very bytes. If a table of contents or an index described the layer, the diffID is replaced by a
//! digest of that description, which no tar has. Ids follow from these by the rule of containers/storage in either case, so that
//! `podman build` finds the layers of its base.

use tarpon_oci::Digest;

/// What identifies a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerSource {
    /// Its diffID.
    Content(Digest),
    /// The digest of its table of contents.
    Toc(Digest),
    /// The digest of an external index's claims.
    Index(Digest),
}

impl LayerSource {
    /// The diffID, or its substitute.
    pub(crate) fn diff_id(self) -> Digest {
        match self {
            Self::Content(diff_id) => diff_id,
            Self::Toc(toc) => Digest::of(format!("tarpon: a layer with the table of contents {toc}").as_bytes()),
            Self::Index(index) => Digest::of(format!("tarpon: a layer with the index {index}").as_bytes()),
        }
    }
}

/// The id of the layer of this diffID on top of the layer `parent`.
pub(crate) fn layer(parent: Option<&Digest>, diff_id: &Digest) -> Digest {
    match parent {
        None => *diff_id,
        Some(parent) => Digest::of(format!("{}+{}", parent.hex(), diff_id.hex()).as_bytes()),
    }
}

/// The id under which lookups by digest find the form *alone* of the layer `id`.
pub(crate) fn alone(id: &Digest) -> Digest {
    Digest::of(format!("tarpon alone {}", id.hex()).as_bytes())
}

/// Characters in the short name of a layer.
const LINK: usize = 26;

/// The short name of the layer for mounts of `overlay/l`. It must be unique among stores: Podman looks in all of them.
pub(crate) fn link(store: &str, layer: &Digest) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let hash = Digest::of(format!("tarpon {store} {}", layer.hex()).as_bytes());
    hash.as_bytes().iter().take(LINK).map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(hex: &str) -> Digest {
        Digest::from_hex(hex).unwrap()
    }

    #[test]
    fn ids_are_those_that_podman_gave_to_the_same_layers() {
        let ids = [
            "ac36d66fac15bf1c1cab336e854b557b99ba7e8bc6f0492821c43234255f9ca6",
            "f7bedad8b66d6aff19b000910506c3fc1808ff0eaeade8789df2d01e9c894bcd",
            "c1f513eb74da49ab4376d18de4124502a79c7c946b2b8665a64b88b6f02f772d",
        ];
        let diff_ids = [
            "ac36d66fac15bf1c1cab336e854b557b99ba7e8bc6f0492821c43234255f9ca6",
            "10d879c4c1e838309b8abaccef5f48a12e4f1230d180d443157b5a0c0cefc590",
            "89282cb679e27d4002b3fbd6fb2e63ece95aed10c0e5831102e0861d7fbd0b77",
        ];
        let mut parent = None;
        for (id, diff_id) in ids.iter().zip(diff_ids) {
            let layer = layer(parent.as_ref(), &digest(diff_id));
            assert_eq!(layer.hex(), *id);
            parent = Some(layer);
        }
    }

    #[test]
    fn what_was_not_hashed_has_no_digest_of_anything() {
        let digest = Digest::of(b"content");
        let known = [LayerSource::Content(digest), LayerSource::Toc(digest), LayerSource::Index(digest)]
            .map(LayerSource::diff_id);
        assert_eq!(known[0], digest);
        assert!(known[1] != digest && known[2] != digest && known[1] != known[2]);
    }

    #[test]
    fn links_are_short_and_of_their_store() {
        let id = Digest::of(b"layer");
        let link_here = link("/a", &id);
        assert_eq!(link_here.len(), LINK);
        assert!(link_here.bytes().all(|byte| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte)));
        assert_ne!(link_here, link("/b", &id));
        assert_ne!(link_here, link("/a", &Digest::of(b"another")));
    }
}
