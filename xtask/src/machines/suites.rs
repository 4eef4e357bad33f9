//! The machines.

/// A distribution with a kernel.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// What users call it.
    pub(super) title: &'static str,
    /// Suite of Debian's archive.
    pub(super) suite: &'static str,
    /// Packages beside those that all have.
    pub(super) more: &'static [&'static str],
    /// Suite from which apt is to install the kernel. Without it debootstrap does, which is faster, but takes the first alternative of
    /// each dependency.
    pub(super) kernel_from: Option<&'static str>,
}

/// Packages that all machines have, beside the kernel.
pub(super) const PACKAGES: &str = "systemd,systemd-sysv,udev,dbus,dbus-user-session,libpam-systemd,ca-certificates,podman,crun,runc,containerd,fuse3,uidmap,slirp4netns,curl,procps,iproute2,initramfs-tools,zstd";

/// The kernel: it has the same code as on hardware, with fewer drivers.
pub(super) const KERNEL: &str = "linux-image-cloud-amd64";

pub(super) const SUITES: &[Suite] = &[
    // debootstrap chooses no provider of a virtual package, so `netavark` is named where Podman depends on one.
    // The kernel of Debian 11 lets only root mount overlayfs, so Podman of an ordinary user needs a program for that.
    Suite { name: "debian-11", title: "Debian 11", suite: "bullseye", more: &["fuse-overlayfs"], kernel_from: None },
    Suite { name: "debian-12", title: "Debian 12", suite: "bookworm", more: &["netavark"], kernel_from: None },
    Suite {
        name: "debian-12-backports",
        title: "Debian 12 with the kernel of its backports",
        suite: "bookworm",
        more: &["netavark"],
        kernel_from: Some("bookworm-backports"),
    },
    Suite { name: "debian-13", title: "Debian 13", suite: "trixie", more: &["passt"], kernel_from: None },
    Suite { name: "debian-sid", title: "Debian sid", suite: "sid", more: &["passt"], kernel_from: Some("sid") },
];

/// The suite that runs in each machine.
pub(super) const SENTENCES: &str = include_str!("sentences.sh");

/// Where the suite has this sentence, if it does.
pub(super) fn position(sentence: &str) -> Option<usize> {
    SENTENCES.find(&format!("\n{}() {{", sentence.replace(' ', "_")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_the_order_of_the_suite() {
        assert!(position("it mounts in mode fuse") < position("then the store is sound"));
        assert_eq!(position("it mounts"), None);
    }
}
