//! `tarpon mount`: prepares the image in this process, with its progress on this terminal, and passes the mount to the
//! store's server; with `--foreground` this process is that server.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use tarpon_engine::store::in_user_namespace;
use tarpon_engine::{
    Backfill, Ended, ModeChoice, MountRequest, MountStatus, Server, Writable, is_directory, resolve_mountpoint,
    resolve_upper,
};

use super::image::ImageArgs;
use super::options::{Learning, address, backfill, mode};
use super::session::{Session, command_runtime, runtime};
use super::trace;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::signals::leave_to_command;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon mount docker.io/library/alpine:3.20 /mnt
  tarpon mount --rw localhost:5000/app:v1 /mnt          writable; changes are discarded at unmount
  tarpon mount --rw=/srv/changes debian:12 /mnt         writable; changes are kept in /srv/changes
  tarpon mount --mode fuse --platform linux/arm64 registry.example/app@sha256:… ~/app
  tarpon mount oci:/srv/layout:v1 /mnt                  from an OCI layout on disk
  tarpon mount --metrics 9464 debian:12 /mnt            serve metrics at 127.0.0.1:9464/metrics
  tarpon mount --trace app.trace localhost:5000/app:v1 /mnt    prefetch a recorded trace

The command returns when the mount is usable; a background server fetches data on demand.
Its log is STORE/run/server.log; $RUST_LOG sets the level (RUST_LOG=debug).";

/// Mount an image
///
/// Mounts IMAGE on the existing directory DIR. File data is fetched when it is read, and verified against the image's digest before a
/// program receives it. Fetched data stays in the store and is not fetched again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mount {
    /// Mount mode
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode())]
    mode: ModeChoice,
    /// Make the mount writable; changes are kept in UPPERDIR, or discarded at unmount without one
    #[arg(long, value_name = "UPPERDIR", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "clap's way to tell --rw from --rw=UPPERDIR")]
    rw: Option<Option<PathBuf>>,
    /// Honour setuid and setgid bits of the image
    #[arg(long)]
    suid: bool,
    /// Allow access to device nodes of the image
    #[arg(long)]
    dev: bool,
    /// Serve the mount in the foreground until it is unmounted or interrupted
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Size limit of the store, from now on [default: 20 GiB or 80 % of the disk, whichever is less]
    #[arg(long, value_name = "SIZE", value_parser = store_size)]
    store_size: Option<u64>,
    /// Fetch and verify the rest of the image in the background: off, idle (one layer at a time, while no read waits), now (several at
    /// a time, with lower priority than reads)
    ///
    /// Off by default, because a lazy mount exists to avoid fetching everything. Ends with the last mount of the image. `tarpon status`
    /// shows the progress, and an alarm if a layer does not match the image's index.
    #[arg(long, value_name = "WHEN", env = "TARPON_BACKFILL", default_value = "off", value_parser = backfill())]
    backfill: Backfill,
    /// Maximum rate of --backfill in bytes per second [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = rate, requires = "backfill")]
    backfill_rate: Option<NonZeroU64>,
    /// Serve Prometheus metrics at http://ADDR/metrics: PORT (on 127.0.0.1) or IP:PORT
    ///
    /// The server of the store serves the metrics of all its mounts, until its last mount is unmounted. A server that is already running
    /// starts to serve them now; if it already uses another address, the command fails. Anyone who can reach the address can read the
    /// names of the images.
    #[arg(long, value_name = "ADDR", env = "TARPON_METRICS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Prefetch the content listed in this trace of `tarpon record -o`, in its order
    ///
    /// For images without a boot pack. A trace refers to content by digest, so a trace of another build or format of the image works for
    /// the content that both have. At most 256 MiB are prefetched, with lower priority than reads.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    learning: Learning,
    /// Print the mount as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
    /// Existing directory
    dir: PathBuf,
}

impl Mount {
    pub(crate) fn is_writable(&self) -> bool {
        self.rw.is_some()
    }

    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        self.set_store_size(global, &session)?;
        let mountpoint = self.mountpoint()?;
        let doing = || format!("cannot mount {} on {}", self.image.text(), self.dir.display());
        session.engine().check_mountpoint(&mountpoint).doing(doing)?;
        let trace = self.trace.as_deref().map(trace::read).transpose()?;
        let runtime = if self.foreground { runtime()? } else { command_runtime()? };
        let progress = output::progress(global.quiet);
        let (engine, image) = (session.engine(), self.image.request()?);
        let prepared = if self.foreground {
            runtime.block_on(engine.prepare(&image, &*progress))
        } else {
            runtime.block_on(engine.prepare_to_mount(&image, &*progress))
        };
        let prepared = prepared.doing(doing)?;
        drop(progress);
        let reported = prepared.fallbacks.clone();
        let trace = trace.map(|trace| session.engine().leave_trace(&trace)).transpose().doing(doing)?;
        let request = MountRequest {
            trace: trace.as_ref().map(|left| left.as_ref().to_owned()),
            mode: self.mode,
            writable: self.writable()?,
            suid: self.suid,
            dev: self.dev,
            backfill: self.backfill,
            backfill_rate: self.backfill_rate,
            metrics: self.metrics,
            learn: self.learning.is_on(),
            ..MountRequest::for_image(&prepared, mountpoint)
        };
        if self.foreground {
            return runtime.block_on(async {
                let server = Server::start(session.engine()).await.doing(doing)?;
                leave_to_command();
                let mount = match server.mount(request).await.doing(doing) {
                    Ok(mount) => mount,
                    Err(failure) => {
                        server.stop(true).await;
                        return Err(failure);
                    }
                };
                self.report(global, &mount, &reported)?;
                match server.run().await {
                    Ended::Interrupted => Err(Failure::new(Exit::Interrupted, "interrupted; the image was unmounted")),
                    Ended::Idle | Ended::Terminated | Ended::Upgraded => Ok(()),
                }
            });
        }
        let mount = session.client().mount(request).doing(doing)?;
        self.report(global, &mount, &reported)
    }

    /// Sets the size limit of the store, for all its users.
    fn set_store_size(&self, global: &Global, session: &Session) -> Result {
        let Some(bytes) = self.store_size else { return Ok(()) };
        let before = session.engine().store().set_budget(bytes).doing(|| "cannot set the size limit of the store")?;
        if !global.quiet && before != Some(bytes) {
            let before = before.map(|before| format!(" (was {})", size::human(before))).unwrap_or_default();
            output::note(&format!("size limit of the store set to {}{before}", size::human(bytes)));
        }
        Ok(())
    }

    /// The mount point as the kernel will list it.
    fn mountpoint(&self) -> Result<PathBuf> {
        let doing = || format!("cannot mount {} on {}", self.image.text(), self.dir.display());
        let path = resolve_mountpoint(&self.dir).map_err(|error| {
            let failure = Failure::new(Exit::NotFound, format_args!("{}: {error}", doing()));
            match error.kind() {
                io::ErrorKind::NotFound => failure.hint(format!("create it: mkdir -p {}", self.dir.display())),
                _ => failure,
            }
        })?;
        if is_directory(&path) {
            return Ok(path);
        }
        Err(Failure::new(Exit::NotFound, format_args!("{}: {} is not a directory", doing(), path.display())))
    }

    fn writable(&self) -> Result<Writable> {
        match &self.rw {
            None => Ok(Writable::No),
            Some(None) => Ok(Writable::Temporary),
            Some(Some(upper)) => {
                let path = resolve_upper(upper).doing(|| format!("cannot use {} for changes", upper.display()))?;
                Ok(Writable::Upper(path))
            }
        }
    }

    /// Prints the result; fallbacks in `reported` were printed before.
    fn report(&self, global: &Global, mount: &MountStatus, reported: &[String]) -> Result {
        if !global.quiet {
            for fallback in mount.fallbacks.iter().filter(|line| !reported.contains(line)) {
                output::note(&escape(fallback.as_bytes()));
            }
        }
        if self.json {
            output::json(mount)?;
        } else if !global.quiet {
            let (image, dir) = (escape(mount.image.as_bytes()), self.dir.display());
            let visible = if in_user_namespace() { "; visible to tarpon unshare" } else { "" };
            output::note(&format!("mounted {image} ({}) on {dir}, mode {}{visible}", mount.manifest, mount.mode));
        }
        Ok(())
    }
}

/// Minimum size of a store: a smaller one is too small for most layers, so everything would be fetched again and again.
const MIN_STORE_SIZE: u64 = 64 << 20;

/// Minimum rate of a backfill: at less, an image of 100 MiB takes more than a day.
const MIN_RATE: u64 = 1 << 10;

fn store_size(text: &str) -> std::result::Result<u64, String> {
    at_least(MIN_STORE_SIZE, text)
}

fn rate(text: &str) -> std::result::Result<NonZeroU64, String> {
    NonZeroU64::new(at_least(MIN_RATE, text)?).ok_or_else(|| "expected more than 0".to_owned())
}

/// Parses a size with a lower limit: a number without a unit means bytes, which is rarely intended.
fn at_least(least: u64, text: &str) -> std::result::Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes >= least => Ok(bytes),
        bytes => Err(format!(
            "{} is less than {}; give a unit, such as 512M or 20GiB",
            size::human(bytes),
            size::human(least)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{rate, store_size};

    #[test]
    fn a_small_number_without_a_unit_is_rejected() {
        for wrong in ["0", "10", "20", "63M"] {
            assert!(store_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(store_size("64M"), Ok(64 << 20));
        assert_eq!(store_size("1073741824"), Ok(1 << 30), "a script may count bytes");
        assert!(rate("10").is_err() && rate("0").is_err());
        assert_eq!(rate("1M").map(u64::from), Ok(1 << 20));
    }
}
