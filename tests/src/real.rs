//! External parts of the tests: a registry with real images, umoci, skopeo.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use tarpon_oci::Digest;

use crate::dump::{Dump, dump};

/// The registry of `cargo xtask images`, unless `REGISTRY` is set.
const DEFAULT_REGISTRY: &str = "127.0.0.1:5000";

/// Writes a program that can be executed at once. Another process writes it: a fork in another test could inherit a descriptor open for
/// writing, and the kernel refuses to execute a file that is open for writing (`ETXTBSY`).
pub fn write_program(path: &Path, text: &str) -> Result<()> {
    let script = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    run(Command::new("sh").args(["-c", script]).arg(path).arg(text)).map(drop)
}

/// Copies a program, as [`write_program`] writes one.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg(from).arg(to)).map(drop)
}

/// Runs a command to its end; an error contains its output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    bail!("{command:?}: {}\n{stdout}{}", output.status, String::from_utf8_lossy(&output.stderr))
}

/// Whether all programs are on PATH.
pub fn have(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs.iter().all(|program| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Why tests that need root and the kernel cannot run here; `None` if they can.
pub fn missing_for_mounts() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    (!Path::new("/dev/fuse").exists()).then(|| "no /dev/fuse".into())
}

/// Why tests that need root, the kernel and real images cannot run here; `None` if they can.
pub fn missing() -> Option<String> {
    if let Some(reason) = missing_for_mounts() {
        return Some(reason);
    }
    if !have(&["umoci", "skopeo"]) {
        return Some("umoci and skopeo are not installed".into());
    }
    if registry().is_none() {
        return Some("no registry with the real images (cargo xtask images)".into());
    }
    None
}

/// Like [`missing`], for tests that also run containers.
pub fn missing_for_containers() -> Option<String> {
    let has_runtime = have(&["crun"]) || have(&["runc"]);
    missing().or_else(|| (!has_runtime).then(|| "neither crun nor runc is installed".into()))
}

/// The address of the local registry, if it answers.
pub fn registry() -> Option<String> {
    let name = std::env::var("REGISTRY").unwrap_or_else(|_| DEFAULT_REGISTRY.into());
    let address: SocketAddr = name.parse().ok()?;
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok().map(|_| name)
}

/// Whether the registry has this tag.
pub fn has_tag(registry: &str, image: &str, tag: &str) -> bool {
    let reference = format!("docker://{registry}/{image}:{tag}");
    run(Command::new("skopeo").args(["inspect", "--raw", "--tls-verify=false", &reference])).is_ok()
}

/// The folder of all temporary files. It is on the disk, not in a tmpfs: overlay uppers and large images need that.
fn scratch_folder() -> Result<PathBuf> {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/e2e");
    std::fs::create_dir_all(&target)?;
    Ok(target.canonicalize()?)
}

/// A temporary directory.
pub fn scratch() -> Result<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("t-").tempdir_in(scratch_folder()?)?)
}

/// The tool that unpacked the expected tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oracle {
    /// `umoci unpack`.
    Umoci,
    /// Podman's overlay store, for layers that umoci refuses (it does not support PAX global headers).
    Podman,
}

/// The tree that other tools unpack from an image.
pub fn unpacked(registry: &str, image: &str) -> Result<(Oracle, Dump)> {
    match umoci_dump(registry, image) {
        Err(_) if have(&["podman"]) => Ok((Oracle::Podman, podman_dump(registry, image)?)),
        other => Ok((Oracle::Umoci, other?)),
    }
}

/// The tree that `umoci unpack` makes of an image.
pub fn umoci_dump(registry: &str, image: &str) -> Result<Dump> {
    dump(&umoci_bundle(&format!("docker://{registry}/{image}"))?.join("rootfs"))
}

/// The folder in which umoci unpacked an image. Each image is unpacked once: many tests compare with it, and none changes it.
fn umoci_bundle(reference: &str) -> Result<PathBuf> {
    let manifest = run(Command::new("skopeo").args(["inspect", "--raw", "--tls-verify=false", reference]))?;
    let folder = scratch_folder()?.join("umoci");
    std::fs::create_dir_all(&folder)?;
    let bundle = folder.join(Digest::of(manifest.as_bytes()).hex());
    let lock = File::create(bundle.with_extension("lock"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    if !bundle.exists() {
        let work = scratch()?;
        let layout = format!("{}/layout:image", work.path().display());
        let to = format!("oci:{layout}");
        run(Command::new("skopeo").args(["copy", "-q", "--src-tls-verify=false", reference, &to]))?;
        let unpacked = work.path().join("bundle");
        run(Command::new("umoci").args(["unpack", "--image", &layout]).arg(&unpacked))?;
        std::fs::rename(&unpacked, &bundle)?;
    }
    Ok(bundle)
}

/// The tree that Podman's overlay store makes of an image.
fn podman_dump(registry: &str, image: &str) -> Result<Dump> {
    let work = scratch()?;
    let podman = |arguments: &[&str]| {
        let mut command = Command::new("podman");
        command.arg("--root").arg(work.path().join("root")).arg("--runroot").arg(work.path().join("run"));
        run(command.args(["--storage-driver", "overlay"]).args(arguments))
    };
    let reference = format!("{registry}/{image}");
    podman(&["pull", "-q", "--tls-verify=false", &reference])?;
    let root = podman(&["image", "mount", &reference])?;
    let seen = dump(Path::new(root.trim_end()));
    podman(&["image", "umount", "-a"])?;
    podman(&["rmi", "-f", &reference])?;
    seen
}
