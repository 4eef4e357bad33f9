//! What a holder that gives up does with its mounts.

use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::{Server, command, folder};
use crate::HoldOptions;
use crate::hold::{Ended, Limits};
use crate::socket;

/// Unmounts after a failed test.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _is_unmounted = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A FUSE mount of a descriptor that is not served; `None` where this user may not mount.
fn mount(path: &PathBuf) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).unwrap();
    rustix::mount::mount("tarpon-test", path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, data).ok()?;
    Some(device)
}

#[test]
fn dead_mounts_are_removed_when_the_holder_gives_up() {
    let (folder, path) = folder();
    let mount_points = ["dead", "empty", "missing"].map(|name| folder.path().join(name));
    for path in &mount_points[..2] {
        std::fs::create_dir(path).unwrap();
    }
    let Some(device) = mount(&mount_points[0]) else {
        eprintln!("not tested: this user may not mount");
        return;
    };
    let _unmounted = Unmounted(mount_points[0].clone());
    let (ours, theirs) = socket::pair().unwrap();
    let options = HoldOptions { socket: path, successor: command(&["false"]), dead_mounts: mount_points.to_vec() };
    let thread = std::thread::spawn(move || crate::hold::hold_in_thread(theirs, options, Limits::default()).unwrap());
    let server = Server(ours);
    server.attach();
    server.keep("mount", &device);
    server.confirm();
    drop((server, device));
    assert!(matches!(thread.join().unwrap(), Ended::GaveUp(_)));
    assert_eq!(rustix::mount::unmount(&mount_points[0], UnmountFlags::DETACH), Err(Errno::INVAL), "still mounted");
    assert!(mount_points[1].is_dir());
}
