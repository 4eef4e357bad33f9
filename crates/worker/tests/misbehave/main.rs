//! A worker that does what it must not: with the very setups of a worker that fetches and of one that prepares, the kernel stops it.
//!
//! This program is also the worker: it tries the offence once it is confined, and reports by its exit status whether it succeeded. The tests
//! of the crate `sandbox` try many more offences.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Trial};
use rustix::mount::{MountFlags, mount};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Signal, getppid, kill_process};
use tarpon_images::preparer::{Preparer as _, Task};
use tarpon_images::sources::Sources as _;
use tarpon_images::{Access, ImageRequest, Silent};
use tarpon_oci::{Blob, Digest, Platform};
use tarpon_worker::{WorkerPreparer, Workers};

/// The argument with which this program is a worker.
const WORKER: &str = "worker";
/// Exit statuses of a worker.
const STOPPED: i32 = 42;
const SUCCEEDED: i32 = 43;

const IMAGE: &str = "localhost:1/image:1";

/// Something that a worker must not do. `outside` is a folder of the test that no worker may use.
struct Offence {
    name: &'static str,
    attempt: fn(outside: &Path) -> io::Result<()>,
}

const OFFENCES: &[Offence] = &[
    Offence { name: "read the passwords", attempt: |_| File::open("/etc/shadow").map(drop) },
    Offence { name: "read a file of others", attempt: |outside| fs::read(outside.join("secret")).map(drop) },
    Offence { name: "write a file of others", attempt: |outside| fs::write(outside.join("new"), "") },
    Offence { name: "remove a file of others", attempt: |outside| fs::remove_file(outside.join("secret")) },
    Offence {
        name: "connect to a local service",
        attempt: |outside| UnixStream::connect(outside.join("socket")).map(drop),
    },
    Offence { name: "listen", attempt: |_| TcpListener::bind("127.0.0.1:0").map(drop) },
    Offence {
        name: "send packets of its own making",
        attempt: |_| Ok(rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)?),
    },
    Offence { name: "mount", attempt: |outside| Ok(mount("none", outside, "tmpfs", MountFlags::empty(), None)?) },
    Offence { name: "execute a program", attempt: |_| Command::new("/bin/true").status().map(drop) },
    Offence {
        name: "look into its user's memory",
        attempt: |_| File::open(format!("/proc/{}/mem", getppid().unwrap().as_raw_nonzero())).map(drop),
    },
    Offence { name: "kill its user", attempt: |_| Ok(kill_process(getppid().unwrap(), Signal::USR1)?) },
];

/// Offences of a worker that only computes and writes in the store. (One that fetches may send datagrams: it resolves names.)
const WITHOUT_NETWORK: &[Offence] =
    &[Offence { name: "send datagrams", attempt: |_| UdpSocket::bind("127.0.0.1:0").map(drop) }];

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let [_, first, offence, outside] = &arguments[..]
        && first == WORKER
    {
        return misbehave(&offence.to_string_lossy(), Path::new(outside));
    }
    let mut tests = Vec::new();
    for offence in OFFENCES {
        tests.extend([trial("fetches", offence, fetch), trial("prepares", offence, prepare)]);
    }
    tests.extend(OFFENCES.iter().chain(WITHOUT_NETWORK).map(|offence| trial("completes", offence, complete)));
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

fn trial(kind: &str, offence: &'static Offence, run: fn(&Offence)) -> Trial {
    Trial::test(format!("a worker that {kind} cannot {}", offence.name), move || {
        run(offence);
        Ok(())
    })
}

/// The worker.
fn misbehave(offence: &str, outside: &Path) {
    let offence = OFFENCES.iter().chain(WITHOUT_NETWORK).find(|known| known.name == offence).unwrap();
    tarpon_worker::serve_and(|| {
        let outcome = (offence.attempt)(outside);
        std::process::exit(if outcome.is_err() { STOPPED } else { SUCCEEDED });
    })
    .unwrap();
}

/// A folder with a file and a socket, of which each offence succeeds without confinement.
struct Outside {
    folder: tempfile::TempDir,
    _service: UnixListener,
}

impl Outside {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        let service = UnixListener::bind(folder.path().join("socket")).unwrap();
        Self { folder, _service: service }
    }

    fn command(&self, offence: &Offence) -> Vec<OsString> {
        let program: PathBuf = std::env::current_exe().unwrap();
        vec![program.into(), WORKER.into(), offence.name.into(), self.folder.path().into()]
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(future)
}

fn check(offence: &Offence, error: &str) {
    assert!(error.contains(&format!("exit status: {STOPPED}")), "{}: {error}", offence.name);
}

fn fetch(offence: &Offence) {
    let outside = Outside::new();
    let error = block_on(async {
        let workers = Workers::new(outside.command(offence));
        let blob = Blob { digest: Digest::of(b""), size: 1 };
        workers.open_later(IMAGE, &Access::default()).unwrap().blobs().read(blob, 0..1).await.err().unwrap()
    });
    check(offence, &error.to_string());
}

fn prepare(offence: &Offence) {
    let (outside, store) = (Outside::new(), tempfile::tempdir().unwrap());
    let error = block_on(async {
        let preparer = WorkerPreparer::new(outside.command(offence));
        let request = ImageRequest::new(IMAGE, IMAGE.parse().unwrap(), Platform::host());
        preparer.prepare(Task::Prepare, store.path(), &request, None, &Silent).await.unwrap_err()
    });
    check(offence, &error.to_string());
}

fn complete(offence: &Offence) {
    let (outside, folder) = (Outside::new(), tempfile::tempdir().unwrap());
    let error = block_on(async {
        let images = tarpon_images::Images::open(folder.path()).unwrap();
        let workers = Workers::new(outside.command(offence));
        let source = workers.open_later(IMAGE, &Access::default()).unwrap().blobs();
        workers.complete(images.store().clone(), Digest::of(b""), source).await.err().unwrap()
    });
    check(offence, &error.to_string());
}
