//! The machines.

/// A distribution with a kernel.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Suite of Debian's archive.
    pub(super) suite: &'static str,
    /// Packages beside those that all have.
    pub(super) more: &'static str,
}

/// Packages that all machines have. The kernel has the same code as on hardware, with fewer drivers.
pub(super) const PACKAGES: &str = "linux-image-cloud-amd64,systemd,systemd-sysv,udev,dbus,dbus-user-session,libpam-systemd,ca-certificates,podman,crun,runc,containerd,fuse3,uidmap,slirp4netns,curl,procps,iproute2,initramfs-tools,zstd";

pub(super) const SUITES: &[Suite] = &[
    Suite { name: "debian-12", suite: "bookworm", more: "" },
    Suite { name: "debian-13", suite: "trixie", more: "passt" },
    Suite { name: "debian-sid", suite: "sid", more: "passt" },
];
