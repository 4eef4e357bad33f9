//! The containers of a guest: one of Podman with an image from tarpon's image store, one of containerd with tarpon as its snapshotter.

use std::fs;

use anyhow::{Context, Result, bail};

use super::guest::Guest;
use crate::cri;

/// A container that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Container {
    Podman,
    Containerd,
}

/// Readers of one container: two, so that one reads while the other waits between two operations.
pub(super) const READERS: usize = 2;

/// The directory of logs, in the guest and in its containers.
const LOGS: [&str; 2] = ["/var/lib/readers", "/readers"];
/// A file for a request to containerd, in the directory of logs.
const REQUEST: &str = "request";
/// Podman leaves a process that watches the container.
const PODMAN_UNIT: &str = "reader-podman.service";
const CTR: [&str; 3] = ["ctr", "-n", "k8s.io"];

/// Without limits: the guest has no cgroup controllers where the host uses version 1. The containers need no network.
const PODMAN_OPTIONS: [&str; 2] = ["--network=host", "--pids-limit=0"];
const CTR_OPTIONS: [&str; 3] = ["--cpu-shares=0", "--snapshotter", "tarpon"];

impl Container {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Containerd => "containerd",
        }
    }

    /// Makes the image available to the runtime; nothing of its content is fetched.
    pub(super) fn add_image(self, guest: &Guest, image: &str) -> Result<()> {
        match self {
            Self::Podman => guest.run(&["tarpon", "podman", "add", image]).map(drop),
            Self::Containerd => pull_as_kubelet(guest, image),
        }
    }

    /// Starts the readers `first` and following of `all`.
    pub(super) fn start(self, guest: &Guest, image: &str, first: usize, all: usize) -> Result<()> {
        let (from, to, all) = (first.to_string(), (first + READERS - 1).to_string(), all.to_string());
        let log = format!("{}/{}.log", LOGS[1], self.name());
        let script = format!("{}/read.sh", LOGS[1]);
        let program = ["bash", &script, &from, &to, &all, &log];
        match self {
            Self::Podman => {
                let logs = LOGS.join(":");
                let options = ["--detach", "--name", "reader", "--volume", &logs, "--log-driver", "none"];
                let podman = [&["podman", "run"][..], &PODMAN_OPTIONS, &options, &[image], &program].concat();
                guest.run_unit(PODMAN_UNIT, &podman)?;
            }
            Self::Containerd => {
                let logs = format!("type=bind,src={},dst={},options=rbind:rw", LOGS[0], LOGS[1]);
                let options = ["--detach", "--null-io", "--mount", &logs];
                guest.run(&[&CTR[..], &["run"], &CTR_OPTIONS, &options, &[image, "reader"], &program].concat())?;
            }
        }
        Ok(())
    }

    /// Runs another container to its end.
    pub(super) fn run_another(self, guest: &Guest, image: &str) -> Result<()> {
        let program = ["ls", "/data/list"];
        let printed = match self {
            Self::Podman => guest.run(&[&["podman", "run", "--rm"][..], &PODMAN_OPTIONS, &[image], &program].concat()),
            Self::Containerd => {
                guest.run(&[&CTR[..], &["run", "--rm"], &CTR_OPTIONS, &[image, "another"], &program].concat())
            }
        };
        match printed.with_context(|| format!("a new container of {} does not start", self.name()))? {
            printed if printed.contains("/data/list") => Ok(()),
            printed => bail!("a new container of {} prints {printed:?}", self.name()),
        }
    }

    /// Stops the readers and removes the container and its image.
    pub(super) fn remove(self, guest: &Guest, image: &str) -> Result<()> {
        match self {
            Self::Podman => {
                guest.run(&["podman", "rm", "--force", "--time", "0", "reader"])?;
                guest.client(&["systemctl", "stop", PODMAN_UNIT])?;
                guest.run(&["tarpon", "podman", "rm", image]).map(drop)
            }
            Self::Containerd => {
                let ctr = |arguments: &[&str]| guest.run(&[&CTR[..], arguments].concat());
                ctr(&["task", "rm", "--force", "reader"])?;
                ctr(&["container", "rm", "reader"])?;
                let names = ctr(&["images", "ls", "-q"])?;
                let names: Vec<_> = names.lines().collect();
                ctr(&[&["images", "rm", "--sync"], &names[..]].concat()).map(drop)
            }
        }
    }
}

/// Pulls an image as the kubelet does.
fn pull_as_kubelet(guest: &Guest, image: &str) -> Result<()> {
    fs::write(guest.state("readers").join(REQUEST), cri::pull_request(image)?)?;
    let data = format!("@{}/{REQUEST}", LOGS[0]);
    let answer = guest.run(&[&["curl"][..], &cri::curl("/run/containerd/containerd.sock", &data)].concat())?;
    let filter = format!("name=={image}");
    let found = guest.run(&[&CTR[..], &["images", "ls", "-q", &filter]].concat())?;
    if found.trim() != image {
        bail!("containerd did not pull {image}: {}", answer.escape_debug());
    }
    Ok(())
}
