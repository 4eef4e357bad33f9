//! Which xattrs of an image reach the merged tree.
//!
//! Invariant: nothing that overlayfs would obey comes from an image. The layer readers drop such attributes already;
//! the tree keeps only namespaces on its own short list, so that a reader's mistake cannot inject a redirect.

use tarpon_layer::Xattr;
use tarpon_oci::limits;

/// Whether the tree keeps an attribute: a namespace that EROFS can say and that images may set, within the limits.
fn is_kept(xattr: &Xattr) -> bool {
    let name = &*xattr.name;
    let namespace = match name {
        b"system.posix_acl_access" | b"system.posix_acl_default" => true,
        _ if name.starts_with(b"user.overlay.") => false,
        _ => [&b"user."[..], b"security."].iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len()),
    };
    namespace && name.len() <= limits::XATTR_NAME_BYTES && xattr.value.len() <= limits::XATTR_VALUE_BYTES
}

/// The attributes of `all` that the tree keeps, in their order.
pub(crate) fn kept(all: &[Xattr]) -> impl Iterator<Item = &Xattr> + Clone {
    all.iter().filter(|xattr| is_kept(xattr)).take(limits::XATTRS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_and_unknown_namespaces_are_dropped() {
        let xattr = |name: &str| Xattr { name: name.as_bytes().into(), value: Box::default() };
        let names = ["security.capability", "system.posix_acl_access", "user.overlay.redirect", "user.note", "user."];
        let other = ["trusted.overlay.redirect", "trusted.note", "system.nfs4_acl", "security", "note"];
        let all: Vec<Xattr> = names.iter().chain(&other).map(|name| xattr(name)).collect();
        let kept: Vec<&[u8]> = kept(&all).map(|xattr| &*xattr.name).collect();
        assert_eq!(kept, [&b"security.capability"[..], b"system.posix_acl_access", b"user.note"]);
    }
}
