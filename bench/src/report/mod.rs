//! `bench report`: the results as one page with pictures, the pictures as files, and the data with them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tarpon_harness::paths;

use super::runs::Runs;

mod html;
mod papers;
mod phases;
mod readme;
mod scale;
pub(crate) mod section;
mod simulate;
pub(crate) mod slower;
mod start;
mod starts;
mod steady;
mod virtiofs;

use section::{Part, Section};

/// The options of `cargo xtask bench report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of start.jsonl, containerd.jsonl, steady.jsonl, scale.jsonl, simulate.jsonl, papers.jsonl and virtiofs.jsonl;
    /// missing files are omitted [default: target/bench]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// The folder to write the report to [default: target/bench/report]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Makes a section from a file of runs.
type Writer = fn(&Runs) -> Section;

/// The names of the files, the commands that make them, and the sections, in the order of the report.
const SECTIONS: [(&str, &str, Writer); 7] = [
    ("start", "bench start", start::section),
    ("containerd", "bench start --json target/bench/containerd.jsonl", start::in_containerd),
    ("steady", "bench steady", steady::section),
    ("scale", "bench scale", scale::section),
    ("simulate", "bench simulate", simulate::section),
    ("papers", "bench papers", papers::section),
    ("virtiofs", "virtiofs", virtiofs::section),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let from = args.from.clone().unwrap_or_else(paths::benchmarks);
    let to = args.to.clone().unwrap_or_else(|| paths::benchmarks().join("report"));
    fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut page = html::Page::default();
    let mut found = 0;
    for (name, command, write) in SECTIONS {
        let data = from.join(format!("{name}.jsonl"));
        if !data.exists() {
            println!("no {}: cargo xtask {command} makes it", data.display());
            continue;
        }
        found += 1;
        let runs = Runs::read(&data)?;
        let section = write(&runs);
        pictures(&section, &to)?;
        page.add(name, command, &runs, &section);
        copy(&data, &to.join(format!("{name}.jsonl")))?;
    }
    if found == 0 {
        bail!("there is nothing to report in {}", from.display());
    }
    let file = to.join("report.html");
    fs::write(&file, page.finish()).with_context(|| format!("cannot write {}", file.display()))?;
    println!("the report: {}", file.display());
    Ok(())
}

/// Copies the data to the report, unless it is there: copying a file onto itself would empty it.
fn copy(data: &Path, copy: &Path) -> Result<()> {
    if fs::canonicalize(copy).is_ok_and(|there| fs::canonicalize(data).is_ok_and(|data| data == there)) {
        return Ok(());
    }
    fs::copy(data, copy).map(drop).with_context(|| format!("cannot write {}", copy.display()))
}

/// Writes the picture files of a section.
fn pictures(section: &Section, to: &Path) -> Result<()> {
    for part in &section.parts {
        let Part::Pictures(pictures) = part else { continue };
        for picture in pictures {
            let Some(name) = &picture.file else { continue };
            let file = to.join(format!("{name}.svg"));
            fs::write(&file, &picture.svg).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"command": "cargo xtask bench start", "date": "2026-01-01", "machine": {"processor": "A <b>", "cores": 2, "kernel": "6.18", "memory": 4000000000, "programs": {"podman": "podman 4"}}}
{"link": "100mbit,10ms", "bits_per_second": 95e6, "round_trip": 0.0101}
{"link": "100mbit,10ms", "workload": "redis", "system": "podman", "number": 1, "mounted": 4.0, "exec": 4.1, "ready": 4.5, "bytes": 30000000, "timeline": [[0.1, 0.2, 0.2, 500, "manifests/gzip"], [0.3, 0.4, 3.0, 29000000, "blobs/sha256:ab"]]}
{"link": "100mbit,10ms", "workload": "redis", "system": "tarpon-pack", "number": 1, "mounted": 0.4, "exec": 0.5, "ready": 5.0, "bytes": 3000000, "timeline": []}
"#;
    const STEADY: &str = r#"{"machine": {}}
{"probe": "find", "cache": "warm", "system": "overlayfs", "number": 1, "seconds": 1.0}
{"probe": "find", "cache": "warm", "system": "tarpon-fuse", "number": 1, "seconds": 2.0}
"#;
    const SCALE: &str = r#"{"machine": {}}
{"axis": "mounts", "size": 1, "system": "one more", "number": 1, "seconds": 0.01, "resident": 14000000, "descriptors": 19}
{"axis": "mounts", "size": 10, "system": "one more", "number": 1, "seconds": 0.01, "resident": 15000000, "descriptors": 20}
"#;
    const SIMULATE: &str = r#"{"machine": {}}
{"calibration": "index, one cache", "hosts": 10, "measured": 2.0, "simulated": 2.1, "measured_half": 2.0, "simulated_half": 2.0, "measured_bytes": 9, "simulated_bytes": 9}
{"system": "index, one cache", "hosts": 100, "containers": 1000, "half": 1.5, "most": 1.6, "seconds": 1.7, "bytes": 9000000, "images": 1.4, "failed": 0}
{"system": "index, one cache", "hosts": 1000, "containers": 10000, "half": 2.5, "most": 2.6, "seconds": 2.7, "bytes": 12000000, "images": 1.9, "failed": 0}
"#;

    const PAPERS: &str = r#"{"machine": {}}
{"experiment": "multimake", "case": "16 images", "system": "podman", "number": 1, "seconds": 80.0}
{"experiment": "multimake", "case": "16 images", "system": "tarpon", "number": 1, "seconds": 20.0}
"#;

    const VIRTIOFS: &str = r#"{"machine": {}}
{"workload": "sh", "tag": "gzip", "root": "mount", "virtiofsd": "7.2", "cache": "auto", "mode": "native", "number": 1, "machine_bytes": 2097152, "host_bytes": 1048576, "ratio": 2.0}
"#;

    #[test]
    fn a_report_has_the_pictures_the_machine_and_the_data_beside_it() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for (name, text) in [
            ("start", START),
            ("containerd", START),
            ("steady", STEADY),
            ("scale", SCALE),
            ("simulate", SIMULATE),
            ("papers", PAPERS),
            ("virtiofs", VIRTIOFS),
        ] {
            fs::write(from.path().join(format!("{name}.jsonl")), text).unwrap();
        }
        run(&Args { from: Some(from.path().into()), to: Some(to.path().into()) }).unwrap();
        let page = fs::read_to_string(to.path().join("report.html")).unwrap();
        for words in [
            "A &lt;b&gt;",
            "cargo xtask bench start",
            "start.jsonl",
            "redis: podman",
            "Mounts of one image: seconds",
            "seconds until all containers are ready",
            "+5 %",
            "2026-01-01",
            "Start in containerd",
            "cargo xtask virtiofs",
            "sh, gzip, mount",
            "<td class='number'>4.0</td><td class='number'>68 (Slacker)</td>",
            "<svg",
        ] {
            assert!(page.contains(words), "{words} is missing");
        }
        let files: Vec<_> = fs::read_dir(to.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        for name in ["readme-start.svg", "readme-bytes.svg", "start.jsonl", "steady.jsonl", "scale.jsonl"] {
            assert!(files.iter().any(|file| file == name), "{name} is missing: {files:?}");
        }
        assert_eq!(
            page.matches("Where tarpon is not the fastest: in 1 of 1 comparisons.").count(),
            3,
            "start, containerd and steady"
        );
        assert!(page.contains("<td>tarpon-pack</td><td class='number'>5.000</td>"), "{page}");
        assert!(page.contains("tarpon-pack 0.9 × as fast as podman, 10 % of the bytes"), "{page}");
    }

    #[test]
    fn a_report_beside_its_data_leaves_the_data_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("start.jsonl");
        fs::write(&data, START).unwrap();
        // The same folder by another name.
        let other = folder.path().join("other");
        std::os::unix::fs::symlink(folder.path(), &other).unwrap();
        for to in [folder.path(), &folder.path().join("."), &other] {
            run(&Args { from: Some(folder.path().into()), to: Some(to.into()) }).unwrap();
            assert_eq!(fs::read_to_string(&data).unwrap(), START);
        }
    }

    #[test]
    fn a_folder_without_data_is_an_error() {
        let empty = tempfile::tempdir().unwrap();
        let args = Args { from: Some(empty.path().into()), to: Some(empty.path().join("to")) };
        assert!(run(&args).unwrap_err().to_string().contains("nothing to report"));
    }
}
