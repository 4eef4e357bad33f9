//! Usage errors in the form of every other failure: one line, a hint, an exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::{alternatives, output};

/// Prints clap's result. Help and version are no failures.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // An error here means that stdout is closed.
            let _written = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage as u8))
        }
        _ => {
            let words: Vec<OsString> = std::env::args_os().skip(1).collect();
            let failure = failure(error, &words);
            output::error(&failure);
            failure.exit.into()
        }
    }
}

/// Builds a failure from clap's paragraphs: the error, perhaps tips, the usage. `words` are the command line.
fn failure(error: &clap::Error, words: &[OsString]) -> Failure {
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n").map(one_line);
    let message = paragraphs.next().unwrap_or_default();
    let message = without_secret(error, message.strip_prefix("error: ").unwrap_or(&message));
    let rest: Vec<String> = paragraphs.collect();
    let tip = rest.iter().find_map(|line| line.strip_prefix("tip: ").map(str::to_owned));
    let tip = alternatives::answer(error).or_else(|| tip.filter(|_| alternatives::is_safe(error)));
    let usage = || rest.iter().find(|line| line.starts_with("Usage: ")).map(|line| line.replacen('U', "u", 1));
    let hint = tip.or_else(|| expected(error, words)).or_else(usage);
    Failure::new(Exit::Usage, message).hint(hint.unwrap_or_else(|| format!("see {}", help(words))))
}

/// Removes the value of an option that takes a password: this output ends up in the logs of CI jobs.
fn without_secret(error: &clap::Error, message: &str) -> String {
    match (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue)) {
        (Some(ContextValue::String(argument)), Some(ContextValue::String(value)))
            if argument.contains("creds <") && !value.is_empty() =>
        {
            message.replace(&format!(" '{value}'"), "")
        }
        _ => message.to_owned(),
    }
}

/// The purpose of the option or argument with the wrong value: the first sentence of its help.
fn expected(error: &clap::Error, words: &[OsString]) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let (_, command) = named(words);
    let described = command.get_arguments().find(|known| known.to_string() == *argument)?;
    let purpose = one_line(&described.get_help()?.to_string());
    // A hint suggests nothing that makes a container less safe.
    (!purpose.contains("unconfined")).then(|| format!("{argument}: {purpose} ({})", help(words)))
}

/// The command that prints the help of the given subcommand.
fn help(words: &[OsString]) -> String {
    format!("{} --help", named(words).0)
}

/// The subcommand on the command line, as typed, and its definition. The value of an option may be mistaken for one.
fn named(words: &[OsString]) -> (String, clap::Command) {
    let mut command = crate::cli::Cli::command();
    command.build();
    let mut path = command.get_name().to_owned();
    for word in words {
        if let Some(subcommand) = command.find_subcommand(word).filter(|subcommand| !subcommand.is_hide_set()) {
            path = format!("{path} {}", subcommand.get_name());
            command = subcommand.clone();
        }
    }
    (path, command)
}

fn one_line(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn reported(arguments: &[&str]) -> String {
        let error = crate::cli::Cli::try_parse_from(["tarpon"].iter().chain(arguments)).expect_err("wrong");
        let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        failure(&error, &words).text()
    }

    #[test]
    fn a_password_without_a_user_is_not_repeated() {
        for arguments in [
            &["inspect", "--creds", "secret", "x"][..],
            &["convert", "--src-creds", "secret", "x", "y"],
            &["convert", "--dest-creds=secret", "x", "y"],
        ] {
            let text = reported(arguments);
            assert!(text.contains("creds") && !text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn a_wrong_value_is_one_line_with_its_reason() {
        assert_eq!(
            reported(&["mount", "--platform", "linux", "alpine", "/mnt"]),
            "tarpon: invalid value 'linux' for '--platform <PLATFORM>': \
             not a platform (os/architecture[/variant]): \"linux\"\n\
             hint: --platform <PLATFORM>: Platform to select from an image index, as OS/ARCH[/VARIANT] \
             [default: this machine's] (tarpon mount --help)\n"
        );
        assert!(
            reported(&["podman", "layers", "start", "--tls-verify=x"])
                .ends_with("(tarpon podman layers start --help)\n")
        );
    }

    #[test]
    fn commands_and_options_of_podman_get_an_alternative_as_hint() {
        for (line, hint) in [
            ("images", "tarpon cache ls"),
            ("rmi app:v1", "tarpon cache rm IMAGE"),
            ("top web", "process ID"),
            ("ps --last 3", "tarpon ps --json"),
            ("logs --until 5m web", "tarpon logs -t"),
        ] {
            let text = reported(&line.split(' ').collect::<Vec<_>>());
            let answer = text.split_once("\nhint: ").map(|(_, hint)| hint.to_owned()).unwrap_or_default();
            assert!(answer.contains(hint) && text.lines().count() == 2, "{line}: {text}");
        }
    }

    #[test]
    fn no_typing_error_suggests_a_command_that_removes_something() {
        for word in ["rmx", "rmm", "kil", "stopp", "killl"] {
            let text = reported(&[word]);
            assert!(!["'rm'", "'kill'", "'stop'"].iter().any(|name| text.contains(name)), "{text}");
        }
        assert!(reported(&["mout"]).contains("'mount'"));
    }

    #[test]
    fn a_tip_or_the_usage_is_the_hint() {
        assert!(reported(&["mount", "--quite", "a", "/b"]).ends_with("hint: a similar argument exists: '--quiet'\n"));
        let missing = reported(&["umount"]);
        assert!(missing.starts_with("tarpon: the following required arguments were not provided: "), "{missing}");
        assert!(missing.contains("\nhint: usage: tarpon umount "), "{missing}");
    }
}
