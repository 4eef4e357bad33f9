//! Alternatives to commands and options of other tools that tarpon does not have, and a check of clap's suggestions.
//!
//! No alternative weakens the confinement of a container, and none suggests a command that removes something, unless the user asked for
//! that.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// For commands and options without an alternative in tarpon.
const PODMAN: &str = "use Podman with tarpon's image store: tarpon podman --help";

const NETWORK: &str = "tarpon run -p HOSTPORT:PORT publishes a port; tarpon ps shows the published ports";
const NAMES: &str = "containers use this host's resolvers; --add-host NAME:ADDRESS adds a name";
const PODS: &str = "use Podman for pods; it can use tarpon's image store: tarpon podman --help";
const CHANGES: &str =
    "the changes of a container are in STORE/containers/NAME/upper; tarpon exec NAME cat FILE prints a file";
const RESTART: &str = "containers cannot be restarted; tarpon run starts a new one";

/// Commands, and their alternatives.
const COMMANDS: [(&[&str], &str); 23] = [
    (&["images"], "tarpon cache ls lists the images in the store"),
    (&["rmi"], "tarpon cache rm IMAGE removes an image from the store"),
    (&["image"], "use tarpon pull, push, inspect or cache ls"),
    (&["container"], "use tarpon run, ps, exec, logs, wait or stop"),
    (
        &["build", "buildx", "bud"],
        "use podman build or buildah; tarpon commit creates an image from the changes of a container",
    ),
    (&["start", "restart", "create"], RESTART),
    (&["cp", "diff"], CHANGES),
    (&["attach"], "tarpon logs -f NAME follows the output, tarpon exec -it NAME sh opens a shell"),
    (&["top", "stats"], "tarpon ps --json shows the process ID, for ps and systemd-cgtop on this host"),
    (&["port", "network"], NETWORK),
    (&["volume"], "named volumes are not supported; tarpon run -v DIRECTORY:PATH mounts a directory of this host"),
    (&["pod", "kube", "play", "generate", "compose", "quadlet"], PODS),
    (&["events"], "tarpon daemon streams events: GET /v1/events"),
    (&["history", "manifest"], "tarpon inspect IMAGE shows the layers, tarpon inspect --raw IMAGE the manifest"),
    (&["info", "system"], "tarpon doctor shows the host, tarpon status the mounts, tarpon cache usage the store"),
    (&["version"], "tarpon --version"),
    (&["help"], "tarpon --help, or tarpon COMMAND --help"),
    (&["search"], "tarpon cannot search registries; skopeo list-tags lists the tags of an image"),
    (&["save", "export"], "tarpon convert writes oci:DIR; tar can archive a mounted image"),
    (&["load", "import"], "archives need no import: tarpon mount oci-archive:FILE DIR"),
    (&["tag", "untag"], "skopeo copy copies an image to another name in its registry"),
    (&["prune"], "tarpon cache gc removes unneeded content from the store"),
    (
        &[
            "auto-update",
            "checkpoint",
            "clone",
            "farm",
            "healthcheck",
            "init",
            "machine",
            "pause",
            "rename",
            "restore",
            "secret",
            "unpause",
            "update",
        ],
        PODMAN,
    ),
];

/// Options of `run`, and their alternatives.
const RUN: [(&[&str], &str); 22] = [
    (&["-P", "--publish-all", "--expose"], NETWORK),
    (
        &[
            "--dns",
            "--dns-opt",
            "--dns-option",
            "--dns-search",
            "--ip",
            "--ip6",
            "--mac-address",
            "--network-alias",
            "--no-hosts",
            "--link",
        ],
        NAMES,
    ),
    (&["--restart"], "run it in a systemd unit with Restart=on-failure"),
    (&["-l", "--label", "--label-file", "--annotation"], "containers have names, but no labels: --name NAME"),
    (&["-a", "--attach", "--sig-proxy", "--detach-keys"], "without -d the container is attached and receives signals"),
    (&["--volumes-from"], "-v DIRECTORY:PATH mounts the same directory of this host in both"),
    (&["--memory-swap", "--memory-reservation", "--memory-swappiness"], "-m SIZE limits memory and swap together"),
    (&["-c", "--cpu-shares", "--cpu-period", "--cpu-quota"], "--cpus NUMBER limits processors"),
    (&["--arch", "--os", "--variant"], "--platform OS/ARCH[/VARIANT]"),
    (&["--group-add"], "-u USER:GROUP sets the group; supplementary groups from the image are kept"),
    (&["--replace"], "--rm frees the name when the container ends; or choose another --name"),
    (&["--stop-timeout"], "tarpon stop -t SECONDS NAME"),
    (&["--timeout"], "timeout SECONDS tarpon run … stops it after that time"),
    (
        &["--env-host", "--env-merge", "--http-proxy", "--unsetenv", "--unsetenv-all"],
        "-e NAME passes a variable on, -e NAME= sets it to an empty value",
    ),
    (&["--tz"], "-e TZ=ZONE"),
    (&["--pidfile", "--conmon-pidfile"], "tarpon ps --json shows the process ID"),
    (&["--log-driver", "--log-opt"], "with -d the output is logged: tarpon logs NAME"),
    (&["--init-path"], "--init uses an init program of this host"),
    (
        &["--no-healthcheck", "--health-cmd", "--health-interval", "--health-retries", "--health-timeout"],
        "health checks are not supported",
    ),
    (
        &["--image-volume", "--read-only-tmpfs"],
        "volumes of the image belong to the container; --tmpfs PATH mounts a tmpfs",
    ),
    (&["--rootfs"], "tarpon mount provides a root file system for other tools"),
    (
        &[
            "--blkio-weight",
            "--blkio-weight-device",
            "--cgroup-conf",
            "--cgroup-parent",
            "--cgroupns",
            "--cgroups",
            "--chrootdirs",
            "--cpu-rt-period",
            "--cpu-rt-runtime",
            "--cpuset-cpus",
            "--cpuset-mems",
            "--device",
            "--device-cgroup-rule",
            "--device-read-bps",
            "--device-read-iops",
            "--device-write-bps",
            "--device-write-iops",
            "--disable-content-trust",
            "--gidmap",
            "--gpus",
            "--health-on-failure",
            "--health-start-period",
            "--hooks-dir",
            "--hostuser",
            "--ipc",
            "--oom-kill-disable",
            "--oom-score-adj",
            "--passwd",
            "--passwd-entry",
            "--personality",
            "--pid",
            "--pod",
            "--pod-id-file",
            "--preserve-fds",
            "--privileged",
            "--requires",
            "--rmi",
            "--sdnotify",
            "--seccomp-policy",
            "--secret",
            "--subgidname",
            "--subuidname",
            "--sysctl",
            "--systemd",
            "--uidmap",
            "--umask",
            "--userns",
            "--uts",
        ],
        PODMAN,
    ),
];

/// Options of other commands, and their alternatives.
const OTHERS: [(&str, &[&str], &str); 8] = [
    (
        "ps",
        &[
            "-n",
            "--last",
            "-l",
            "--latest",
            "-s",
            "--size",
            "--no-trunc",
            "--noheading",
            "--ns",
            "--pod",
            "--sort",
            "-w",
            "--watch",
        ],
        "tarpon ps --json shows all fields in full",
    ),
    (
        "logs",
        &["--until", "--color", "--names", "-l", "--latest"],
        "tarpon logs -t NAME prints timestamps, for grep and awk",
    ),
    ("stop", &["-a", "--all"], "tarpon stop $(tarpon ps -q)"),
    ("kill", &["-a", "--all"], "tarpon kill $(tarpon ps -q)"),
    ("rm", &["-a", "--all"], "tarpon rm $(tarpon ps -aq --filter status=exited)"),
    (
        "rm",
        &["-v", "--volumes", "-t", "--time"],
        "the container's own volumes are removed with it; tarpon stop -t SECONDS stops it first",
    ),
    ("exec", &["-d", "--detach", "--detach-keys", "--privileged", "--preserve-fds"], PODMAN),
    (
        "inspect",
        &["-f", "--format", "-t", "--type"],
        "use jq: tarpon inspect --json IMAGE; for containers tarpon ps --json",
    ),
];

/// Commands that end or remove something: they are never suggested for a typing error.
const HARMFUL: [&str; 6] = ["rm", "kill", "stop", "clear", "gc", "--force"];

/// The alternative to `option` of the subcommand `command`.
pub(crate) fn option(command: &str, option: &str) -> Option<String> {
    let name = option.split('=').next().unwrap_or(option);
    // `-p8080:80` means `-p`.
    let short = name.get(..2).filter(|short| !short.starts_with("--"));
    let matches = |names: &&[&str]| names.iter().any(|one| *one == name || Some(*one) == short);
    let of_run = RUN.iter().filter(|_| command == "run").map(|(names, answer)| (names, answer));
    let others = OTHERS.iter().filter(|(of, ..)| *of == command).map(|(_, names, answer)| (names, answer));
    of_run.chain(others).find(|(names, _)| matches(names)).map(|(_, answer)| (*answer).to_owned())
}

/// The alternative to the command or option that `error` is about.
pub(crate) fn answer(error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand)?;
            let found = COMMANDS.iter().find(|(names, _)| names.contains(&word.as_str()));
            found.map(|(_, answer)| (*answer).to_owned())
        }
        ErrorKind::UnknownArgument => {
            // `Usage: tarpon COMMAND …`, with the actual name of this program.
            let usage = error.get(ContextKind::Usage)?.to_string();
            let command = usage.split_whitespace().nth(2)?;
            option(command, &text(error, ContextKind::InvalidArg)?)
        }
        _ => None,
    }
}

/// Whether clap's suggestion may be shown.
pub(crate) fn is_safe(error: &clap::Error) -> bool {
    let proposed = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    let proposed = proposed.into_iter().filter_map(|kind| error.get(kind)).flat_map(|value| match value {
        ContextValue::String(one) => vec![one.clone()],
        ContextValue::Strings(all) => all.clone(),
        _ => Vec::new(),
    });
    !proposed.into_iter().any(|word| HARMFUL.contains(&word.as_str()))
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn answers() -> impl Iterator<Item = &'static str> {
        let others = OTHERS.iter().map(|(_, _, answer)| *answer);
        COMMANDS.iter().chain(&RUN).map(|(_, answer)| *answer).chain(others)
    }

    #[test]
    fn no_alternative_replaces_an_existing_command_or_option() {
        let tarpon = crate::cli::Cli::command();
        for name in COMMANDS.iter().flat_map(|(names, _)| names.iter()) {
            assert!(tarpon.find_subcommand(name).is_none(), "{name}");
        }
        let of_run = RUN.iter().map(|(names, _)| ("run", *names));
        for (command, names) in of_run.chain(OTHERS.iter().map(|(command, names, _)| (*command, *names))) {
            let command = tarpon.find_subcommand(command).expect("a subcommand");
            let exists = |name: &str| {
                command.get_arguments().chain(tarpon.get_arguments()).any(|argument| {
                    let long = argument.get_long().is_some_and(|long| name == format!("--{long}"));
                    long || argument.get_short().is_some_and(|short| name == format!("-{short}"))
                })
            };
            for name in names {
                assert!(!exists(name), "{} {name}", command.get_name());
            }
        }
    }

    #[test]
    fn no_alternative_weakens_a_container() {
        for answer in answers() {
            for word in ["unconfined", "privileged", "disable", "tls-verify"] {
                assert!(!answer.contains(word), "{answer}");
            }
        }
    }

    #[test]
    fn an_option_with_its_value_is_recognised() {
        for text in ["-P", "--publish-all", "--expose=80", "--expose"] {
            assert_eq!(option("run", text).as_deref(), Some(NETWORK), "{text}");
        }
        assert_eq!(option("run", "--bogus"), None);
        assert_eq!(option("run", "-"), None);
        assert!(option("ps", "--last=3").is_some() && option("ps", "-p").is_none());
    }
}
