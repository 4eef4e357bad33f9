//! SOCI: images with an index beside them, and soci-snapshotter-grpc, which reads layers by it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::bed::{Bed, NAMESPACE, OWN};
use crate::bench::machine;
use crate::images::http;
use crate::process;
use xtask::workloads::Workload;

pub(super) const SNAPSHOTTER: &str = "soci-snapshotter-grpc";

/// The program that makes indexes.
const PROGRAM: &str = "soci";

/// The tag of the images with an index.
pub(in crate::bench::start) const TAG: &str = "soci";

/// The tag of the images that they are made of.
const FROM: &str = "gzip";

/// What an image with its index is.
const MEDIA_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// Whether it can be measured here.
pub(in super::super) fn is_installed() -> bool {
    [SNAPSHOTTER, PROGRAM].into_iter().all(|program| process::find(program).is_some())
}

/// The snapshotter's configuration; all that it does not say is as usual.
pub(super) fn config(containerd: &Path, registry: &str) -> String {
    format!(
        "[content_store]\ntype = \"containerd\"\ncontainerd_address = \"{}\"\n\
         [[resolver.host.\"{registry}\".mirrors]]\nhost = \"http://{registry}\"\ninsecure = true\n",
        containerd.display()
    )
}

/// Publishes each workload's image with an index, unless the registry has it.
pub(in crate::bench::start) fn prepare(workloads: &[Workload], registry: &str) -> Result<()> {
    let images: BTreeSet<&str> = workloads.iter().map(|workload| workload.image.as_str()).collect();
    for image in images {
        let path = format!("/v2/{image}/manifests/{TAG}");
        let there = http::request(registry, "HEAD", &path, &format!("Accept: {MEDIA_TYPE}\r\n"), b"")?;
        if there.status != 200 {
            println!("indexing {image} for SOCI");
            publish(&format!("{registry}/{image}")).with_context(|| format!("cannot make {image}:{TAG}"))?;
        }
    }
    Ok(())
}

fn publish(image: &str) -> Result<()> {
    let soci = process::find(PROGRAM).with_context(|| format!("{PROGRAM} is not installed"))?;
    let bed = Bed::new("soci-index")?;
    bed.wipe()?;
    let registry = image.split('/').next().unwrap_or_default();
    bed.start(OWN, registry)?;
    let (from, to) = (format!("{image}:{FROM}"), format!("{image}:{TAG}"));
    let mut convert = Command::new(soci);
    convert.arg("--address").arg(bed.socket()).args(["--namespace", NAMESPACE]);
    convert.args(["--content-store", "containerd", "convert", &from, &to]);
    let pull = bed.ctr(&["images", "pull", "--plain-http", &from]);
    let push = bed.ctr(&["images", "push", "--plain-http", &to]);
    let log = machine::folder().join("soci.log");
    let done = [pull, convert, push].iter_mut().try_for_each(|command| process::check_logged(command, &log));
    bed.end()?;
    bed.wipe()?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshotter_is_told_where_containerd_is_and_that_the_registry_has_no_certificate() {
        let config = config(Path::new("/r/containerd.sock"), "10.0.0.1:5000");
        assert!(config.contains("containerd_address = \"/r/containerd.sock\""), "{config}");
        assert!(config.ends_with("host = \"http://10.0.0.1:5000\"\ninsecure = true\n"), "{config}");
    }
}
