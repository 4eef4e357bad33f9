//! What containers of one image, and of versions of it, share: the page cache and the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tarpon_harness::{paths, process, registry};

use super::multimake::{with_podman, with_tarpon};
use super::output::{PaperTable, medians, most_runs, of, shown, table};
use super::setting::Setting;
use super::trial::Trial;
use super::versions;
use crate::machine;
use crate::podman::Podman;
use crate::runs::{Log, Runs};
use crate::store::BenchStore;
use crate::together::Together;

const EXPERIMENT: &str = "sharing";
const CONTAINERS: u32 = 10;
const QUICK: u32 = 2;

/// The number of containers.
fn containers(setting: &Setting<'_>) -> u32 {
    if setting.quick { QUICK } else { CONTAINERS }
}

/// The cases: their name, and the tags of the images of the containers.
fn cases(setting: &Setting<'_>) -> Vec<(String, Vec<String>)> {
    let most = containers(setting);
    vec![
        ("1 container".to_owned(), vec![versions::tag(1)]),
        (format!("{most} containers of one image"), vec![versions::tag(1); most as usize]),
        (format!("{most} containers of {most} versions"), (1..=most).map(versions::tag).collect()),
    ]
}

pub(super) fn run(setting: &Setting<'_>) -> Result<()> {
    versions::publish(setting, containers(setting))?;
    let mut log = Log::append(&setting.file)?;
    for number in 1..=setting.runs {
        for (case, tags) in cases(setting) {
            for system in ["podman", "tarpon"] {
                let line = one(setting, system, &tags);
                Trial { experiment: EXPERIMENT, case: &case, system, number }.log(&mut log, line)?;
            }
        }
    }
    Ok(())
}

fn one(setting: &Setting<'_>, system: &str, tags: &[String]) -> Result<Value> {
    let images: Vec<String> =
        tags.iter().map(|tag| format!("{}/{}:{tag}", registry::address(), versions::IMAGE)).collect();
    if system == "podman" {
        let store = paths::benchmarks().join("sharing-podman");
        let podman = Podman::new(store.clone(), String::new())?;
        podman.wipe()?;
        let pull = |image: &String| {
            let mut command = podman.command("pull -q --tls-verify=false \"$IMAGE\"");
            command.env("IMAGE", image);
            logged(command)
        };
        distinct(&images).try_for_each(pull)?;
        machine::make_cold(&podman.programs())?;
        let commands = images.iter().enumerate().map(|(number, image)| with_podman(&podman, image, number)).collect();
        let line = measured(commands, &store);
        podman.wipe()?;
        return line;
    }
    let store = BenchStore::named(&setting.tarpon, "sharing-tarpon");
    store.begin()?;
    let pull = |image: &String| {
        let mut command = store.command();
        command.args(["pull", "--quiet", "--tls-verify=false", image]);
        logged(command)
    };
    distinct(&images).try_for_each(pull)?;
    machine::make_cold(&[&setting.tarpon])?;
    let commands = images.iter().enumerate().map(|(number, image)| with_tarpon(&store, image, number)).collect();
    let line = measured(commands, store.folder());
    store.remove()?;
    line
}

/// The images, each once.
fn distinct(images: &[String]) -> impl Iterator<Item = &String> {
    images.iter().enumerate().filter(|(place, image)| !images[..*place].contains(image)).map(|(_, image)| image)
}

fn logged(mut command: Command) -> Result<()> {
    process::check_logged(&mut command, &paths::benchmarks().join("sharing.log"))
}

/// Starts all containers, and reads how much page cache they and their servers brought in.
fn measured(commands: Vec<Command>, store: &Path) -> Result<Value> {
    let disk = disk(store)?;
    let cache = PageCache::begin().context("no cgroup accounts for memory here")?;
    let together = Together::start(commands)?;
    let cached = cache.bytes();
    let seconds = together.up().as_secs_f64();
    together.end()?;
    Ok(json!({"seconds": seconds, "cached": cached, "disk": disk}))
}

/// Bytes that a folder takes on the disk.
fn disk(folder: &Path) -> Result<u64> {
    let printed = process::output(Command::new("du").args(["--summarize", "--block-size=1"]).arg(folder))?;
    match printed.split_whitespace().next().and_then(|bytes| bytes.parse().ok()) {
        Some(bytes) => Ok(bytes),
        None => bail!("du prints no size: {printed}"),
    }
}

/// A cgroup that counts the page cache that its processes bring in. Removed when dropped; its processes move to the group above.
struct PageCache(PathBuf);

impl PageCache {
    fn begin() -> Option<Self> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let name = format!("tarpon-bench-cache-{}-{}", std::process::id(), GROUPS.fetch_add(1, Ordering::Relaxed));
        ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].into_iter().find_map(|root| {
            let group = Path::new(root).join(&name);
            fs::create_dir(&group).ok()?;
            let cache = Self(group);
            cache.bytes()?;
            // Children inherit the group.
            fs::write(cache.0.join("cgroup.procs"), std::process::id().to_string()).ok()?;
            Some(cache)
        })
    }

    fn bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.0.join("memory.stat")).ok()?;
        cached(&text)
    }
}

/// The page cache in a memory.stat of either version.
fn cached(text: &str) -> Option<u64> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    field("total_cache ").or_else(|| field("file "))
}

impl Drop for PageCache {
    fn drop(&mut self) {
        let parent = self.0.parent().unwrap_or(&self.0).join("cgroup.procs");
        let processes = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            let _left = fs::write(&parent, process);
        }
        let _left = fs::remove_dir(&self.0);
    }
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    let cases = super::output::cases(runs, EXPERIMENT);
    let mega =
        |case: &str, system: &str, field: &str| of(runs, [EXPERIMENT, case, system], field).map(|bytes| bytes / 1e6);
    let rows: Vec<Vec<String>> = cases
        .iter()
        .map(|case| {
            let of = |system: &str| {
                [
                    shown(of(runs, [EXPERIMENT, case, system], "seconds"), 2),
                    shown(mega(case, system, "cached"), 0),
                    shown(mega(case, system, "disk"), 0),
                ]
            };
            [vec![case.clone()], of("podman").to_vec(), of("tarpon").to_vec()].concat()
        })
        .collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let number = most_runs(runs, ["experiment", "case", "system"], |key| key[0] == EXPERIMENT);
    vec![PaperTable {
        title: "Slacker (FAST 2016): sharing of the page cache".to_owned(),
        about: format!(
            "Containers that build the program of MultiMake at once, with everything local and a cold page cache; {}. The page cache is what \
             the containers and their servers brought in. In the paper (section 6.3) a second start takes 0.67 s with AUFS, 1.71 s with \
             Slacker, whose containers share no pages, and 0.97 s with its changed kernel, where they do.",
            medians(number)
        ),
        table: table(
            &["", ">Podman, s", ">page cache, MB", ">disk, MB", ">tarpon, s", ">page cache, MB", ">disk, MB"],
            &rows,
        ),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_cache_is_found_in_both_versions_of_cgroups() {
        assert_eq!(cached("cache 1\nrss 2\ntotal_cache 30\n"), Some(30));
        assert_eq!(cached("anon 5\nfile 40\nfile_mapped 7\n"), Some(40));
        assert_eq!(cached("anon 5\n"), None);
    }

    #[test]
    fn an_image_of_many_containers_is_pulled_once() {
        let images = ["a", "b", "a"].map(str::to_owned);
        assert_eq!(distinct(&images).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_folder_takes_space() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), vec![1; 100_000]).unwrap();
        assert!(disk(folder.path()).unwrap() >= 100_000);
    }
}
