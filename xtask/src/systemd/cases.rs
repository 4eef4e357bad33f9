//! What is done to tarpon, or to those that use it, while containers read.

use super::containers::Container;

/// A case: an event, and what is there when it happens.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The command.
    pub(super) event: &'static [&'static str],
    /// The units that it affects. Each must be active again.
    pub(super) units: &'static [&'static str],
    pub(super) effect: Effect,
    /// Whether `tarpon daemon` is the server. Without it, the snapshotter starts a server in the background.
    pub(super) with_daemon: bool,
    /// Whether only its name selects it: containers are known not to survive it, as docs/containerd.md describes.
    pub(super) is_limit: bool,
}

/// What shows that an event took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The main processes of the units are new ones.
    NewProcess,
    /// The main process has executed the program that was installed just before.
    NewProgram,
}

impl Case {
    pub(super) fn containers(&self) -> &'static [Container] {
        // An image for Podman needs a server that is there before and after `tarpon podman add`.
        if self.with_daemon { &[Container::Podman, Container::Containerd] } else { &[Container::Containerd] }
    }
}

const DAEMON: &[&str] = &["tarpon.service"];
const SNAPSHOTTER: &[&str] = &["tarpon-snapshotter.service"];
const CONTAINERD: &[&str] = &["containerd.service"];
const ALL: &[&str] = &["tarpon.service", "tarpon-snapshotter.service", "containerd.service"];

const fn case(name: &'static str, event: &'static [&'static str], units: &'static [&'static str]) -> Case {
    Case { name, event, units, effect: Effect::NewProcess, with_daemon: true, is_limit: false }
}

pub(super) const CASES: &[Case] = &[
    case("kill-unit", &["systemctl", "kill", "-s", "KILL", "tarpon"], DAEMON),
    case("kill-daemon", &["systemctl", "kill", "--kill-whom=main", "-s", "KILL", "tarpon"], DAEMON),
    case("restart", &["systemctl", "restart", "tarpon"], DAEMON),
    Case { effect: Effect::NewProgram, ..case("reload", &["systemctl", "reload", "tarpon"], DAEMON) },
    case("snapshotter-kill", &["systemctl", "kill", "-s", "KILL", "tarpon-snapshotter"], SNAPSHOTTER),
    case("snapshotter-restart", &["systemctl", "restart", "tarpon-snapshotter"], SNAPSHOTTER),
    // The other processes of this unit are those that watch the containers.
    case("containerd-kill", &["systemctl", "kill", "--kill-whom=main", "-s", "KILL", "containerd"], CONTAINERD),
    case("containerd-restart", &["systemctl", "restart", "containerd"], CONTAINERD),
    case(
        "kill-all",
        &["systemctl", "kill", "--kill-whom=main", "-s", "KILL", "tarpon", "tarpon-snapshotter", "containerd"],
        ALL,
    ),
    case("restart-all", &["systemctl", "restart", "tarpon", "tarpon-snapshotter", "containerd"], ALL),
    Case {
        with_daemon: false,
        is_limit: true,
        ..case("alone-kill-unit", &["systemctl", "kill", "-s", "KILL", "tarpon-snapshotter"], SNAPSHOTTER)
    },
    Case {
        with_daemon: false,
        ..case(
            "alone-kill-main",
            &["systemctl", "kill", "--kill-whom=main", "-s", "KILL", "tarpon-snapshotter"],
            SNAPSHOTTER,
        )
    },
    Case { with_daemon: false, ..case("alone-restart", &["systemctl", "restart", "tarpon-snapshotter"], SNAPSHOTTER) },
];
