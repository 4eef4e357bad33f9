//! Exit codes: the interface for scripts. A number never changes its meaning.

use std::process::ExitCode;

use tarpon_engine::ErrorKind;

/// How the command ended. [`HELP`] has the same descriptions for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Ok = 0,
    /// Any failure without a code of its own.
    Failure = 1,
    /// The command line is invalid; clap exits with the same code.
    Usage = 2,
    /// No such image, tag, platform, path or mount.
    NotFound = 3,
    /// 401 or 403.
    Denied = 4,
    /// The registry or the network failed.
    Unavailable = 5,
    /// The image is malformed, unsupported, does not match its digest, or is not accepted by the policy; or the registry is not trusted.
    Refused = 6,
    /// This machine or user cannot mount this way.
    CannotMount = 7,
    /// The local store failed, or its content or that of a tier is damaged.
    Store = 8,
    /// The container did not start: tarpon or its runtime failed. Only with `run` and `exec`.
    NotRun = 125,
    /// The container's program cannot be executed. Only with `run` and `exec`.
    CannotExecute = 126,
    /// The container has no such program. Only with `run` and `exec`.
    NoProgram = 127,
    /// Stopped by Ctrl-C: 128 plus the number of SIGINT.
    Interrupted = 130,
}

/// The table of `tarpon --help`; docs/exit-codes.md repeats it.
pub(crate) const HELP: &str = "\
Exit codes:
  0    success
  1    failure without a code of its own
  2    invalid command line
  3    not found: no such image, tag, platform, path or mount
  4    access denied by the registry
  5    the registry or the network failed, or did not respond in time
  6    rejected: the image is malformed, unsupported or does not match its digest, the policy of the
       host does not accept it, or the registry's certificate or response is not trusted
  7    this machine or this user cannot mount it this way (see `tarpon doctor`)
  8    the local store failed, or some of its content, or of that of a tier, is damaged
  130  interrupted

`run` and `exec` exit with the code of the program that they ran, which is 128 plus the signal's
number if a signal ended it. If nothing ran, the code is
  125  nothing was run, for any reason except an invalid command line
  126  the program exists and cannot be executed
  127  there is no such program";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Refused | ErrorKind::Forbidden => Self::Refused,
            ErrorKind::CannotMount => Self::CannotMount,
            ErrorKind::Store => Self::Store,
            ErrorKind::Conflict | ErrorKind::Other => Self::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_help() {
        for exit in [
            Exit::Ok,
            Exit::Failure,
            Exit::Usage,
            Exit::NotFound,
            Exit::Denied,
            Exit::Unavailable,
            Exit::Refused,
            Exit::CannotMount,
            Exit::Store,
            Exit::Interrupted,
            Exit::NotRun,
            Exit::CannotExecute,
            Exit::NoProgram,
        ] {
            let line = format!("\n  {:<5}", exit as u8);
            assert!(HELP.contains(&line), "{exit:?} is missing");
        }
    }
}
