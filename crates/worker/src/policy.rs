//! What a worker may do, by the image that it reads.

use std::path::{Path, PathBuf};

use tarpon_images::Access;
use tarpon_oci::Source;

use crate::message::{Setup, VERSION};

/// Most memory of a worker that fetches: the requests that a server has in flight (about 300 MiB, encoded and decoded), the windows of
/// their decoders, and the stacks of its threads, which count as a whole.
const FETCH_BYTES: u64 = 1 << 30;

/// Most memory of a worker that prepares an image. What an image may cost follows from what was received of it
/// ([`tarpon_layer::Allowance`]); this is more than the largest image needs, and ends what escapes that account.
const PREPARE_BYTES: u64 = 4 << 30;

/// Folders of certificates. Where their files are links, the links lead into one of the others.
const FOLDERS: [&str; 9] = [
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/var/lib/ca-certificates",
    "/etc/containers/certs.d",
    "/etc/docker/certs.d",
    "/nix/store",
];

/// Configuration of the resolver that a program may replace by another file. A worker may read the file that was there when it started, so
/// its user watches them.
const FILES: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"];

/// What a store reads outside of its folder: after a restart of the machine its files are checked.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Variables that name other certificates.
const CERTIFICATE_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What a worker may read besides certificates and the resolver's configuration. Images with the same policy share a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Policy {
    /// `--cert-dir`.
    cert_dir: Option<PathBuf>,
    /// The layout or archive; `None` for a registry.
    local: Option<PathBuf>,
}

impl Policy {
    pub(crate) fn of(source: &Source, access: &Access) -> Self {
        let local = match source {
            Source::Registry(_) => None,
            Source::OciLayout { directory, .. } => Some(directory.clone()),
            Source::OciArchive { file, .. } | Source::DockerArchive { file, .. } => Some(file.clone()),
        };
        Self { cert_dir: access.cert_dir.clone(), local }
    }

    /// The setup of a worker that prepares an image in the store at `store`.
    pub(crate) fn setup_to_prepare(&self, store: &Path) -> Setup {
        let mut setup = Setup { write: vec![store.to_owned()], memory: PREPARE_BYTES, ..self.setup() };
        setup.read.push(BOOT_ID.into());
        setup
    }

    /// The setup of a worker that completes an image in the store at `store`. Its user requests the blobs.
    pub(crate) fn setup_to_complete(store: &Path) -> Setup {
        let (read, write) = (vec![BOOT_ID.into()], vec![store.to_owned()]);
        Setup { version: VERSION, read, write, connects: false, memory: PREPARE_BYTES }
    }

    /// The setup of a worker that fetches.
    pub(crate) fn setup(&self) -> Setup {
        let fixed = FOLDERS.into_iter().map(PathBuf::from);
        let variables = CERTIFICATE_VARIABLES.into_iter().filter_map(std::env::var_os).map(PathBuf::from);
        let own = self.cert_dir.iter().chain(&self.local).cloned();
        Setup {
            version: VERSION,
            read: fixed.chain(variables).chain(own).collect(),
            write: Vec::new(),
            connects: self.local.is_none(),
            memory: FETCH_BYTES,
        }
    }
}

/// The files that may be replaced by others, as they are now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Watched(Vec<Option<(u64, u64)>>);

impl Watched {
    pub(crate) fn now() -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let identity = |path| {
            let found = std::fs::metadata(Path::new(path)).ok()?;
            Some((found.dev(), found.ino()))
        };
        Self(FILES.into_iter().map(identity).collect())
    }
}
