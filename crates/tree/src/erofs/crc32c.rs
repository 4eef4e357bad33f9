//! CRC-32C as EROFS uses it for its superblock: no final inversion.

/// The reflected Castagnoli polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Continues `crc` over `bytes`. Bit by bit: the input is only three kilobytes.
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_value_comes_out() {
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
    }
}
