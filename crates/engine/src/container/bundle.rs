//! [`Bundle`]: the directory that an OCI runtime takes, made of an image config and what the user says otherwise.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capability, LinuxBuilder, LinuxCapabilities, LinuxCapabilitiesBuilder, LinuxNamespace, LinuxNamespaceBuilder,
    LinuxNamespaceType, Mount, MountBuilder, Process, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
    get_default_maskedpaths, get_default_mounts, get_default_readonly_paths,
};
use tarpon_oci::RunConfig;

use super::user;
use crate::{Error, ErrorKind, Result};

/// What `PATH` is where neither the image nor the user says: as with other tools.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a process may do that runs as root: what Podman grants by default.
const CAPABILITIES: [Capability; 11] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::NetBindService,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// What the user says otherwise than the image.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    /// Instead of the image's command.
    pub(crate) command: Vec<String>,
    /// `NAME=VALUE`, beside or instead of the image's.
    pub(crate) env: Vec<String>,
}

/// A bundle on disk. Its directory goes when this is dropped; the root file system is somebody else's.
pub(crate) struct Bundle {
    folder: tempfile::TempDir,
}

impl Bundle {
    /// Writes the bundle of a container whose root file system is mounted at `root`, into a new directory in `parent`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] for an image that says nothing that could be run, or names a user that it does not have.
    pub(crate) fn write(parent: &Path, root: &Path, config: &RunConfig, overrides: &Overrides) -> Result<Self> {
        let refused = |cause: String| Error::new(ErrorKind::Refused, "describe the container", cause);
        let failed = |cause: String| Error::new(ErrorKind::Store, "write the container's description", cause);
        let process = process(root, config, overrides).map_err(refused)?;
        let spec = spec(root, process).map_err(|error| refused(error.to_string()))?;
        let folder = tempfile::Builder::new().prefix("bundle-").tempdir_in(parent);
        let folder = folder.map_err(|error| failed(error.to_string()))?;
        spec.save(folder.path().join("config.json")).map_err(|error| failed(error.to_string()))?;
        Ok(Self { folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The process: entrypoint and command, environment, user and directory.
fn process(root: &Path, config: &RunConfig, overrides: &Overrides) -> std::result::Result<Process, String> {
    let command = if overrides.command.is_empty() { &config.cmd } else { &overrides.command };
    let args: Vec<String> = config.entrypoint.iter().chain(command).cloned().collect();
    if args.is_empty() {
        return Err("the image has no command: say one".to_owned());
    }
    let user = user::find(root, &config.user)?;
    let home = format!("HOME={}", user.home.as_deref().filter(|home| !home.is_empty()).unwrap_or("/"));
    let env = environment([vec![PATH.to_owned(), home], config.env.clone(), overrides.env.clone()].concat());
    let directory = Path::new("/").join(&config.working_dir);
    let user = UserBuilder::default().uid(user.uid).gid(user.gid).additional_gids(user.groups).build();
    let process = ProcessBuilder::default()
        .terminal(false)
        .user(user.map_err(|error| error.to_string())?)
        .args(args)
        .env(env)
        .cwd(directory)
        .capabilities(capabilities().map_err(|error| error.to_string())?)
        .no_new_privileges(false)
        .build();
    let mut process = process.map_err(|error| error.to_string())?;
    // The limits of whoever starts it.
    process.set_rlimits(None);
    Ok(process)
}

/// Each name once: the last value, at the place of the first.
fn environment(said: Vec<String>) -> Vec<String> {
    let name = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    let mut seen = HashSet::new();
    let first_places = said.iter().filter(|variable| seen.insert(name(variable)));
    let last = |wanted: &String| said.iter().rfind(|variable| name(variable) == name(wanted)).cloned();
    first_places.filter_map(last).collect()
}

fn capabilities() -> std::result::Result<LinuxCapabilities, OciSpecError> {
    let all: HashSet<Capability> = CAPABILITIES.into_iter().collect();
    // Nothing is inheritable or ambient: a process that gives up root keeps none of them.
    LinuxCapabilitiesBuilder::default()
        .bounding(all.clone())
        .effective(all.clone())
        .permitted(all)
        .inheritable(HashSet::new())
        .ambient(HashSet::new())
        .build()
}

/// A container with namespaces of its own but the host's network.
fn spec(root: &Path, process: Process) -> std::result::Result<Spec, OciSpecError> {
    let namespaces =
        [LinuxNamespaceType::Pid, LinuxNamespaceType::Ipc, LinuxNamespaceType::Uts, LinuxNamespaceType::Mount];
    let namespaces: std::result::Result<Vec<LinuxNamespace>, _> =
        namespaces.into_iter().map(|typ| LinuxNamespaceBuilder::default().typ(typ).build()).collect();
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces?)
        .masked_paths(get_default_maskedpaths())
        .readonly_paths(get_default_readonly_paths())
        .build()?;
    // No limits: cgroups are the business of whoever sets some.
    linux.set_resources(None);
    let mut mounts = get_default_mounts();
    mounts.extend(host_files()?);
    SpecBuilder::default()
        .root(RootBuilder::default().path(root).readonly(false).build()?)
        .process(process)
        .hostname("tarpon")
        .mounts(mounts)
        .linux(linux)
        .build()
}

/// What the network of the host is used with.
fn host_files() -> std::result::Result<Vec<Mount>, OciSpecError> {
    let files = ["/etc/resolv.conf", "/etc/hosts"].map(PathBuf::from);
    let mount = |file: PathBuf| {
        let options = ["bind", "ro", "nosuid", "nodev", "noexec"].map(str::to_owned).to_vec();
        MountBuilder::default().destination(file.clone()).typ("bind").source(file).options(options).build()
    };
    files.into_iter().filter(|file| file.exists()).map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RunConfig {
        RunConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["serve".into()],
            env: vec!["A=1".into(), "PATH=/bin".into()],
            working_dir: "srv".into(),
            ..RunConfig::default()
        }
    }

    fn made(overrides: &Overrides) -> Process {
        process(Path::new("/nonexistent"), &config(), overrides).unwrap()
    }

    #[test]
    fn a_process_is_what_the_image_says() {
        let process = made(&Overrides::default());
        assert_eq!(process.args().as_deref().unwrap(), ["/entry", "serve"]);
        assert_eq!(process.env().as_deref().unwrap(), ["PATH=/bin", "HOME=/", "A=1"]);
        assert_eq!(process.cwd(), Path::new("/srv"));
    }

    #[test]
    fn a_command_replaces_the_images_and_variables_are_joined() {
        let overrides =
            Overrides { command: vec!["sh".into(), "-c".into(), "x".into()], env: vec!["A=2".into(), "B=".into()] };
        let process = made(&overrides);
        assert_eq!(process.args().as_deref().unwrap(), ["/entry", "sh", "-c", "x"]);
        assert_eq!(process.env().as_deref().unwrap(), ["PATH=/bin", "HOME=/", "A=2", "B="]);
    }

    #[test]
    fn an_image_without_a_command_needs_one() {
        let empty = RunConfig::default();
        assert!(process(Path::new("/nonexistent"), &empty, &Overrides::default()).unwrap_err().contains("no command"));
    }

    #[test]
    fn a_bundle_is_written_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let bundle = Bundle::write(parent.path(), Path::new("/nonexistent"), &config(), &Overrides::default()).unwrap();
        let spec = Spec::load(bundle.path().join("config.json")).unwrap();
        assert_eq!(spec.root().as_ref().unwrap().path(), Path::new("/nonexistent"));
        assert!(spec.linux().as_ref().unwrap().resources().is_none());
        drop(bundle);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
