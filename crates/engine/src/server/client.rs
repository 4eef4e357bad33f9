//! Talking to the store's server, and starting one where there is none.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::wire;
use crate::protocol::{MountRequest, MountStatus, Request, Response, Unmounted};
use crate::{Error, ErrorKind, Result};

/// How often a server is started before giving up: it may lose the race for the lock to another one that is just
/// ending, or end between our look and our call.
const STARTS: u32 = 5;

/// What the server prints when it answers on its socket.
pub(crate) const READY: &str = "ready";

/// A store's server, as its clients see it.
#[derive(Debug, Clone)]
pub struct Client {
    run: PathBuf,
    start: Vec<std::ffi::OsString>,
}

impl Client {
    /// `run`: the store's directory of that name. `start`: the command line that starts a server of this store.
    pub(crate) fn new(run: PathBuf, start: Vec<std::ffi::OsString>) -> Self {
        Self { run, start }
    }

    /// Mounts; returns when the mount is usable. Starts a server if none runs.
    pub fn mount(&self, request: MountRequest) -> Result<MountStatus> {
        match self.ask_or_start(&Request::Mount(request))? {
            Response::Mounted(status) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    /// Unmounts. `None`: no server runs, so nothing of it is mounted.
    pub fn unmount(&self, mountpoint: &Path) -> Result<Option<Unmounted>> {
        match self.ask(&Request::Unmount { mountpoint: mountpoint.to_owned() })? {
            None => Ok(None),
            Some(Response::Unmounted(how)) => Ok(Some(how)),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// All mounts of the running server. `None`: no server runs.
    pub fn status(&self) -> Result<Option<Vec<MountStatus>>> {
        match self.ask(&Request::Status)? {
            None => Ok(None),
            Some(Response::Status { mounts }) => Ok(Some(mounts)),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Starts a server, which mounts again what a dead one left, unless one runs already.
    pub fn recover(&self) -> Result<Vec<MountStatus>> {
        match self.ask_or_start(&Request::Status)? {
            Response::Status { mounts } => Ok(mounts),
            other => Err(unexpected(other)),
        }
    }

    fn ask_or_start(&self, request: &Request) -> Result<Response> {
        for _ in 0..STARTS {
            if let Some(response) = self.ask(request)? {
                return Ok(response);
            }
            self.start()?;
        }
        Err(Error::new(ErrorKind::Store, "start the server", "it ends as soon as it is started")
            .hint(format!("see {}", self.run.join("server.log").display())))
    }

    /// One request; `None` when nobody listens or the server ended before it answered.
    fn ask(&self, request: &Request) -> Result<Option<Response>> {
        let failed = |cause| Error::new(ErrorKind::Store, "ask the server", cause);
        let Some(stream) = self.connect() else { return Ok(None) };
        if wire::send(&stream, request).is_err() {
            return Ok(None);
        }
        match wire::receive(&stream).map_err(|error| failed(error.to_string()))? {
            Some(Response::Failed { kind, step, cause, hint }) => Err(Error { kind, step, cause, hint }),
            other => Ok(other),
        }
    }

    fn connect(&self) -> Option<UnixStream> {
        wire::connect(&self.run).ok()
    }

    /// Starts a server and waits until it listens, or until it says why it cannot.
    fn start(&self) -> Result<()> {
        let failed = |cause: String| Error::new(ErrorKind::Store, "start the server", cause);
        let (program, arguments) =
            self.start.split_first().ok_or_else(|| failed("this program cannot start one".into()))?;
        let log = open_log(&self.run.join("server.log")).map_err(|error| failed(error.to_string()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        wait_until_ready(&mut child).map_err(failed)
    }
}

/// The server closes its standard output when it listens or ends; what it wrote there says which.
fn wait_until_ready(child: &mut Child) -> std::result::Result<(), String> {
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut said).map_err(|error| error.to_string())?;
    }
    match said.trim_end() {
        READY => Ok(()),
        "" => Err("it ended without a word".into()),
        why => Err(why.into()),
    }
}

fn open_log(path: &Path) -> std::io::Result<std::fs::File> {
    /// A log beyond this is begun anew, the old one kept beside it.
    const LOG_BYTES: u64 = 8 << 20;
    if std::fs::metadata(path).is_ok_and(|log| log.len() > LOG_BYTES) {
        std::fs::rename(path, path.with_extension("log.1"))?;
    }
    std::fs::OpenOptions::new().create(true).append(true).open(path)
}

fn unexpected(response: Response) -> Error {
    Error::new(ErrorKind::Other, "ask the server", format!("an answer to another question: {response:?}"))
        .hint("the server may be of another version: unmount everything and try again")
}
