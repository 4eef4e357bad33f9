//! The same containers on a plain overlay of the unpacked image, for comparison.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::Result;
use crate::calls::Host;
use crate::figures::median;

/// How often both are measured, one after the other.
const ROUNDS: usize = 9;

/// An overlay over the unpacked image. Dropped, it is unmounted.
struct Overlay {
    folder: PathBuf,
}

impl Overlay {
    fn new(lower: &Path, folder: PathBuf) -> Result<Self> {
        for directory in ["upper", "work", "root"] {
            std::fs::create_dir_all(folder.join(directory))?;
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            folder.join("upper").display(),
            folder.join("work").display()
        );
        let options = std::ffi::CString::new(options)?;
        mount("overlay", folder.join("root"), "overlay", MountFlags::empty(), options.as_c_str())?;
        Ok(Self { folder })
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _gone = unmount(self.folder.join("root"), UnmountFlags::DETACH);
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// Starts `many` containers at once, alternately on ours and on plain overlays.
pub(crate) async fn compare(scratch: &Path, host: &Host, many: usize) -> Result<()> {
    let lower = scratch.join("unpacked");
    let rootfs = host.rootfs().await?;
    let copied = Command::new("cp").arg("-a").arg(rootfs.path()).arg(&lower).status()?;
    rootfs.close().await?;
    if !copied.success() {
        return Err("the image could not be unpacked".into());
    }
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    // One round to warm up.
    for round in 0..=ROUNDS {
        let (one, other) = (start_ours(host, many).await?, start_plain(host, &lower, scratch, many).await?);
        println!("{many} at once: {one:.1?}, on plain overlays {other:.1?}");
        if round > 0 {
            ours.push(one);
            plain.push(other);
        }
    }
    let (ours, plain) = (median(&mut ours), median(&mut plain));
    println!("median {ours:.1?} to {plain:.1?}: {:.2} times", ours.as_secs_f64() / plain.as_secs_f64());
    Ok(())
}

/// Time until the last one has run its command, without cleanup.
async fn start_ours(host: &Host, many: usize) -> Result<Duration> {
    let began = Instant::now();
    let started = try_join_all((0..many).map(|_| async {
        let rootfs = host.rootfs().await?;
        host.run(rootfs.path()).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(rootfs)
    }));
    let started = started.await?;
    let took = began.elapsed();
    for rootfs in started {
        rootfs.close().await?;
    }
    Ok(took)
}

async fn start_plain(host: &Host, lower: &Path, scratch: &Path, many: usize) -> Result<Duration> {
    let began = Instant::now();
    let started = try_join_all((0..many).map(|number| async move {
        let (lower, folder) = (lower.to_owned(), scratch.join(format!("plain-{number}")));
        let overlay = tokio::task::spawn_blocking(move || Overlay::new(&lower, folder)).await??;
        host.run(&overlay.folder.join("root")).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(overlay)
    }));
    let started = started.await?;
    let took = began.elapsed();
    drop(started);
    Ok(took)
}
