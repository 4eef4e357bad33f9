//! Runs this program again behind a slow link.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::{process, registry};

use super::link_end::port;
use super::warm::Warmer;

/// Runs `bench ARGUMENTS` behind a link.
pub(super) fn run(link: &str, arguments: &[OsString]) -> Result<()> {
    let (rate, rtt) = link.split_once(',').with_context(|| format!("a link is RATE,RTT, not {link}"))?;
    let registry = registry::address();
    let port = port(&registry)?;
    let warmer = Warmer::start(&registry)?;
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.args(["link", "--rate", rate, "--rtt", rtt, "--expose", port, "--expose", &warmer.port().to_string()]);
    command.arg("--").arg(&program).args(arguments);
    command.env("TARPON_BENCH_WARMER", warmer.port().to_string());
    process::check(&mut command)
}
