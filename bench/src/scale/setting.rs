//! The options of the benchmark, and the quantity that grows.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;

use super::engine::Engine;
use super::form::Form;
use crate::runs::Log;

/// The options of `cargo xtask bench scale`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The dimensions to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) only: Vec<Axis>,
    /// The sizes to measure [default: those of each dimension]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "quick")]
    pub(super) sizes: Vec<u64>,
    /// Small sizes and one run
    #[arg(long)]
    pub(super) quick: bool,
    /// Runs of each size
    #[arg(long, default_value_t = 3, conflicts_with = "quick")]
    pub(super) runs: u32,
    /// The image in the registry for containers, with its tag
    #[arg(long, default_value = "dev/debian-base:gzip")]
    pub(super) image: String,
    /// The link for concurrent starts, as RATE,RTT
    #[arg(long, value_name = "RATE,RTT", default_value = "100mbit,10ms")]
    pub(super) link: String,
    /// The id of the workload for concurrent starts, in fixtures/corpus/workloads.tsv; it must not need a port
    #[arg(long, value_name = "ID", default_value = "debian-sh")]
    pub(super) workload: String,
    /// What is between hosts and registry [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) engines: Vec<Engine>,
    /// What is known of the image before hosts start it [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) forms: Vec<Form>,
    /// Let hosts pull the whole image instead of starting it, and Podman too
    #[arg(long)]
    pub(super) pull: bool,
    /// The program to measure [default: a new release build]
    #[arg(long, value_name = "FILE")]
    pub(super) tarpon: Option<PathBuf>,
    /// Write each run to this file, as JSON lines [default: target/bench/scale.jsonl, or scale-quick.jsonl]
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Append to the file
    #[arg(long)]
    pub(super) add: bool,
    /// Set by this program when it runs behind the link
    #[arg(long, hide = true)]
    pub(super) behind: Option<String>,
}

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Axis {
    /// Layers of an image, 100 files each
    Layers,
    /// Files of an image of one layer
    Files,
    /// Bytes of an image, in files of 1 MiB
    Bytes,
    /// Mounts of one image
    Mounts,
    /// Containers of one image, started at once, compared with plain overlayfs
    Containers,
    /// First starts of one image at once, over a slow link
    Crowd,
    /// Hosts in network namespaces that start one image at once, over a slow link, with and without caches and tiers
    Hosts,
}

/// The name of hosts that pull, in place of that of their dimension.
pub(crate) const PULLS: &str = "pulls";

pub(super) const MIB: u64 = 1 << 20;

impl Axis {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Files => "files",
            Self::Bytes => "bytes",
            Self::Mounts => "mounts",
            Self::Containers => "containers",
            Self::Crowd => "crowd",
            Self::Hosts => "hosts",
        }
    }

    pub(super) fn sizes(self, quick: bool) -> &'static [u64] {
        match (self, quick) {
            (Self::Layers, false) => &[1, 10, 30, 100],
            (Self::Files, false) => &[1_000, 10_000, 100_000, 1_000_000],
            (Self::Bytes, false) => &[100 * MIB, 1024 * MIB, 10240 * MIB],
            (Self::Mounts, false) => &[1, 10, 50, 100, 200],
            (Self::Containers, false) => &[1, 4, 16, 64],
            (Self::Crowd, false) => &[1, 2, 8, 32],
            (Self::Hosts, false) => &[1, 10, 20],
            (Self::Layers, true) => &[1, 10],
            (Self::Files, true) => &[1_000, 5_000],
            (Self::Bytes, true) => &[10 * MIB, 50 * MIB],
            (Self::Mounts, true) => &[1, 5],
            (Self::Containers, true) => &[1, 4],
            (Self::Crowd, true) => &[1, 2],
            (Self::Hosts, true) => &[1, 4],
        }
    }
}

/// The settings of all axes.
pub(super) struct Setting<'a> {
    pub(super) args: &'a Args,
    pub(super) tarpon: PathBuf,
    pub(super) runs: u32,
}

impl Setting<'_> {
    /// The sizes of a dimension to measure, ascending.
    pub(super) fn sizes(&self, axis: Axis) -> &[u64] {
        if self.args.sizes.is_empty() { axis.sizes(self.args.quick) } else { &self.args.sizes }
    }
}

/// Adds a figure to the file and prints it.
pub(super) fn log_run(log: &mut Log, axis: Axis, size: u64, system: &str, number: u32, line: Value) -> Result<()> {
    log_named(log, axis.name(), size, system, number, line)
}

/// The same for a dimension of this name.
pub(super) fn log_named(
    log: &mut Log,
    axis: &str,
    size: u64,
    system: &str,
    number: u32,
    mut line: Value,
) -> Result<()> {
    line["axis"] = axis.into();
    line["size"] = size.into();
    line["system"] = system.into();
    line["number"] = number.into();
    match line["error"].as_str() {
        Some(error) => println!("{axis} {size} {system} failed: {error}"),
        None => println!("{axis} {size} {system}: {:.3} s", line["seconds"].as_f64().unwrap_or_default()),
    }
    log.add(&line)
}
