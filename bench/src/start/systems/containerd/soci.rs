//! SOCI: images with an attached index, and soci-snapshotter-grpc, which uses it to read layers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::http;
use tarpon_harness::workloads::Workload;
use tarpon_harness::{paths, process};

use super::daemon::{Daemon, NAMESPACE, OWN};

pub(super) const SNAPSHOTTER: &str = "soci-snapshotter-grpc";

/// The program that makes indexes.
const PROGRAM: &str = "soci";

/// The tag of the images with an index.
pub(in crate::start) const TAG: &str = "soci";

/// The tag of their source images.
const FROM: &str = "gzip";

/// The media types of images, with an index and without.
const MEDIA_TYPES: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";

/// Whether it is installed.
pub(in super::super) fn is_installed() -> bool {
    [SNAPSHOTTER, PROGRAM].into_iter().all(|program| process::find(program).is_some())
}

/// The snapshotter's configuration; everything else is default.
pub(super) fn config(containerd: &Path, registry: &str) -> String {
    format!(
        "[content_store]\ntype = \"containerd\"\ncontainerd_address = \"{}\"\n\
         [[resolver.host.\"{registry}\".mirrors]]\nhost = \"http://{registry}\"\ninsecure = true\n",
        containerd.display()
    )
}

/// Publishes each workload's image with an index, unless that was done for the same manifest before.
pub(in crate::start) fn prepare(workloads: &[Workload], registry: &str) -> Result<()> {
    let images: BTreeSet<&str> = workloads.iter().map(|workload| workload.image.as_str()).collect();
    for image in images {
        let (status, manifest) = manifest(registry, image, FROM)?;
        if status != 200 {
            bail!("{registry} has no {image}:{FROM}: make it with `cargo xtask images`");
        }
        let done = paths::benchmarks().join("soci").join(image);
        if fs::read(&done).is_ok_and(|of| of == manifest) && self::manifest(registry, image, TAG)?.0 == 200 {
            continue;
        }
        println!("indexing {image} for SOCI");
        publish(&format!("{registry}/{image}")).with_context(|| format!("cannot make {image}:{TAG}"))?;
        fs::create_dir_all(done.parent().context("an image has a name")?)?;
        fs::write(done, manifest)?;
    }
    Ok(())
}

/// The answer to the request for a manifest.
fn manifest(registry: &str, image: &str, tag: &str) -> Result<(u16, Vec<u8>)> {
    let path = format!("/v2/{image}/manifests/{tag}");
    let answer = http::request(registry, "GET", &path, &format!("Accept: {MEDIA_TYPES}\r\n"), b"")?;
    Ok((answer.status, answer.body))
}

fn publish(image: &str) -> Result<()> {
    let soci = process::find(PROGRAM).with_context(|| format!("{PROGRAM} is not installed"))?;
    let daemon = Daemon::new("soci-index")?;
    daemon.wipe()?;
    let registry = image.split('/').next().unwrap_or_default();
    daemon.start(OWN, registry)?;
    let (from, to) = (format!("{image}:{FROM}"), format!("{image}:{TAG}"));
    let mut convert = Command::new(soci);
    convert.arg("--address").arg(daemon.socket()).args(["--namespace", NAMESPACE]);
    convert.args(["--content-store", "containerd", "convert"]);
    // All layers: for a layer without an index the snapshotter uses TLS, even if the registry does not.
    convert.args(["--min-layer-size", "0", &from, &to]);
    let pull = daemon.ctr(&["images", "pull", "--plain-http", &from]);
    let push = daemon.ctr(&["images", "push", "--plain-http", &to]);
    let log = paths::benchmarks().join("soci.log");
    let done = [pull, convert, push].iter_mut().try_for_each(|command| process::check_logged(command, &log));
    daemon.end()?;
    daemon.wipe()?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshotter_gets_the_socket_of_containerd_and_an_insecure_registry() {
        let config = config(Path::new("/r/containerd.sock"), "127.0.0.1:5000");
        assert!(config.contains("containerd_address = \"/r/containerd.sock\""), "{config}");
        assert!(config.ends_with("host = \"http://127.0.0.1:5000\"\ninsecure = true\n"), "{config}");
    }
}
