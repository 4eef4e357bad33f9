//! Runs a case: boots a guest, starts containers that read, and repeats the event of the case.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::sample_image::Image;

use super::cases::{Case, Effect};
use super::containers::{Container, READERS};
use super::guest::{Files, Guest};
use super::install;
use super::leftover;
use super::log::Log;
use super::outcome::{Outcome, Round};

/// Operations of each reader between two events.
const BETWEEN: u64 = 5;
/// A read ends after 30 s at the latest, and so does a restart of a unit, which may wait for one.
const READING: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What all cases use.
pub(super) struct Parts<'a> {
    pub(super) root: &'a Path,
    pub(super) tarpon: &'a Path,
    pub(super) image: &'a Image,
    /// For the guest, which is deleted, and for logs, which are kept.
    pub(super) folder: &'a Path,
    pub(super) rounds: u32,
    pub(super) drop_caches: bool,
}

/// A guest with containers that read.
struct Running<'a> {
    parts: &'a Parts<'a>,
    case: &'a Case,
    guest: Guest,
    logs: Vec<(Container, Log)>,
}

/// Runs a case. An error is about the guest; what is wrong with tarpon is in the outcome.
pub(super) fn run(parts: &Parts<'_>, case: &Case) -> Result<Outcome> {
    let began = Instant::now();
    let files = Files::create(&parts.folder.join("guest"))?;
    install::copy(&files, parts.tarpon, case.with_daemon)?;
    let guest = files.boot(parts.root)?;
    let logs = parts.folder.join("logs").join(case.name);
    let mut running = Running { parts, case, guest, logs: Vec::new() };
    let mut outcome = Outcome::new(case.name);
    let result = running.all(&mut outcome);
    running.keep_logs(&logs)?;
    if let Err(error) = result {
        outcome.faults.push(format!("{error:#}"));
    }
    for (container, log) in &running.logs {
        outcome.add(container.name(), &log.operations);
    }
    outcome.seconds = began.elapsed().as_secs_f64();
    Ok(outcome)
}

impl<'a> Running<'a> {
    fn all(&mut self, outcome: &mut Outcome) -> Result<()> {
        self.start()?;
        for _ in 0..self.parts.rounds {
            let round = self.round()?;
            outcome.rounds.push(round);
            if self.logs.iter().any(|(_, log)| log.operations.iter().any(|operation| operation.is_error())) {
                break;
            }
        }
        let image = &self.parts.image.reference;
        for container in self.case.containers() {
            container.run_another(&self.guest, image)?;
        }
        for container in self.case.containers() {
            container.remove(&self.guest, image)?;
        }
        outcome.left_behind = leftover::find(&self.guest, self.case.with_daemon)?;
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        install::start(&self.guest, self.case.with_daemon)?;
        fs::write(self.guest.state("readers").join("read.sh"), include_str!("read.sh"))?;
        let containers = self.case.containers();
        let image = &self.parts.image.reference;
        for (number, container) in containers.iter().enumerate() {
            container.add_image(&self.guest, image)?;
            container.start(&self.guest, image, number * READERS, containers.len() * READERS)?;
            let path = self.guest.state("readers").join(format!("{}.log", container.name()));
            self.logs.push((*container, Log::new(path)));
        }
        Ok(())
    }

    /// The event, once.
    fn round(&mut self) -> Result<Round> {
        let before = now();
        self.wait("before the event", |log| each_reader(log, |reader| count(log, reader, before) >= BETWEEN))?;
        // Rapid kills are intended here; systemd would stop starting the unit.
        self.guest.client(&[&["systemctl", "reset-failed"], self.case.units].concat())?;
        if self.parts.drop_caches {
            fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the caches of this machine")?;
        }
        if self.case.effect == Effect::NewProgram {
            self.guest.replace(self.parts.tarpon, install::PROGRAM)?;
        }
        let processes = self.main_processes()?;
        let start = now();
        self.guest.client(self.case.event)?;
        let end = now();
        self.wait_for_units(&processes)?;
        let active = now();
        // These cannot be read without a server: only files that are complete in the store can.
        let absent = self.absent_files()?;
        let after = now();
        let is_absent = |log: &Log| {
            let operations =
                log.operations.iter().filter(|operation| operation.start > after && operation.kind != "folder");
            operations.filter(|operation| absent.contains(operation.path.as_str())).count() > 0
        };
        self.wait("after the event", |log| each_reader(log, |reader| count(log, reader, after) > 0) && is_absent(log))?;
        Ok(Round { start, end, active, absent: absent.len() })
    }

    /// Waits until this holds for the log of each container, or until an operation fails.
    fn wait(&mut self, when: &str, is_enough: impl Fn(&Log) -> bool) -> Result<()> {
        let end = Instant::now() + READING;
        loop {
            let mut missing = Vec::new();
            for (container, log) in &mut self.logs {
                log.update()?;
                if log.operations.iter().any(|operation| operation.is_error()) {
                    return Ok(());
                }
                if !is_enough(log) {
                    missing.push(container.name());
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                bail!(
                    "{when} the readers of {} did not all read for {} s what is not local",
                    missing.join(", "),
                    READING.as_secs()
                );
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the units of the case are active and the event has taken place.
    fn wait_for_units(&self, before: &[String]) -> Result<()> {
        let end = Instant::now() + READING;
        loop {
            let now = self.main_processes()?;
            let is_changed = match self.case.effect {
                Effect::NewProcess => now.iter().zip(before).all(|(now, before)| now != before && now != "0"),
                Effect::NewProgram => now.iter().all(|process| self.executes_installed(process)),
            };
            let active =
                self.guest.enter(&[&["systemctl", "is-active", "--quiet"], self.case.units].concat()).status()?;
            if is_changed && active.success() {
                return Ok(());
            }
            if Instant::now() > end {
                let problem = if is_changed { "are not active" } else { "have the process or program of before" };
                bail!("{} {problem} {} s after the event", self.case.units.join(", "), READING.as_secs());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn main_processes(&self) -> Result<Vec<String>> {
        let main = |unit: &&str| self.guest.client(&["systemctl", "show", "--property=MainPID", "--value", unit]);
        self.case.units.iter().map(main).collect()
    }

    /// Whether this process of the guest executes the program that is installed there.
    fn executes_installed(&self, process: &str) -> bool {
        let link = self.guest.client(&["readlink", &format!("/proc/{process}/exe")]);
        link.is_ok_and(|path| path == format!("/{}", install::PROGRAM))
    }

    /// The files of the image that are not in the store.
    fn absent_files(&self) -> Result<HashSet<&'a str>> {
        let objects = self.guest.state("tarpon").join("objects");
        let mut local = HashSet::new();
        for folder in fs::read_dir(&objects).with_context(|| format!("cannot list {}", objects.display()))?.flatten() {
            for file in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                local.insert(format!("{}{}", folder.file_name().to_string_lossy(), file.file_name().to_string_lossy()));
            }
        }
        let files = self.parts.image.files.iter().filter(|(_, sum)| !local.contains(sum));
        Ok(files.map(|(path, _)| path.as_str()).collect())
    }

    /// Copies what explains a failure out of the guest.
    fn keep_logs(&mut self, to: &PathBuf) -> Result<()> {
        let _absent = fs::remove_dir_all(to);
        fs::create_dir_all(to)?;
        let journal = self.guest.enter(&["journalctl", "--no-pager", "--output=short-precise"]).output()?;
        fs::write(to.join("journal"), journal.stdout)?;
        for (container, log) in &mut self.logs {
            log.update()?;
            let name = format!("{}.log", container.name());
            let _absent = fs::copy(self.guest.state("readers").join(&name), to.join(&name));
        }
        Ok(())
    }
}

/// Whether this holds for each reader that has written to the log, and none is missing.
fn each_reader(log: &Log, holds: impl Fn(usize) -> bool) -> bool {
    let readers: HashSet<_> = log.operations.iter().map(|operation| operation.reader).collect();
    readers.len() == READERS && readers.into_iter().all(holds)
}

/// Operations of a reader that began after this time.
fn count(log: &Log, reader: usize, after: f64) -> u64 {
    let operations = log.operations.iter().rev().take_while(|operation| operation.end > after);
    operations.filter(|operation| operation.reader == reader && operation.start > after).count() as u64
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
