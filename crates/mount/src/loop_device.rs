//! Loop devices: a block device over a file (`drivers/block/loop.c`).
//!
//! A device is configured to end by itself: the kernel detaches the file when the last user closes the device. A mount is
//! such a user, so nothing outlives the mount and this process.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use linux_raw_sys::loop_device::{
    LO_FLAGS_AUTOCLEAR, LO_FLAGS_READ_ONLY, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, loop_config, loop_info64,
};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, Opcode, Setter};

use crate::kernel::{StepError, io_step};

/// Device that finds a free loop device, and makes one if there is none.
const CONTROL: &str = "/dev/loop-control";
/// Other processes of this machine may take a free device first, each time: so many start at once at most.
const ATTEMPTS: usize = 64;
/// Size of the blocks of the device, which is that of the blocks of an EROFS image here.
const BLOCK_SIZE: u32 = 4096;

/// A read-only loop device, which exists for as long as this value or a mount of it.
pub(crate) struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Makes a device over `image` (`LOOP_CONFIGURE`, Linux 5.8).
    pub(crate) fn over(image: BorrowedFd<'_>) -> Result<Self, StepError> {
        let control = open(Path::new(CONTROL))?;
        for _ in 0..ATTEMPTS {
            let number = free(&control).map_err(|errno| StepError::new("find a free loop device", errno))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            match configure(&device, image) {
                Ok(()) => return Ok(Self { path, _open: device }),
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(StepError::new(format!("configure {}", path.display()), errno)),
            }
        }
        Err(StepError::new("configure a loop device before other processes take it", Errno::BUSY))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn open(path: &Path) -> Result<File, StepError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "load the module loop, or pass the devices of the machine into this container",
            _ => "",
        };
        io_step(&format!("open {}", path.display()), &error).with("try", advice)
    })
}

/// Number of a free device.
#[expect(unsafe_code, reason = "the libraries have no such call")]
fn free(control: &File) -> Result<u32, Errno> {
    // SAFETY: the call has no argument: the kernel reads and writes no memory of this process. Another file than the
    // control device is an error.
    unsafe { rustix::ioctl::ioctl(control, GetFree) }
}

/// `LOOP_CTL_GET_FREE` in `<linux/loop.h>`.
struct GetFree;

#[expect(unsafe_code, reason = "the library has no calls whose result is a number")]
// SAFETY: the call has no argument and no output but its result.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: i32, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(number).map_err(|_| Errno::RANGE)
    }
}

/// Puts `image` behind a free device.
#[expect(unsafe_code, reason = "the libraries have no such call")]
fn configure(device: &File, image: BorrowedFd<'_>) -> Result<(), Errno> {
    let config = loop_config {
        fd: u32::try_from(image.as_raw_fd()).map_err(|_| Errno::BADF)?,
        block_size: BLOCK_SIZE,
        info: loop_info64 {
            lo_device: 0,
            lo_inode: 0,
            lo_rdevice: 0,
            lo_offset: 0,
            lo_sizelimit: 0,
            lo_number: 0,
            lo_encrypt_type: 0,
            lo_encrypt_key_size: 0,
            lo_flags: LO_FLAGS_READ_ONLY as u32 | LO_FLAGS_AUTOCLEAR as u32,
            lo_file_name: [0; 64],
            lo_crypt_name: [0; 64],
            lo_encrypt_key: [0; 32],
            lo_init: [0; 2],
        },
        __reserved: [0; 8],
    };
    // SAFETY: the kernel reads a `loop_config` behind the pointer and writes nothing there. The descriptor in it is open
    // for the life of the borrow; the kernel takes a reference of its own. Another file than a loop device is an error.
    unsafe { rustix::ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, loop_config>::new(config)) }
}
