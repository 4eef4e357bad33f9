//! System calls that no library offers, to try that they are refused.

use std::io;

/// Makes a system call. The tests pass arguments that the kernel refuses or that change nothing.
#[allow(unsafe_code, reason = "calls that no library offers")]
pub(crate) fn syscall(number: i64, arguments: [usize; 6]) -> io::Result<i64> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: no argument is a pointer to memory of this process, except for null and addresses that are not mapped, and
    // no call changes memory that is in use.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
