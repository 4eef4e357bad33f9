//! The process that confines itself: how the tests start it, and what it does.

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::{Gid, Uid};
use tarpon_sandbox::{Confinement, LandlockStatus, OWN_USER, Sandbox};

use crate::world::{Folders, NOBODY, World};
use crate::{ends, offences, permitted, status};

/// The first argument of a process with a role.
pub(crate) const ROLE: &str = "role";

/// The line before the result: the version of Landlock, 0 without it.
const CONFINED: &str = "landlock:";

/// How a role begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confined {
    /// In a sandbox without network.
    Computing,
    /// In a sandbox with network.
    Connecting,
    /// Without a sandbox, to show that the sandbox is what refuses.
    Not,
}

/// The user of the process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// The one that runs the tests.
    Same,
    /// One without rights.
    Nobody,
    /// The sandbox's own, which root becomes when it enters.
    Own,
}

/// All users that the tests can have: with their names in the names of tests.
pub(crate) fn users() -> Vec<(User, &'static str)> {
    if rustix::process::geteuid().is_root() {
        vec![(User::Same, "as root"), (User::Nobody, "as an ordinary user"), (User::Own, "as a user of its own")]
    } else {
        vec![(User::Same, "as an ordinary user")]
    }
}

/// What a role sees of its parent.
pub(crate) struct Surroundings {
    pub(crate) folders: Folders,
    pub(crate) port: u16,
    pub(crate) parent: u32,
    as_own_user: bool,
}

impl Confined {
    fn name(self) -> &'static str {
        match self {
            Self::Computing => "computing",
            Self::Connecting => "connecting",
            Self::Not => "not",
        }
    }

    /// Enters. The version of Landlock, 0 without it.
    pub(crate) fn enter(self, surroundings: &Surroundings, memory: Option<u64>) -> u32 {
        let folders = &surroundings.folders;
        let mut sandbox = Sandbox::new().may_read(folders.read()).may_read("/nowhere").may_write(folders.write());
        match self {
            Self::Not => return 0,
            Self::Connecting => sandbox = sandbox.may_connect(),
            Self::Computing => {}
        }
        if let Some(bytes) = memory {
            sandbox = sandbox.limit_memory(bytes);
        }
        if surroundings.as_own_user {
            sandbox = sandbox.as_own_user();
        }
        let confinement = sandbox.enter().unwrap();
        assert_eq!(confinement.has_own_user, surroundings.as_own_user);
        version(&confinement)
    }
}

fn version(confinement: &Confinement) -> u32 {
    match confinement.landlock {
        LandlockStatus::Enforced { abi } => abi,
        _ => 0,
    }
}

/// Starts a process with a role.
pub(crate) fn start(world: &World, user: User, confined: Confined, role: &str) -> Child {
    let user = match user {
        User::Nobody => NOBODY,
        User::Same => rustix::process::geteuid().as_raw(),
        User::Own => OWN_USER,
    };
    Command::new(std::env::current_exe().unwrap())
        .args([ROLE, confined.name(), role, &user.to_string(), &world.port().to_string()])
        .arg(world.folders.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The output of a process with a role.
pub(crate) struct Said {
    /// The version of Landlock, 0 without it.
    pub(crate) landlock: u32,
    /// The result.
    pub(crate) result: String,
    pub(crate) output: std::process::Output,
}

/// Runs a process with a role to its end.
pub(crate) fn run_to_its_end(world: &World, user: User, confined: Confined, role: &str) -> Said {
    let output = start(world, user, confined, role).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let landlock = lines.next().and_then(|line| line.strip_prefix(CONFINED)).and_then(|abi| abi.parse().ok());
    let Some(landlock) = landlock else { panic!("{role}: {output:?}") };
    Said { landlock, result: lines.next().unwrap_or_default().to_owned(), output }
}

/// Prints a line that the parent waits for.
pub(crate) fn say(what: impl fmt::Display) {
    let mut output = io::stdout();
    writeln!(output, "{what}").and_then(|()| output.flush()).unwrap();
}

pub(crate) fn say_confined(landlock: u32) {
    say(format_args!("{CONFINED}{landlock}"));
}

/// What a process with a role does: `CONFINED ROLE USER PORT FOLDER`.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let mut next = || arguments.next().unwrap();
    let all = [Confined::Computing, Confined::Connecting, Confined::Not];
    let (confined, role, user) = (next(), next(), next().parse().unwrap());
    let confined = all.into_iter().find(|one| one.name() == confined).unwrap();
    let (port, folders) = (next().parse().unwrap(), Folders::at(Path::new(&next())));
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get().cast_unsigned();
    let surroundings = Surroundings { folders, port, parent, as_own_user: user == OWN_USER };
    become_user(user);
    let done = offences::role(&role, confined, &surroundings)
        || permitted::role(&role, confined, &surroundings)
        || ends::role(&role, confined, &surroundings)
        || status::role(&role, confined, &surroundings);
    assert!(done, "no role {role}");
    ExitCode::SUCCESS
}

fn become_user(user: u32) {
    if [rustix::process::geteuid().as_raw(), OWN_USER].contains(&user) {
        return;
    }
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
}
