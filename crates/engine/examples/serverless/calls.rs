//! Calls: each gets a root file system, runs a command in it, and removes it.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt, TryStreamExt};
use tarpon_engine::{Engine, ImageRequest, Rootfs, RootfsRequest, Server, Silent};

use crate::Result;
use crate::figures::{Memory, print_times};

/// The resources of calls.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    /// This process, if it serves the mounts itself.
    pub(crate) server: Option<Arc<Server>>,
    pub(crate) image: ImageRequest,
    pub(crate) wanted: RootfsRequest,
    pub(crate) command: Vec<OsString>,
}

impl Host {
    /// A root file system. The image is prepared each time, which costs next to nothing once it is in the store.
    pub(crate) async fn rootfs(&self) -> Result<Rootfs> {
        let prepared = self.engine.prepare(&self.image, &Silent).await?;
        Ok(match &self.server {
            None => self.engine.rootfs(&prepared, &self.wanted).await?,
            Some(server) => server.rootfs(&prepared, &self.wanted).await?,
        })
    }

    /// Runs the command with this root.
    pub(crate) async fn run(&self, root: &Path) -> Result<()> {
        let ended = tokio::process::Command::new("chroot").arg(root).args(&self.command).status().await?;
        if ended.success() { Ok(()) } else { Err(format!("{:?}: {ended}", self.command).into()) }
    }
}

/// One call from beginning to end.
pub(crate) async fn call(host: &Host) -> Result<()> {
    let rootfs = host.rootfs().await?;
    host.run(rootfs.path()).await?;
    rootfs.close().await?;
    Ok(())
}

/// Makes `calls` root file systems, `at_once` at a time, and prints how long that took.
pub(crate) async fn measure(host: &Host, calls: usize, at_once: usize) -> Result<()> {
    // Afterwards the command's reads are local, and the server runs.
    call(host).await?;
    let one = async || {
        let began = Instant::now();
        let rootfs = host.rootfs().await?;
        let made = began.elapsed();
        let began = Instant::now();
        rootfs.close().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((made, began.elapsed()))
    };
    let began = Instant::now();
    let all: Vec<(Duration, Duration)> =
        stream::iter(0..calls).map(|_| one()).buffer_unordered(at_once).try_collect().await?;
    let whole = began.elapsed();
    println!("{calls} calls, {at_once} at a time, in {whole:.2?}: {:.0}/s", calls as f64 / whole.as_secs_f64());
    print_times("prepare + rootfs", all.iter().map(|(made, _)| *made));
    print_times("close", all.iter().map(|(_, closed)| *closed));
    Ok(())
}

/// Holds `many` at the same time, and prints what they cost the server.
pub(crate) async fn hold(host: &Host, many: usize) -> Result<()> {
    let first = host.rootfs().await?;
    host.run(first.path()).await?;
    let server = first.status().server;
    let before = Memory::of(server)?;
    // Twice: threads and buffers made for the first crowd are reused by later ones.
    for round in ["first", "again"] {
        let began = Instant::now();
        let held: Vec<Rootfs> =
            stream::iter(0..many).map(|_| host.rootfs()).buffer_unordered(many).try_collect().await?;
        for rootfs in &held {
            host.run(rootfs.path()).await?;
        }
        let with = Memory::of(server)?;
        println!("{round}: {many} held and run in {:.2?}; the server {with}", began.elapsed());
        println!("    {}", with.growth(&before, many));
        stream::iter(held).map(Rootfs::close).buffer_unordered(many).try_collect::<Vec<()>>().await?;
        println!("    all closed: the server {}", Memory::of(server)?);
    }
    first.close().await?;
    Ok(())
}
