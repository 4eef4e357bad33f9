//! nydus: nydusd mounts an image by FUSE and reads from its blobs in the registry; crun runs the container on an overlayfs above it.
//!
//! Everything from the manifest on is within the measured time, as with `tarpon run`: nydusd too is started for the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tarpon_harness::process;
use tarpon_harness::workloads::Workload;

use super::system::{CONTAINER, Server, System, store};
use crate::machine::{quietly, remove, wait_for_end};
use crate::repository::Repository;

mod bundle;
mod image;
mod kind;

use image::files;
use kind::{BUILDER, PROGRAM, found};

pub(in crate::start) use image::prepare;
pub(in crate::start) use kind::Kind;
pub(super) use kind::is_installed;

/// Programs that run around it.
const HELPERS: [&str; 11] =
    ["sh", "unshare", "setpriv", "curl", "sed", "tar", "gzip", "mkdir", "mount", "umount", "sleep"];

/// The runtime of the container.
const RUNTIME: &str = "crun";

/// The file with the list of the files that are fetched ahead.
const FILES: &str = "files";

/// The script that is measured.
const START: &str = include_str!("start.sh");

pub(super) struct Nydus {
    name: &'static str,
    kind: Kind,
    program: PathBuf,
    runtime: PathBuf,
    helpers: Vec<PathBuf>,
    /// The cache of nydusd, and the container.
    store: PathBuf,
    /// crun's state of the container, and the socket of nydusd, whose path must be short.
    run: PathBuf,
}

impl Nydus {
    pub(super) fn new(name: &'static str, kind: Kind) -> Result<Self> {
        let helpers = HELPERS.into_iter().map(found).collect::<Result<_>>()?;
        // Also the program that makes images: without it there is nothing to mount.
        let (program, _builder) = (found(PROGRAM)?, found(BUILDER)?);
        let run = Path::new("/run/tarpon-bench").join(name);
        Ok(Self { name, kind, program, runtime: found(RUNTIME)?, helpers, store: store(name), run })
    }

    /// The configuration of nydusd for a repository of a registry without a certificate.
    ///
    /// It is that of nydus' guide for containerd: `fs_prefetch` with four threads, and the defaults. The files
    /// that a start reads are named, as its page on prefetch advises. `prefetch_all` is off, although it is on by default: it fetches the
    /// rest of the image after these files, or all of it without a list. Seconds to ready of Redis and of `import numpy`, by nydus 2.2.0 over
    /// 100 Mbit/s and 20 ms, medians of two runs: the files 1.39 and 3.87; then the rest 1.39 and 4.01; without a list 3.70 and 8.50. The
    /// files with eight threads 1.32 and 4.23, in requests of up to 1 MiB instead of 128 KiB 2.19 and 4.85.
    fn config(&self, registry: &str, image: &str) -> Value {
        json!({
            "device": {
                "backend": {
                    "type": "registry",
                    "config": {
                        "scheme": "http",
                        "host": registry,
                        "repo": image,
                        "skip_verify": true,
                        "timeout": 5,
                        "connect_timeout": 5,
                        "retry_limit": 2,
                    },
                },
                "cache": {"type": "blobcache", "config": {"work_dir": self.store.join("cache")}},
            },
            "mode": "direct",
            "digest_validate": false,
            "iostats_files": false,
            "enable_xattr": true,
            "fs_prefetch": {"enable": self.kind == Kind::Rafs, "threads_count": 4, "prefetch_all": false},
        })
    }

    fn state(&self) -> PathBuf {
        self.run.join("crun")
    }

    fn socket(&self) -> PathBuf {
        self.run.join("nydusd.sock")
    }

    /// Bytes that nydusd has fetched ahead, in its own count.
    fn fetched_ahead(&self) -> Result<u64> {
        let mut ask = Command::new("curl");
        ask.args(["-sSf", "--unix-socket"]).arg(self.socket()).arg("http://nydusd/api/v1/metrics/blobcache");
        let metrics: Value = serde_json::from_str(&process::output(&mut ask)?).context("nydusd counts in no JSON")?;
        metrics["prefetch_data_amount"].as_u64().with_context(|| format!("nydusd does not count it: {metrics}"))
    }

    /// nydusd, while it runs.
    fn pid(&self) -> Option<Pid> {
        let pid = fs::read_to_string(self.store.join("nydusd.pid")).ok()?;
        let pid = Pid::from_raw(pid.trim().parse().ok()?)?;
        // The number may be that of another process by now.
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
        line.starts_with(self.program.as_os_str().as_encoded_bytes()).then_some(pid)
    }
}

impl System for Nydus {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        [&self.program, &self.runtime].into_iter().chain(&self.helpers).map(PathBuf::as_path).collect()
    }

    fn tag(&self, _asked: &str) -> String {
        self.kind.tag().to_owned()
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        remove(&self.run)?;
        remove(&self.store)
    }

    fn command(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let registry = image.split('/').next().unwrap_or_default();
        let repository = Repository { registry, image: &workload.image };
        let config = config_of(&repository, self.kind.tag())?;
        fs::create_dir_all(&self.store)?;
        fs::create_dir_all(self.state())?;
        fs::write(self.store.join("nydusd.json"), self.config(registry, &workload.image).to_string())?;
        fs::write(self.store.join("bundle.json"), bundle::bundle(&config, script).to_string())?;
        if self.kind == Kind::Rafs {
            let files = files(workload);
            fs::copy(&files, self.store.join(FILES)).with_context(|| format!("cannot copy {}", files.display()))?;
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", START]).current_dir(&self.store);
        command
            .env("NYDUSD", &self.program)
            .env("CRUN", &self.runtime)
            .env("STATE", self.state())
            .env("SOCKET", self.socket());
        command.env("REPOSITORY", format!("http://{registry}/v2/{}", workload.image)).env("TAG", self.kind.tag());
        command.env("USER_OF_IMAGE", bundle::user(&config)?).env("CONTAINER", CONTAINER);
        command.env("FILES", if self.kind == Kind::Rafs { FILES } else { "" });
        Ok(command)
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        mountpoint == self.store.join("rootfs")
    }

    fn server(&self) -> Option<Server> {
        let pid = self.pid()?.as_raw_nonzero().get().unsigned_abs();
        Some(Server { pid, beside: None, counters: None, streamed: 0 })
    }

    fn check_mounts(&self) -> Result<()> {
        // Of a workload that has ended there is no nydusd to ask any more.
        if self.kind == Kind::Rafs && self.pid().is_some() && self.fetched_ahead()? == 0 {
            bail!("nydusd fetched nothing ahead of the container");
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        if self.run.exists() {
            let mut delete = Command::new(&self.runtime);
            delete
                .args(["--cgroup-manager=disabled", "--root"])
                .arg(self.state())
                .args(["delete", "--force", CONTAINER]);
            quietly(delete);
        }
        let Some(pid) = self.pid() else { return Ok(()) };
        // It may just have ended, as it does with its container.
        let _gone = kill_process(pid, Signal::TERM);
        wait_for_end(pid.as_raw_nonzero().get().unsigned_abs())
    }
}

/// The config of an image.
fn config_of(repository: &Repository<'_>, tag: &str) -> Result<Value> {
    let manifest = repository.manifest(tag)?.context("the registry has no image for nydusd")?;
    let manifest: Value = serde_json::from_slice(&manifest).context("its manifest is no JSON")?;
    let Some(digest) = manifest["config"]["digest"].as_str() else { bail!("it is not one image") };
    let config = repository.blob(digest)?.context("it has no config")?;
    serde_json::from_slice(&config).context("its config is no JSON")
}

impl Drop for Nydus {
    fn drop(&mut self) {
        // An error was reported by an earlier call.
        let _ended = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nydus_in(store: &Path, kind: Kind) -> Nydus {
        Nydus {
            name: "nydus",
            kind,
            program: "/bin/nydusd".into(),
            runtime: "/bin/crun".into(),
            helpers: Vec::new(),
            store: store.to_owned(),
            run: store.join("run"),
        }
    }

    fn nydus(kind: Kind) -> Nydus {
        nydus_in(Path::new("/s"), kind)
    }

    #[test]
    fn blobs_are_read_from_the_repository_by_plain_http_into_a_cache_of_the_store() {
        let config = nydus(Kind::Zran).config("10.0.0.1:5000", "dev/a");
        let backend = &config["device"]["backend"];
        assert_eq!(backend["type"], "registry");
        assert_eq!(
            ["scheme", "host", "repo"].map(|field| &backend["config"][field]),
            ["http", "10.0.0.1:5000", "dev/a"]
        );
        assert_eq!(config["device"]["cache"]["config"]["work_dir"], "/s/cache");
    }

    #[test]
    fn a_converted_image_is_fetched_ahead_and_an_index_is_not() {
        let enabled = |kind| nydus(kind).config("r", "i")["fs_prefetch"]["enable"].as_bool().unwrap();
        assert_eq!(Kind::ALL.map(enabled), [false, true]);
        assert_eq!(nydus(Kind::Rafs).config("r", "i")["fs_prefetch"]["prefetch_all"], false);
    }

    #[test]
    fn a_root_file_system_is_distinguished_from_the_mount_below_it() {
        let nydus = nydus(Kind::Zran);
        assert!(nydus.is_root(Path::new("/s/rootfs")) && !nydus.is_root(Path::new("/s/lower")));
    }

    #[test]
    fn a_process_that_has_the_number_of_an_ended_nydusd_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let nydus = nydus_in(folder.path(), Kind::Zran);
        fs::write(folder.path().join("nydusd.pid"), std::process::id().to_string()).unwrap();
        assert!(nydus.pid().is_none() && nydus.end().is_ok());
    }
}
