//! `tarpon snapshotter`: provides images to containerd as a proxy plugin.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tarpon_engine::{Access, Backfill, ContainerdHosts, Ended, ModeChoice, RegistriesChoice};
use tarpon_snapshotter::{ImageOptions, Options, PlainImages};

use super::image::ImageChoice;
use super::options::{backfill, mode, path};
use super::session::{Session, runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

/// How long work on threads may take when calls have ended: a change of the records takes milliseconds, or seconds on a busy disk. A mount
/// may take minutes; the store's server ends it, and the next snapshotter finds it.
const LEFT_WORK: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  tarpon snapshotter                      listen on /run/tarpon/snapshotter.sock
  tarpon snapshotter --address /run/other.sock --root /srv/snapshots
  tarpon snapshotter --plain unpack       containerd unpacks images without tables of contents
  tarpon snapshotter --whole              fetch and verify whole images at pull
  tarpon snapshotter --cri-proxy          use the imagePullSecrets of pods, with the kubelet's
                                          imageServiceEndpoint: unix:///run/tarpon/snapshotter.sock
  crictl pull localhost:5000/app:v1       pull lazily
  ctr images pull --snapshotter tarpon localhost:5000/app:v1    pull lazily, containerd 2.x only

Containerd 1.6 and 1.7, in /etc/containerd/config.toml:
  version = 2
  [proxy_plugins.tarpon]
    type = \"snapshot\"
    address = \"/run/tarpon/snapshotter.sock\"
  [plugins.\"io.containerd.grpc.v1.cri\".containerd]
    snapshotter = \"tarpon\"
    disable_snapshot_annotations = false

Containerd 2.x also needs an unpack_config: docs/containerd.md has the whole configuration and a unit for
systemd. `tarpon doctor` checks the configuration of containerd.

Containerd passes no credentials to a snapshotter: they come from --authfile, or from the files of
Podman and Docker. With --cri-proxy those that the kubelet passes to a pull are used first.";

/// Serve images to containerd as a snapshotter
///
/// Implements the snapshots service of containerd until SIGTERM. Images with tables of contents or an index are not downloaded when containerd
/// pulls them for Kubernetes: the store's server mounts them and fetches data on demand. Other layers are downloaded once, see `--plain`.
/// Mounts stay when the snapshotter ends. Requires root, and containerd in the same mount namespace.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Snapshotter {
    /// Socket to listen on
    #[arg(long, value_name = "SOCKET", default_value = "/run/tarpon/snapshotter.sock", value_parser = path())]
    address: PathBuf,
    /// Directory for snapshots, on a disk that supports upper directories of overlayfs [default: STORE/snapshotter]
    #[arg(long, value_name = "DIR", value_parser = path())]
    root: Option<PathBuf>,
    /// Handling of images with a layer without a table of contents
    #[arg(long, value_name = "HOW", default_value = "stream")]
    plain: Plain,
    /// Fetch each image completely at pull, and verify all layers before reporting them to containerd
    ///
    /// Containerd shares layers between images by the diffIDs of their configs. Without this option these are trusted for layers with a
    /// table of contents.
    #[arg(long)]
    whole: bool,
    /// Mount mode
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode())]
    mode: ModeChoice,
    /// Fetch and verify the rest of each mounted image in the background: off, idle (while no read waits), now
    #[arg(long, value_name = "WHEN", env = "TARPON_BACKFILL", default_value = "off", value_parser = backfill())]
    backfill: Backfill,
    /// Folder in which containerd finds the mirrors of registries (HOST/hosts.toml)
    #[arg(long, value_name = "DIR", default_value = "/etc/containerd/certs.d", value_parser = path())]
    hosts_dir: PathBuf,
    /// Serve containerd's CRI image service on the same socket, and use the credentials of its pulls
    ///
    /// The kubelet (imageServiceEndpoint) and crictl (--image-endpoint) then call containerd through this socket. All calls are passed on
    /// unchanged. The credentials of a pull, such as imagePullSecrets, are kept in memory and used for that image only.
    #[arg(long)]
    cri_proxy: bool,
    /// Socket of containerd for --cri-proxy
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/run/containerd/containerd.sock",
        requires = "cri_proxy",
        value_parser = path()
    )]
    cri_address: PathBuf,
    #[command(flatten)]
    choice: ImageChoice,
}

/// Handling of images that cannot be read by range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plain {
    /// Stream the image into the store once, at pull, and mount it; evicted data is fetched by range
    Stream,
    /// Let containerd pull and unpack the image, unless it is in the store
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
        let registries = RegistriesChoice::Containerd(ContainerdHosts(self.hosts_dir));
        let access = Access { registries, ..access };
        let index_repos = self.choice.index_repos().to_vec();
        let (mode, backfill, whole) = (self.mode, self.backfill, self.whole);
        let images = ImageOptions { index, index_repos, profile, access, mode, backfill, plain, whole };
        let cri = self.cri_proxy.then_some(self.cri_address);
        let options = Options { root, address: self.address, images, cri };
        let runtime = runtime()?;
        let served = runtime.block_on(tarpon_snapshotter::serve(session.engine(), options));
        runtime.shutdown_timeout(LEFT_WORK);
        match served.doing(|| "cannot serve containerd")? {
            Ended::Interrupted => Err(Failure::new(Exit::Interrupted, "interrupted; mounts are kept")),
            Ended::Idle | Ended::Terminated | Ended::Upgraded => Ok(()),
        }
    }
}
