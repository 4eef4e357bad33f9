//! Handles of files, as file servers and virtiofsd keep them instead of open files.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// `MAX_HANDLE_SZ`
const HANDLE_BYTES: u32 = 128;

/// `struct file_handle`
#[repr(C)]
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES as usize],
}

/// The handle of the file at a path.
#[expect(unsafe_code, reason = "no library has these system calls")]
pub(crate) fn of(path: &Path) -> io::Result<Handle> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut handle = Handle { bytes: HANDLE_BYTES, kind: 0, handle: [0; HANDLE_BYTES as usize] };
    let mut mount = 0_i32;
    // SAFETY: both structures live through the call, and the first one states how many bytes it has room for.
    let result = unsafe {
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), &raw mut handle, &raw mut mount, 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(handle) }
}

/// Opens a file of the file system that has this directory.
#[expect(unsafe_code, reason = "no library has these system calls")]
pub(crate) fn open(directory: &File, handle: &Handle) -> io::Result<File> {
    let mut handle = handle.clone();
    // SAFETY: the structure lives through the call, and has as many bytes as it states.
    let result =
        unsafe { libc::syscall(libc::SYS_open_by_handle_at, directory.as_raw_fd(), &raw mut handle, libc::O_RDONLY) };
    match i32::try_from(result) {
        // SAFETY: the kernel returned a new descriptor.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { File::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}
