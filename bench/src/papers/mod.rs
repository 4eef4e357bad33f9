//! `bench papers`: experiments of papers about container images, repeated here, with the paper's own figures beside them.

use std::path::Path;

use anyhow::{Result, bail};
use clap::ValueEnum;
use tarpon_harness::packages::{self, tool};
use tarpon_harness::process;

use super::runs::{self, Runs};

mod dadi;
mod development;
mod disk;
mod hub;
mod images;
mod multimake;
mod options;
pub(crate) mod output;
mod pull;
mod setting;
mod sharing;
mod slacker;
mod trial;
mod versions;
mod wharf;

use output::PaperTable;
pub(crate) use setting::Args;
use setting::{Paper, Part, Setting};

pub(crate) fn run(args: &Args) -> Result<()> {
    if !packages::is_root() {
        bail!("containers, namespaces and a cold page cache need root");
    }
    let tarpon = tarpon_harness::program::named_or_built(args.tarpon.as_deref())?;
    let setting = Setting::new(args, tarpon);
    if let Some(link) = &args.behind {
        return behind(&setting, link);
    }
    packages::ensure(&[tool("crun", "crun"), tool("podman", "podman"), tool("unshare", "util-linux")])?;
    images::ensure(&setting)?;
    let others: Vec<_> = ["podman", "crun", "runc"].into_iter().filter_map(process::find).collect();
    let programs: Vec<&Path> =
        [setting.tarpon.as_path()].into_iter().chain(others.iter().map(|p| p.as_path())).collect();
    runs::begin(&setting.file, &programs, args.add)?;
    for paper in Paper::value_variants().iter().filter(|paper| setting.has(**paper)) {
        println!("== {}", paper.name());
        match paper {
            Paper::Slacker => slacker::run(&setting)?,
            Paper::Multimake => multimake::run(&setting)?,
            Paper::Sharing => sharing::run(&setting)?,
            Paper::Dadi => dadi::run(&setting)?,
            Paper::Wharf => wharf::run(&setting)?,
            Paper::Pull => pull::run(&setting)?,
            Paper::Hub => hub::run(&setting)?,
        }
    }
    let runs = Runs::read(&setting.file)?;
    for PaperTable { title, about, table } in tables(&runs) {
        println!("{title}\n{about}\n{table}");
    }
    println!("{}", output::slower(&runs));
    println!("every run: {}; `cargo xtask bench report` draws them", setting.file.display());
    let failed = runs.lines.iter().filter(|line| line.get("error").is_some()).count();
    if failed > 0 {
        bail!("{failed} runs failed, see above");
    }
    Ok(())
}

/// A part that is measured behind the link.
fn behind(setting: &Setting<'_>, link: &str) -> Result<()> {
    match setting.args.part {
        Some(Part::Development) => development::behind(setting, link),
        Some(Part::Multimake) => multimake::behind(setting, link),
        Some(Part::Pull) => pull::behind(setting, link),
        None => bail!("nothing to measure behind the link"),
    }
}

/// One table for each experiment in the file.
pub(crate) fn tables(runs: &Runs) -> Vec<PaperTable> {
    let all = [
        slacker::tables(runs),
        development::tables(runs),
        multimake::tables(runs),
        sharing::tables(runs),
        dadi::tables(runs),
        wharf::tables(runs),
        pull::tables(runs),
        hub::tables(runs),
    ];
    all.into_iter().flatten().collect()
}
