//! [`ServerProcess`]: a process that serves a mount until it is killed. It is this test binary, in the role of a test that is
//! ignored otherwise.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use fuser::InitFlags;
use futures::future::BoxFuture;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use serde::{Deserialize, Serialize};
use tarpon_fs::{Errno, Objects};
use tarpon_oci::Digest;
use tarpon_testkit::entries::{file, layer};
use tempfile::TempDir;

use super::HUNG;
use crate::adapter::HIDDEN;
use crate::spec::{ModeChoice, MountSpec, TreeFile, Writable};
use crate::{ConnectionHolder, Host, Inheritance, KernelMount, Mode};

/// Number of files in the image.
pub(super) const FILES: usize = 5;
/// The word before the parameters of the role. To the test runner they are names of tests that do not exist.
const PARAMETERS: &str = "parameters:";
/// Start of what the process prints.
const PREFIX: &str = "server: ";

/// The bytes of a file.
pub(super) fn content(number: usize) -> Vec<u8> {
    (0..50_000_usize).map(|at| u8::try_from((at ^ (at >> 8) ^ number) & 0xff).unwrap()).collect()
}

/// What becomes of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Manner {
    /// It is answered, as from a registry.
    Remote,
    /// It is printed and not answered.
    Silent,
    /// As [`Silent`](Self::Silent), but for the beginning of a file. The kernel does not read ahead, and everything may be put into its page
    /// cache.
    SilentBehindFirstPage,
}

/// The objects of the image.
pub(super) struct StoredObjects {
    objects: Vec<(Digest, Bytes)>,
    manner: Manner,
    asked: AtomicU64,
    paged_in: AtomicU64,
}

impl StoredObjects {
    pub(super) fn new(manner: Manner) -> Self {
        let objects = (0..FILES).map(content).map(|bytes| (Digest::of(&bytes), bytes.into()));
        Self { objects: objects.collect(), manner, asked: AtomicU64::new(0), paged_in: AtomicU64::new(0) }
    }

    /// Number of reads.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// Waits until bytes were read for the kernel's page cache.
    pub(super) fn wait_for_page_in(&self) {
        let until = Instant::now() + HUNG;
        while self.paged_in.load(Ordering::Acquire) == 0 {
            assert!(Instant::now() < until, "nothing is put into the page cache");
            std::thread::yield_now();
        }
    }

    fn get(&self, object: &Digest) -> Option<Bytes> {
        self.objects.iter().find(|(known, _)| known == object).map(|(_, bytes)| bytes.clone())
    }
}

impl Objects for StoredObjects {
    fn size(&self, object: &Digest) -> Option<u64> {
        self.get(object).map(|bytes| bytes.len() as u64)
    }

    fn starting_with(&self, start: u64, bits: u32) -> Vec<Digest> {
        let start_of = |object: &Digest| u64::from_be_bytes(object.as_bytes()[..8].try_into().unwrap());
        let objects = self.objects.iter().map(|(object, _)| *object);
        objects.filter(|object| (start_of(object) ^ start) >> (64 - bits) == 0).collect()
    }

    fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
        Ok(None)
    }

    fn read(&self, object: Digest, offset: u64, length: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        if self.manner == Manner::Silent || (self.manner == Manner::SilentBehindFirstPage && offset > 0) {
            println!("{PREFIX}request");
            return Box::pin(std::future::pending());
        }
        let start = usize::try_from(offset).unwrap();
        let part = self.get(&object).map(|bytes| bytes.slice(start..start + length)).ok_or(Errno::Io);
        Box::pin(std::future::ready(part))
    }

    fn page_in(&self, object: &Digest, offset: u64, length: usize) -> Option<Bytes> {
        let start = usize::try_from(offset).unwrap();
        let bytes = self.get(object).filter(|_| self.manner != Manner::Silent)?;
        self.paged_in.fetch_add(1, Ordering::AcqRel);
        Some(bytes.slice(start..start + length))
    }

    fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
        None
    }
}

/// The mount of the image in `folder`, by a server whose reads are of this manner.
pub(super) fn spec(folder: &Path, mode: Mode, manner: Manner) -> MountSpec {
    let files = (0..FILES).map(|number| file(format!("f{number}"), content(number)));
    let tree = tarpon_tree::erofs::write(&tarpon_tree::merge(&[layer(files)]).unwrap());
    // Under a name of its own for each process: the kernel reads the file of the first one.
    let path = folder.join(format!("tree-{}", std::process::id()));
    std::fs::write(&path, &tree).unwrap();
    MountSpec {
        tree: TreeFile { file: Arc::new(File::open(path).unwrap()), bytes: tree.into() },
        objects: folder.join("objects"),
        mountpoint: folder.join("mnt"),
        mode: ModeChoice::Only(mode),
        writable: Writable::No,
        suid: false,
        dev: false,
        read_ahead: manner != Manner::SilentBehindFirstPage,
        watch: None,
    }
}

/// The server. Afterwards its mount is gone, unless a successor has it.
pub(super) struct ServerProcess {
    pub(super) mode: Mode,
    pub(super) manner: Manner,
    pub(super) mount: KernelMount,
    /// What a holder of this server has.
    pub(super) held: Vec<(String, OwnedFd)>,
    process: Child,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

impl ServerProcess {
    /// Starts a server that behaves as if the kernel did not offer `hidden`. `None`, with a line that explains why, where
    /// the mount is not possible.
    pub(super) fn start(mode: Mode, hidden: InitFlags) -> Option<Self> {
        Self::start_with(mode, hidden, Manner::Silent)
    }

    /// As [`start`](Self::start), with reads of this manner.
    pub(super) fn start_with(mode: Mode, hidden: InitFlags, manner: Manner) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || crate::device::open().is_err() {
            println!("skipped: mounting needs root and /dev/fuse");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["objects", "run", "mnt"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "tests::dead_server::serve", "--", PARAMETERS])
            .arg(folder.path())
            .args([serde_json::to_string(&mode).unwrap(), hidden.bits().to_string()])
            .arg(serde_json::to_string(&manner).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let pid = Pid::from_child(&process);
        let mut held = Vec::new();
        let mount = loop {
            let line = line(&mut output);
            let (word, rest) = line.split_once(' ').unwrap();
            match word {
                "keep" => {
                    let (name, number) = rest.split_once(' ').unwrap();
                    held.push((name.to_owned(), descriptor_of(pid, number.parse().unwrap())));
                }
                "mounted" => break serde_json::from_str(rest).unwrap(),
                _ => {
                    println!("skipped: mode {mode}: {rest}");
                    process.wait().unwrap();
                    return None;
                }
            }
        };
        Some(Self { mode, manner, mount, held, process, output, folder })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A file in the mount.
    pub(super) fn file(&self, number: usize) -> PathBuf {
        self.folder().join(format!("mnt/f{number}"))
    }

    /// The capabilities of the kernel that a successor knows of.
    pub(super) fn offered(&self) -> InitFlags {
        let names = self.held.iter().map(|(name, _)| name);
        let bits = names.filter_map(|name| name.strip_prefix("fuse.")?.split_once('.')).map(|(_, bits)| bits).next();
        InitFlags::from_bits_retain(u64::from_str_radix(bits.unwrap(), 16).unwrap())
    }

    /// Waits until it has read this number of requests for bytes, which it does not answer.
    pub(super) fn wait_for_requests(&mut self, number: usize) {
        for _ in 0..number {
            assert_eq!(line(&mut self.output), "request");
        }
    }

    /// Kills it, and waits until it has ended.
    pub(super) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.wait();
    }

    /// Kills it. Its end may have to wait for a successor.
    pub(super) fn kill_stuck(&mut self) {
        self.process.kill().unwrap();
    }

    /// Waits until it has ended.
    pub(super) fn wait(&mut self) {
        self.process.wait().unwrap();
    }

    /// Waits until its thread of this name waits for a lock of the kernel.
    pub(super) fn wait_for_stuck(&self, name: &str) {
        let folder = format!("/proc/{}/task", self.process.id());
        let is_stuck = |thread: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
            status.contains(&format!("Name:\t{name}\n")) && status.contains("State:\tD")
        };
        let until = Instant::now() + HUNG;
        while !std::fs::read_dir(&folder).unwrap().any(is_stuck) {
            assert!(Instant::now() < until, "{name} waits for nothing");
            std::thread::yield_now();
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A test that fails leaves some of this.
        self.held.clear();
        let _has_ended = self.process.kill();
        let _has_ended = self.process.wait();
        let _is_unmounted = rustix::mount::unmount(self.folder().join("mnt"), UnmountFlags::DETACH);
    }
}

/// The next line that the process prints, without what the test runner prints.
fn line(output: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the server has ended");
        if let Some((_, text)) = line.split_once(PREFIX) {
            return text.trim_end().to_owned();
        }
    }
}

fn descriptor_of(process: Pid, number: i32) -> OwnedFd {
    let process = rustix::process::pidfd_open(process, PidfdFlags::empty()).unwrap();
    rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty()).unwrap()
}

/// Prints the names and numbers of duplicates, which stay open as long as this process.
struct PrintingHolder;

impl ConnectionHolder for PrintingHolder {
    fn keeps(&self) -> bool {
        true
    }

    fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) {
        println!("{PREFIX}keep {name} {}", descriptor.try_clone_to_owned().unwrap().into_raw_fd());
    }

    fn release(&self, _: &str) {}
}

/// The server: its folder, its mode, and the capabilities that it does not see. It ends with its standard input.
#[test]
#[ignore = "a role"]
fn serve() {
    let mut parameters = std::env::args().skip_while(|argument| argument != PARAMETERS).skip(1);
    let Some(folder) = parameters.next().map(PathBuf::from) else { return };
    let mode: Mode = serde_json::from_str(&parameters.next().unwrap()).unwrap();
    HIDDEN.store(parameters.next().unwrap().parse().unwrap(), Ordering::Release);
    let manner: Manner = serde_json::from_str(&parameters.next().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (objects, holder) = (Arc::new(StoredObjects::new(manner)), Arc::new(PrintingHolder));
    let handle = runtime.handle().clone();
    let host = Host::with_holder(objects, handle, folder.join("run"), holder, Inheritance::default()).unwrap();
    match host.mount(&spec(&folder, mode, manner)) {
        Ok(mounted) => {
            let mount = mounted.kernel_mount().unwrap();
            println!("{PREFIX}mounted {}", serde_json::to_string(&mount).unwrap());
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        Err(error) => println!("{PREFIX}failed {error}"),
    }
}
