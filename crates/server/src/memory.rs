//! Memory that was freed, and that the allocator keeps.

#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
use std::ptr::null_mut;

/// Gives freed memory back to the kernel.
///
/// glibc has up to eight arenas for each processor. What a burst of reads has freed in them lies between allocations that are in use, and
/// stays with the process: after 64 containers 91 of 128 MiB were free.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "a call of the C library that the libraries have not")]
pub(crate) fn give_back() {
    // SAFETY: the call takes no pointer and locks each arena that it works on.
    let _something_was_free = unsafe { libc::malloc_trim(0) };
}

/// Gives freed memory back to the kernel, if jemalloc is the allocator of the program. It does so by itself ten seconds after memory was freed,
/// but only while it allocates, which an idle server does not.
#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
#[allow(unsafe_code, reason = "a call of the allocator's library")]
pub(crate) fn give_back() {
    // 4096 is `MALLCTL_ARENAS_ALL`.
    let name = c"arena.4096.purge";
    // SAFETY: the name ends with a zero byte, and this command reads and writes no value.
    let _fails_without_arenas =
        unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
}

/// musl's allocator does this when memory is freed.
#[cfg(not(any(target_env = "gnu", all(target_env = "musl", target_arch = "x86_64"))))]
pub(crate) fn give_back() {}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    const BLOCKS: usize = 64 << 10;
    const BLOCK_BYTES: usize = 1 << 10;

    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn memory_between_allocations_in_use_is_given_back() {
        let mut blocks: Vec<_> = (0..BLOCKS).map(|_| vec![1_u8; BLOCK_BYTES]).collect();
        // A block in every sixteen pages stays.
        let kept: Vec<_> = blocks.drain(..).enumerate().filter(|(number, _)| number % 64 == 0).collect();
        let before = resident();
        give_back();
        let after = resident();
        assert!(before - after > BLOCKS * BLOCK_BYTES / 2, "{before} bytes before, {after} after");
        assert_eq!(kept.len(), BLOCKS / 64);
    }
}
