//! The process of a container: entrypoint and command, environment, user and directory.

use std::collections::HashSet;
use std::path::Path;

use oci_spec::runtime::{Process, ProcessBuilder, UserBuilder};
use tarpon_oci::RunConfig;

use super::{CapabilityChanges, Confinement, ContainerOptions, init, ulimit, user};

/// `PATH` if neither the image nor the user sets it: as with other tools.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// `TERM` if neither the image nor the user sets it: as with other tools.
const TERM: &str = "TERM=xterm";

pub(super) fn process(
    root: &Path,
    config: &RunConfig,
    options: &ContainerOptions,
    confinement: &Confinement,
) -> Result<Process, String> {
    let args = arguments(config, options);
    if args.is_empty() {
        return Err("the image defines no command: pass one".to_owned());
    }
    let args = if options.init { init::before(args) } else { args };
    let user = user::find(root, options.user.as_ref().unwrap_or(&config.user))?;
    let home = format!("HOME={}", user.home.as_deref().filter(|home| !home.is_empty()).unwrap_or("/"));
    let mut env = vec![PATH.to_owned(), home];
    env.extend(options.terminal.then(|| TERM.to_owned()));
    env.extend(options.hostname.as_ref().map(|name| format!("HOSTNAME={name}")));
    let env = environment([env, config.env.clone(), options.env.clone()].concat());
    let directory = Path::new("/").join(options.directory.as_ref().unwrap_or(&config.working_dir));
    let capabilities = options.capabilities.apply(user.uid)?;
    let user = UserBuilder::default().uid(user.uid).gid(user.gid).additional_gids(user.groups).build();
    let process = ProcessBuilder::default()
        .terminal(options.terminal)
        .user(user.map_err(|error| error.to_string())?)
        .args(args)
        .env(env)
        .cwd(directory)
        .capabilities(capabilities)
        .no_new_privileges(options.no_new_privileges)
        .build();
    let mut process = process.map_err(|error| error.to_string())?;
    // Without any, the limits of the calling process apply.
    process.set_rlimits(ulimit::rlimits(&options.ulimits)?);
    process.set_apparmor_profile(confinement.apparmor.clone());
    Ok(process)
}

/// Deviations of another process in a container from the container's own.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnotherProcess<'a> {
    pub(crate) args: &'a [String],
    pub(crate) env: &'a [String],
    pub(crate) directory: Option<&'a str>,
    pub(crate) user: Option<&'a str>,
    pub(crate) terminal: bool,
}

impl AnotherProcess<'_> {
    /// The full description, in a container with the first process `first` and the root `root`. Unset options are as in `first`.
    ///
    /// # Errors
    /// One line: the image has no such user.
    pub(crate) fn beside(&self, mut first: Process, root: &Path) -> Result<Process, String> {
        let mut env = first.env().clone().unwrap_or_default();
        let has_term = env.iter().any(|variable| variable.starts_with("TERM="));
        env.extend((self.terminal && !has_term).then(|| TERM.to_owned()));
        if let Some(user) = self.user {
            let user = user::find(root, user)?;
            env.push(format!("HOME={}", user.home.as_deref().filter(|home| !home.is_empty()).unwrap_or("/")));
            if let Some(capabilities) = first.capabilities() {
                let capabilities = CapabilityChanges::of_another(capabilities, user.uid)?;
                first.set_capabilities(Some(capabilities));
            }
            let user = UserBuilder::default().uid(user.uid).gid(user.gid).additional_gids(user.groups).build();
            first.set_user(user.map_err(|error| error.to_string())?);
        }
        if let Some(directory) = self.directory {
            first.set_cwd(Path::new("/").join(directory));
        }
        first.set_args(Some(self.args.to_vec()));
        first.set_env(Some(environment([&env, self.env].concat())));
        first.set_terminal(Some(self.terminal));
        Ok(first)
    }
}

/// The command line. The image's command is the arguments of the image's entrypoint, so another entrypoint drops it.
pub(super) fn arguments(config: &RunConfig, options: &ContainerOptions) -> Vec<String> {
    let command = match (&options.command[..], &options.entrypoint) {
        ([], None) => &config.cmd,
        _ => &options.command,
    };
    let entrypoint = options.entrypoint.as_ref().unwrap_or(&config.entrypoint);
    entrypoint.iter().chain(command).cloned().collect()
}

/// Removes duplicates: each name has its last value, at the position of the first.
fn environment(variables: Vec<String>) -> Vec<String> {
    let name = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    let mut seen = HashSet::new();
    let first_places = variables.iter().filter(|variable| seen.insert(name(variable)));
    let last = |wanted: &String| variables.iter().rfind(|variable| name(variable) == name(wanted)).cloned();
    first_places.filter_map(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RunConfig {
        RunConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["serve".into()],
            env: vec!["A=1".into(), "PATH=/bin".into()],
            working_dir: "srv".into(),
            ..RunConfig::default()
        }
    }

    fn made(options: &ContainerOptions) -> Process {
        process(Path::new("/nonexistent"), &config(), options, &Confinement::default()).unwrap()
    }

    #[test]
    fn a_process_is_the_one_of_the_images_config() {
        let process = made(&ContainerOptions::default());
        assert_eq!(process.args().as_deref().unwrap(), ["/entry", "serve"]);
        assert_eq!(process.env().as_deref().unwrap(), ["PATH=/bin", "HOME=/", "A=1"]);
        assert_eq!(process.cwd(), Path::new("/srv"));
    }

    #[test]
    fn a_command_replaces_the_images_and_variables_are_joined() {
        let options = ContainerOptions {
            command: vec!["sh".into(), "-c".into(), "x".into()],
            env: vec!["A=2".into(), "B=".into()],
            terminal: true,
            directory: Some("/tmp".into()),
            user: Some("7:8".into()),
            hostname: Some("box".into()),
            ..ContainerOptions::default()
        };
        let process = made(&options);
        assert_eq!(process.args().as_deref().unwrap(), ["/entry", "sh", "-c", "x"]);
        let expected = ["PATH=/bin", "HOME=/", "TERM=xterm", "HOSTNAME=box", "A=2", "B="];
        assert_eq!(process.env().as_deref().unwrap(), expected);
        assert_eq!((process.cwd().as_path(), process.user().uid(), process.user().gid()), (Path::new("/tmp"), 7, 8));
    }

    #[test]
    fn what_confines_a_process_confines_every_other_one_in_its_container() {
        let options = ContainerOptions { ulimits: vec!["nofile=64".parse().unwrap()], ..ContainerOptions::default() };
        let confinement = Confinement { apparmor: Some("profile".to_owned()), ..Confinement::default() };
        let first = process(Path::new("/nonexistent"), &config(), &options, &confinement).unwrap();
        let args = ["ls".to_owned()];
        let other = AnotherProcess { args: &args, ..AnotherProcess::default() };
        let other = other.beside(first.clone(), Path::new("/nonexistent")).unwrap();
        assert_eq!(other.apparmor_profile().as_deref(), Some("profile"));
        assert_eq!((other.rlimits(), other.rlimits().as_ref().map(Vec::len)), (first.rlimits(), Some(1)));
    }

    #[test]
    fn a_process_below_an_init_is_its_argument() {
        let options = ContainerOptions { init: true, ..ContainerOptions::default() };
        assert_eq!(made(&options).args().as_deref().unwrap(), ["/dev/tarpon-init", "--", "/entry", "serve"]);
    }

    #[test]
    fn another_entrypoint_takes_the_images_command_along() {
        let entrypoint = |words: &[&str], command: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            let options = ContainerOptions {
                entrypoint: Some(owned(words)),
                command: owned(command),
                ..ContainerOptions::default()
            };
            arguments(&config(), &options)
        };
        assert_eq!(entrypoint(&["/bin/sh", "-c"], &[]), ["/bin/sh", "-c"]);
        assert_eq!(entrypoint(&[], &["ls"]), ["ls"]);
        assert!(entrypoint(&[], &[]).is_empty());
    }

    #[test]
    fn another_process_is_as_the_first_except_for_its_own_options() {
        let options = ContainerOptions {
            no_new_privileges: true,
            capabilities: CapabilityChanges { add: vec!["SYS_TIME".into()], drop: vec!["CHOWN".into()] },
            ..ContainerOptions::default()
        };
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/passwd"), "web:x:7:8::/srv:/bin/sh\n").unwrap();
        std::fs::write(root.path().join("etc/group"), "logs:x:9:web\n").unwrap();
        let args = ["ls".to_owned()];
        let same = AnotherProcess { args: &args, ..AnotherProcess::default() };
        let same = same.beside(made(&options), root.path()).unwrap();
        assert_eq!(same.args().as_deref().unwrap(), ["ls"]);
        let (first, other) = (
            made(&options),
            AnotherProcess {
                args: &args,
                env: &["A=2".to_owned()],
                directory: Some("/tmp"),
                user: Some("web"),
                terminal: true,
            },
        );
        assert_eq!((same.env(), same.cwd(), same.user()), (first.env(), first.cwd(), first.user()));
        assert_eq!(same.capabilities(), first.capabilities());
        let other = other.beside(first, root.path()).unwrap();
        assert_eq!(other.no_new_privileges(), Some(true));
        assert_eq!(other.env().as_deref().unwrap(), ["PATH=/bin", "HOME=/srv", "A=2", "TERM=xterm"]);
        assert_eq!((other.cwd().as_path(), other.terminal()), (Path::new("/tmp"), Some(true)));
        assert_eq!((other.user().uid(), other.user().gid()), (7, 8));
        assert_eq!(other.user().additional_gids().as_deref(), Some(&[9][..]));
        // The result is the same as for a container started as this user.
        let started = made(&ContainerOptions { user: Some("7:8".into()), ..options });
        assert_eq!(other.capabilities(), started.capabilities());
        let unknown = AnotherProcess { user: Some("nobody"), ..AnotherProcess::default() };
        assert!(unknown.beside(started, root.path()).unwrap_err().contains("nobody"));
    }

    #[test]
    fn an_image_without_a_command_needs_one() {
        let empty = RunConfig::default();
        let error = process(Path::new("/nonexistent"), &empty, &ContainerOptions::default(), &Confinement::default())
            .unwrap_err();
        assert!(error.contains("no command"));
    }
}
