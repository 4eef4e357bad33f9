//! `tarpon run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::system::{CONTAINER, Counters, Server, System, store};
use crate::machine::{quietly, remove, wait_for_end};
use crate::start::next;
use tarpon_harness::workloads::Workload;

#[derive(Clone)]
pub(super) struct Tarpon {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    /// The required image format, if any.
    pub(super) format: Option<&'static str>,
    /// Start the next version of the image.
    pub(super) next: bool,
    /// Use the index attached to the image.
    pub(super) index: bool,
    pub(super) pack: Pack,
    /// What of an earlier run is there at the start.
    pub(super) begin: Begin,
    /// Whether starts are learned.
    pub(super) learns: bool,
    pub(super) mode: &'static str,
}

/// The boot pack that is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pack {
    None,
    /// That of the recorded workload.
    Recorded,
    /// That of the predicted start of the image's own command.
    Predicted,
}

impl Pack {
    fn profile(self, workload: &Workload) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Recorded => Some(&workload.id),
            // No workload has this id, so that the image has no recorded pack of it.
            Self::Predicted => Some("default"),
        }
    }
}

/// What of an earlier run is there at the start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    Nothing,
    /// The whole store of this system.
    Store(&'static str),
    /// What tarpon learned from the start by this system, but no content.
    Learned(&'static str),
}

/// The relevant fields of a mount.
#[derive(serde::Deserialize)]
struct Mount {
    server: u32,
    counters: Counters,
    #[serde(default)]
    verification: Vec<Layer>,
}

/// How a layer is read.
#[derive(serde::Deserialize)]
struct Layer {
    format: String,
    state: String,
}

impl Layer {
    /// Whether it had no table of contents, so that it was downloaded whole before the mount.
    fn was_streamed(&self) -> bool {
        self.format.starts_with("tar") && self.state == "diffID-verified"
    }
}

/// A command on a store.
pub(super) fn on(program: &Path, store: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("TARPON_STORE", store);
    command
}

/// The server of a store, if it serves a mount.
pub(super) fn server(program: &Path, store: &Path) -> Option<Server> {
    let output = on(program, store).args(["status", "--json"]).stderr(Stdio::null()).output().ok()?;
    parse_status(&output.stdout)
}

/// The server in the output of `tarpon status`.
pub(super) fn parse_status(status: &[u8]) -> Option<Server> {
    let mounts: Vec<Mount> = serde_json::from_slice(status).ok()?;
    let streamed = mounts.iter().flat_map(|mount| &mount.verification).filter(|layer| layer.was_streamed()).count();
    mounts.into_iter().next().map(|mount| Server {
        pid: mount.server,
        beside: None,
        counters: Some(mount.counters),
        streamed,
    })
}

/// Options that select index and boot pack.
pub(super) fn chosen(index: bool, profile: Option<&str>) -> [&str; 4] {
    ["--index", if index { "registry" } else { "none" }, "--profile", profile.unwrap_or("none")]
}

/// The folder of learned traces in a store.
const TRACES: &str = "traces";

/// Copies the files of a folder, which must have some.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let doing = || format!("cannot copy {}", from.display());
    fs::create_dir_all(to).with_context(doing)?;
    for file in fs::read_dir(from).with_context(doing)? {
        let file = file.with_context(doing)?;
        fs::copy(file.path(), to.join(file.file_name())).with_context(doing)?;
    }
    Ok(())
}

impl Tarpon {
    fn store(&self) -> PathBuf {
        let Begin::Store(of) = self.begin else { return store(self.name) };
        store(of)
    }
}

impl System for Tarpon {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        vec![&self.program]
    }

    fn tag(&self, asked: &str) -> String {
        let tag = self.format.unwrap_or(asked);
        if self.next { next::tag(tag) } else { tag.to_owned() }
    }

    fn begins_with(&self) -> Option<&'static str> {
        match self.begin {
            Begin::Nothing => None,
            Begin::Store(of) | Begin::Learned(of) => Some(of),
        }
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        match self.begin {
            Begin::Store(_) => Ok(()),
            Begin::Nothing => remove(&self.store()),
            Begin::Learned(of) => {
                remove(&self.store())?;
                // Creates a store.
                let mut list = on(&self.program, &self.store());
                list.args(["trace", "ls"]);
                quietly(list);
                // At the end of a comparison the other system is wiped first.
                let learned = store(of).join(TRACES);
                if learned.exists() { copy_files(&learned, &self.store().join(TRACES)) } else { Ok(()) }
            }
        }
    }

    fn prepare(&self, _: &Workload, _: &str, _: &str) -> Result<()> {
        if let Begin::Learned(of) = self.begin
            && !self.store().join(TRACES).exists()
        {
            bail!("{of} has learned nothing that {} could begin with", self.name);
        }
        Ok(())
    }

    fn command(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        fs::create_dir_all(self.store())?;
        let mut command = on(&self.program, &self.store());
        command.args(["run", "--rm", "--quiet", "--network", "host", "--tls-verify=false", "--name", CONTAINER]);
        command.args(["--mode", self.mode]).args(chosen(self.index, self.pack.profile(workload)));
        command.args((!self.learns).then_some("--no-learn"));
        command.args(["--entrypoint", "/bin/sh", image, "-c", script]);
        Ok(command)
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        mountpoint == self.store().join("containers").join(CONTAINER).join("rootfs")
    }

    fn server(&self) -> Option<Server> {
        server(&self.program, &self.store())
    }

    fn needs_index(&self) -> bool {
        self.index
    }

    fn needs_pack(&self) -> bool {
        self.pack != Pack::None && self.begin == Begin::Nothing
    }

    fn needs_prediction(&self) -> bool {
        self.pack == Pack::Predicted
    }

    fn needs_learned(&self) -> bool {
        matches!(self.begin, Begin::Learned(_))
    }

    fn end(&self) -> Result<()> {
        if !self.store().exists() {
            return Ok(());
        }
        let server = self.server();
        let mut remove = on(&self.program, &self.store());
        remove.args(["rm", "--force", CONTAINER]);
        quietly(remove);
        server.map_or(Ok(()), |server| wait_for_end(server.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_layers_are_distinguished_from_those_with_an_index_or_a_table_of_contents() {
        let mount = |format: &str, state: &str| {
            format!(
                r#"{{"server": 7, "counters": {{"bytes_trace": 1, "stalls": 2, "stall_millis": 3}},
                    "verification": [{{"format": "{format}", "state": "{state}"}}]}}"#
            )
        };
        let mounts = [mount("tar+gzip", "index-trusted"), mount("estargz", "toc-verified")].join(",");
        assert_eq!(parse_status(format!("[{mounts}]").as_bytes()).unwrap().streamed, 0);
        let mounts = [mounts, mount("tar+gzip", "diffID-verified")].join(",");
        let server = parse_status(format!("[{mounts}]").as_bytes()).unwrap();
        assert_eq!((server.pid, server.streamed), (7, 1));
        assert!(parse_status(b"[]").is_none());
    }
}
