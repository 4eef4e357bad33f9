//! `tarpon mount`: prepares the image in this process, with its progress on this terminal, and passes the mount to the
//! store's server; with `--foreground` this process is that server.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use tarpon_engine::{
    Backfill, Ended, ModeChoice, MountRequest, MountStatus, Server, Writable, is_directory, resolve_mountpoint,
    resolve_upper,
};

use super::image::ImageArgs;
use super::options::{address, backfill, mode};
use super::session::{Session, runtime};
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
  tarpon mount --rw localhost:5000/app:v1 /mnt          writes go to a temporary layer
  tarpon mount --rw=/srv/changes debian:12 /mnt         writes are kept in /srv/changes
  tarpon mount --mode fuse --platform linux/arm64 registry.example/app@sha256:… ~/app
  tarpon mount oci:/srv/layout:v1 /mnt                  from an OCI layout on disk
  tarpon mount --metrics 9464 debian:12 /mnt            and curl 127.0.0.1:9464/metrics
  tarpon mount --trace app.trace localhost:5000/app:v1 /mnt    what `tarpon record -o app.trace` noted is brought first

The command returns when the mount is usable; a server in the background fetches what is read.
Its log is STORE/run/server.log; $RUST_LOG says how much it writes (RUST_LOG=debug).";

/// Mount an image
///
/// Mounts IMAGE on the existing directory DIR. File data is fetched when it is read, and each byte is checked against
/// the image's digest before anybody sees it. What was fetched stays in the store and is not fetched again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mount {
    /// How to mount
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode())]
    mode: ModeChoice,
    /// Make the mount writable; changes are kept in UPPERDIR, or thrown away at unmount without one
    #[arg(long, value_name = "UPPERDIR", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "clap's way to tell --rw from --rw=UPPERDIR")]
    rw: Option<Option<PathBuf>>,
    /// Let setuid and setgid bits of the image take effect
    #[arg(long)]
    suid: bool,
    /// Let device nodes of the image work
    #[arg(long)]
    dev: bool,
    /// Serve the mount in this process, until it is unmounted or interrupted
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Keep the store below this size from now on [default: 20 GiB or 80 % of the disk, whichever is less]
    #[arg(long, value_name = "SIZE", value_parser = store_size)]
    store_size: Option<u64>,
    /// Bring the rest of the image in the background, and verify all of it: off, idle (one layer at a time, while no reader
    /// waits), now (several at a time, behind what readers wait for)
    ///
    /// Off unless asked for: who mounts lazily does so in order not to fetch everything. It ends with the last mount of the
    /// image. `tarpon status` shows how far it is, and an alarm if a layer is not what the image's index said.
    #[arg(long, value_name = "WHEN", env = "TARPON_BACKFILL", default_value = "off", value_parser = backfill())]
    backfill: Backfill,
    /// Bytes that --backfill may fetch in a second [default: as many as come]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    backfill_rate: Option<NonZeroU64>,
    /// Tell metrics at http://ADDR/metrics, in the format of Prometheus: PORT (of 127.0.0.1) or IP:PORT
    ///
    /// They are those of the store's server, which tells of all its mounts and keeps the address until its last mount is gone. If it runs
    /// already, it begins now. If it has another address already, nothing is mounted. Whoever reaches the address reads the
    /// names of the images.
    #[arg(long, value_name = "ADDR", env = "TARPON_METRICS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Bring what this trace lists first, in its order: a file of `tarpon record -o`
    ///
    /// For images without a boot pack. A trace names contents, so one of another build of the image, or of another format of it, is good for what they
    /// have in common. At most 256 MiB are brought so, behind what is read.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the mount as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
    /// An existing directory
    dir: PathBuf,
}

impl Mount {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        self.settle_store_size(global, &session)?;
        let mountpoint = self.mountpoint()?;
        let doing = || format!("cannot mount {} on {}", self.image.text(), self.dir.display());
        session.engine().check_mountpoint(&mountpoint).doing(doing)?;
        let trace = self.trace.as_deref().map(trace::read).transpose()?;
        let runtime = runtime()?;
        let progress = output::progress(global.quiet);
        let (engine, image) = (session.engine(), self.image.request()?);
        let prepared = if self.foreground {
            runtime.block_on(engine.prepare(&image, &*progress))
        } else {
            runtime.block_on(engine.prepare_to_mount(&image, &*progress))
        };
        let prepared = prepared.doing(doing)?;
        drop(progress);
        let known = prepared.fallbacks.clone();
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
                self.report(global, &mount, &known)?;
                match server.run().await {
                    Ended::Interrupted => Err(Failure::new(Exit::Interrupted, "interrupted; the image is unmounted")),
                    Ended::Idle | Ended::Terminated => Ok(()),
                }
            });
        }
        let mount = session.client().mount(request).doing(doing)?;
        self.report(global, &mount, &known)
    }

    /// Sets the size limit of the store, for all its users.
    fn settle_store_size(&self, global: &Global, session: &Session) -> Result {
        let Some(bytes) = self.store_size else { return Ok(()) };
        let before = session.engine().store().settle_budget(bytes).doing(|| "cannot settle the size of the store")?;
        if !global.quiet && before != Some(bytes) {
            let before = before.map(|before| format!(", no longer {}", size::human(before))).unwrap_or_default();
            output::note(&format!("the store may hold {} from now on{before}", size::human(bytes)));
        }
        Ok(())
    }

    /// The mount point as the kernel will list it.
    fn mountpoint(&self) -> Result<PathBuf> {
        let doing = || format!("cannot mount {} on {}", self.image.text(), self.dir.display());
        let path = resolve_mountpoint(&self.dir).map_err(|error| {
            let failure = Failure::new(Exit::NotFound, format_args!("{}: {error}", doing()));
            match error.kind() {
                io::ErrorKind::NotFound => failure.hint(format!("make it: mkdir -p {}", self.dir.display())),
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
                let path = resolve_upper(upper).doing(|| format!("cannot keep changes in {}", upper.display()))?;
                Ok(Writable::Upper(path))
            }
        }
    }

    /// Prints the result; fallbacks in `known` were printed before.
    fn report(&self, global: &Global, mount: &MountStatus, known: &[String]) -> Result {
        if !global.quiet {
            for fallback in mount.fallbacks.iter().filter(|line| !known.contains(line)) {
                output::note(&escape(fallback.as_bytes()));
            }
        }
        if self.json {
            output::json(mount)?;
        } else if !global.quiet {
            let (image, dir) = (escape(mount.image.as_bytes()), self.dir.display());
            output::note(&format!("mounted {image} ({}) on {dir}, mode {}", mount.manifest, mount.mode));
        }
        Ok(())
    }
}

/// Minimum size of a store: a smaller one hardly holds a layer, so everything would be fetched again and again.
const LEAST_STORE: u64 = 64 << 20;

/// Minimum rate of a backfill: at less, an image of 100 MiB takes more than a day.
const LEAST_RATE: u64 = 1 << 10;

fn store_size(text: &str) -> std::result::Result<u64, String> {
    at_least(LEAST_STORE, text)
}

fn rate(text: &str) -> std::result::Result<NonZeroU64, String> {
    NonZeroU64::new(at_least(LEAST_RATE, text)?).ok_or_else(|| "it is nothing".to_owned())
}

/// Parses a size with a lower limit: a number without a unit means bytes, which is hardly ever intended.
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
    fn a_size_without_its_unit_is_not_taken_for_bytes() {
        for wrong in ["0", "10", "20", "63M"] {
            assert!(store_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(store_size("64M"), Ok(64 << 20));
        assert_eq!(store_size("1073741824"), Ok(1 << 30), "a script may count bytes");
        assert!(rate("10").is_err() && rate("0").is_err());
        assert_eq!(rate("1M").map(u64::from), Ok(1 << 20));
    }
}
