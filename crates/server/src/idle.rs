//! The lowest priority for a thread: it gets the processor and the disk only while no other process needs them.

use rustix::thread::gettid;

/// `IOPRIO_WHO_PROCESS`: one thread. The library does not define it.
const WHO_THREAD: libc::c_int = 1;
/// `IOPRIO_CLASS_IDLE`, shifted to its bits in a priority.
const CLASS_IDLE: libc::c_int = 3 << 13;
/// The lowest processor priority.
const NICE: i32 = 19;

/// Sets the lowest priority for the calling thread and threads that it starts. If the system refuses, the priority stays unchanged.
pub fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(Some(gettid()), NICE) {
        tracing::debug!(%error, "a thread in the background keeps its share of the processor");
    }
    // SAFETY: the call takes three numbers and touches no memory of this process.
    #[allow(unsafe_code)]
    let failed = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, CLASS_IDLE) } != 0;
    if failed {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "a thread in the background keeps its share of the disk");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_of_this_thread_alone_is_lowered() {
        let of = |thread| rustix::process::getpriority_process(Some(thread)).unwrap();
        let (main, before) = (gettid(), of(gettid()));
        let lowered = std::thread::spawn(move || {
            lower_priority();
            // SAFETY: as above.
            #[allow(unsafe_code)]
            let class = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) };
            (of(gettid()), class)
        });
        assert_eq!(lowered.join().unwrap(), (NICE, CLASS_IDLE.into()));
        assert_eq!(of(main), before);
    }
}
