//! `tarpon doctor`: what works on this machine, what is missing and the command that fixes it.

mod check;
mod containerd;
mod distribution;
mod host;

use clap::Args;
use serde::Serialize;
use tarpon_engine::{Capability, Isolation, PodmanVersion};

use check::{Check, check};

use super::session::{Session, runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon doctor
  tarpon doctor --json | jq .modes
  tarpon doctor --registry registry.example:5000

Mounts are tried for real, and undone. Exits with 0 if images can be mounted in at least one mode,
else with 7.";

/// Check what works on this machine
///
/// Checks mounts, the OCI runtime, the configuration of Podman and containerd, free space for the store, and access to a registry.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Registry to contact, or none
    #[arg(long, value_name = "HOST", default_value = "docker.io")]
    registry: String,
}

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    isolation: &'static str,
    modes: Modes,
    checks: Vec<Check>,
}

/// The modes that work.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Modes {
    native: bool,
    fuse: bool,
}

impl Doctor {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let store = session.engine().store();
        let scratch = store.run_folder();
        std::fs::create_dir_all(&scratch)
            .doing(|| format!("cannot write to the store {}", store.folder().display()))?;
        let isolation = session.engine().isolation().doing(|| "cannot read the isolation of the store")?;
        let runtime = runtime()?;
        let capabilities = tarpon_engine::probe(&scratch, runtime.handle().clone());
        let folder = escape(store.folder().as_os_str().as_encoded_bytes());
        let mut report = report(folder, isolation, &capabilities, is_root());
        report.checks.extend(PodmanVersion::installed().map(podman_layers));
        let registry = Some(self.registry.as_str()).filter(|host| *host != "none");
        report.checks.extend(runtime.block_on(host::checks(session.engine(), &host::podman_conf(), registry)));
        if self.json {
            output::json(&report)?;
        } else {
            output::text(&text(&report))?;
        }
        if report.modes == (Modes { native: false, fuse: false }) {
            return Err(Failure::new(Exit::CannotMount, "no mode works on this machine"));
        }
        Ok(())
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn report(store: String, isolation: Isolation, capabilities: &[Capability], root: bool) -> Report {
    let works = |name: &str| capabilities.iter().any(|found| found.name == name && found.found.is_ok());
    let fuse = works("/dev/fuse");
    let modes = Modes {
        native: root && fuse && works("EROFS from a file") && works("overlayfs with data-only layers"),
        fuse: fuse && (root || works("fusermount3")),
    };
    let checks = capabilities.iter().map(|Capability { name, needed_for, found }| {
        check(name, needed_for, found.clone(), found.as_ref().err().and_then(|why| fix(name, why, root)))
    });
    Report { store, isolation: isolation.name(), modes, checks: checks.collect() }
}

/// Whether this Podman version supports a store of layers.
fn podman_layers(version: PodmanVersion) -> Check {
    let found = version.problem_with_layers().map_or_else(|| Ok(format!("Podman {version}")), Err);
    check("Podman's layer store", "lazy podman pull", found, None)
}

/// The command that installs or enables the missing part, if there is one.
fn fix(name: &str, why: &str, root: bool) -> Option<String> {
    match name {
        "/dev/fuse" if why.contains("Permission denied") => Some("sudo chmod 0666 /dev/fuse".to_owned()),
        "/dev/fuse" => Some("sudo modprobe fuse; in a container, add --device /dev/fuse".to_owned()),
        // Without root these checks fail on any kernel.
        "EROFS from a file" if root => Some("modprobe erofs".to_owned()),
        "overlayfs with data-only layers" if root => Some("modprobe overlay".to_owned()),
        "root" => Some("sudo tarpon …; other users can use mode fuse only".to_owned()),
        "fusermount3" => Some(distribution::install("fuse3")),
        _ => None,
    }
}

fn text(report: &Report) -> String {
    let word = |works| if works { "works" } else { "does not work" };
    let mut text = format!(
        "mode native  {}\nmode fuse    {}\nstore        {}\nisolation    {}\n\n",
        word(report.modes.native),
        word(report.modes.fuse),
        report.store,
        report.isolation
    );
    let mut table = Table::new(&["", "", "", ""]);
    for check in &report.checks {
        let mark = if check.works { "ok" } else { "--" };
        table.row([mark.to_owned(), check.name.clone(), format!("({})", check.needed_for), check.found.clone()]);
    }
    text.push_str(&table.to_string());
    let fixes = report.checks.iter().filter_map(|check| Some((&check.name, check.mend.as_ref()?)));
    for (number, (name, fix)) in fixes.enumerate() {
        text.push_str(if number == 0 { "\nTo fix:\n" } else { "" });
        text.push_str(&format!("  {name}: {fix}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(missing: &[&str]) -> Vec<Capability> {
        let names = ["root", "/dev/fuse", "EROFS from a file", "overlayfs with data-only layers", "fusermount3"];
        let capability = |name: &'static str| {
            let found = if missing.contains(&name) { Err("missing".into()) } else { Ok("works".into()) };
            Capability { name, needed_for: "a mode", found }
        };
        names.into_iter().map(capability).collect()
    }

    #[test]
    fn a_mode_works_only_if_all_its_parts_work() {
        let modes = |missing, root| {
            let Modes { native, fuse } = report("/s".into(), Isolation::Shared, &capabilities(missing), root).modes;
            (native, fuse)
        };
        assert_eq!(modes(&[], true), (true, true));
        assert_eq!(modes(&["EROFS from a file"], true), (false, true));
        assert_eq!(modes(&["root"], false), (false, true));
        assert_eq!(modes(&["root", "fusermount3"], false), (false, false));
        assert_eq!(modes(&["fusermount3"], true), (true, true));
        assert_eq!(modes(&["/dev/fuse"], true), (false, false));
    }

    #[test]
    fn missing_parts_are_listed_with_a_fix() {
        let report = report(
            "/var/lib/tarpon".into(),
            Isolation::Shared,
            &capabilities(&["EROFS from a file", "/dev/fuse"]),
            true,
        );
        insta::assert_snapshot!(text(&report));
    }

    #[test]
    fn the_json_of_the_report_has_a_stable_shape() {
        let report = report("/var/lib/tarpon".into(), Isolation::Tenant, &capabilities(&["EROFS from a file"]), true);
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).expect("serialisable"));
    }
}
