//! Landlock: which paths a process may open, and TCP, Unix sockets and signals where the kernel can limit them.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus as Kernel, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, make_bitflags,
};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::confinement::LandlockStatus;
use crate::error::{SandboxError, failed};

/// The newest version that this code was written for. The library leaves out what the kernel does not have.
const NEWEST: ABI = ABI::V10;

const STEP: &str = "limiting the paths (Landlock)";

/// To read files and list folders, but not to execute.
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

/// To do anything with files, folders and symbolic links, but not to execute, and not to make devices, sockets or pipes.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | MakeSym | RemoveFile | RemoveDir | Refer
});

/// What name resolution reads. Where a network manager replaces the file that `/etc/resolv.conf` leads to, it does so in
/// one of the folders in `/run`. The libraries are the modules that glibc loads for `hosts:` in `nsswitch.conf`.
const NAME_RESOLUTION: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ld.so.cache",
    "/run/systemd/resolve",
    "/run/NetworkManager/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
    "/run/resolvconf",
    "/run/connman",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
];

/// Enforces the limits on this thread and those that it starts.
pub(crate) fn limit(read: &[PathBuf], write: &[PathBuf], may_connect: bool) -> Result<LandlockStatus, SandboxError> {
    let mut rules = handled(may_connect).map_err(failed(STEP))?;
    for path in read {
        rules = allow_reading(rules, path)?;
    }
    if may_connect {
        for path in NAME_RESOLUTION {
            rules = allow_reading(rules, Path::new(path))?;
        }
    }
    for folder in write {
        // Without its folder every write would fail later, far from the cause.
        let opened = open(folder).map_err(|cause| SandboxError::Path { path: folder.clone(), cause: cause.into() })?;
        rules = rules.add_rule(PathBeneath::new(opened, WRITE)).map_err(failed(STEP))?;
    }
    let status = rules.restrict_self().map_err(failed(STEP))?;
    Ok(match (status.landlock, status.ruleset) {
        (Kernel::NotEnabled, _) => LandlockStatus::NotEnabled,
        (Kernel::NotImplemented, _) => LandlockStatus::NotSupported,
        (Kernel::Available { .. }, RulesetStatus::NotEnforced) => LandlockStatus::TooOld,
        (Kernel::Available { effective_abi, .. }, _) => LandlockStatus::Enforced { abi: effective_abi as u32 },
    })
}

/// Rules that refuse everything Landlock can refuse, but for connections of a process that may make them.
fn handled(may_connect: bool) -> Result<RulesetCreated, RulesetError> {
    let network = match may_connect {
        // The resolver of musl binds its UDP socket.
        true => make_bitflags!(AccessNet::{BindTcp}),
        false => AccessNet::from_all(NEWEST),
    };
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(network)?
        .scope(Scope::from_all(NEWEST))?
        .create()
}

fn allow_reading(rules: RulesetCreated, path: &Path) -> Result<RulesetCreated, SandboxError> {
    let opened = match open(path) {
        Ok(opened) => opened,
        // It could not be read without Landlock either.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(rules),
        Err(cause) => return Err(SandboxError::Path { path: path.to_owned(), cause: cause.into() }),
    };
    let kind = rustix::fs::fstat(&opened).map_err(failed(STEP))?.st_mode;
    let access = if FileType::from_raw_mode(kind).is_dir() { READ } else { AccessFs::ReadFile.into() };
    rules.add_rule(PathBeneath::new(opened, access)).map_err(failed(STEP))
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}
