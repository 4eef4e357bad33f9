//! The options of the benchmark, and what they select.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::behind;
use crate::machine;

/// The link of all experiments that do not name another: that of a data centre.
pub(super) const LINK: &str = "1gbit,1ms";

/// The options of `cargo xtask bench papers`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The papers whose experiments are repeated [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Paper>,
    /// Check that the benchmark works: few images, small sizes, one run
    #[arg(long)]
    quick: bool,
    /// Runs of each experiment
    #[arg(long, default_value_t = 5, conflicts_with = "quick")]
    runs: u32,
    /// The program to measure [default: a new release build]
    #[arg(long, value_name = "FILE")]
    pub(super) tarpon: Option<PathBuf>,
    /// Write each run to this file, as JSON lines [default: target/bench/papers.jsonl, or papers-quick.jsonl]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Append to the file
    #[arg(long)]
    pub(super) add: bool,
    /// Set by this program when it runs behind the link
    #[arg(long, hide = true)]
    pub(super) behind: Option<String>,
    /// The part that runs there
    #[arg(long, value_enum, hide = true)]
    pub(super) part: Option<Part>,
}

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Paper {
    /// Slacker, FAST 2016: pull, run and push of many images
    Slacker,
    /// Slacker's MultiMake: a program built in many versions of an image at once
    Multimake,
    /// Slacker's sharing of the page cache by containers
    Sharing,
    /// DADI, USENIX ATC 2020: replayed traces, many containers, many layers
    Dadi,
    /// Wharf, SoCC 2018: hosts that pull one image at once
    Wharf,
    /// Docker-pi, EDGE 2018: pulls of whole images on a slow disk and a slow link
    Pull,
    /// Docker Hub study, TPDS 2020: sizes and copies of files
    Hub,
}

impl Paper {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Slacker => "slacker",
            Self::Multimake => "multimake",
            Self::Sharing => "sharing",
            Self::Dadi => "dadi",
            Self::Wharf => "wharf",
            Self::Pull => "pull",
            Self::Hub => "hub",
        }
    }
}

/// A part of an experiment that runs behind a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// A new version of each image: pushed, and started
    Development,
    /// One program built in many images at once
    Multimake,
    /// Pulls of whole images
    Pull,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Development => "development",
            Self::Multimake => "multimake",
            Self::Pull => "pull",
        }
    }
}

/// What is measured.
pub(super) struct Setting<'a> {
    pub(super) args: &'a Args,
    pub(super) tarpon: PathBuf,
    pub(super) file: PathBuf,
    pub(super) quick: bool,
    pub(super) runs: u32,
}

impl<'a> Setting<'a> {
    pub(super) fn new(args: &'a Args, tarpon: PathBuf) -> Self {
        let file = machine::data(args.json.as_deref(), "papers", args.quick);
        Self { args, tarpon, file, quick: args.quick, runs: if args.quick { 1 } else { args.runs } }
    }

    pub(super) fn has(&self, paper: Paper) -> bool {
        self.args.only.is_empty() || self.args.only.contains(&paper)
    }

    /// Runs a part behind a link.
    pub(super) fn behind(&self, link: &str, part: Part) -> Result<()> {
        behind::run(link, &self.again(link, part))
    }

    /// The arguments for that.
    fn again(&self, link: &str, part: Part) -> Vec<OsString> {
        let mut again: Vec<OsString> = ["papers", "--behind", link, "--part", part.name()].map(OsString::from).into();
        again.extend(["--tarpon".into(), self.tarpon.clone().into(), "--json".into(), self.file.clone().into()]);
        if self.quick {
            again.push("--quick".into());
        } else {
            again.extend(["--runs".into(), self.runs.to_string().into()]);
        }
        again
    }

    /// The options of every benchmark that measures for this one.
    pub(super) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--add".into(), "--runs".into(), self.runs.to_string().into()];
        words.extend(["--tarpon".into(), self.tarpon.clone().into(), "--json".into(), self.file.clone().into()]);
        words
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn behind_the_link_the_same_is_asked_for() {
        let args = Line::try_parse_from(["bench", "--runs", "3", "--only", "dadi"]).unwrap().args;
        let setting = Setting::new(&args, "t".into());
        assert!(setting.has(Paper::Dadi) && !setting.has(Paper::Slacker));
        let there = Line::try_parse_from(setting.again("1gbit,1ms", Part::Multimake)).unwrap().args;
        assert_eq!((there.runs, there.part, there.behind.as_deref()), (3, Some(Part::Multimake), Some("1gbit,1ms")));
    }
}
