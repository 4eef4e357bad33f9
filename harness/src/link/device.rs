//! The network device of the link.

/// The device at the command's end.
pub(super) const DEVICE: &str = "tarpon-link";

/// Bytes received over the link according to a table of devices.
pub fn device_bytes(devices: &str) -> Option<u64> {
    let link = devices.lines().find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'))?;
    link.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_that_came_in_over_the_link() {
        let table = "Inter-| Receive\n face |bytes\n    lo: 7 1 0\ntarpon-link7: 8 1 0\ntarpon-link: 1234 5 0 0\n";
        assert_eq!(device_bytes(table), Some(1234));
        assert_eq!(device_bytes("    lo: 7 1 0\n"), None);
    }
}
