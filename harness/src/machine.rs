//! The machine of a measurement: processor, memory, kernel, versions of programs, the commit.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use crate::paths;

/// The bytes in a line `NAME   123 kB`.
pub fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Processor, kernel and program versions, for readers of the figures.
pub fn description(programs: &[&Path]) -> serde_json::Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let name = |program: &Path| program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let versions: serde_json::Map<_, _> =
        programs.iter().filter_map(|program| Some((name(program), version(program)?.into()))).collect();
    serde_json::json!({
        "processor": model.trim_start_matches([' ', '\t', ':']),
        "cores": cores,
        "memory": kibibytes(&memory, "MemTotal:"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "programs": versions,
    })
}

/// The version that a program prints; if it prints none, the digest of its file. `None` if it does not exist.
fn version(program: &Path) -> Option<String> {
    let printed = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let printed = printed.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
    let printed =
        String::from_utf8_lossy(&printed).lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    printed.or_else(|| {
        let digest = Sha256::digest(fs::read(program).ok()?);
        let short: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{} with sha256 {short}…", program.file_name()?.to_string_lossy()))
    })
}

/// The current commit, with `-dirty` if there are uncommitted changes.
pub fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(paths::root()).stderr(Stdio::null()).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"]).filter(|commit| !commit.is_empty())?;
    let is_clean = git(&["status", "--porcelain"])?.is_empty();
    Some(if is_clean { commit } else { format!("{commit}-dirty") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_prints_no_version_has_the_digest_of_its_file_and_a_missing_one_is_omitted() {
        let folder = tempfile::tempdir().unwrap();
        let silent = folder.path().join("silent");
        fs::write(&silent, "exit 1").unwrap();
        assert_eq!(version(&silent).unwrap(), "silent with sha256 1a21be8bb1dc…");
        assert_eq!(version(&folder.path().join("none")), None);
        let programs = &description(&[&silent, &folder.path().join("none")])["programs"];
        assert_eq!(programs.as_object().unwrap().len(), 1);
    }
}
