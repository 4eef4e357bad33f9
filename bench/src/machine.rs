//! The machine under test: caches, processor time and memory of processes.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::link::device::device_bytes;
use tarpon_harness::machine::kibibytes;
use tarpon_harness::paths;

/// How long a process may take to end after its work is done.
pub(super) const ENDING: Duration = Duration::from_secs(30);

/// The file for the runs of a benchmark, unless one is named. A quick run, which only tests the benchmark, has a file of its own.
pub(super) fn data(named: Option<&Path>, bench: &str, quick: bool) -> PathBuf {
    named.map_or_else(|| paths::benchmarks().join(format!("{}.jsonl", kept(bench, quick))), Path::to_owned)
}

/// The name of data that outlives a run: quick runs and measurements use different names.
pub(super) fn kept(name: &str, quick: bool) -> String {
    if quick { format!("{name}-quick") } else { name.to_owned() }
}

/// Drops the page cache, then reads the tools back: only the image is cold.
pub(super) fn make_cold(tools: &[&Path]) -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the page cache")?;
    tools.iter().try_for_each(|tool| read_back(tool))
}

/// Reads a program, and runs it to load its libraries.
pub(super) fn read_back(tool: &Path) -> Result<()> {
    let read = File::open(tool).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    read.with_context(|| format!("cannot read {}", tool.display()))?;
    let mut version = Command::new(tool);
    // Whatever the exit code, its libraries have been read.
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().map(drop).with_context(|| format!("cannot run {}", tool.display()))
}

/// Bytes received over the link, if this process is behind one.
pub(super) fn received() -> Option<u64> {
    device_bytes(&fs::read_to_string("/proc/net/dev").ok()?)
}

/// A folder that exists from now on.
pub(super) fn made(folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// How often a folder in use is tried again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Removes a folder, if it exists. A process that is about to end, as a server without mounts, may still write to it or keep it mounted.
pub(super) fn remove(folder: &Path) -> Result<()> {
    let until = Instant::now() + ENDING;
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound && !folder.exists() => return Ok(()),
            Err(error) if is_in_use(&error) && Instant::now() < until => thread::sleep(POLL_INTERVAL),
            result => return result.with_context(|| format!("cannot empty {}", folder.display())),
        }
    }
}

fn is_in_use(error: &io::Error) -> bool {
    use ErrorKind::{DirectoryNotEmpty, NotConnected, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), DirectoryNotEmpty | NotConnected | ReadOnlyFilesystem | ResourceBusy)
}

/// Runs a command whose failure only means that there was nothing to do.
pub(super) fn quietly(mut command: Command) {
    let _nothing = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Waits for the end of a process.
pub(super) fn wait_for_end(pid: u32) -> Result<()> {
    let until = Instant::now() + ENDING;
    while Path::new("/proc").join(pid.to_string()).exists() {
        if Instant::now() > until {
            bail!("process {pid} does not end");
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// A cgroup that adds up the processor time of processes, daemons included. Removed when dropped.
///
/// Children inherit the cgroup of this program, so this program is in it, too, and its own processor time is subtracted. Moving each
/// child into the group would cost more: it takes the kernel milliseconds, for which the child has to wait.
pub(super) struct Accounting {
    group: PathBuf,
    usage: &'static str,
    /// Processor time of this program before it joined the group.
    own: Duration,
}

impl Accounting {
    /// Starts to account for processes that are started from now on. `None` if the kernel offers no such group.
    pub(super) fn begin() -> Option<Self> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        // Processes that outlive their run keep its group.
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tarpon-bench-{}-{number}", std::process::id());
        let kinds = [("/sys/fs/cgroup/cpuacct", "cpuacct.usage"), ("/sys/fs/cgroup", "cpu.stat")];
        kinds.into_iter().find_map(|(root, usage)| {
            let group = Path::new(root).join(&name);
            fs::create_dir(&group).ok()?;
            let accounting = Self { group, usage, own: own_time() };
            accounting.usage()?;
            fs::write(accounting.group.join("cgroup.procs"), std::process::id().to_string()).ok()?;
            Some(accounting)
        })
    }

    /// Processor time of the processes so far, in seconds.
    pub(super) fn seconds(&self) -> Option<f64> {
        let all = self.usage()?;
        Some((all - own_time().saturating_sub(self.own).as_secs_f64()).max(0.0))
    }

    fn usage(&self) -> Option<f64> {
        let text = fs::read_to_string(self.group.join(self.usage)).ok()?;
        match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
            Some(micros) => Some(micros.trim().parse::<f64>().ok()? / 1e6),
            None => Some(text.trim().parse::<f64>().ok()? / 1e9),
        }
    }
}

impl Drop for Accounting {
    fn drop(&mut self) {
        let parent = self.group.parent().unwrap_or(&self.group).join("cgroup.procs");
        let _left = fs::write(parent, std::process::id().to_string());
        let _left = fs::remove_dir(&self.group);
    }
}

/// The work of all processors so far, in the unit of the kernel.
pub(super) struct Processors {
    busy: u64,
    idle: u64,
}

impl Processors {
    /// `None` if the kernel does not tell.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        // User, nice, system, idle, waiting for a disk, interrupts (two), taken by the host. What follows is counted in these already.
        let times: Vec<u64> = line.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
        let [user, nice, system, idle, waiting, hard, soft, taken] = times[..] else { return None };
        Some(Self { busy: user + nice + system + hard + soft + taken, idle: idle + waiting })
    }

    /// The part of all processors that was in use since then, by anything on this machine.
    pub(super) fn busy_since(&self) -> Option<f64> {
        self.busy_until(&Self::now()?)
    }

    fn busy_until(&self, now: &Self) -> Option<f64> {
        let (busy, idle) = (now.busy.checked_sub(self.busy)?, now.idle.saturating_sub(self.idle));
        (busy + idle > 0).then(|| busy as f64 / (busy + idle) as f64)
    }
}

/// Processor time of all threads of this process so far.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Processor time of a process so far, in seconds.
pub(super) fn processor_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain blanks.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// The server of a tarpon store, if it serves a mount.
pub(super) fn server(tarpon: &Path, store: &Path) -> Option<u32> {
    server_by(Command::new(tarpon), store)
}

/// As [`server()`], by a command of the program.
pub(super) fn server_by(mut status: Command, store: &Path) -> Option<u32> {
    status.env("TARPON_STORE", store).args(["status", "--json"]).stderr(Stdio::null());
    let mounts: serde_json::Value = serde_json::from_slice(&status.output().ok()?.stdout).ok()?;
    u32::try_from(mounts[0]["server"].as_u64()?).ok()
}

/// Resources that a process holds.
pub(super) struct Resources {
    /// Peak memory so far, in bytes.
    pub(super) peak: u64,
    /// Current memory: all resident pages, those without a file, and all with shared pages counted proportionally.
    pub(super) resident: u64,
    pub(super) anonymous: u64,
    pub(super) proportional: u64,
    pub(super) descriptors: u64,
}

impl Resources {
    pub(super) fn by(pid: u32) -> Option<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(process.join("status")).ok()?;
        let shares = fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
        Some(Self {
            peak: kibibytes(&status, "VmHWM:")?,
            resident: kibibytes(&status, "VmRSS:")?,
            anonymous: kibibytes(&status, "RssAnon:")?,
            proportional: kibibytes(&shares, "Pss:").unwrap_or_default(),
            descriptors: fs::read_dir(process.join("fd")).map_or(0, |files| files.count() as u64),
        })
    }
}

/// The sum of the peaks so far of a process and the children of all its threads. 0: it has ended.
pub(super) fn peak_with_children(pid: u32) -> u64 {
    let peak = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        kibibytes(&status, "VmHWM:").unwrap_or_default()
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    peak(pid) + children.into_iter().map(peak).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_what_was_started_alone() {
        let Some(accounting) = Accounting::begin() else {
            println!("skipped: no group of processes can be made here");
            return;
        };
        let until = own_time() + Duration::from_millis(400);
        while own_time() < until {
            std::hint::black_box(0);
        }
        let before = accounting.seconds().unwrap();
        assert!(before < 0.2, "{before}: this program's own time is in it");
        let mut busy = Command::new("sh");
        busy.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
        busy.status().unwrap();
        assert!(accounting.seconds().unwrap() > before + 0.02);
    }

    #[test]
    fn processors_that_were_idle_for_half_of_the_time_were_half_busy() {
        let at = |stat: &str| Processors::parse(stat).unwrap();
        let (before, after) = (at("cpu  10 0 10 80 0 0 0 0 5 0\ncpu0 1\n"), at("cpu  20 5 20 100 20 5 5 5 9 0\n"));
        assert!((before.busy_until(&after).unwrap() - 40.0 / 80.0).abs() < 1e-9);
        assert!(before.busy_until(&before).is_none() && Processors::parse("cpu 1 2\n").is_none());
        assert!(Processors::now().is_some());
    }

    #[test]
    fn what_is_tried_out_leaves_alone_what_was_measured() {
        let name = |quick| data(None, "start", quick).file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!([true, false].map(name), ["start-quick.jsonl", "start.jsonl"]);
        assert_eq!(data(Some(Path::new("/named")), "start", true), Path::new("/named"));
    }

    #[test]
    fn a_program_that_cannot_be_read_back_is_named() {
        assert!(read_back(Path::new("/bin/true")).is_ok());
        let error = read_back(Path::new("/nowhere/tool")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/tool"), "{error}");
    }

    #[test]
    fn a_process_has_memory_and_descriptors() {
        let held = Resources::by(std::process::id()).unwrap();
        assert!(held.peak >= held.resident && held.resident >= held.anonymous && held.descriptors >= 3);
        let mut child =
            Command::new("sh").args(["-c", "sleep 60 & echo; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(peak_with_children(child.id()) > Resources::by(child.id()).unwrap().peak, "it has a child");
        let sleeping = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
        let mut end = Command::new("kill");
        end.arg(sleeping.trim());
        quietly(end);
        child.wait().unwrap();
        assert_eq!(kibibytes("A:  1 kB\nPss:   12 kB\n", "Pss:"), Some(12 << 10));
    }
}
