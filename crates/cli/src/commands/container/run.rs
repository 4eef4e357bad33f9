//! `tarpon run`: runs a container of an image that is fetched on demand.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, Args};
use tarpon_engine::{
    Backfill, CapabilityChanges, ContainerName, ContainerOptions, HostEntry, Limits, ModeChoice, MountOption, Network,
    Port, ProcessLimit, Publish, RunError, RunOutcome, RunRequest, Signals, Tmpfs, Ulimit, Volume,
};

use super::security::{Security, SecurityChoice};
use crate::commands::image::{ImageName, ImageOptions, image_name};
use crate::commands::options::{Learning, backfill, mode};
use crate::commands::session::{Session, command_runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::{alternatives, output, size};

const EXAMPLES: &str = "\
Examples:
  tarpon run --rm docker.io/library/alpine:3.20 cat /etc/os-release
  tarpon run --rm -it debian:12                           a shell
  tarpon run -d --name web -p 8080:80 nginx               in the background, at http://localhost:8080
  tarpon logs web && tarpon exec web nginx -s reload
  tarpon stop web && tarpon rm web
  tarpon run --rm -v ./src:/src -w /src --init rust:1 make
  tarpon run --rm --read-only --network none --cap-drop ALL -m 256M app:v1 -- check

Everything after IMAGE is the command with its options. The exit code is that of the container; 125 if
nothing was run, 126 if the program cannot be executed, 127 if it does not exist.

A container uses the network of this host, unless -p or --network gives it one of its own. There the
name host.containers.internal is this host. Volumes that the image declares are directories in the container's writable layer: they start with the image's content,
stay writable with --read-only and are removed with the container.
For other features use Podman with tarpon's image store: see `tarpon podman --help`.
Requires crun or runc. Without root the container runs in a user namespace: see tarpon unshare --help.";

/// Maximum size in bytes of a file of variables.
const ENV_FILE_BYTES: u64 = 1 << 20;

/// Run a command in a new container
///
/// Mounts the image lazily, as `tarpon mount` does, with a writable layer on top, and runs COMMAND or the image's command in a
/// container. Without --rm the ended container and its changes are kept until `tarpon rm`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "tarpon run [OPTIONS] <IMAGE> [--] [COMMAND]...")]
#[command(disable_help_flag = true)]
#[command(mut_args(switch))]
pub(crate) struct Run {
    /// Connect standard input
    #[arg(short, long)]
    interactive: bool,
    /// Allocate a pseudo-terminal
    #[arg(short, long)]
    tty: bool,
    /// Run in the background; `tarpon logs` prints the output
    #[arg(short, long)]
    detach: bool,
    /// Remove the container when it ends
    #[arg(long)]
    rm: bool,
    /// Container name [default: a random name]
    #[arg(long, value_name = "NAME")]
    name: Option<ContainerName>,
    #[command(flatten)]
    process: ProcessArgs,
    /// Program instead of the image's entrypoint and command; a JSON array for several words, "" for none
    #[arg(long, value_name = "PROGRAM", value_parser = entrypoint)]
    entrypoint: Option<Words>,
    /// Write the container's name to this new file
    #[arg(long, value_name = "FILE")]
    cidfile: Option<PathBuf>,
    /// Bind mount of a directory or file of this host: SOURCE:DESTINATION[:ro,nosuid,nodev,noexec], where SOURCE begins with / or .
    ///
    /// DESTINATION alone is an anonymous volume. z and Z have no effect: containers have no SELinux labels.
    #[arg(short, long, value_name = "VOLUME", value_parser = here(Volume::parse_in))]
    volume: Vec<Volume>,
    /// Mount in long form: type=bind,source=SOURCE,destination=DESTINATION[,ro], or
    /// type=tmpfs,destination=DESTINATION[,tmpfs-size=SIZE,tmpfs-mode=MODE]
    #[arg(long, value_name = "MOUNT", value_parser = here(MountOption::parse_in))]
    mount: Vec<MountOption>,
    /// Tmpfs mount: DESTINATION[:size=SIZE,mode=MODE,ro,noexec]
    #[arg(long, value_name = "TMPFS")]
    tmpfs: Vec<Tmpfs>,
    /// Network of the container [default: host; with -p: bridge for root if netavark is installed, else pasta]
    #[arg(long, visible_alias = "net", value_name = "NETWORK", value_parser = network())]
    network: Option<Network>,
    /// Publish a port of the container on this host: [[IP:][HOSTPORT]:]PORT[/udp]; a range is FIRST-LAST
    ///
    /// Without HOSTPORT a free port is chosen, which `tarpon ps` shows. Without IP the port is that of all addresses.
    #[arg(short, long, value_name = "PORT")]
    publish: Vec<Publish>,
    /// Host name [default: this host's with --network host, else a random name]
    #[arg(short = 'h', long, value_name = "NAME")]
    hostname: Option<String>,
    /// Additional entry in /etc/hosts
    #[arg(long, value_name = "NAME:ADDRESS")]
    add_host: Vec<HostEntry>,
    /// Mount the root file system read-only, with tmpfs at /tmp, /run and /var/tmp
    #[arg(long)]
    read_only: bool,
    /// Capability to add to the default set, or ALL
    #[arg(long, value_name = "CAPABILITY", value_delimiter = ',')]
    cap_add: Vec<String>,
    /// Capability to drop from the default set, or ALL
    #[arg(long, value_name = "CAPABILITY", value_delimiter = ',')]
    cap_drop: Vec<String>,
    /// Security option: no-new-privileges, or apparmor=PROFILE in place of tarpon's profile
    ///
    /// no-new-privileges: setuid programs give no privileges. tarpon's AppArmor profile is the default if the host has AppArmor.
    /// seccomp=unconfined and apparmor=unconfined turn confinement off. System calls are filtered if the runtime supports it.
    #[arg(long, value_name = "OPTION")]
    security_opt: Vec<Security>,
    /// Memory limit, including swap
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Number of processors, such as 1.5
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<f64>,
    /// Limit of processes and threads; -1 for none [default: 2048, if the host's cgroups support it]
    #[arg(long, value_name = "NUMBER", value_parser = process_limit, allow_negative_numbers = true)]
    pids_limit: Option<ProcessLimit>,
    /// Resource limit of each process, such as nofile=1024:4096 or core=0
    #[arg(long, value_name = "NAME=SOFT[:HARD]")]
    ulimit: Vec<Ulimit>,
    /// Size of /dev/shm [default: 64 MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    shm_size: Option<u64>,
    /// Run an init process that forwards signals and reaps processes; requires catatonit or similar on this host
    #[arg(long)]
    init: bool,
    /// Signal of `tarpon stop` [default: the image's, else TERM]
    #[arg(long, value_name = "SIGNAL")]
    stop_signal: Option<String>,
    /// OCI runtime [default: crun or runc, whichever works]
    #[arg(long, value_name = "PROGRAM", env = "TARPON_RUNTIME")]
    runtime: Option<PathBuf>,
    /// Mount mode
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode())]
    mode: ModeChoice,
    /// Fetch the rest of the image in the background, as in `tarpon mount`: off, idle, now
    #[arg(long, value_name = "WHEN", env = "TARPON_BACKFILL", default_value = "off", value_parser = backfill())]
    backfill: Backfill,
    #[command(flatten)]
    learning: Learning,
    #[command(flatten)]
    image: ImageOptions,
    /// Image, for example docker.io/library/alpine:3.20, and command to run instead of the image's
    #[arg(value_names = ["IMAGE", "COMMAND"], required = true, num_args = 1..)]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    // -h is the host name, as in Podman.
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// The options that are switches.
const SWITCHES: [&str; 6] = ["interactive", "tty", "detach", "rm", "read_only", "init"];

/// Lets a switch take a value, as with Podman: `--rm`, `--rm=false`.
fn switch(arg: Arg) -> Arg {
    if !SWITCHES.contains(&arg.get_id().as_str()) {
        return arg;
    }
    let arg = arg.value_name("BOOL").num_args(0..=1).require_equals(true).action(ArgAction::Set);
    arg.default_value("false").default_missing_value("true").hide_default_value(true).hide_possible_values(true)
}

/// Hint for usage errors.
const HINT: &str = "--help lists the options";

/// Splits words into an image or container and its command. Everything after the first word belongs to the command, even if it looks
/// like an option of tarpon: programs have options of the same names.
pub(crate) fn subject(subcommand: &str, words: &[String]) -> Result<(String, Vec<String>)> {
    let Some((first, command)) = words.split_first() else {
        return Err(Failure::new(Exit::Usage, "no image or container is given").hint(HINT));
    };
    if first.starts_with('-') {
        let hint = alternatives::option(subcommand, first).unwrap_or_else(|| HINT.to_owned());
        return Err(Failure::new(Exit::Usage, format_args!("unexpected argument '{first}' found")).hint(hint));
    }
    let command = command.strip_prefix(&["--".to_owned()]).unwrap_or(command);
    Ok((first.clone(), command.to_vec()))
}

/// Options for the process, shared by `run` and `exec`.
#[derive(Debug, Args)]
pub(crate) struct ProcessArgs {
    /// Set an environment variable; NAME alone takes its value from the current environment
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// File with environment variables, one NAME=VALUE or NAME per line; # starts a comment
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// User of the image: USER[:GROUP], names or numbers
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
}

/// The words of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Words(Vec<String>);

impl Run {
    pub(crate) fn run(self, global: &Global) -> Result<ExitCode> {
        let (image, command) = subject("run", &self.words)?;
        let image = image_name(&image).map_err(|error| {
            Failure::new(Exit::Usage, format_args!("invalid value {image:?} for <IMAGE>: {error}")).hint(HINT)
        })?;
        match self.execute(global, image, command).map_err(not_run)? {
            RunOutcome::Exited(code) => Ok(code.into()),
            RunOutcome::Detached(name) => {
                output::text(&format!("{name}\n"))?;
                Ok(Exit::Ok.into())
            }
        }
    }

    fn execute(self, global: &Global, image: ImageName, command: Vec<String>) -> Result<RunOutcome> {
        let text = image.text.clone();
        let doing = || format!("cannot run {text}");
        let session = Session::open(global)?;
        check_terminal(self.tty && !self.detach, doing)?;
        let request = self.request(&session, image, command)?;
        let ContainerOptions { network, ports, .. } = &request.options;
        if !ports.is_empty() && !network.is_connected() && !global.quiet {
            output::note(&format!("-p has no effect with --network {}", network.name()));
        }
        let (runtime, progress) = (command_runtime()?, output::progress(global.quiet));
        let outcome = runtime.block_on(async {
            let mut signals = Signals::listen().doing(|| "cannot listen for signals")?;
            let outcome = session.engine().run(&request, &mut signals, &*progress).await;
            outcome.map_err(|failed| failure(doing(), failed))
        });
        // Unfinished computations are not needed any more.
        runtime.shutdown_background();
        outcome
    }

    fn request(&self, session: &Session, image: ImageName, command: Vec<String>) -> Result<RunRequest> {
        let (mut volumes, mut tmpfs) = (self.volume.clone(), self.tmpfs.clone());
        for mount in &self.mount {
            match mount.clone() {
                MountOption::Volume(volume) => volumes.push(volume),
                MountOption::Tmpfs(memory) => tmpfs.push(memory),
            }
        }
        let SecurityChoice { no_new_privileges, any_system_call, apparmor, unlabelled } =
            SecurityChoice::of(&self.security_opt);
        let pids = self.pids_limit.unwrap_or_default();
        let ports: Vec<Port> = self.publish.iter().flat_map(|publish| publish.ports().iter().copied()).collect();
        let network = self.network.unwrap_or(if ports.is_empty() { Network::Host } else { Network::for_ports() });
        let options = ContainerOptions {
            entrypoint: self.entrypoint.clone().map(|words| words.0),
            command,
            env: self.process.variables()?,
            user: self.process.user.clone(),
            directory: self.process.workdir.clone(),
            hostname: self.hostname.clone(),
            network,
            ports,
            terminal: self.tty,
            read_only: self.read_only,
            no_new_privileges,
            filtered: !any_system_call,
            capabilities: CapabilityChanges { add: self.cap_add.clone(), drop: self.cap_drop.clone() },
            volumes,
            tmpfs,
            limits: Limits { memory: self.memory, cpus: self.cpus, pids },
            ulimits: self.ulimit.clone(),
            shm_size: self.shm_size,
            init: self.init,
            hosts: self.add_host.clone(),
            apparmor,
            unlabelled,
        };
        Ok(RunRequest {
            image: self.image.request(image)?,
            mode: self.mode,
            backfill: self.backfill,
            learn: self.learning.is_on(),
            options,
            name: self.name.clone(),
            name_file: self.cidfile.clone(),
            remove: self.rm,
            detach: self.detach,
            input: self.interactive,
            stop_signal: self.stop_signal.clone(),
            runtime: self.runtime.clone(),
            keeper_command: session.keeper_command()?,
        })
    }
}

impl ProcessArgs {
    /// The variables from the files and then the options, as `NAME=VALUE`.
    pub(crate) fn variables(&self) -> Result<Vec<String>> {
        let mut variables = Vec::new();
        for file in &self.env_file {
            let doing = || format!("cannot read the variables in {}", file.display());
            let mut text = String::new();
            let opened = std::fs::File::open(file).doing(doing)?;
            opened.take(ENV_FILE_BYTES + 1).read_to_string(&mut text).doing(doing)?;
            if text.len() as u64 > ENV_FILE_BYTES {
                let cause = format!("the file has more than {ENV_FILE_BYTES} bytes");
                return Err(Failure::new(Exit::Usage, format_args!("{}: {cause}", doing())));
            }
            variables.extend(of_file(&text).map(str::to_owned));
        }
        variables.extend(self.env.iter().cloned());
        variables.into_iter().filter_map(|variable| with_value(variable, |name| std::env::var(name).ok())).collect()
    }
}

fn of_file(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim_start);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// A variable without a value gets its value from the current environment, or is dropped if it is not set there.
fn with_value(variable: String, here: impl Fn(&str) -> Option<String>) -> Option<Result<String>> {
    match variable.split_once('=') {
        Some(("", _)) => {
            let cause = format!("cannot set a variable without a name: {variable:?}");
            Some(Err(Failure::new(Exit::Usage, cause)))
        }
        Some(_) => Some(Ok(variable)),
        None => here(&variable).map(|value| Ok(format!("{variable}={value}"))),
    }
}

/// `-t` passes the caller's terminal to the container, so one must exist.
pub(crate) fn check_terminal(is_wanted: bool, doing: impl Fn() -> String) -> Result {
    let is_there = std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal();
    if is_wanted && !is_there {
        return Err(Failure::new(
            Exit::NotRun,
            format_args!("{}: -t requires a terminal, but none is available", doing()),
        )
        .hint("omit -t"));
    }
    Ok(())
}

/// The failure of a container, or of a process in one, that did not run.
pub(crate) fn failure(doing: String, failed: RunError) -> Failure {
    let RunError { exit, error } = failed;
    let mut failure = Failure::engine(doing, error);
    failure.exit = match exit {
        126 => Exit::CannotExecute,
        127 => Exit::NoProgram,
        130 => Exit::Interrupted,
        _ => Exit::NotRun,
    };
    failure
}

/// Maps failures before the start to one exit code, to distinguish them from those of the container. An invalid command line keeps its own,
/// which a script meets before it goes into use.
pub(crate) fn not_run(mut failure: Failure) -> Failure {
    let has_own = matches!(failure.exit, Exit::Usage | Exit::CannotExecute | Exit::NoProgram | Exit::Interrupted);
    if !has_own {
        failure.exit = Exit::NotRun;
    }
    failure
}

fn network() -> impl TypedValueParser<Value = Network> {
    let value = |name: &'static str, help: &'static str| PossibleValue::new(name).help(help);
    let all = [Network::Host, Network::None, Network::Pasta, Network::Bridge];
    let help = |network| match network {
        Network::Host => "The network of this host, whose ports need no publishing",
        Network::None => "No network",
        Network::Pasta => "A network of its own that needs no root, but pasta (package passt)",
        Network::Bridge => "A network with the other containers on this bridge; needs root and netavark",
    };
    let parser = PossibleValuesParser::new(all.map(|network| value(network.name(), help(network))));
    parser.map(move |name| all.into_iter().find(|network| network.name() == name).unwrap_or_default())
}

/// A parser for values in which relative paths start at the current directory.
fn here<T: Clone + Send + Sync + 'static>(
    parse: impl Fn(&str, &Path) -> std::result::Result<T, String> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T> {
    clap::builder::StringValueParser::new().try_map(move |text| {
        let base =
            std::env::current_dir().map_err(|error| format!("cannot determine the current directory: {error}"))?;
        parse(&text, &base)
    })
}

fn process_limit(text: &str) -> std::result::Result<ProcessLimit, String> {
    match text {
        "-1" | "0" => Ok(ProcessLimit::Unlimited),
        number => number.parse().map(ProcessLimit::At).map_err(|_| "expected a number, or -1 for no limit".to_owned()),
    }
}

fn entrypoint(text: &str) -> std::result::Result<Words, String> {
    if text.starts_with('[') {
        return serde_json::from_str(text).map(Words).map_err(|error| format!("not a JSON array of strings: {error}"));
    }
    Ok(Words(Some(text.to_owned()).filter(|text| !text.is_empty()).into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        entrypoint(text).expect("valid").0
    }

    #[test]
    fn the_words_after_the_image_are_the_command() {
        let split = |words: &[&str]| {
            let owned: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            subject("run", &owned).map_err(|failure| failure.exit)
        };
        let expected =
            |command: &[&str]| Ok(("app".to_owned(), command.iter().map(|word| (*word).to_owned()).collect()));
        assert_eq!(split(&["app"]), expected(&[]));
        assert_eq!(split(&["app", "--rm", "--help"]), expected(&["--rm", "--help"]));
        assert_eq!(split(&["app", "--", "ls", "--", "x"]), expected(&["ls", "--", "x"]));
        assert_eq!(split(&["--bogus", "app"]), Err(Exit::Usage));
    }

    #[test]
    fn an_entrypoint_is_a_word_or_a_json_array() {
        assert_eq!(words("/bin/a b"), ["/bin/a b"]);
        assert_eq!(words("[\"a\", \"b c\"]"), ["a", "b c"]);
        assert!(words("").is_empty() && words("[]").is_empty());
        assert!(entrypoint("[a]").is_err());
    }

    #[test]
    fn a_file_of_variables_has_one_per_line() {
        let text = "# comment\n\nA=1\n  B=two words \n#C=3\nD\r\n";
        assert_eq!(of_file(text).collect::<Vec<_>>(), ["A=1", "B=two words ", "D"]);
    }

    #[test]
    fn a_name_alone_takes_its_value_from_here() {
        let here = |name: &str| (name == "HERE").then(|| "x=y".to_owned());
        let value = |text: &str| with_value(text.to_owned(), here).map(|value| value.map_err(|failure| failure.exit));
        assert_eq!(value("HERE"), Some(Ok("HERE=x=y".to_owned())));
        assert_eq!(value("ELSEWHERE"), None);
        assert_eq!(value("A=b=c"), Some(Ok("A=b=c".to_owned())));
        assert_eq!(value("=b"), Some(Err(Exit::Usage)));
    }
}
