//! `tarpon doctor`: what works on this machine, what is missing and the command that fixes it.

mod check;
mod containerd;
mod distribution;
mod host;

use clap::Args;
use serde::Serialize;
use tarpon_engine::{Capability, Feature, Isolation, Mode, PodmanVersion};

use check::{Check, check};

use super::session::{Session, command_runtime};
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
    /// The mode of mounts for which none is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<Mode>,
    /// What prevents the next better mode, or what a newer kernel improves.
    better: Vec<String>,
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
        let runtime = command_runtime()?;
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
    let missing = |needed: &[Feature]| -> Vec<&Capability> {
        let is_missing = |found: &&Capability| needed.contains(&found.feature) && found.found.is_err();
        capabilities.iter().filter(is_missing).collect()
    };
    let for_native = missing(&NATIVE);
    let for_fuse = missing(if root { &FUSE_OF_ROOT } else { &FUSE_OF_USERS });
    let modes = Modes { native: for_native.is_empty(), fuse: for_fuse.is_empty() };
    let better = match (modes.native, modes.fuse) {
        (true, _) => capabilities.iter().filter_map(|found| found.better.map(str::to_owned)).collect(),
        (false, true) => obstacles(Mode::Native, &for_native, root),
        (false, false) => obstacles(Mode::Fuse, &for_fuse, root),
    };
    let default = if modes.native { Some(Mode::Native) } else { Some(Mode::Fuse).filter(|_| modes.fuse) };
    let checks = capabilities.iter().map(|Capability { feature, needed_for, found, .. }| {
        let why = found.as_ref().err();
        check(feature.name(), needed_for, found.clone(), why.and_then(|why| fix(*feature, why, root)))
    });
    Report { store, isolation: isolation.name(), modes, default, better, checks: checks.collect() }
}

/// What mode `native` needs.
const NATIVE: [Feature; 4] = [Feature::Root, Feature::FuseDevice, Feature::Erofs, Feature::Overlayfs];
/// What mode `fuse` needs.
const FUSE_OF_ROOT: [Feature; 1] = [Feature::FuseDevice];
const FUSE_OF_USERS: [Feature; 2] = [Feature::FuseDevice, Feature::Fusermount];

/// One line for each missing feature of a mode: why it is missing, and what to do.
fn obstacles(mode: Mode, missing: &[&Capability], root: bool) -> Vec<String> {
    let line = |found: &&Capability| {
        let why = found.found.as_ref().err()?;
        let fix = fix(found.feature, why, root).map(|fix| format!(": {fix}")).unwrap_or_default();
        Some(format!("mode {mode} needs {} ({why}){fix}", found.feature.name()))
    };
    missing.iter().filter_map(line).collect()
}

/// Whether this Podman version supports a store of layers.
fn podman_layers(version: PodmanVersion) -> Check {
    let found = version.problem_with_layers().map_or_else(|| Ok(format!("Podman {version}")), Err);
    check("Podman's layer store", "lazy podman pull", found, None)
}

/// The command that installs or enables the missing part, if there is one.
fn fix(feature: Feature, why: &str, root: bool) -> Option<String> {
    match feature {
        Feature::FuseDevice if why.contains("Permission denied") => Some("sudo chmod 0666 /dev/fuse".to_owned()),
        Feature::FuseDevice => Some("sudo modprobe fuse; in a container, add --device /dev/fuse".to_owned()),
        // Without root these checks fail on any kernel.
        Feature::Erofs if root => Some("modprobe erofs".to_owned()),
        Feature::Overlayfs if root => Some("modprobe overlay".to_owned()),
        Feature::Root => Some(
            "sudo tarpon …; other users have mode fuse, and from Linux 6.16 on mode native in user namespaces"
                .to_owned(),
        ),
        Feature::Fusermount => Some(distribution::install("fuse3")),
        _ => None,
    }
}

fn text(report: &Report) -> String {
    let word = |works| if works { "works" } else { "does not work" };
    let mut text = format!(
        "mode native  {}\nmode fuse    {}\ndefault      {}\nstore        {}\nisolation    {}\n\n",
        word(report.modes.native),
        word(report.modes.fuse),
        report.default.map_or("none", Mode::name),
        report.store,
        report.isolation
    );
    if !report.better.is_empty() {
        text.push_str("Better:\n");
        report.better.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        text.push('\n');
    }
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

    fn capabilities(missing: &[Feature]) -> Vec<Capability> {
        let features = [Feature::Root, Feature::FuseDevice, Feature::Erofs, Feature::Overlayfs, Feature::Fusermount];
        let capability = |feature| {
            let found = if missing.contains(&feature) { Err("missing".into()) } else { Ok("works".into()) };
            Capability { feature, needed_for: "a mode", found, better: None }
        };
        features.into_iter().map(capability).collect()
    }

    fn report_of(capabilities: &[Capability], root: bool) -> Report {
        report("/var/lib/tarpon".into(), Isolation::Shared, capabilities, root)
    }

    #[test]
    fn a_mode_works_only_if_all_its_parts_work() {
        let modes = |missing: &[Feature], root| {
            let Report { modes: Modes { native, fuse }, default, .. } = report_of(&capabilities(missing), root);
            (native, fuse, default)
        };
        assert_eq!(modes(&[], true), (true, true, Some(Mode::Native)));
        assert_eq!(modes(&[Feature::Erofs], true), (false, true, Some(Mode::Fuse)));
        assert_eq!(modes(&[Feature::Root], false), (false, true, Some(Mode::Fuse)));
        assert_eq!(modes(&[Feature::Root, Feature::Fusermount], false), (false, false, None));
        assert_eq!(modes(&[Feature::Fusermount], true), (true, true, Some(Mode::Native)));
        assert_eq!(modes(&[Feature::FuseDevice], true), (false, false, None));
    }

    #[test]
    fn it_names_what_prevents_the_next_better_mode_or_the_kernel_that_improves_this_one() {
        let better = |capabilities: &[Capability], root| report_of(capabilities, root).better;
        assert!(better(&capabilities(&[]), true).is_empty());
        let mut graded = capabilities(&[]);
        graded[2].better = Some("a newer kernel is faster");
        assert_eq!(better(&graded, true), ["a newer kernel is faster"]);
        assert_eq!(
            better(&capabilities(&[Feature::Erofs]), true),
            ["mode native needs EROFS (missing): modprobe erofs"]
        );
        assert!(
            better(&capabilities(&[Feature::FuseDevice, Feature::Erofs]), true)[0]
                .starts_with("mode fuse needs /dev/fuse")
        );
    }

    #[test]
    fn missing_parts_are_listed_with_a_fix() {
        insta::assert_snapshot!(text(&report_of(&capabilities(&[Feature::Erofs, Feature::FuseDevice]), true)));
    }

    #[test]
    fn the_json_of_the_report_has_a_stable_shape() {
        let report = report("/var/lib/tarpon".into(), Isolation::Tenant, &capabilities(&[Feature::Erofs]), true);
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).expect("serialisable"));
    }
}
