//! `tarpon snapshotter`: provides images to containerd as a proxy plugin.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tarpon_engine::{Backfill, Ended, ModeChoice};
use tarpon_snapshotter::{ImageOptions, Options, PlainImages};

use super::image::ImageChoice;
use super::options::{backfill, mode, path};
use super::session::{Session, runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon snapshotter                      at /run/tarpon/snapshotter.sock, snapshots in STORE/snapshotter
  tarpon snapshotter --address /run/other.sock --root /srv/snapshots
  tarpon snapshotter --plain unpack       images without tables of contents are containerd's own affair
  tarpon snapshotter --whole              images are verified when they are pulled
  crictl pull localhost:5000/app:v1       is lazy
  ctr images pull --snapshotter tarpon localhost:5000/app:v1    is lazy with containerd 2.x alone

Containerd 1.6 and 1.7, in /etc/containerd/config.toml:
  version = 2
  [proxy_plugins.tarpon]
    type = \"snapshot\"
    address = \"/run/tarpon/snapshotter.sock\"
  [plugins.\"io.containerd.grpc.v1.cri\".containerd]
    snapshotter = \"tarpon\"
    disable_snapshot_annotations = false

Containerd 2.x wants more than that, an unpack_config among it: docs/containerd.md has it whole, and a
unit for systemd. `tarpon doctor` checks what containerd reads.

Containerd tells a snapshotter no credentials: they come from --authfile, or from Podman's and Docker's
files.";

/// Serve images to containerd, as its snapshotter
///
/// Answers containerd's snapshots service until it is told to stop (SIGTERM). Layers of images that containerd pulls for
/// Kubernetes are not downloaded but mounted, by the store's server, and what is read comes when it is read. All else is
/// unpacked by containerd as with its own snapshotter for overlayfs. Needs root, and containerd in the same mount namespace.
/// What is mounted stays when the snapshotter ends.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Snapshotter {
    /// The socket to listen at
    #[arg(long, value_name = "SOCKET", default_value = "/run/tarpon/snapshotter.sock", value_parser = path())]
    address: PathBuf,
    /// Where snapshots are kept; on a disk that can hold upper directories of overlayfs [default: STORE/snapshotter]
    #[arg(long, value_name = "DIR", value_parser = path())]
    root: Option<PathBuf>,
    /// What becomes of an image of which some layer has no table of contents
    #[arg(long, value_name = "HOW", default_value = "stream")]
    plain: Plain,
    /// Bring each image whole when it is pulled, and verify all of its layers before containerd is told that they are there
    ///
    /// Containerd shares layers among images by what their configs say. Else that is believed of layers with a table of contents.
    #[arg(long)]
    whole: bool,
    /// How to mount images
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode())]
    mode: ModeChoice,
    /// Bring the rest of each mounted image in the background, and verify all of it: off, idle (while no reader waits), now
    #[arg(long, value_name = "WHEN", env = "TARPON_BACKFILL", default_value = "off", value_parser = backfill())]
    backfill: Backfill,
    #[command(flatten)]
    choice: ImageChoice,
}

/// What becomes of an image that cannot be read in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plain {
    /// It is streamed into the store once, when it is pulled, and mounted; what is evicted comes back in parts
    Stream,
    /// Containerd pulls and unpacks it, unless it is in the store
    Unpack,
}

impl Snapshotter {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        session.engine().may_serve_containerd().doing(|| "cannot serve containerd")?;
        let root = self.root.unwrap_or_else(|| session.engine().store().folder().join("snapshotter"));
        let plain = match self.plain {
            Plain::Stream => PlainImages::Stream,
            Plain::Unpack => PlainImages::Unpack,
        };
        let (index, profile, access) = self.choice.read()?;
        let (mode, backfill, whole) = (self.mode, self.backfill, self.whole);
        let images = ImageOptions { index, profile, access, mode, backfill, plain, whole };
        let options = Options { root, address: self.address, images };
        let served = runtime()?.block_on(tarpon_snapshotter::serve(session.engine(), options));
        match served.doing(|| "cannot serve containerd")? {
            Ended::Interrupted => Err(Failure::new(Exit::Interrupted, "interrupted; what is mounted stays mounted")),
            Ended::Idle | Ended::Terminated => Ok(()),
        }
    }
}
