//! The compared systems: adapters of a few lines each, from a reference to a running container.

use std::path::Path;

use anyhow::{Result, bail};
use tarpon_harness::process;

use crate::podman::Podman;

mod containerd;
mod eager;
pub(in crate::start) mod nydus;
mod shown;
mod stargz;
mod system;
mod tarpon;
mod user;

use containerd::{Containerd, Snapshotter};
use eager::Eager;
use nydus::{Kind, Nydus};
use shown::Shown;
use stargz::Stargz;
use tarpon::{Begin, Pack, Tarpon};
use user::{User, Way};

use system::store;

pub(super) use containerd::soci;
#[cfg(test)]
pub(super) use system::Counters;
pub(super) use system::{Server, System};

/// The systems of a comparison.
pub(super) type Systems = Vec<Box<dyn System>>;

/// All systems, in the order in which they run.
const NAMES: [&str; 30] = [
    "podman",
    "podman-warm",
    "tarpon-streamed",
    "tarpon-index",
    "tarpon-index-fuse",
    "tarpon-no-learn",
    "tarpon-learned",
    "tarpon-next-no-learn",
    "tarpon-next",
    "tarpon-estargz",
    "tarpon-estargz-learned",
    "tarpon-estargz-predicted",
    "tarpon-predicted",
    "tarpon-pack",
    "tarpon-pack-fuse",
    "tarpon-warm",
    "podman-tarpon",
    "podman-tarpon-pack",
    "podman-tarpon-warm",
    "podman-stargz",
    "nydus-zran",
    "nydus-prefetch",
    "containerd",
    "containerd-tarpon",
    "containerd-tarpon-pack",
    "containerd-stargz",
    "containerd-soci",
    "user-podman",
    "user-tarpon-index",
    "user-tarpon-pack",
];

/// The systems of these names, in the order in which they run.
pub(super) fn find(wanted: &[String], tarpon: &Path) -> Result<Systems> {
    if let Some(unknown) = wanted.iter().find(|name| !NAMES.contains(&name.as_str())) {
        bail!("no system {unknown}: there are {}", NAMES.join(", "));
    }
    let is_wanted = |name: &&&str| wanted.iter().any(|wanted| wanted == **name);
    let systems = NAMES.iter().filter(is_wanted).map(|name| system(name, tarpon)).collect::<Result<Systems>>()?;
    for system in &systems {
        if let Some(before) = system.begins_with().filter(|before| !is_wanted(&before)) {
            bail!("{} starts with what {before} leaves: measure both", system.name());
        }
    }
    Ok(systems)
}

fn system(name: &'static str, tarpon: &Path) -> Result<Box<dyn System>> {
    let tarpon = tarpon.to_owned();
    let program = tarpon.clone();
    let cold = Tarpon {
        name,
        program,
        format: None,
        next: false,
        index: true,
        pack: Pack::None,
        begin: Begin::Nothing,
        learns: true,
        mode: "auto",
    };
    Ok(match name {
        "podman" | "podman-warm" => {
            Box::new(Eager { name, podman: Podman::new(store("podman"), String::new())?, is_local: name != "podman" })
        }
        "tarpon-streamed" => Box::new(Tarpon { index: false, ..cold }),
        "tarpon-index-fuse" => Box::new(Tarpon { mode: "fuse", ..cold }),
        "tarpon-no-learn" => Box::new(Tarpon { learns: false, ..cold }),
        "tarpon-learned" => Box::new(Tarpon { begin: Begin::Learned("tarpon-index"), ..cold }),
        "tarpon-next-no-learn" => Box::new(Tarpon { next: true, learns: false, ..cold }),
        "tarpon-next" => Box::new(Tarpon { next: true, begin: Begin::Learned("tarpon-index"), ..cold }),
        "tarpon-estargz" => Box::new(Tarpon { format: Some(stargz::FORMAT), index: false, ..cold }),
        "tarpon-estargz-learned" => Box::new(Tarpon {
            format: Some(stargz::FORMAT),
            index: false,
            begin: Begin::Learned("tarpon-estargz"),
            ..cold
        }),
        "tarpon-estargz-predicted" => Box::new(Tarpon { format: Some(stargz::FORMAT), pack: Pack::Predicted, ..cold }),
        "tarpon-predicted" => Box::new(Tarpon { pack: Pack::Predicted, ..cold }),
        "tarpon-pack" => Box::new(Tarpon { pack: Pack::Recorded, ..cold }),
        "tarpon-pack-fuse" => Box::new(Tarpon { pack: Pack::Recorded, mode: "fuse", ..cold }),
        "tarpon-warm" => Box::new(Tarpon { pack: Pack::Recorded, begin: Begin::Store("tarpon-pack"), ..cold }),
        "podman-tarpon" => Box::new(Shown::new(name, tarpon, shown::Begin::Nothing { pack: false })?),
        "podman-tarpon-pack" => Box::new(Shown::new(name, tarpon, shown::Begin::Nothing { pack: true })?),
        "podman-tarpon-warm" => Box::new(Shown::new(name, tarpon, shown::Begin::Added("podman-tarpon-pack"))?),
        "podman-stargz" => Box::new(Stargz::new(name)?),
        "nydus-zran" => Box::new(Nydus::new(name, Kind::Zran)?),
        "nydus-prefetch" => Box::new(Nydus::new(name, Kind::Rafs)?),
        "containerd" => Box::new(Containerd::new(name, Snapshotter::Own)?),
        "containerd-tarpon" => Box::new(Containerd::new(name, Snapshotter::Tarpon { program: tarpon, pack: false })?),
        "containerd-tarpon-pack" => {
            Box::new(Containerd::new(name, Snapshotter::Tarpon { program: tarpon, pack: true })?)
        }
        "containerd-stargz" => Box::new(Containerd::new(name, Snapshotter::stargz()?)?),
        "containerd-soci" => Box::new(Containerd::new(name, Snapshotter::soci()?)?),
        "user-podman" => Box::new(User::new(name, Way::Podman, tarpon)?),
        "user-tarpon-index" => Box::new(User::new(name, Way::Tarpon { pack: false }, tarpon)?),
        "user-tarpon-pack" => Box::new(User::new(name, Way::Tarpon { pack: true }, tarpon)?),
        _ => Box::new(cold),
    })
}

/// The default systems: those that can run here.
pub(super) fn usual() -> Vec<String> {
    let mut names = vec!["podman", "tarpon-index", "tarpon-pack", "tarpon-warm", "podman-tarpon-pack"];
    if process::find(stargz::PROGRAM).is_some() {
        names.push("podman-stargz");
    }
    if nydus::is_installed() {
        names.extend(["nydus-zran", "nydus-prefetch"]);
    }
    if containerd::is_installed() {
        names.extend(["containerd", "containerd-tarpon-pack"]);
        names.extend(process::find(containerd::STARGZ).map(|_| "containerd-stargz"));
        names.extend(soci::is_installed().then_some("containerd-soci"));
    }
    names.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Result<Vec<&'static str>> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(find(&names, Path::new("/bin/true"))?.iter().map(|system| system.name()).collect())
    }

    #[test]
    fn systems_run_in_one_order_however_they_are_named() {
        assert_eq!(named(&["tarpon-pack", "tarpon-streamed"]).unwrap(), ["tarpon-streamed", "tarpon-pack"]);
    }

    #[test]
    fn a_warm_store_needs_the_run_that_warms_it() {
        assert!(named(&["tarpon-warm"]).is_err() && named(&["tarpon-warm", "tarpon-pack"]).is_ok());
        assert!(named(&["tarpon-learned"]).is_err() && named(&["tarpon-learned", "tarpon-index"]).is_ok());
        assert!(named(&["podman-tarpon-warm"]).is_err());
        assert!(named(&["tarpon-next"]).is_err() && named(&["tarpon-next", "tarpon-index"]).is_ok());
    }

    #[test]
    fn the_next_version_of_an_image_has_a_tag_of_its_own() {
        let tag = |name: &str| find(&[name.to_owned()], Path::new("/bin/true")).unwrap()[0].tag("zstdchunked");
        assert_eq!(["tarpon-index", "tarpon-estargz"].map(tag), ["zstdchunked", "estargz"]);
        assert_eq!(tag("tarpon-next-no-learn"), "zstdchunked-next");
    }

    #[test]
    fn what_is_usual_here_is_known_and_in_order() {
        let usual = usual();
        let known: Vec<_> = NAMES.into_iter().filter(|name| usual.iter().any(|usual| usual == *name)).collect();
        assert_eq!(usual, known);
    }

    #[test]
    fn the_error_for_an_unknown_system_lists_the_known_ones() {
        let error = named(&["docker"]).err().unwrap().to_string();
        assert!(error.contains("docker") && error.contains("podman-tarpon"), "{error}");
    }
}
