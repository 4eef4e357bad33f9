//! Test programs that must not run at the same time, with reasons; and tests that may be skipped on a complete machine.

/// A resource that a test program uses and others may need at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Only its own resources: temporary stores, ports that the kernel chose, mounts under its own folders.
    Nothing,
    /// Podman's lock file and its temporary folder, which are shared by the whole machine, whatever the storage.
    Podman,
}

impl Claim {
    pub(super) fn conflicts_with(self, other: Self) -> bool {
        self == Self::Podman && other == Self::Podman
    }
}

/// The programs that claim a resource, by their name in the summary, and the reason.
const CLAIMS: &[(&str, Claim, &str)] = &[
    ("tests/commit", Claim::Podman, "it runs containers of Podman"),
    ("tests/podman", Claim::Podman, "it runs, builds and removes containers of Podman"),
    ("tests/podman_layers", Claim::Podman, "it runs and removes containers of Podman"),
    ("tests/ready", Claim::Podman, "it runs and removes containers of Podman"),
];

/// Skips that are allowed although the packages and the images exist: a part of `TEST: REASON`, and why.
const MAY_SKIP: &[(&str, &str)] = &[
    ("manylayers_mounts_as_it_unpacks: dev/manylayers is not in the registry", "only a full set of images has it"),
    ("nginx_mounts_as_it_unpacks: dev/nginx is not in the registry", "only a full set of images has it"),
    ("node_mounts_as_it_unpacks: dev/node is not in the registry", "only a full set of images has it"),
    ("python_mounts_as_it_unpacks: dev/python is not in the registry", "only a full set of images has it"),
    (": pulling dev/nginx, which the registry does not have", "only a full set of images has it"),
    (": the cgroups of this host limit no processes", "the machine decides"),
    (": this Podman loses the layers of additional layer stores", "the Podman that is installed decides"),
    (": this kernel does not mount EROFS from a file", "the kernel decides"),
    (": this kernel stacks no overlay", "the kernel decides"),
    (": needs root and /dev/net/tun", "the machine decides: the packages do not bring a device"),
    (": needs root and /dev/fuse", "the machine decides: the packages do not bring a device"),
    (": mounting needs root and /dev/fuse", "the machine decides: the packages do not bring a device"),
    (": only root may open /dev/fuse", "the machine decides: udev opens it to everybody on most"),
    (": no /dev/fuse", "the machine decides: the packages do not bring a device"),
    (": systemd-analyze is not installed", "systemd is not part of every machine"),
    (": no apparmor_parser", "AppArmor is not part of every machine"),
    (": no python3", "Python is not part of every machine"),
    (": go is not installed", "Go is not part of every machine"),
    (": the Go modules cannot be had", "they come from the network"),
    (": neither $TARPON_DRAGONFLY nor $PATH has", "Dragonfly is in no distribution, and its build takes long"),
    (": no S3 server is installed", "they come from the network, and one of them needs Go"),
];

/// The claim of a program.
pub(super) fn claim(program: &str) -> Claim {
    CLAIMS.iter().find(|(name, ..)| *name == program).map_or(Claim::Nothing, |(_, claim, _)| *claim)
}

/// Whether a skip, as `TEST: REASON`, is allowed on a machine with all packages and images.
pub(super) fn may_skip(skip: &str) -> bool {
    MAY_SKIP.iter().any(|(part, _)| skip.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_is_of_a_program_that_exists() {
        let root = tarpon_harness::paths::root();
        for (name, ..) in CLAIMS {
            let (package, target) = name.rsplit_once('/').unwrap();
            let file = root.join(package).join("tests").join(format!("{target}.rs"));
            assert!(file.exists(), "{}", file.display());
        }
    }

    #[test]
    fn an_image_of_the_full_set_may_be_missing_and_one_that_was_built_may_not() {
        assert!(may_skip("node_mounts_as_it_unpacks: dev/node is not in the registry (cargo xtask images dev/node)"));
        assert!(!may_skip(
            "redis_mounts_as_it_unpacks: dev/redis is not in the registry (cargo xtask images dev/redis)"
        ));
        assert!(!may_skip("skopeo_unpacks_both_formats: skopeo is not installed"));
    }
}
