//! [`Bundle`]: the directory that an OCI runtime runs, made from an image config and the user's options.

use std::io::Read;
use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, LinuxResources, Mount, Process,
    RootBuilder, Spec, SpecBuilder, get_default_maskedpaths, get_default_readonly_paths,
};
use tarpon_oci::RunConfig;

use super::cgroups::has_cgroup2;
use super::{Confinement, ContainerOptions, mounts, process, seccomp};
use crate::network::Network;
use crate::{Error, ErrorKind, Result, ResultExt};

/// Kernel paths that Podman masks in addition to the defaults.
const MASKED: [&str; 3] = ["/sys/fs/selinux", "/sys/dev/block", "/sys/devices/virtual/powercap"];

/// File systems of the host's kernel, such as debugfs.
const SYS_KERNEL: &str = "/sys/kernel";

/// Longest description that is read. The longest part is the command with its environment, which the kernel limits to 2 MiB.
const CONFIG_BYTES: u64 = 8 << 20;

/// The step named in read errors.
const READ: &str = "read the container's description";

/// Settings of a network namespace, as with Podman: root of the container may send ICMP echo requests without `CAP_NET_RAW`.
const NETWORK_SETTINGS: [(&str, &str); 1] = [("net.ipv4.ping_group_range", "0 0")];

/// Host name of a container without a name.
const HOSTNAME: &str = "tarpon";

/// A bundle on disk. The caller owns the directory and the root file system.
pub(crate) struct Bundle {
    folder: PathBuf,
}

impl Bundle {
    /// Writes the bundle of a container whose root file system is mounted at `root` into `folder`. `own`: mounts in addition to the
    /// defaults and the options; `confinement`: the host's means that confine the container.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the image has nothing to run, or names a user that it does not have.
    pub(crate) fn write(
        folder: &Path,
        root: &Path,
        config: &RunConfig,
        options: &ContainerOptions,
        confinement: &Confinement,
        own: Vec<Mount>,
    ) -> Result<Self> {
        let step = "describe the container";
        let process = process::process(root, config, options, confinement).context(ErrorKind::Refused, step)?;
        let resources = options.limits.resources(confinement.processes).context(ErrorKind::Refused, step)?;
        let mounts = mounts::all(options, own).context(ErrorKind::Refused, step)?;
        let namespaces = namespaces(options.network, confinement.network.as_deref(), has_cgroup2())
            .context(ErrorKind::Refused, step)?;
        let spec = spec(root, process, options, mounts, (resources, namespaces)).context(ErrorKind::Refused, step)?;
        let file = folder.join("config.json");
        let step = "write the container's description";
        let text = serde_json::to_vec(&spec).context(ErrorKind::Store, step)?;
        tarpon_store::private::write_volatile(&file, &text).context(ErrorKind::Store, step)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The process of the container whose bundle is in `folder`.
    pub(crate) fn process(folder: &Path) -> Result<Process> {
        let without_process = || Error::new(ErrorKind::Store, READ, "it has no process");
        read(folder)?.process().clone().ok_or_else(without_process)
    }

    /// The mounts of the container whose bundle is in `folder`.
    pub(crate) fn mounts(folder: &Path) -> Result<Vec<Mount>> {
        Ok(read(folder)?.mounts().clone().unwrap_or_default())
    }

    /// The command line of a container of this image.
    pub(crate) fn arguments(config: &RunConfig, options: &ContainerOptions) -> Vec<String> {
        process::arguments(config, options)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }
}

fn read(folder: &Path) -> Result<Spec> {
    let failed = |cause: String| Error::new(ErrorKind::Store, READ, cause);
    let mut text = Vec::new();
    let read =
        std::fs::File::open(folder.join("config.json")).and_then(|file| file.take(CONFIG_BYTES).read_to_end(&mut text));
    read.map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))
}

fn spec(
    root: &Path,
    process: Process,
    options: &ContainerOptions,
    mounts: Vec<Mount>,
    (resources, namespaces): (Option<LinuxResources>, Vec<LinuxNamespace>),
) -> std::result::Result<Spec, OciSpecError> {
    let granted = process.capabilities().as_ref().and_then(|sets| sets.bounding().clone()).unwrap_or_default();
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .masked_paths(masked_paths(options.network))
        .readonly_paths(get_default_readonly_paths())
        .build()?;
    // Without limits, the resources stay unset and cgroups are not touched.
    linux.set_resources(resources);
    // The settings of the host's network are those of the host.
    let settings = NETWORK_SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    linux.set_sysctl((options.network != Network::Host).then(|| settings.into_iter().collect()));
    linux.set_seccomp(if options.filtered { Some(seccomp::filter(&granted)?) } else { None });
    SpecBuilder::default()
        .root(RootBuilder::default().path(root).readonly(options.read_only).build()?)
        .process(process)
        .hostname(options.hostname.as_deref().unwrap_or(HOSTNAME))
        .mounts(mounts)
        .linux(linux)
        .build()
}

/// Kernel paths hidden from a container: the defaults and those that Podman adds.
fn masked_paths(network: Network) -> Vec<String> {
    let mut paths = [get_default_maskedpaths(), MASKED.map(str::to_owned).to_vec()].concat();
    // There `/sys` is that of the host with all that is mounted in it.
    if network == Network::Host && tarpon_store::in_user_namespace() {
        paths.push(SYS_KERNEL.to_owned());
    }
    paths
}

/// The container's namespaces. `named`: the network namespace that it enters; `cgroup2`: whether the host has cgroup v2, so that a container can see only its own subtree.
fn namespaces(
    network: Network,
    named: Option<&Path>,
    cgroup2: bool,
) -> std::result::Result<Vec<LinuxNamespace>, OciSpecError> {
    let own = [LinuxNamespaceType::Pid, LinuxNamespaceType::Ipc, LinuxNamespaceType::Uts, LinuxNamespaceType::Mount];
    let network = (network != Network::Host).then_some(LinuxNamespaceType::Network);
    let cgroup = cgroup2.then_some(LinuxNamespaceType::Cgroup);
    let namespace = |typ| {
        let namespace = LinuxNamespaceBuilder::default().typ(typ);
        match named {
            Some(path) if typ == LinuxNamespaceType::Network => namespace.path(path).build(),
            _ => namespace.build(),
        }
    };
    own.into_iter().chain(network).chain(cgroup).map(namespace).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::oci::{CapabilityChanges, Limits};

    /// A host without any means to confine a container.
    const NONE: Confinement = Confinement { processes: None, apparmor: None, network: None };

    fn written(options: &ContainerOptions) -> Value {
        let folder = tempfile::tempdir().unwrap();
        let config = RunConfig { cmd: vec!["serve".into()], ..RunConfig::default() };
        let bundle = Bundle::write(folder.path(), Path::new("/rootfs"), &config, options, &NONE, Vec::new()).unwrap();
        let file = bundle.path().join("config.json");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "it may hold secrets of the environment");
        Spec::load(&file).unwrap();
        let mut spec: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        // This differs between hosts.
        spec["linux"]["namespaces"].as_array_mut().unwrap().retain(|one| one["type"] != "cgroup");
        spec
    }

    #[test]
    fn cgroups_are_seen_from_inside_where_the_kernel_can() {
        let has = |cgroup2| {
            let all = namespaces(Network::Host, None, cgroup2).unwrap();
            all.iter().any(|one| one.typ() == LinuxNamespaceType::Cgroup)
        };
        assert!(has(true) && !has(false));
    }

    #[test]
    fn a_connected_network_is_entered_by_its_name() {
        let path = |network, named| {
            let all = namespaces(network, named, false).unwrap();
            all.iter().find(|one| one.typ() == LinuxNamespaceType::Network).map(|one| one.path().clone())
        };
        assert_eq!(path(Network::Host, None), None);
        assert_eq!(path(Network::None, None), Some(None));
        let name = PathBuf::from("/run/netns/tarpon-0123");
        assert_eq!(path(Network::Pasta, Some(&name)), Some(Some(name.clone())));
    }

    #[test]
    fn a_usual_container_is_as_with_other_tools() {
        let mut spec = written(&ContainerOptions::default());
        assert_eq!(spec["linux"]["resources"], Value::Null);
        // A set, so the order is not defined.
        for set in spec["process"]["capabilities"].as_object_mut().unwrap().values_mut() {
            set.as_array_mut().unwrap().sort_by_key(Value::to_string);
        }
        insta::assert_snapshot!(serde_json::to_string_pretty(&spec).unwrap());
    }

    #[test]
    fn options_override_the_defaults() {
        let options = ContainerOptions {
            network: Network::None,
            read_only: true,
            no_new_privileges: true,
            filtered: true,
            capabilities: CapabilityChanges { add: vec![], drop: vec!["ALL".into()] },
            tmpfs: vec!["/work:size=1m".parse().unwrap()],
            ..ContainerOptions::default()
        };
        let spec = written(&options);
        assert_eq!(spec["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ERRNO");
        assert_eq!(spec["root"]["readonly"], true);
        assert_eq!(spec["process"]["noNewPrivileges"], true);
        assert_eq!(spec["process"]["capabilities"]["bounding"], Value::Array(vec![]));
        let kinds: Vec<&str> =
            spec["linux"]["namespaces"].as_array().unwrap().iter().map(|one| one["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["pid", "ipc", "uts", "mount", "network"]);
        let mounted: Vec<&str> =
            spec["mounts"].as_array().unwrap().iter().map(|one| one["destination"].as_str().unwrap()).collect();
        assert!(["/tmp", "/run", "/var/tmp", "/work"].iter().all(|path| mounted.contains(path)), "{mounted:?}");
    }

    #[test]
    fn a_limit_that_makes_no_sense_is_refused() {
        let options = ContainerOptions {
            limits: Limits { cpus: Some(-1.0), memory: Some(1), ..Limits::default() },
            ..ContainerOptions::default()
        };
        let config = RunConfig { cmd: vec!["serve".into()], ..RunConfig::default() };
        let folder = tempfile::tempdir().unwrap();
        let bundle = Bundle::write(folder.path(), Path::new("/rootfs"), &config, &options, &NONE, Vec::new());
        assert_eq!(bundle.err().unwrap().kind, ErrorKind::Refused);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
