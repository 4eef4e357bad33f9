//! Checks of tarpon's environment: programs that use it, free space for the store, access to a registry.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tarpon_engine::{
    Access, Engine, ErrorKind, ImageRequest, Network, PodmanVersion, Pull, RegistriesChoice, StatedEndpoints,
    auth_files,
};
use tarpon_oci::{Platform, Source};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::check::{Check, check};
use super::{containerd, distribution};
use crate::commands::image::{ImageName, image_name};
use crate::size;

/// Maximum time for a program or a registry to respond.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum free space in bytes: less is too small for most images.
const MIN_FREE_SPACE: u64 = 1 << 30;
/// An image that no registry has: the reply "not found" or "denied" proves that the registry works.
const NO_IMAGE: &str = "tarpon/doctor:none";
/// Maximum number of mirrors that are contacted, one after the other.
const MAX_MIRRORS: usize = 4;
/// The mode of a file that all users can read.
const OTHERS_READ: u32 = 0o004;

/// Runs these checks; programs that are not installed are skipped.
pub(super) async fn checks(engine: &Engine, podman_conf: &Path, registry: Option<&str>) -> Vec<Check> {
    let mut checks = vec![confinement(engine).await, runtime(), published_ports(), free_space(engine)];
    checks.extend(podman(engine, podman_conf));
    checks.extend(containerd().await);
    checks.extend(endpoint_files());
    if let Some(host) = registry {
        checks.extend(registry_access(engine, host).await);
    }
    checks
}

async fn confinement(engine: &Engine) -> Check {
    let found = match engine.confinement().await {
        Ok(Some((how, true))) => Ok(how),
        Ok(Some((how, false))) => Err(how),
        Ok(None) => Err("everything runs in one process".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let mend = "Linux 5.19 or newer, with landlock in the kernel's parameter lsm=".to_owned();
    check("confined workers", "registries and images that are not trusted", found, Some(mend))
}

fn runtime() -> Check {
    let found = tarpon_engine::oci_runtime().map_err(|error| error.cause().to_string());
    check("OCI runtime", "tarpon run, tarpon record", found, Some(distribution::install("crun")))
}

/// Whether the network for published ports can be connected.
fn published_ports() -> Check {
    let network = Network::for_ports();
    let found = match network.check() {
        Ok(()) => Ok(format!("network {}", network.name())),
        Err(error) => Err(error.cause().to_string()),
    };
    check("published ports", "tarpon run -p", found, Some(distribution::install("passt")))
}

fn free_space(engine: &Engine) -> Check {
    let folder = engine.store().folder();
    let found = match rustix::fs::statvfs(folder) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let text = format!("{} free at {}", size::human(free), folder.display());
            if free >= MIN_FREE_SPACE { Ok(text) } else { Err(text) }
        }
        Err(error) => Err(format!("{}: {error}", folder.display())),
    };
    check(
        "room for the store",
        "fetched content",
        found,
        Some("tarpon cache gc, or --store DIR on a larger disk".to_owned()),
    )
}

fn podman(engine: &Engine, conf: &Path) -> Option<Check> {
    let version = PodmanVersion::installed()?;
    let text = match engine.podman().reads(conf) {
        true => format!("Podman {version}, {} names the store", conf.display()),
        false => format!("Podman {version}, {} does not name the store (tarpon podman setup)", conf.display()),
    };
    let folder = engine.store().podman_folder();
    let found = match engine.podman().reads(conf) && !folder.is_dir() {
        true => Err(format!("{} names {}, which does not exist: Podman fails", conf.display(), folder.display())),
        false => Ok(text),
    };
    Some(check("Podman's image store", "tarpon podman add", found, Some("tarpon podman setup".to_owned())))
}

async fn containerd() -> Option<Check> {
    let [program, arguments @ ..] = containerd::DUMP;
    let dump = Command::new(program).args(arguments).kill_on_drop(true).output();
    let found = match timeout(TIMEOUT, dump).await {
        Ok(Err(_not_installed)) => return None,
        Ok(Ok(output)) if output.status.success() => {
            containerd::check(&String::from_utf8_lossy(&output.stdout), listens).await
        }
        Ok(Ok(output)) => Err(String::from_utf8_lossy(output.stderr.trim_ascii()).into_owned()),
        Err(_late) => Err(format!("{} did not respond within {} s", containerd::DUMP.join(" "), TIMEOUT.as_secs())),
    };
    Some(check("containerd", "tarpon snapshotter", found, Some("the configuration in docs/containerd.md".to_owned())))
}

async fn listens(socket: &Path) -> bool {
    timeout(TIMEOUT, UnixStream::connect(socket)).await.is_ok_and(|connected| connected.is_ok())
}

/// Whether the files of endpoints can be used, and other users cannot read their headers.
fn endpoint_files() -> Vec<Check> {
    let files = match RegistriesChoice::of_environment().endpoint_files() {
        Ok(files) => files.into_iter().map(|(file, found)| endpoint_file(&file, found)).collect(),
        Err(error) => vec![Err((error.cause().to_string(), "docs/registries.md describes the files".to_owned()))],
    };
    let checked = files.into_iter().map(|found| {
        let mend = found.as_ref().err().map(|(_, mend)| mend.clone());
        check("endpoints", "caches and mirrors", found.map_err(|(why, _)| why), mend)
    });
    checked.collect()
}

/// What a file configures; or the problem with it, and what solves that.
fn endpoint_file(file: &Path, found: tarpon_engine::Result<StatedEndpoints>) -> Result<String, (String, String)> {
    let shown = file.display();
    if std::fs::File::open(file).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return Ok(format!("{shown} is closed to this user, who does without its endpoints"));
    }
    let described = || "docs/registries.md describes the file".to_owned();
    let StatedEndpoints { endpoints, has_headers } = found.map_err(|error| (error.cause().to_string(), described()))?;
    let mode = std::fs::metadata(file).map(|found| found.mode());
    let mode = mode.map_err(|error| (format!("{shown}: {error}"), described()))?;
    match has_headers && mode & OTHERS_READ != 0 {
        true => Err((
            format!("all users can read the headers in {shown}"),
            format!("chmod 600 {shown}, if they are secret"),
        )),
        false => Ok(format!("{endpoints} in {shown}")),
    }
}

/// Whether the registry and its mirrors can be reached and trusted.
async fn registry_access(engine: &Engine, host: &str) -> Vec<Check> {
    let proxies =
        "$HTTPS_PROXY sets a proxy; --registry HOST contacts another registry, --registry none skips this check";
    let access = |found| check("registry access", "images that are not local", found, Some(proxies.to_owned()));
    let configured = RegistriesChoice::of_environment();
    let (name, mirrors) = match requested(host, &configured) {
        Ok(requested) => requested,
        Err(why) => return vec![access(Err(why))],
    };
    let mut checks = Vec::new();
    for (mirror, alone) in mirrors {
        let found = contact(engine, &name, &mirror, alone).await;
        let fix =
            "the next host is asked instead; it is in registries.conf or endpoints.d (docs/registries.md)".to_owned();
        checks.push(check("mirror", &format!("images of {host}"), found, Some(fix)));
    }
    checks.push(access(contact(engine, &name, host, configured).await));
    checks
}

/// The image that is requested from a registry, and the mirrors that serve it.
fn requested(
    host: &str,
    configured: &RegistriesChoice,
) -> Result<(ImageName, Vec<(String, RegistriesChoice)>), String> {
    let name = image_name(&format!("{host}/{NO_IMAGE}")).map_err(|error| error.to_string())?;
    let Source::Registry(reference) = &name.source else { return Err(format!("{host} is no registry")) };
    let mirrors = configured.mirrors(reference).map_err(|error| error.cause().to_string())?;
    Ok((name, mirrors.into_iter().take(MAX_MIRRORS).collect()))
}

/// Requests the image; an error about the image that the host does not have counts as success.
async fn contact(
    engine: &Engine,
    name: &ImageName,
    host: &str,
    registries: RegistriesChoice,
) -> Result<String, String> {
    let access = Access { authfiles: auth_files(), registries, ..Access::default() };
    let image = ImageRequest::new(&name.text, name.source.clone(), Platform::host());
    let request = ImageRequest { pull: Pull::Always, access, ..image };
    match timeout(TIMEOUT, engine.inspect(&request)).await {
        Ok(Ok(_)) => Ok(format!("{host} responds")),
        Ok(Err(error)) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Denied) => {
            Ok(format!("{host} responds"))
        }
        Ok(Err(error)) => Err(format!("{host}: {}", error.cause())),
        Err(_late) => Err(format!("{host} did not respond within {} s", TIMEOUT.as_secs())),
    }
}

/// The machine's Podman configuration, unless the environment names another.
pub(super) fn podman_conf() -> PathBuf {
    let named = std::env::var_os("CONTAINERS_STORAGE_CONF").filter(|path| !path.is_empty());
    named.map_or_else(crate::commands::podman::setup::storage_conf, PathBuf::from)
}
