//! [`RunError`]: why a container did not run, with the customary exit code.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Cause, Error, ErrorKind};

/// tarpon or the runtime failed.
const FAILED: u8 = 125;
/// The program exists but cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// The program does not exist.
const NO_PROGRAM: u8 = 127;
/// Ctrl-C before the container ran.
const INTERRUPTED: u8 = 130;

/// Bytes at the end of a runtime's log that are read.
const LOG_BYTES: u64 = 64 << 10;

/// Why a container or a process in it did not run.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunError {
    /// As with Podman: 125 if tarpon or the runtime failed, 126 if the program cannot be executed, 127 if it does not exist; 130 if
    /// interrupted.
    pub exit: u8,
    /// The failed step and its cause.
    #[serde(flatten)]
    pub error: Error,
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        Self { exit: FAILED, error }
    }
}

impl RunError {
    pub(super) fn failed(step: &str, cause: impl Into<Cause>) -> Self {
        Error::new(ErrorKind::Other, step, cause).into()
    }

    pub(super) fn interrupted() -> Self {
        Self { exit: INTERRUPTED, ..Self::failed("run the container", "it was interrupted") }
    }

    /// The error that the runtime wrote to its log.
    pub(super) fn of_runtime(step: &str, log: &Path, status: std::process::ExitStatus) -> Self {
        match last_error(log) {
            Some(cause) => Self { exit: exit_code(&cause), ..Self::failed(step, cause) },
            None => Self::failed(step, format!("the runtime ended without a message ({status})")),
        }
    }
}

/// The last error in a runtime's log, which has one JSON object per line.
fn last_error(log: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        level: String,
        msg: String,
    }
    let mut file = std::fs::File::open(log).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LOG_BYTES))).ok()?;
    let mut text = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut text).ok()?;
    let mut lines = text.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    let error = lines.find(|line| line.level == "error" || line.level == "fatal")?.msg;
    // runc prefixes the step that failed, which our message names too.
    let known = ["runc run failed: ", "exec failed: ", "unable to start container process: "];
    let plain = known.iter().fold(&*error, |text, begin| text.strip_prefix(begin).unwrap_or(text));
    Some(plain.to_owned())
}

/// The exit code, derived from the runtime's message as Podman does: no interface reports it.
fn exit_code(cause: &str) -> u8 {
    let cause = cause.to_ascii_lowercase();
    let is_of_program = ["exec: ", "executable"].iter().any(|begin| cause.contains(begin));
    let mentions = |words: &[&str]| words.iter().any(|word| cause.contains(word));
    match is_of_program {
        true if mentions(&["not found", "no such file"]) => NO_PROGRAM,
        true if mentions(&["permission denied", "not permitted", "is a directory", "format error"]) => CANNOT_EXECUTE,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn of_log(text: &str) -> (u8, String) {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), text).unwrap();
        let failed = RunError::of_runtime("run the container", log.path(), ExitStatus::from_raw(256));
        (failed.exit, failed.error.cause().to_string())
    }

    #[test]
    fn what_runtimes_say_of_programs_has_exit_codes_of_its_own() {
        for (said, code) in [
            (
                "runc run failed: unable to start container process: exec: \\\"x\\\": executable file not found in $PATH",
                127,
            ),
            (
                "runc run failed: unable to start container process: exec: \\\"/x\\\": stat /x: no such file or directory",
                127,
            ),
            ("executable file `x` not found in $PATH: No such file or directory", 127),
            ("runc run failed: unable to start container process: exec: \\\"/bin\\\": permission denied", 126),
            ("open executable: Permission denied", 126),
            ("open executable: Operation not permitted", 126),
            ("error mounting \\\"/a\\\": no such file or directory", 125),
            ("cgroups: permission denied", 125),
        ] {
            let (exit, cause) = of_log(&format!("{{\"level\":\"error\",\"msg\":\"{said}\",\"time\":\"\"}}\n"));
            assert_eq!(exit, code, "{said}");
            assert!(!cause.contains("runc run failed"), "{cause}");
        }
    }

    #[test]
    fn only_errors_count_and_silence_is_one() {
        let lines = "{\"level\":\"error\",\"msg\":\"broken\"}\nnot JSON\n{\"level\":\"warning\",\"msg\":\"odd\"}\n";
        assert_eq!(of_log(lines), (125, "broken".to_owned()));
        assert!(of_log("").1.contains("without a message (exit status: 1)"));
    }

    #[test]
    fn a_failure_is_passed_between_processes() {
        let told = serde_json::to_string(&RunError::interrupted()).unwrap();
        let heard: RunError = serde_json::from_str(&told).unwrap();
        assert_eq!((heard.exit, heard.error.cause().to_string()), (130, "it was interrupted".to_owned()));
    }
}
