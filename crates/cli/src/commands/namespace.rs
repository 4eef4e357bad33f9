//! The user namespace of commands that mount or run containers without root.

use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use tarpon_engine::store::{Store, flock};
use tarpon_engine::{Hold, open_store, program_output, resolve_mountpoint};
use tarpon_userns::{Ids, UsernsError, podman_process};

use super::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

/// How long a command waits for another one that makes the namespace and starts a server in it.
const ENTRY_WAIT: Duration = Duration::from_secs(30);

/// How long Podman may take. It waits for as long as another Podman holds the lock of its storage.
const PODMAN_LIMIT: Duration = Duration::from_secs(30);

/// The driver of Podman that has additional stores.
const OVERLAY: &str = "overlay";

/// What a command of an ordinary user needs.
pub(crate) enum Need<'a> {
    /// Nothing: it works on the host.
    Nothing,
    /// The namespace of the running containers, if there is one.
    Running,
    /// That of this mount, if it is in one.
    Mount(&'a Path),
    /// A namespace: that of the store's server, or that of Podman, or a new one.
    Any,
    /// That of Podman, which sees the mounts then; perhaps only if Podman's driver has additional stores.
    Podman { checks_driver: bool },
}

/// Enters the namespace that a command needs, unless this user is root. To be called before the process starts a thread. A new namespace
/// gets a server of the store at once, which later commands find; it stays for as long as the result lives.
pub(crate) fn enter(global: &mut Global, need: &Need<'_>) -> Result<Option<Hold>> {
    if matches!(need, Need::Nothing) || rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let folder = global.store_folder()?;
    let store = open_store(&folder).map_err(|error| {
        Failure::new(Exit::Store, format_args!("cannot open the store {}: {error}", folder.display()))
    })?;
    // Inside the user is root, whose default is another store.
    global.store = Some(folder);
    let server = server(&store);
    match need {
        Need::Nothing => Ok(None),
        Need::Running => join_running(server),
        Need::Mount(path) => join_running(server.filter(|_| is_inside(&store, path))),
        Need::Any => enter_any(global, &store, || Ok(podman_process())),
        Need::Podman { checks_driver } => {
            let process = podman()?;
            if *checks_driver {
                check_driver()?;
            }
            if server.is_some_and(|server| !are_together(server, process)) {
                return Err(failed("the store's server runs in another user namespace than Podman").hint(
                    "end its containers and mounts (tarpon ps, tarpon unshare tarpon umount --all), then try again",
                ));
            }
            enter_any(global, &store, || Ok(Some(process)))
        }
    }
}

fn join_running(server: Option<Pid>) -> Result<Option<Hold>> {
    server.map_or(Ok(()), |server| tarpon_userns::join(server).map_err(explain)).map(|()| None)
}

/// Joins the server of the store, or the process that `other` finds; otherwise makes a namespace.
fn enter_any(global: &Global, store: &Store, other: impl FnOnce() -> Result<Option<Pid>>) -> Result<Option<Hold>> {
    let lock = store.run_folder().join("userns.lock");
    let _one_at_a_time = flock::hold(&lock, ENTRY_WAIT).doing(|| "cannot wait for another command of this user")?;
    // Another command may have started one meanwhile.
    let process = match server(store) {
        Some(server) => Some(server),
        None => other()?,
    };
    if let Some(process) = process {
        return tarpon_userns::join(process).map_err(explain).map(|()| None);
    }
    let mut mapper = Program::new("/proc/self/exe");
    mapper.args(["map-ids", &std::process::id().to_string()]);
    tarpon_userns::create(&Ids::of_this_user(), mapper).map_err(explain)?;
    Session::open(global)?.client().hold().map(Some).doing(|| "cannot start a server in the user namespace")
}

/// A process in the namespace with the store's mounts: its server, or the holder of a server that died a moment ago.
fn server(store: &Store) -> Option<Pid> {
    let process = store.server_in_user_namespace().or_else(|| store.holder_in_user_namespace())?;
    i32::try_from(process.pid).ok().and_then(Pid::from_raw)
}

/// Whether the mount point is on record in the namespace.
fn is_inside(store: &Store, path: &Path) -> bool {
    let path = resolve_mountpoint(path).unwrap_or_else(|_| path.to_owned());
    let mounts = store.all_mounts().unwrap_or_default();
    let is_it = |record: &tarpon_engine::store::MountRecord| record.in_user_namespace && record.mountpoint == path;
    mounts.iter().any(|mount| is_it(&mount.record))
}

/// Podman's process; Podman starts it if none runs.
fn podman() -> Result<Pid> {
    if let Some(process) = podman_process() {
        return Ok(process);
    }
    // Without a driver the first command of Podman may choose one that has no additional stores, for good.
    let output = run_podman(&["--storage-driver", OVERLAY, "unshare", "true"]);
    let problem = match output {
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("it has none").to_owned(),
        Err(error) => error.to_string(),
    };
    podman_process().ok_or_else(|| failed(format_args!("Podman's cannot be found: podman unshare true: {problem}")))
}

/// What Podman prints. No thread reads it: see [`enter`].
fn run_podman(arguments: &[&str]) -> std::io::Result<std::process::Output> {
    let mut podman = Program::new("podman");
    podman.args(arguments).stdin(Stdio::null());
    program_output(podman, PODMAN_LIMIT)
}

/// Podman keeps the driver of its first command.
fn check_driver() -> Result {
    let output = run_podman(&["info", "--format", "{{.Store.GraphDriverName}}"]).doing(|| "cannot run podman info")?;
    let driver = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if driver.is_empty() || driver == OVERLAY {
        return Ok(());
    }
    let cause = format_args!(
        "cannot set up Podman: it stores this user's images with the driver {driver}, which has no additional stores"
    );
    Err(Failure::new(Exit::CannotMount, cause)
        .hint("podman system reset, which removes this user's containers and images; then run this command again"))
}

fn are_together(one: Pid, other: Pid) -> bool {
    let namespace = |process: Pid| std::fs::read_link(format!("/proc/{}/ns/user", process.as_raw_nonzero())).ok();
    namespace(one) == namespace(other)
}

fn failed(cause: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::CannotMount, format_args!("cannot enter a user namespace: {cause}"))
}

fn explain(error: UsernsError) -> Failure {
    let hint = match &error {
        UsernsError::Refused(_) => {
            "allow them (sysctl kernel.unprivileged_userns_clone=1, or user.max_user_namespaces), or use root"
        }
        UsernsError::Map(_) => {
            "install uidmap (newuidmap), and check the lines of this user in /etc/subuid and /etc/subgid"
        }
        _ => "`tarpon doctor` shows what works on this machine",
    };
    failed(error).hint(hint)
}
