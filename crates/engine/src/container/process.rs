//! The process of a container: entrypoint and command, environment, user and directory.

use std::collections::HashSet;
use std::path::Path;

use oci_spec::runtime::{Process, ProcessBuilder, UserBuilder};
use tarpon_oci::RunConfig;

use super::{ContainerOptions, user};

/// What `PATH` is where neither the image nor the user says: as with other tools.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What a terminal is taken for where nobody says: as with other tools.
const TERM: &str = "TERM=xterm";

pub(super) fn process(root: &Path, config: &RunConfig, options: &ContainerOptions) -> Result<Process, String> {
    let args = arguments(config, options);
    if args.is_empty() {
        return Err("the image has no command: say one".to_owned());
    }
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
    // The limits of whoever starts it.
    process.set_rlimits(None);
    Ok(process)
}

/// What is run. The image's command belongs to the image's entrypoint: with another one it means nothing.
pub(super) fn arguments(config: &RunConfig, options: &ContainerOptions) -> Vec<String> {
    let command = match (&options.command[..], &options.entrypoint) {
        ([], None) => &config.cmd,
        _ => &options.command,
    };
    let entrypoint = options.entrypoint.as_ref().unwrap_or(&config.entrypoint);
    entrypoint.iter().chain(command).cloned().collect()
}

/// Each name once: the last value, at the place of the first.
fn environment(said: Vec<String>) -> Vec<String> {
    let name = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    let mut seen = HashSet::new();
    let first_places = said.iter().filter(|variable| seen.insert(name(variable)));
    let last = |wanted: &String| said.iter().rfind(|variable| name(variable) == name(wanted)).cloned();
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
        process(Path::new("/nonexistent"), &config(), options).unwrap()
    }

    #[test]
    fn a_process_is_what_the_image_says() {
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
    fn an_image_without_a_command_needs_one() {
        let empty = RunConfig::default();
        let error = process(Path::new("/nonexistent"), &empty, &ContainerOptions::default()).unwrap_err();
        assert!(error.contains("no command"));
    }
}
