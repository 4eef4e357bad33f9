//! What a worker may do, by the image that it reads.

use std::path::{Path, PathBuf};

use tarpon_images::Access;
use tarpon_images::access::Settled;
use tarpon_images::tiers;
use tarpon_oci::Source;
use tarpon_registry::Address;
use tarpon_tier::{TierLocation, TierOptions};

use crate::folder_probe::{self, AbsentFolder};
use crate::message::{Setup, TierName, VERSION};

/// Most memory of a worker that fetches: the requests that a server has in flight (about 300 MiB, encoded and decoded), the windows of
/// their decoders, and the stacks of its threads, which count as a whole.
const FETCH_BYTES: u64 = 1 << 30;

/// Most memory of a worker that prepares an image. What an image may cost follows from what was received of it
/// ([`tarpon_layer::Allowance`]); this is more than the largest image needs, and ends what escapes that account.
const PREPARE_BYTES: u64 = 4 << 30;

/// Certificates of the system. Private keys are in other folders beside them.
const CERTIFICATES: [&str; 11] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/var/lib/ca-certificates",
    "/nix/store",
];

/// Folders with certificates and client keys of single registries, by `HOST[:PORT]`.
const REGISTRY_CERTIFICATES: [&str; 2] = ["/etc/containers/certs.d", "/etc/docker/certs.d"];

/// Configuration of the resolver that a program may replace by another file. A worker may read the file that was there when it started, so
/// its user watches them.
const FILES: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"];

/// What a worker may read besides certificates of the system and the resolver's configuration. Images with the same policy share a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Policy {
    /// `--cert-dir`, or the folders for the registry and its mirrors that exist.
    certificates: Vec<PathBuf>,
    /// The layout or archive; `None` for a registry.
    local: Option<PathBuf>,
    /// The tier of the image.
    tier: Option<TierLocation>,
}

impl Policy {
    pub(crate) fn of(settled: &Settled, access: &Access) -> Self {
        let local = match &settled.source {
            Source::Registry(_) => None,
            Source::OciLayout { directory, .. } => Some(directory.clone()),
            Source::OciArchive { file, .. } | Source::DockerArchive { file, .. } => Some(file.clone()),
        };
        let certificates: Vec<_> = match &access.cert_dir {
            Some(folder) => vec![folder.clone()],
            None => {
                let hosts = settled.endpoints.iter().map(|endpoint| endpoint.reference.api_host());
                let folders = hosts.flat_map(|host| REGISTRY_CERTIFICATES.map(|folder| Path::new(folder).join(host)));
                folders.filter(|folder| folder.is_dir()).collect()
            }
        };
        let named = settled.endpoints.iter().filter_map(|endpoint| endpoint.address.as_ref()).flat_map(Address::files);
        let certificates = certificates.into_iter().chain(named.cloned()).collect();
        Self { certificates, local, tier: tiers::location_for(&settled.source, access).cloned() }
    }

    /// The same for a worker that reads no layer.
    pub(crate) fn without_tier(self) -> Self {
        Self { tier: None, ..self }
    }

    /// The paths that not every worker reads. They may belong to another user than root, or be closed to others.
    fn own(&self) -> impl Iterator<Item = PathBuf> {
        self.certificates.iter().chain(&self.local).cloned()
    }

    fn tier_folder(&self) -> Option<&Path> {
        self.tier.as_ref()?.folder()
    }

    /// The files that a worker with this setup reads and that may be replaced.
    pub(crate) fn watched(&self, setup: &Setup) -> Watched {
        let credentials = self.tier.iter().flat_map(|tier| TierOptions::from_environment(tier).files());
        let paths = FILES.into_iter().map(PathBuf::from).chain(self.own()).chain(credentials).collect();
        let absent = self.tier_folder().filter(|folder| !setup.read.iter().any(|path| path == folder));
        Watched { absent: absent.map(|folder| AbsentFolder::new(folder.to_owned())), ..Watched::now(paths) }
    }

    /// The setup of a worker that prepares an image in the store at `store`.
    pub(crate) fn setup_to_prepare(&self, store: &Path) -> Setup {
        let mut setup =
            Setup { as_own_user: false, write: vec![store.to_owned()], memory: PREPARE_BYTES, ..self.setup() };
        // Layers that it streams are copied to the tier.
        let folder = self.tier_folder().filter(|folder| setup.read.iter().any(|path| path == folder));
        setup.write.extend(folder.map(Path::to_owned));
        setup
    }

    /// The setup of a worker that completes an image in the store at `store`. Its user requests the blobs.
    pub(crate) fn setup_to_complete(store: &Path) -> Setup {
        let (read, write) = (Vec::new(), vec![store.to_owned()]);
        Setup {
            version: VERSION,
            read,
            reads_for_others: false,
            as_own_user: false,
            write,
            connects: false,
            memory: PREPARE_BYTES,
            tier: None,
        }
    }

    /// The setup of a worker that fetches.
    pub(crate) fn setup(&self) -> Setup {
        let fixed = CERTIFICATES.into_iter().map(PathBuf::from);
        let file = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let folders = std::env::var_os("SSL_CERT_DIR").unwrap_or_default();
        let folders: Vec<_> = std::env::split_paths(&folders).filter(|path| !path.as_os_str().is_empty()).collect();
        let tier = self.tier.clone().map(|location| {
            let options = TierOptions::from_environment(&location);
            TierName { location, options }
        });
        let credentials = tier.iter().flat_map(|tier| tier.options.files());
        let folder = self.tier_folder().filter(|folder| folder_probe::answers(folder)).map(Path::to_owned);
        let named: Vec<_> =
            file.into_iter().chain(folders).chain(self.own()).chain(credentials).chain(folder).collect();
        Setup {
            version: VERSION,
            reads_for_others: !named.is_empty(),
            read: fixed.chain(named).collect(),
            as_own_user: true,
            write: Vec::new(),
            connects: self.local.is_none(),
            memory: FETCH_BYTES,
            tier,
        }
    }
}

impl Setup {
    /// Lets a worker read what the worker with the other setup reads, and connect if that one connects.
    pub(crate) fn reads_also(&mut self, other: Self) {
        let more = other.read.into_iter().filter(|path| !self.read.contains(path)).collect::<Vec<_>>();
        self.read.extend(more);
        self.reads_for_others |= other.reads_for_others;
        self.connects |= other.connects;
    }
}

/// Files that may be replaced by others, and what they were.
#[derive(Debug)]
pub(crate) struct Watched {
    paths: Vec<PathBuf>,
    identities: Vec<Option<(u64, u64)>>,
    /// The folder of the tier, which a worker may only use if it was there when the worker was started.
    absent: Option<AbsentFolder>,
}

impl Watched {
    /// Nothing.
    pub(crate) fn nothing() -> Self {
        Self::now(Vec::new())
    }

    fn now(paths: Vec<PathBuf>) -> Self {
        Self { identities: paths.iter().map(|path| identity(path)).collect(), paths, absent: None }
    }

    /// Whether another file has the place of one of them, or an absent folder is there. Runs on a thread of a runtime.
    pub(crate) fn has_changed(&mut self) -> bool {
        if self.absent.as_mut().is_some_and(AbsentFolder::is_back) {
            return true;
        }
        let now = self.paths.iter().map(|path| identity(path));
        now.zip(&self.identities).any(|(now, before)| now != *before)
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
