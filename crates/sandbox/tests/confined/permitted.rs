//! What a confined process still has to be able to do.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, SeekFrom, Write as _};
use std::mem::MaybeUninit;
use std::net::ToSocketAddrs as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::child::{self, Confined, Surroundings, User, say, say_confined, users};
use crate::world::World;

/// What a role does in a sandbox.
type Act = fn(&Surroundings, Before);

/// What the process has from before it entered.
struct Before {
    pair: (OwnedFd, OwnedFd),
}

const ROLES: &[(&str, Confined, Act)] = &[
    ("starts threads", Confined::Computing, |_, _| threads()),
    ("runs a runtime with timers and signals", Confined::Computing, |_, _| runtime()),
    ("exchanges descriptors over a socket that it has", Confined::Computing, |at, before| descriptors(at, &before)),
    ("makes a pair of sockets", Confined::Computing, |_, _| pairs()),
    ("reads where it may read", Confined::Computing, |at, _| reads(at)),
    ("does everything with files where it may write", Confined::Computing, |at, _| files(&at.folders.write())),
    ("publishes a file that had no name", Confined::Computing, |at, _| nameless(&at.folders.write())),
    ("copies inside of the kernel", Confined::Computing, |at, _| copies(&at.folders.write())),
    ("connects by TCP", Confined::Connecting, |at, _| connects(at)),
    ("sends datagrams", Confined::Connecting, |_, _| datagrams()),
    ("resolves a name", Confined::Connecting, |_, _| resolves()),
];

const DONE: &str = "done";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (user, name) in users() {
        for (what, confined, _) in ROLES {
            trials.push(Trial::test(format!("a confined process {what}, {name}"), move || {
                still_can(user, *confined, what);
                Ok(())
            }));
        }
    }
    trials
}

fn still_can(user: User, confined: Confined, what: &'static str) {
    let world = World::new();
    let listener = world.tcp.try_clone().unwrap();
    // Answers one connection; ends with the process of the tests where none comes.
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept()?;
        let mut question = [0; 4];
        connection.read_exact(&mut question)?;
        connection.write_all(&question)
    });
    let reported = child::run_to_its_end(&world, user, confined, what);
    assert_eq!(reported.result, DONE, "{:?}", reported.output);
}

pub(crate) fn role(role: &str, confined: Confined, surroundings: &Surroundings) -> bool {
    let Some((.., act)) = ROLES.iter().find(|(name, ..)| *name == role) else { return false };
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    say_confined(confined.enter(surroundings, None));
    act(surroundings, Before { pair });
    say(DONE);
    true
}

fn threads() {
    let threads: Vec<_> = (0..8)
        .map(|number| std::thread::Builder::new().name(format!("worker {number}")).spawn(move || number).unwrap())
        .collect();
    assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>(), 28);
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

fn runtime() {
    tokio_runtime().block_on(async {
        let mut signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1()).unwrap();
        tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await.unwrap_err();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1).unwrap();
        signal.recv().await.unwrap();
        assert_eq!(tokio::task::spawn_blocking(|| 7).await.unwrap(), 7);
    });
}

fn descriptors(at: &Surroundings, before: &Before) {
    let file = File::open(at.folders.read().join("file")).unwrap();
    let (ours, theirs) = &before.pair;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    rustix::net::sendmsg(ours, &[IoSlice::new(b"file")], &mut control, SendFlags::empty()).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4];
    rustix::net::recvmsg(theirs, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty()).unwrap();
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    assert_eq!(io::read_to_string(File::from(received.unwrap())).unwrap(), "content");
    rustix::net::send(ours, b"more", SendFlags::empty()).unwrap();
    rustix::net::recv(theirs, &mut bytes, RecvFlags::empty()).unwrap();
    assert_eq!(&bytes, b"more");
}

fn pairs() {
    let (mut one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    one.write_all(b"text").unwrap();
    let mut bytes = [0; 4];
    other.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"text");
}

fn reads(at: &Surroundings) {
    let folder = at.folders.read();
    assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "content");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert!(rustix::fs::statvfs(&folder).unwrap().f_bsize > 0);
    let mut value = [0; 16];
    let missing = rustix::fs::getxattr(folder.join("file"), "user.none", &mut value[..]).unwrap_err();
    assert!([rustix::io::Errno::NODATA, rustix::io::Errno::NOTSUP].contains(&missing), "{missing}");
}

fn files(folder: &Path) {
    let (path, inner) = (folder.join("new"), folder.join("inner"));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"0123456789").unwrap();
    file.write_all_at(b"ab", 4).unwrap();
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 3).unwrap();
    assert_eq!(&bytes, b"3ab6");
    file.seek(SeekFrom::Start(0)).unwrap();
    let _ = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => panic!("fallocate: {error}"),
    }
    file.set_len(6).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    rustix::fs::syncfs(&file).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed).unwrap();
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o640)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fs::create_dir(&inner).unwrap();
    fs::hard_link(&path, inner.join("link")).unwrap();
    fs::rename(&path, inner.join("new")).unwrap();
    let names = [inner.join("other"), inner.join("link")];
    rustix::fs::renameat_with(CWD, inner.join("new"), CWD, &names[0], RenameFlags::NOREPLACE).unwrap();
    rustix::fs::renameat_with(CWD, &names[0], CWD, &names[1], RenameFlags::EXCHANGE).unwrap();
    std::os::unix::fs::symlink("other", inner.join("symlink")).unwrap();
    assert_eq!(fs::read(inner.join("symlink")).unwrap(), b"0123ab");
    assert_eq!(fs::read_link(inner.join("symlink")).unwrap(), Path::new("other"));
    assert_eq!(fs::metadata(inner.join("other")).unwrap().len(), 6);
    fs::remove_dir_all(&inner).unwrap();
}

/// As a store publishes an object.
fn nameless(folder: &Path) {
    use std::os::fd::AsRawFd as _;
    fs::create_dir(folder.join("objects")).unwrap();
    let file = match rustix::fs::open(folder, OFlags::RDWR | OFlags::TMPFILE, Mode::from_raw_mode(0o600)) {
        Ok(file) => file,
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        Err(error) => panic!("opening a file without a name: {error}"),
    };
    rustix::io::write(&file, b"content").unwrap();
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    let to = folder.join("objects/object");
    rustix::fs::linkat(CWD, from, CWD, &to, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(to).unwrap(), b"content");
}

fn copies(folder: &Path) {
    let (from, to) = (folder.join("file"), folder.join("copy"));
    assert_eq!(fs::copy(&from, &to).unwrap(), 7);
    let (from, to) = (File::open(from).unwrap(), File::options().write(true).open(to).unwrap());
    assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 7).unwrap(), 7);
    assert_eq!(rustix::fs::sendfile(&to, &from, Some(&mut 0), 7).unwrap(), 7);
    // Most file systems share no blocks.
    let shared = rustix::fs::ioctl_ficlone(&to, &from);
    assert!(!matches!(shared, Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS)), "{shared:?}");
    let (read, write) = rustix::pipe::pipe().unwrap();
    let flags = rustix::pipe::SpliceFlags::empty();
    assert_eq!(rustix::pipe::splice(&from, Some(&mut 0), &write, None, 7, flags).unwrap(), 7);
    let mut bytes = [0; 7];
    rustix::io::read(&read, &mut bytes).unwrap();
    assert_eq!(&bytes, b"content");
}

fn connects(at: &Surroundings) {
    tokio_runtime().block_on(async {
        let mut connection = tokio::net::TcpStream::connect(("localhost", at.port)).await.unwrap();
        connection.set_nodelay(true).unwrap();
        connection.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        connection.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"ping");
    });
}

/// As a resolver does.
fn datagrams() {
    let [one, other] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    one.connect(other.local_addr().unwrap()).unwrap();
    one.send(b"question").unwrap();
    let mut bytes = [0; 16];
    let (length, from) = other.recv_from(&mut bytes).unwrap();
    other.send_to(&bytes[..length], from).unwrap();
    assert_eq!(one.recv(&mut bytes).unwrap(), 8);
}

fn resolves() {
    let addresses: Vec<_> = ("localhost", 80).to_socket_addrs().unwrap().collect();
    assert!(addresses.iter().any(|address| address.ip().is_loopback()), "{addresses:?}");
}
