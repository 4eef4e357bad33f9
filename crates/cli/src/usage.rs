//! A command line that makes no sense, told as every other failure: one line, a hint, an exit code.

use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Prints what clap has to say. Help and version are no failures.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nobody reads it if that fails.
            let _written = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage as u8))
        }
        _ => {
            let failure = failure(&error.to_string());
            output::error(&failure);
            failure.exit.into()
        }
    }
}

/// From clap's paragraphs: what is wrong, perhaps tips, the usage.
fn failure(said: &str) -> Failure {
    let mut paragraphs = said.split("\n\n").map(one_line);
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let rest: Vec<String> = paragraphs.collect();
    let tip = rest.iter().find_map(|line| line.strip_prefix("tip: ").map(str::to_owned));
    let usage = rest.iter().find(|line| line.starts_with("Usage: ")).map(|line| line.replacen('U', "u", 1));
    let hint = tip.or(usage).unwrap_or_else(|| "--help shows what can be said".to_owned());
    Failure::new(Exit::Usage, message).hint(hint)
}

fn one_line(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn said(arguments: &[&str]) -> String {
        let error = crate::cli::Cli::try_parse_from(["tarpon"].iter().chain(arguments)).expect_err("wrong");
        failure(&error.to_string()).text()
    }

    #[test]
    fn a_wrong_value_is_one_line_with_its_reason() {
        assert_eq!(
            said(&["mount", "--platform", "linux", "alpine", "/mnt"]),
            "tarpon: invalid value 'linux' for '--platform <PLATFORM>': \
             not a platform (os/architecture[/variant]): \"linux\"\nhint: --help shows what can be said\n"
        );
    }

    #[test]
    fn a_tip_or_the_usage_is_the_hint() {
        assert!(said(&["mount", "--quite", "a", "/b"]).ends_with("hint: a similar argument exists: '--quiet'\n"));
        let missing = said(&["umount"]);
        assert!(missing.starts_with("tarpon: the following required arguments were not provided: "), "{missing}");
        assert!(missing.contains("\nhint: usage: tarpon umount "), "{missing}");
    }
}
