//! [`Change`]: a change to the config of a new image, in the syntax of a Dockerfile.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Result;
use crate::edit::{Object, malformed, set};

/// The shell for a command that is written as a line.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// One instruction: `CMD ["serve"]`, `ENV A=1 B=2`, `WORKDIR /srv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The command, or the arguments of the entrypoint.
    Cmd(Vec<String>),
    /// The entrypoint. It clears the command unless another change sets one.
    Entrypoint(Vec<String>),
    /// Environment variables.
    Env(Vec<(String, String)>),
    /// Ports, with their protocols.
    Expose(Vec<String>),
    /// Labels.
    Label(Vec<(String, String)>),
    /// The signal that stops a container.
    StopSignal(String),
    /// The user that it runs as.
    User(String),
    /// Directories of data.
    Volume(Vec<String>),
    /// The working directory, relative to the previous one unless absolute.
    Workdir(String),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let text = text.trim();
        let end = text.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        // `CMD=…` is another spelling of `CMD …`.
        let rest = rest.trim_start();
        let rest = rest.strip_prefix('=').unwrap_or(rest).trim();
        if rest.is_empty() {
            return Err(format!("{text:?} has no value: expected an instruction and its value"));
        }
        let one = || rest.to_owned();
        match name.to_ascii_uppercase().as_str() {
            "CMD" => command(rest).map(Self::Cmd),
            "ENTRYPOINT" => command(rest).map(Self::Entrypoint),
            "ENV" => pairs(rest).map(Self::Env),
            "EXPOSE" => {
                words(rest)?.iter().map(|port| exposed(port)).collect::<std::result::Result<_, _>>().map(Self::Expose)
            }
            "LABEL" => pairs(rest).map(Self::Label),
            "STOPSIGNAL" => Ok(Self::StopSignal(one())),
            "USER" => Ok(Self::User(one())),
            "VOLUME" => list(rest).map_or_else(|| words(rest), Ok).map(Self::Volume),
            "WORKDIR" => Ok(Self::Workdir(one())),
            _ => Err(format!(
                "{name:?} cannot be changed: it is CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME or WORKDIR"
            )),
        }
    }
}

/// The strings of a JSON list, if it is one.
fn list(text: &str) -> Option<Vec<String>> {
    serde_json::from_str(text).ok()
}

/// A list of arguments, or a line for the shell.
fn command(text: &str) -> std::result::Result<Vec<String>, String> {
    match list(text) {
        Some(arguments) => Ok(arguments),
        None if text.starts_with('[') => Err(format!("{text} begins as a list of strings and is none")),
        None => Ok(SHELL.into_iter().chain([text]).map(str::to_owned).collect()),
    }
}

/// `A=1 B="two words"`, or `A all the rest`.
fn pairs(text: &str) -> std::result::Result<Vec<(String, String)>, String> {
    let words = words(text)?;
    let first = words.first().map_or("", String::as_str);
    if !first.contains('=') {
        let (name, value) = text.split_once(char::is_whitespace).ok_or_else(|| format!("{text:?} has no value"))?;
        return Ok(vec![(name.to_owned(), value.trim().to_owned())]);
    }
    let pair = |word: &String| match word.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{word:?} is no NAME=VALUE")),
    };
    words.iter().map(pair).collect()
}

/// `80`, `80/udp`, `8000-8010/tcp`.
fn exposed(text: &str) -> std::result::Result<String, String> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let are_ports = ports.split_once('-').map_or_else(|| is_port(ports), |(from, to)| is_port(from) && is_port(to));
    if are_ports && ["tcp", "udp", "sctp"].contains(&protocol) {
        Ok(format!("{ports}/{protocol}"))
    } else {
        Err(format!("{text:?} is no PORT[/tcp|/udp|/sctp]"))
    }
}

/// Words separated by blanks. Quotes keep blanks, and a backslash keeps the next character.
fn words(text: &str) -> std::result::Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\'' | '"', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (_, Some(open)) if character == open => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(characters.next()),
            (blank, None) if blank.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    match quote {
        Some(open) => Err(format!("a {open} that is never closed in {text:?}")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

/// Applies `changes` to the part of a config that describes how to run the image.
pub(super) fn apply(changes: &[Change], config: &mut Object) -> Result<()> {
    let sets_command = changes.iter().any(|change| matches!(change, Change::Cmd(_)));
    for change in changes {
        match change {
            Change::Cmd(arguments) => set(config, "Cmd", arguments)?,
            Change::Entrypoint(arguments) => {
                set(config, "Entrypoint", arguments)?;
                if !sets_command {
                    // The old value holds arguments for another program.
                    config.remove("Cmd");
                }
            }
            Change::Env(pairs) => env(config, pairs)?,
            Change::Expose(ports) => add(config, "ExposedPorts", ports.iter().map(|port| (port, nothing())))?,
            Change::Label(pairs) => {
                add(config, "Labels", pairs.iter().map(|(name, value)| (name, Value::from(value.as_str()))))?;
            }
            Change::StopSignal(signal) => set(config, "StopSignal", signal)?,
            Change::User(user) => set(config, "User", user)?,
            Change::Volume(places) => add(config, "Volumes", places.iter().map(|place| (place, nothing())))?,
            Change::Workdir(place) => {
                let last: String = get(config, "WorkingDir")?;
                let last = if last.is_empty() { "/".to_owned() } else { last };
                set(config, "WorkingDir", std::path::Path::new(&last).join(place))?;
            }
        }
    }
    Ok(())
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

/// The value of `key`; the default if it is `null`.
fn get<T: DeserializeOwned + Default>(config: &Object, key: &str) -> Result<T> {
    let value = config.get(key).map(|value| serde_json::from_str::<Option<T>>(value.get())).transpose();
    Ok(value.map_err(malformed)?.flatten().unwrap_or_default())
}

/// Sets variables. An existing one keeps its place.
fn env(config: &mut Object, pairs: &[(String, String)]) -> Result<()> {
    let mut all: Vec<String> = get(config, "Env")?;
    for (name, value) in pairs {
        let text = format!("{name}={value}");
        match all.iter_mut().find(|known| known.split('=').next() == Some(name)) {
            Some(known) => *known = text,
            None => all.push(text),
        }
    }
    set(config, "Env", all)
}

fn add<'a, T: Serialize>(config: &mut Object, key: &str, pairs: impl Iterator<Item = (&'a String, T)>) -> Result<()>
where
    Value: From<T>,
{
    let mut all: BTreeMap<String, Value> = get(config, key)?;
    all.extend(pairs.map(|(name, value)| (name.clone(), Value::from(value))));
    set(config, key, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Change {
        text.parse().unwrap()
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn instructions_are_written_as_in_a_dockerfile() {
        assert_eq!(parsed(r#"CMD ["serve", "-v"]"#), Change::Cmd(strings(&["serve", "-v"])));
        assert_eq!(parsed("cmd serve | cat"), Change::Cmd(strings(&["/bin/sh", "-c", "serve | cat"])));
        assert_eq!(parsed("CMD=/bin/bash"), Change::Cmd(strings(&["/bin/sh", "-c", "/bin/bash"])));
        assert_eq!(parsed("ENTRYPOINT=[\"/init\"]"), Change::Entrypoint(strings(&["/init"])));
        let pairs = vec![("A".to_owned(), "1".to_owned()), ("B".to_owned(), "two words".to_owned())];
        assert_eq!(parsed(r#"ENV A=1 B="two words""#), Change::Env(pairs.clone()));
        assert_eq!(parsed(r"LABEL A=1 B=two\ words"), Change::Label(pairs));
        assert_eq!(parsed("ENV A all of it"), Change::Env(vec![("A".into(), "all of it".into())]));
        assert_eq!(parsed("ENV A="), Change::Env(vec![("A".into(), String::new())]));
        assert_eq!(
            parsed("EXPOSE 80 53/udp 8000-8010"),
            Change::Expose(strings(&["80/tcp", "53/udp", "8000-8010/tcp"]))
        );
        assert_eq!(parsed(r#"VOLUME ["/a b"]"#), Change::Volume(strings(&["/a b"])));
        assert_eq!(parsed("VOLUME /a /b"), Change::Volume(strings(&["/a", "/b"])));
        assert_eq!(parsed("WORKDIR /srv"), Change::Workdir("/srv".into()));
        assert_eq!(parsed("USER 7:8"), Change::User("7:8".into()));
        assert_eq!(parsed("STOPSIGNAL SIGINT"), Change::StopSignal("SIGINT".into()));
    }

    #[test]
    fn what_is_no_instruction_is_refused_in_a_line() {
        for (text, why) in [
            ("RUN make", "cannot be changed"),
            ("CMD", "has no value"),
            ("", "has no value"),
            ("CMD [\"a\"", "is none"),
            ("ENV A", "has no value"),
            ("ENV A=1 B", "no NAME=VALUE"),
            ("ENV A=\"1", "never closed"),
            ("EXPOSE 0", "is no PORT"),
            ("EXPOSE http", "is no PORT"),
            ("EXPOSE 80/icmp", "is no PORT"),
        ] {
            let error = text.parse::<Change>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    fn changed(config: &str, changes: &[&str]) -> Value {
        let mut object: Object = serde_json::from_str(config).unwrap();
        let changes: Vec<Change> = changes.iter().map(|text| parsed(text)).collect();
        apply(&changes, &mut object).unwrap();
        serde_json::to_value(object).unwrap()
    }

    #[test]
    fn a_change_touches_nothing_else() {
        let before = r#"{"Env":["PATH=/bin","A=0"],"Cmd":["old"],"Labels":{"x":"y"},"Odd":[1.50],"WorkingDir":"/srv"}"#;
        let changes = ["ENV A=1 B=2", "LABEL z=1", "WORKDIR app", "EXPOSE 80", "VOLUME /data"];
        let expected: Value = serde_json::json!({
            "Env": ["PATH=/bin", "A=1", "B=2"], "Cmd": ["old"], "Labels": {"x": "y", "z": "1"}, "Odd": [1.5],
            "WorkingDir": "/srv/app", "ExposedPorts": {"80/tcp": {}}, "Volumes": {"/data": {}},
        });
        assert_eq!(changed(before, &changes), expected);
        assert_eq!(
            changed(r#"{"Env":null,"Labels":null}"#, &["ENV A=1", "LABEL b=2"])["Env"],
            serde_json::json!(["A=1"])
        );
    }

    #[test]
    fn another_entrypoint_takes_no_arguments_that_were_for_the_last_one() {
        let before = r#"{"Cmd":["old"],"Entrypoint":["/a"]}"#;
        assert_eq!(changed(before, &["ENTRYPOINT [\"/b\"]"]), serde_json::json!({"Entrypoint": ["/b"]}));
        let both = changed(before, &["CMD [\"new\"]", "ENTRYPOINT [\"/b\"]"]);
        assert_eq!(both, serde_json::json!({"Entrypoint": ["/b"], "Cmd": ["new"]}));
    }
}
