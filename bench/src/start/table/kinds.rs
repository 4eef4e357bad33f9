//! The kinds of systems by name, which determine valid comparisons.

/// Whether it fetches the whole image before it starts it.
pub(crate) fn is_eager(system: &str) -> bool {
    matches!(system, "podman" | "containerd")
}

pub(crate) fn is_ours(system: &str) -> bool {
    system.contains("tarpon")
}

/// Whether it starts from the state of another run: this is no start from nothing, so it competes with none.
pub(crate) fn is_warm(system: &str) -> bool {
    system.ends_with("-warm")
}

/// What starts the next version of the image without what was learned of this one.
const NEXT: &str = "tarpon-next-no-learn";

/// Whether it starts the next version of the image, which no other system starts.
pub(crate) fn is_next(system: &str) -> bool {
    system.starts_with("tarpon-next")
}

/// The eager system in the same environment; for containerd's eager one, Podman's. For the next version of the image its start without
/// learning.
pub(crate) fn baseline(system: &str) -> Option<&'static str> {
    match system {
        "podman" | NEXT => None,
        next if is_next(next) => Some(NEXT),
        warm if is_warm(warm) => None,
        other if other.starts_with("containerd-") => Some("containerd"),
        _ => Some("podman"),
    }
}

/// Whether `theirs` is another project's counterpart of `ours`: both must run in the same environment, Podman or containerd, unless
/// tarpon runs the container by itself.
pub(crate) fn competes(ours: &str, theirs: &str) -> bool {
    if !is_ours(ours) || is_ours(theirs) || is_warm(ours) != is_warm(theirs) || is_next(ours) {
        return false;
    }
    let surroundings = |system: &str| system.split('-').next().map(str::to_owned);
    ours.starts_with("tarpon-") || surroundings(ours) == surroundings(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_compared_with_what_pulls_everything_in_its_surroundings() {
        assert_eq!(baseline("containerd-soci"), Some("containerd"));
        assert_eq!(baseline("containerd"), Some("podman"));
        assert_eq!(["tarpon-pack", "podman-stargz", "nydus-zran"].map(baseline), [Some("podman"); 3]);
        assert_eq!(["podman", "tarpon-warm", NEXT].map(baseline), [None; 3]);
    }

    #[test]
    fn another_version_of_the_image_is_compared_with_itself() {
        assert_eq!(baseline("tarpon-next"), Some(NEXT));
        assert!(!competes("tarpon-next", "podman") && !competes(NEXT, "podman-stargz"));
    }

    #[test]
    fn a_warm_store_competes_with_a_warm_store() {
        assert!(!competes("tarpon-warm", "podman") && !competes("tarpon-pack", "tarpon-warm"));
        assert!(competes("tarpon-warm", "podman-warm") && !competes("tarpon-pack", "podman-warm"));
    }

    #[test]
    fn systems_compete_in_the_same_surroundings() {
        assert!(competes("podman-tarpon-pack", "podman-stargz") && competes("podman-tarpon", "podman"));
        assert!(!competes("podman-tarpon-pack", "containerd-soci"));
        assert!(competes("tarpon-index", "containerd-soci") && competes("tarpon-index", "podman"));
        assert!(competes("tarpon-index", "nydus-zran") && !competes("podman-tarpon", "nydus-zran"));
        assert!(!competes("podman", "podman-stargz") && !competes("tarpon-index", "tarpon-pack"));
    }
}
