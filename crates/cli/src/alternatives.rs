//! Alternatives to commands and options of other tools that tarpon does not have, and a check of clap's suggestions.
//!
//! No answer weakens the confinement of a container, and none suggests a command that removes something unless the user asked for that.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The answer for everything without one of its own.
const PODMAN: &str = "use Podman for that, with tarpon's store: tarpon podman --help";

const NETWORK: &str =
    "a container has this host's network: what listens on a port listens on the host's, and nothing is published";
const NAMES: &str = "this host's network and resolver are used; --add-host NAME:ADDRESS adds a name";
const PODS: &str = "Podman runs pods, also with tarpon's store: tarpon podman --help";
const WRITTEN: &str =
    "what a container wrote is in STORE/containers/NAME/upper; tarpon exec NAME cat FILE prints a file";
const AGAIN: &str = "a container that has ended is not started again: tarpon run starts a new one";

/// Commands, and their alternatives.
const COMMANDS: [(&[&str], &str); 24] = [
    (&["images"], "tarpon cache ls lists the images in the store"),
    (&["rmi"], "tarpon cache rm IMAGE takes an image out of the store"),
    (&["image"], "images have commands of their own: pull, push, inspect, cache ls"),
    (&["container"], "containers have commands of their own: run, ps, exec, logs, wait, stop"),
    (&["login", "logout"], "podman login and skopeo login write the credentials file that tarpon reads"),
    (
        &["build", "buildx", "bud"],
        "podman build and buildah make images; tarpon commit makes one of what a container wrote",
    ),
    (&["start", "restart", "create"], AGAIN),
    (&["cp", "diff"], WRITTEN),
    (&["attach"], "tarpon logs -f NAME follows its output, tarpon exec -it NAME sh opens a shell in it"),
    (&["top", "stats"], "tarpon ps --json has the process id, for ps and systemd-cgtop on this host"),
    (&["port", "network"], NETWORK),
    (&["volume"], "there are no volumes with names: tarpon run -v DIRECTORY:PLACE uses a directory of this host"),
    (&["pod", "kube", "play", "generate", "compose", "quadlet"], PODS),
    (&["events"], "tarpon daemon has a stream of events: GET /v1/events"),
    (&["history", "manifest"], "tarpon inspect IMAGE shows its layers, tarpon inspect --raw IMAGE its manifest"),
    (&["info", "system"], "tarpon doctor and tarpon status show the host and the mounts, tarpon cache usage the store"),
    (&["version"], "tarpon --version"),
    (&["help"], "tarpon --help, or tarpon COMMAND --help"),
    (&["search"], "tarpon has no list of images: skopeo list-tags lists the tags of one"),
    (&["save", "export"], "tarpon convert writes oci:DIR; of a mount, tar makes an archive"),
    (&["load", "import"], "archives are read where they are: tarpon mount oci-archive:FILE DIR"),
    (&["tag", "untag"], "skopeo copy gives an image another name in its registry"),
    (&["prune"], "tarpon cache gc takes out of the store what is not needed"),
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
            "unshare",
            "update",
        ],
        PODMAN,
    ),
];

/// Options of `run`, and their alternatives.
const RUN: [(&[&str], &str); 22] = [
    (&["-p", "--publish", "-P", "--publish-all", "--expose"], NETWORK),
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
    (&["--restart"], "a systemd unit with tarpon run in it starts it again (Restart=on-failure)"),
    (&["-l", "--label", "--label-file", "--annotation"], "containers have names and no labels: --name NAME"),
    (&["-a", "--attach", "--sig-proxy", "--detach-keys"], "without -d it is attached, and signals are passed on to it"),
    (&["--volumes-from"], "-v DIRECTORY:PLACE gives both the same directory of this host"),
    (&["--memory-swap", "--memory-reservation", "--memory-swappiness"], "-m SIZE limits memory and swap together"),
    (&["-c", "--cpu-shares", "--cpu-period", "--cpu-quota"], "--cpus NUMBER limits processors"),
    (&["--arch", "--os", "--variant"], "--platform OS/ARCH[/VARIANT]"),
    (&["--group-add"], "-u USER:GROUP sets the group; groups that the image gives the user are kept"),
    (&["--replace"], "--rm lets the name go when it ends; or choose another --name"),
    (&["--stop-timeout"], "tarpon stop -t SECONDS NAME"),
    (&["--timeout"], "timeout SECONDS tarpon run … ends it after that time"),
    (
        &["--env-host", "--env-merge", "--http-proxy", "--unsetenv", "--unsetenv-all"],
        "-e NAME passes a variable on, -e NAME= empties it",
    ),
    (&["--tz"], "-e TZ=ZONE"),
    (&["--pidfile", "--conmon-pidfile"], "tarpon ps --json has the process id"),
    (&["--log-driver", "--log-opt"], "with -d its output is kept: tarpon logs NAME"),
    (&["--init-path"], "--init uses the init that it finds on this host"),
    (
        &["--no-healthcheck", "--health-cmd", "--health-interval", "--health-retries", "--health-timeout"],
        "health checks of images are not run",
    ),
    (
        &["--image-volume", "--read-only-tmpfs"],
        "volumes of images stay with the container; --tmpfs PLACE is a directory in memory",
    ),
    (&["--rootfs"], "tarpon mount makes a root file system for other tools"),
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
        "tarpon ps --json has all that is known, whole",
    ),
    (
        "logs",
        &["--until", "--color", "--names", "-l", "--latest"],
        "tarpon logs -t NAME prints times, for grep and awk",
    ),
    ("stop", &["-a", "--all"], "tarpon stop $(tarpon ps -q)"),
    ("kill", &["-a", "--all"], "tarpon kill $(tarpon ps -q)"),
    ("rm", &["-a", "--all"], "tarpon rm $(tarpon ps -aq --filter status=exited)"),
    (
        "rm",
        &["-v", "--volumes", "-t", "--time"],
        "volumes of its own go with it; tarpon stop -t SECONDS stops it before",
    ),
    ("exec", &["-d", "--detach", "--detach-keys", "--privileged", "--preserve-fds"], PODMAN),
    (
        "inspect",
        &["-f", "--format", "-t", "--type"],
        "tarpon inspect --json IMAGE, and jq; containers: tarpon ps --json",
    ),
];

/// Commands that end or remove something: no typing error may lead to a suggestion of one.
const HARMFUL: [&str; 6] = ["rm", "kill", "stop", "clear", "gc", "--force"];

/// The alternative to `option` of the subcommand `command`.
pub(crate) fn option(command: &str, option: &str) -> Option<String> {
    let name = option.split('=').next().unwrap_or(option);
    // `-p8080:80` means `-p`.
    let short = name.get(..2).filter(|short| !short.starts_with("--"));
    let is_it = |known: &&[&str]| known.iter().any(|one| *one == name || Some(*one) == short);
    let of_run = RUN.iter().filter(|_| command == "run").map(|(names, answer)| (names, answer));
    let others = OTHERS.iter().filter(|(of, ..)| *of == command).map(|(_, names, answer)| (names, answer));
    of_run.chain(others).find(|(names, _)| is_it(names)).map(|(_, answer)| (*answer).to_owned())
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
    fn no_answer_is_about_something_that_there_is() {
        let tarpon = crate::cli::Cli::command();
        for name in COMMANDS.iter().flat_map(|(names, _)| names.iter()) {
            assert!(tarpon.find_subcommand(name).is_none(), "{name}");
        }
        let of_run = RUN.iter().map(|(names, _)| ("run", *names));
        for (command, names) in of_run.chain(OTHERS.iter().map(|(command, names, _)| (*command, *names))) {
            let command = tarpon.find_subcommand(command).expect("a subcommand");
            let known = |name: &str| {
                command.get_arguments().chain(tarpon.get_arguments()).any(|argument| {
                    let long = argument.get_long().is_some_and(|long| name == format!("--{long}"));
                    long || argument.get_short().is_some_and(|short| name == format!("-{short}"))
                })
            };
            for name in names {
                assert!(!known(name), "{} {name}", command.get_name());
            }
        }
    }

    #[test]
    fn no_answer_weakens_a_container() {
        for answer in answers() {
            for word in ["unconfined", "privileged", "disable", "tls-verify"] {
                assert!(!answer.contains(word), "{answer}");
            }
        }
    }

    #[test]
    fn an_option_with_its_value_is_known() {
        for text in ["-p", "-p8080:80", "--publish=80:80", "-P"] {
            assert_eq!(option("run", text).as_deref(), Some(NETWORK), "{text}");
        }
        assert_eq!(option("run", "--bogus"), None);
        assert_eq!(option("run", "-"), None);
        assert!(option("ps", "--last=3").is_some() && option("ps", "-p").is_none());
    }
}
