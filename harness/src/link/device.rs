//! The network device of the link, and what devices carried.

/// The device at the command's end.
pub(super) const DEVICE: &str = "tarpon-link";

/// Bytes that a device carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that came in.
    pub received: u64,
    /// Bytes that went out.
    pub sent: u64,
}

/// Bytes received over the link according to a table of devices.
pub fn device_bytes(devices: &str) -> Option<u64> {
    traffic(devices, DEVICE).map(|traffic| traffic.received)
}

/// What the device of this name carried according to a table of devices.
pub fn traffic(devices: &str, name: &str) -> Option<Traffic> {
    let counters = devices.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    let counters: Vec<&str> = counters.split_whitespace().collect();
    // Eight counters of what came in, then those of what went out.
    Some(Traffic { received: counters.first()?.parse().ok()?, sent: counters.get(8)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Inter-|   Receive                |  Transmit\n face |bytes    packets errs\n    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n\
                         tarpon-link7: 8 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n tarpon-link: 1234 5 0 0 0 0 0 0 56 2 0 0 0 0 0 0\n";

    #[test]
    fn the_bytes_are_those_of_the_device_with_this_name() {
        assert_eq!(device_bytes(TABLE), Some(1234));
        assert_eq!(traffic(TABLE, "tarpon-link7"), Some(Traffic { received: 8, sent: 9 }));
        assert_eq!(device_bytes("    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n"), None);
    }
}
