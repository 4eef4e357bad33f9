//! Resource limits of a container.

use oci_spec::runtime::{LinuxCpuBuilder, LinuxMemoryBuilder, LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder};

use super::cgroups::Cgroups;

/// Default limit of processes and threads, as with Podman. More processes indicate a fork bomb rather than a program.
const PROCESSES: u32 = 2048;

/// Microseconds in the accounting period of processor time: the kernel's default.
const PERIOD: u64 = 100_000;

/// The least memory in which a runtime can start a process: runc and crun need a few megabytes themselves.
const LEAST_MEMORY: u64 = 6 << 20;

/// Limits of a container. By default only processes are limited.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Bytes of memory, swap included.
    pub memory: Option<u64>,
    /// Processors; fractions are allowed.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub pids: ProcessLimit,
}

/// The limit of processes and threads of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcessLimit {
    /// 2048, if the cgroups of the host can limit it.
    #[default]
    Usual,
    /// The host's limit.
    Unlimited,
    /// So many; an error if the host cannot limit it.
    At(u32),
}

impl Limits {
    /// The limit of processes and threads on a host with these cgroups; `None`: the host's limit.
    pub(super) fn processes(&self, cgroups: &Cgroups<'_>) -> Option<u32> {
        match self.pids {
            ProcessLimit::At(number) => Some(number),
            ProcessLimit::Unlimited => None,
            ProcessLimit::Usual => cgroups.can_limit("pids").then_some(PROCESSES),
        }
    }

    /// The limits in the form that a runtime takes; `None` without limits, because then cgroups are not touched. `processes`: see
    /// [`Limits::processes`].
    ///
    /// # Errors
    /// One line: an invalid limit, or one that the cgroups of this machine do not support.
    pub(super) fn resources(&self, processes: Option<u32>) -> Result<Option<LinuxResources>, String> {
        if self.memory.is_none() && self.cpus.is_none() && processes.is_none() {
            return Ok(None);
        }
        self.check(&Cgroups::of_this_host())?;
        let mut resources = LinuxResourcesBuilder::default();
        if let Some(bytes) = self.memory {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            let memory = LinuxMemoryBuilder::default().limit(bytes).swap(bytes);
            resources = resources.memory(memory.build().map_err(|error| error.to_string())?);
        }
        if let Some(cpus) = self.cpus {
            let cpu = LinuxCpuBuilder::default().period(PERIOD).quota(quota(cpus)?);
            resources = resources.cpu(cpu.build().map_err(|error| error.to_string())?);
        }
        if let Some(pids) = processes {
            let pids = LinuxPidsBuilder::default().limit(i64::from(pids));
            resources = resources.pids(pids.build().map_err(|error| error.to_string())?);
        }
        resources.build().map(Some).map_err(|error| error.to_string())
    }

    fn check(&self, cgroups: &Cgroups<'_>) -> Result<(), String> {
        if let Some(bytes) = self.memory.filter(|bytes| *bytes < LEAST_MEMORY) {
            return Err(format!("{bytes} bytes of memory are less than a container needs to start ({LEAST_MEMORY})"));
        }
        let pids = matches!(self.pids, ProcessLimit::At(_));
        let wanted = [("memory", self.memory.is_some()), ("cpu", self.cpus.is_some()), ("pids", pids)];
        let missing = wanted.into_iter().find(|(name, is_wanted)| *is_wanted && !cgroups.has_controller(name));
        missing.map_or(Ok(()), |(name, _)| Err(format!("the cgroups of this machine set no limit for {name}")))
    }
}

fn quota(cpus: f64) -> Result<i64, String> {
    /// More processors than any machine has.
    const MOST: f64 = 65_536.0;
    if !(cpus > 0.0 && cpus <= MOST) {
        return Err(format!("{cpus} is no number of processors"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "at most 6.6e9, checked above")]
    let quota = (cpus * PERIOD as f64).round() as i64;
    // The kernel's minimum is one millisecond.
    Ok(quota.max(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limits_say_nothing_to_the_runtime() {
        assert!(Limits::default().resources(None).unwrap().is_none());
    }

    #[test]
    fn a_container_has_a_limit_of_processes_where_the_host_can_keep_one() {
        let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(with.path().join("pids")).unwrap();
        let on =
            |host: &tempfile::TempDir, pids| Limits { pids, ..Limits::default() }.processes(&Cgroups::at(host.path()));
        assert_eq!((on(&with, ProcessLimit::Usual), on(&without, ProcessLimit::Usual)), (Some(2048), None));
        assert_eq!((on(&with, ProcessLimit::Unlimited), on(&with, ProcessLimit::At(5))), (None, Some(5)));
        assert_eq!(on(&without, ProcessLimit::At(5)), Some(5), "it is an error then, and not forgotten");
    }

    #[test]
    fn processors_become_microseconds_of_each_period() {
        assert_eq!(quota(1.5), Ok(150_000));
        assert_eq!(quota(0.000_001), Ok(1000));
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(quota(odd).is_err());
        }
    }

    #[test]
    fn a_limit_that_no_controller_enforces_is_an_error_in_both_cgroup_versions() {
        let cgroups = tempfile::tempdir().unwrap();
        let limits = Limits { memory: Some(1 << 30), pids: ProcessLimit::At(5), ..Limits::default() };
        std::fs::create_dir(cgroups.path().join("memory")).unwrap();
        assert!(limits.check(&Cgroups::at(cgroups.path())).unwrap_err().contains("for pids"));
        std::fs::create_dir(cgroups.path().join("pids")).unwrap();
        assert_eq!(limits.check(&Cgroups::at(cgroups.path())), Ok(()));
        std::fs::write(cgroups.path().join("cgroup.controllers"), "cpu pids\n").unwrap();
        assert!(limits.check(&Cgroups::at(cgroups.path())).unwrap_err().contains("for memory"));
        let few = Limits { memory: Some(4096), ..Limits::default() };
        assert!(few.check(&Cgroups::at(cgroups.path())).unwrap_err().contains("4096"));
    }
}
