//! The checksum of files in tar-split data: CRC-64 of ISO 3309, eight bytes at a time.

const POLYNOMIAL: u64 = 0xd800_0000_0000_0000;
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc: u64 = tables[table - 1][byte];
            tables[table][byte] = tables[0][(crc & 0xff) as usize] ^ (crc >> 8);
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// A checksum of bytes that arrive piece by piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crc64(u64);

impl Crc64 {
    pub(super) fn new() -> Self {
        Self(!0)
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        let mut crc = self.0;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let mixed = (crc ^ u64::from_le_bytes(*word)).to_le_bytes();
            crc = (0..8).fold(0, |crc, place| crc ^ TABLES[7 - place][usize::from(mixed[place])]);
        }
        for byte in rest {
            let low = crc.to_le_bytes()[0];
            crc = TABLES[0][usize::from(low ^ byte)] ^ (crc >> 8);
        }
        self.0 = crc;
    }

    /// The checksum in tar-split's format.
    pub(super) fn finish(self) -> [u8; 8] {
        (!self.0).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(pieces: &[&[u8]]) -> [u8; 8] {
        let mut crc = Crc64::new();
        pieces.iter().for_each(|piece| crc.update(piece));
        crc.finish()
    }

    #[test]
    fn the_checksum_is_the_known_one_in_pieces_of_any_length() {
        // The check value of CRC-64/GO-ISO.
        assert_eq!(checksum(&[b"123456789"]), 0xb909_56c7_75a4_1001_u64.to_be_bytes());
        assert_eq!(checksum(&[]), [0; 8]);
        let text: Vec<u8> = (0..=255).collect();
        for cut in [0, 1, 7, 8, 9, 100] {
            assert_eq!(checksum(&[&text[..cut], &text[cut..]]), checksum(&[&text]));
        }
    }
}
