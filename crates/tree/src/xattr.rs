//! The xattrs of an image that reach the merged tree.
//!
//! Invariant: no xattr that overlayfs would interpret comes from an image. The layer readers drop such attributes already. The tree
//! keeps only namespaces on its own short list, so that a reader's bug cannot inject a redirect.

use tarpon_layer::Xattr;
use tarpon_oci::limits;

use crate::Kind;

/// Whether the tree keeps an attribute: a namespace that EROFS can represent and that images may set, within the limits. Linux has
/// `user.*` on files and directories only: elsewhere it would be listed and could not be read.
fn is_kept(xattr: &Xattr, kind: Kind) -> bool {
    let name = &*xattr.name;
    let namespace = match name {
        b"system.posix_acl_access" | b"system.posix_acl_default" => true,
        _ if name.starts_with(b"user.overlay.") => false,
        _ if name.starts_with(b"user.") && !matches!(kind, Kind::File | Kind::Directory) => false,
        _ => [&b"user."[..], b"security."].iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len()),
    };
    namespace && name.len() <= limits::XATTR_NAME_BYTES && xattr.value.len() <= limits::XATTR_VALUE_BYTES
}

/// The attributes of `all` that the tree keeps on an inode of this kind, in their order.
pub(crate) fn kept(all: &[Xattr], kind: Kind) -> impl Iterator<Item = &Xattr> + Clone {
    all.iter().filter(move |xattr| is_kept(xattr, kind)).take(limits::XATTRS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_and_unknown_namespaces_are_dropped_and_user_ones_from_links() {
        let xattr = |name: &str| Xattr { name: name.as_bytes().into(), value: Box::default() };
        let names = ["security.capability", "system.posix_acl_access", "user.overlay.redirect", "user.note", "user."];
        let other = ["trusted.overlay.redirect", "trusted.note", "system.nfs4_acl", "security", "note"];
        let all: Vec<Xattr> = names.iter().chain(&other).map(|name| xattr(name)).collect();
        let kept = |kind| kept(&all, kind).map(|xattr| &*xattr.name).collect::<Vec<&[u8]>>();
        assert_eq!(kept(Kind::File), [&b"security.capability"[..], b"system.posix_acl_access", b"user.note"]);
        assert_eq!(kept(Kind::Symlink), [&b"security.capability"[..], b"system.posix_acl_access"]);
    }
}
