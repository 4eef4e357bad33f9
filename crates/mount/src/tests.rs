//! A server is killed, and this process, which has the devices of its connections like a holder, serves its mounts.

mod dead_server;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use fuser::InitFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tarpon_oci::Digest;

use self::dead_server::{FILES, Manner, ServerProcess, StoredObjects, content, spec};
use crate::{ConnectionHolder, Host, Inheritance, Mode, Mounted};

const MODES: [Mode; 2] = [Mode::Fuse, Mode::Native];
/// Far longer than any answer takes: a read that takes longer hangs.
const HUNG: Duration = Duration::from_secs(60);

/// Keeps nothing itself: the test has the descriptors.
struct TestHolder;

impl ConnectionHolder for TestHolder {
    fn keeps(&self) -> bool {
        true
    }

    fn keep(&self, _: &str, _: std::os::fd::BorrowedFd<'_>) {}

    fn release(&self, _: &str) {}
}

/// How a program reads.
#[derive(Debug, Clone, Copy)]
enum Reading {
    /// Through the page cache, which repeats a read-ahead that fails.
    Cached,
    /// With `O_DIRECT`: one read is one request.
    Direct,
}

/// Starts a program that reads a file.
fn read(path: &Path, reading: Reading) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let direct = match reading {
            Reading::Cached => OFlags::empty(),
            Reading::Direct => OFlags::DIRECT,
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | direct;
        let mut file = File::from(rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap());
        let mut bytes = Vec::new();
        let result = file.read_to_end(&mut bytes);
        // Before the file is closed, which is another request. The test may have failed already.
        let _is_received = sender.send(result.map(|_| bytes));
    });
    receiver
}

/// Starts a program that reads a part of a file through the page cache.
fn read_part(path: &Path, range: std::ops::Range<usize>) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let mut bytes = vec![0; range.len()];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut bytes, range.start as u64));
        let _is_received = sender.send(read.map(|()| bytes));
    });
    receiver
}

/// The mount of a server that has ended, served by this process.
struct Successor {
    host: Host,
    objects: Arc<StoredObjects>,
    mounted: Mounted,
    runtime: tokio::runtime::Runtime,
}

impl Successor {
    fn of(server: &mut ServerProcess) -> Self {
        let objects = Arc::new(StoredObjects::new(Manner::Remote));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let holder: Arc<dyn ConnectionHolder> = Arc::new(TestHolder);
        let inheritance = Inheritance::take(&mut server.held, &holder);
        let (run, handle) = (server.folder().join("run"), runtime.handle().clone());
        let host = Host::with_holder(objects.clone(), handle, run, holder, inheritance).unwrap();
        let mounted = host
            .adopt(&spec(server.folder(), server.mode, server.manner), &server.mount)
            .unwrap()
            .expect("it is there");
        Self { host, objects, mounted, runtime }
    }

    /// Everything works that works with the server that made the connection.
    fn check(&self, server: &ServerProcess) {
        let mode = server.mode;
        for number in 0..FILES {
            for reading in [Reading::Cached, Reading::Direct] {
                let bytes = read(&server.file(number), reading).recv_timeout(HUNG).unwrap();
                assert!(bytes.unwrap() == content(number), "{mode}: file {number}, {reading:?}");
            }
        }
        let opens = self.mounted.counters().opens.load(Ordering::Relaxed);
        assert_eq!(opens, 0, "{mode}: the kernel knows that it need not ask");
        let asked = self.objects.asked();
        assert!(std::fs::read(server.file(0)).unwrap() == content(0), "{mode}");
        assert_eq!(self.objects.asked(), asked, "{mode}: the kernel has it");
        assert!(self.host.forget_pages(&HashSet::from([Digest::of(&content(0))]), HUNG), "{mode}");
        assert!(std::fs::read(server.file(0)).unwrap() == content(0), "{mode}");
        assert!(self.objects.asked() > asked, "{mode}: the kernel has dropped it");
        assert!(std::fs::read(server.folder().join("mnt/none")).is_err());
    }

    fn end(self) {
        self.mounted.unmount().unwrap();
        self.runtime.block_on(self.host.drained());
    }
}

#[test]
fn without_resend_requests_of_a_dead_server_fail_at_once_and_its_successor_answers_new_ones() {
    for mode in MODES {
        let Some(mut server) = ServerProcess::start(mode, InitFlags::FUSE_HAS_RESEND) else { continue };
        let direct: Vec<_> = (1..FILES).map(|number| read(&server.file(number), Reading::Direct)).collect();
        let cached = read(&server.file(0), Reading::Cached);
        server.wait_for_requests(FILES);
        server.kill();
        for (number, reader) in (1..FILES).zip(direct) {
            let error = reader.recv_timeout(HUNG).expect("no answer").expect_err("there is no server");
            assert_eq!(Errno::from_io_error(&error), Some(Errno::CONNABORTED), "{mode}: file {number}");
        }
        let successor = Successor::of(&mut server);
        // The page cache has requested it once more.
        assert!(cached.recv_timeout(HUNG).unwrap().unwrap() == content(0), "{mode}");
        successor.check(&server);
        successor.end();
    }
}

#[test]
fn with_resend_requests_of_a_dead_server_are_answered_by_its_successor() {
    for mode in MODES {
        let Some(mut server) = ServerProcess::start(mode, InitFlags::empty()) else { continue };
        if !server.offered().contains(InitFlags::FUSE_HAS_RESEND) {
            println!("skipped: this kernel does not repeat requests (Linux 6.9 does)");
            return;
        }
        let reading = |number| if number == 0 { Reading::Cached } else { Reading::Direct };
        let readers: Vec<_> = (0..FILES).map(|number| read(&server.file(number), reading(number))).collect();
        server.wait_for_requests(FILES);
        server.kill();
        let successor = Successor::of(&mut server);
        for (number, reader) in (0..FILES).zip(readers) {
            let bytes = reader.recv_timeout(HUNG).expect("no answer").unwrap();
            assert!(bytes == content(number), "{mode}: file {number}");
        }
        successor.check(&server);
        successor.end();
    }
}

#[test]
fn a_server_that_is_killed_while_the_kernel_takes_pages_from_it_ends_and_its_readers_continue() {
    for (mode, hidden) in
        MODES.into_iter().flat_map(|mode| [(mode, InitFlags::empty()), (mode, InitFlags::FUSE_HAS_RESEND)])
    {
        let manner = Manner::SilentBehindFirstPage;
        let Some(mut server) = ServerProcess::start_with(mode, hidden, manner) else { continue };
        // The lock of a page that the kernel is to take is held by a request that is not answered.
        let waiting = read_part(&server.file(0), 20_480..24_576);
        server.wait_for_requests(1);
        let first = read_part(&server.file(0), 0..4096).recv_timeout(HUNG).unwrap();
        assert!(first.unwrap() == content(0)[..4096], "{mode}");
        server.wait_for_stuck("page-cache");
        server.kill_stuck();
        let successor = Successor::of(&mut server);
        assert!(waiting.recv_timeout(HUNG).expect("no answer").unwrap() == content(0)[20_480..24_576], "{mode}");
        server.wait();
        successor.check(&server);
        successor.objects.wait_for_page_in();
        successor.end();
    }
}
