//! `tarpon demo`: everything on one machine, with nothing installed: a registry on loopback that serves an embedded
//! image, a lazy mount of it, a program that runs from it, and a report of the bytes fetched.
//!
//! Everything lives in one temporary folder and in this process, so that nothing is left behind, even after Ctrl-C.

mod image;
mod namespace;
mod report;

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use tarpon_engine::registry::Server as Registry;
use tarpon_engine::{Engine, EngineOptions, ImageRequest, ModeChoice, MountRequest, Prepared, Pull, Server, Silent};
use tarpon_oci::Platform;

use super::image::image_name;
use super::options::mode;
use super::session::command_runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output;
use crate::signals::Stop;
use report::{Cost, Report};

const EXAMPLES: &str = "\
Examples:
  tarpon demo
  tarpon demo --mode fuse
  tarpon demo --json | jq .fetched_bytes";

/// Demonstrate a lazy mount on this machine
///
/// Mounts an image from a registry on loopback and runs a program from it. Requires no network and no root, and removes everything at
/// the end.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Mount mode
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode())]
    mode: ModeChoice,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Demo {
    pub(crate) fn run(&self, _: &Global) -> Result {
        if namespace::is_needed() {
            return namespace::run_again();
        }
        let runtime = command_runtime()?;
        // From here on no signal ends this process before cleanup.
        let mut stop = {
            let _inside = runtime.enter();
            Stop::new().doing(|| "cannot listen for signals")?
        };
        let folder = tempfile::Builder::new().prefix("tarpon-demo-").tempdir();
        let folder = folder.doing(|| "cannot create a temporary directory")?;
        let shown = runtime.block_on(self.show(folder.path(), &mut stop));
        let removed = folder.close().doing(|| "cannot remove the temporary directory");
        let report = shown?;
        removed?;
        if self.json { output::json(&report) } else { output::text(&report.text()) }
    }

    async fn show(&self, folder: &Path, stop: &mut Stop) -> Result<Report> {
        let contents = image::contents().doing(|| "cannot read the embedded image")?;
        let registry = Registry::start(Arc::new(contents)).await.doing(|| "cannot serve a registry on 127.0.0.1")?;
        let options = EngineOptions {
            store: folder.join("store"),
            server_command: Vec::new(),
            worker_command: super::session::worker_command(),
        };
        let engine = Engine::open(options)?;
        let server = Server::start(&engine).await?;
        let outcome = tokio::select! {
            report = self.walk_through(&registry, &engine, &server, folder) => report,
            () = stop.asked() => Err(Failure::new(Exit::Interrupted, "interrupted; everything was cleaned up")),
        };
        server.stop(true).await;
        outcome
    }

    async fn walk_through(
        &self,
        registry: &Registry,
        engine: &Engine,
        server: &Server,
        folder: &Path,
    ) -> Result<Report> {
        let reference = format!("{}/{}", registry.host(), image::NAME);
        let doing = || format!("cannot mount {reference}");
        let mountpoint = folder.join("mnt");
        std::fs::create_dir(&mountpoint).doing(doing)?;

        let start = Instant::now();
        let prepared = engine.prepare(&request(&reference)?, &Silent).await.doing(doing)?;
        let mount = MountRequest { mode: self.mode, ..MountRequest::for_image(&prepared, mountpoint.clone()) };
        let mounted = server.mount(mount).await.doing(doing)?;
        let mount_time = start.elapsed();
        let to_mount = cost(registry);

        let ran = run_program(&mountpoint).await?;
        let total = cost(registry);
        server.unmount(mountpoint).await.doing(|| format!("cannot unmount {reference}"))?;
        Ok(Report {
            image: reference,
            mode: mounted.mode,
            fallbacks: mounted.fallbacks,
            layers: image::layer_names(&prepared),
            files: count_files(engine, &prepared)?,
            files_read: image::FILES_READ,
            image_bytes: prepared.record.compressed_size(),
            mount_time,
            to_mount,
            total,
            program: String::from_utf8_lossy(&ran.stdout).into_owned(),
        })
    }
}

fn request(reference: &str) -> Result<ImageRequest> {
    let name = image_name(reference)
        .map_err(|error| Failure::new(Exit::Failure, format_args!("cannot name the image: {error}")))?;
    Ok(ImageRequest { pull: Pull::Always, ..ImageRequest::new(&name.text, name.source, Platform::host()) })
}

fn cost(registry: &Registry) -> Cost {
    let stats = registry.stats();
    Cost { requests: stats.requests, bytes: stats.bytes }
}

/// Runs the image's program in the mounted tree; its paths are relative.
async fn run_program(mountpoint: &Path) -> Result<Output> {
    let doing = || format!("cannot run {} from the mount", image::PROGRAM);
    let mut command = tokio::process::Command::new(mountpoint.join(image::PROGRAM));
    let output = command.current_dir(mountpoint).kill_on_drop(true).output().await.doing(doing)?;
    if !output.status.success() {
        let stderr = output::escape(output.stderr.trim_ascii());
        return Err(Failure::new(Exit::Failure, format_args!("{}: {}: {stderr}", doing(), output.status)));
    }
    Ok(output)
}

fn count_files(engine: &Engine, prepared: &Prepared) -> Result<u64> {
    let doing = || "cannot count the files of the image";
    let tree = engine.open_tree(prepared).doing(doing)?;
    let mut files = 0;
    let mut folders = vec![Vec::new()];
    while let Some(folder) = folders.pop() {
        for item in tree.list(&folder).doing(doing)? {
            match item.inode.kind.letter() {
                'd' => folders.push([&folder[..], b"/", &item.name].concat()),
                'f' => files += 1,
                _ => {}
            }
        }
    }
    Ok(files)
}
