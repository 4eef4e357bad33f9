//! [`ContainerRecord`]: the persistent record of a container, a file in its directory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tarpon_oci::Digest;

use crate::Result;
use crate::network::Connection;
use tarpon_client::ContainerName;

/// The format version that is written, and the only one that is read.
pub(super) const VERSION: u32 = 1;

/// Longest record that is read. The longest part is the command, which the kernel limits to 2 MiB.
pub(super) const RECORD_BYTES: u64 = 4 << 20;

/// The persistent record of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Version of the file format: [`VERSION`].
    pub(super) version: u32,
    /// The name.
    pub name: ContainerName,
    /// The id for the runtime. It is never reused.
    pub id: String,
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// The command that is run.
    pub command: Vec<String>,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Whether it runs detached, with its output in a log.
    pub detached: bool,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether its standard input is open.
    pub input: bool,
    /// Whether it is removed as soon as it ends.
    pub remove: bool,
    /// The stop signal.
    pub stop_signal: String,
    /// The OCI runtime that runs it.
    pub runtime: PathBuf,
    /// Whether its system calls are filtered.
    pub filtered: bool,
    /// Maximum number of processes and threads; `None`: the host's limit.
    #[serde(default)]
    pub process_limit: Option<u32>,
    /// The AppArmor profile that confines it.
    #[serde(default)]
    pub apparmor: Option<String>,
    /// Directories of its writable layer that are data and not changes of its image.
    pub volumes: Vec<String>,
    /// Its network, if it has one of its own that is connected.
    #[serde(default)]
    pub network: Option<Connection>,
    /// The state.
    pub state: ContainerState,
}

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum ContainerState {
    /// It is being started.
    Created,
    /// It runs.
    Running {
        /// PID of its first process on this host.
        pid: u32,
        /// Start time, in seconds since 1970.
        since: u64,
    },
    /// It has ended.
    Exited {
        /// The exit code, if it is known.
        code: Option<u8>,
        /// End time, in seconds since 1970.
        at: u64,
    },
}

impl ContainerRecord {
    /// Removes the container's network, after the container has ended.
    pub(super) fn disconnect(&self) -> Result<()> {
        self.network.as_ref().map_or(Ok(()), |network| network.remove(&self.id))
    }

    /// # Errors
    /// One line: the record has another version, or is damaged.
    pub(super) fn parse(text: &[u8]) -> std::result::Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |error: serde_json::Error| format!("its record is damaged: {error}");
        match serde_json::from_slice(text).map_err(damaged)? {
            Version { version: VERSION } => serde_json::from_slice(text).map_err(damaged),
            Version { version } => Err(format!("its record is of version {version}, and this tarpon reads {VERSION}")),
        }
    }
}

/// The current time in seconds since 1970.
pub(super) fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::run) fn record(name: &str) -> ContainerRecord {
        ContainerRecord {
            version: VERSION,
            name: name.parse().unwrap(),
            id: "0123456789ab".to_owned(),
            image: "localhost:5000/app:v1".to_owned(),
            manifest: Digest::of(b"manifest"),
            command: vec!["serve".to_owned()],
            created: 1_767_225_600,
            detached: true,
            terminal: false,
            input: false,
            remove: false,
            stop_signal: "TERM".to_owned(),
            runtime: "/nonexistent/runc".into(),
            filtered: true,
            process_limit: Some(2048),
            apparmor: None,
            volumes: vec!["/data".to_owned()],
            network: None,
            state: ContainerState::Running { pid: 7, since: 1_767_225_601 },
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let text = serde_json::to_string_pretty(&record("web")).unwrap();
        insta::assert_snapshot!(text);
        assert_eq!(ContainerRecord::parse(text.as_bytes()), Ok(record("web")));
    }

    #[test]
    fn a_record_of_a_container_that_was_run_before_limits_were_usual_is_read() {
        let mut text = serde_json::to_value(record("web")).unwrap();
        for key in ["process_limit", "apparmor", "network"] {
            text.as_object_mut().unwrap().remove(key).unwrap();
        }
        let expected = ContainerRecord { process_limit: None, ..record("web") };
        assert_eq!(ContainerRecord::parse(text.to_string().as_bytes()), Ok(expected));
    }

    #[test]
    fn other_versions_and_damaged_records_are_refused() {
        let text = serde_json::to_string(&record("web")).unwrap();
        let other = text.replace("\"version\":1", "\"version\":2");
        assert!(ContainerRecord::parse(other.as_bytes()).unwrap_err().contains("version 2"));
        for end in 0..text.len() {
            assert!(ContainerRecord::parse(&text.as_bytes()[..end]).unwrap_err().contains("damaged"));
        }
        let odd_name = text.replace("\"web\"", "\"../web\"");
        assert!(ContainerRecord::parse(odd_name.as_bytes()).unwrap_err().contains("no name of a container"));
    }
}
