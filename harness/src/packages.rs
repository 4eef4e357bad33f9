//! System packages that a task needs.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{paths, process};

/// A program and the Debian package that contains it.
pub struct Tool {
    /// The name of the program.
    pub program: &'static str,
    /// The name of the package.
    pub package: &'static str,
}

/// A program and the package that contains it.
pub const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Ensures that the tools exist: installs missing ones where possible, otherwise names the packages to install.
pub fn ensure(tools: &[Tool]) -> Result<()> {
    let wanted = missing(tools);
    if wanted.is_empty() {
        return Ok(());
    }
    if !is_root() || process::find("apt-get").is_none() {
        bail!("please install {}", wanted.join(" "));
    }
    println!("installing {}", wanted.join(" "));
    let log = paths::target().join("apt.log");
    process::check_logged(apt().arg("update"), &log)?;
    process::check_logged(apt().args(["install", "-y", "--no-install-recommends"]).args(&wanted), &log)?;
    let still = missing(tools);
    if !still.is_empty() {
        bail!("still missing after the installation: {}", still.join(" "));
    }
    Ok(())
}

fn apt() -> Command {
    let mut apt = Command::new("apt-get");
    apt.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
    apt
}

fn missing(tools: &[Tool]) -> Vec<&'static str> {
    let mut packages: Vec<_> = tools.iter().filter(|t| process::find(t.program).is_none()).map(|t| t.package).collect();
    packages.dedup();
    packages
}
