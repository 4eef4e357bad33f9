//! [`Message`]: what a server and its holder send each other, 256 bytes each.

use std::io;

/// Version of the protocol. A holder and a server of different versions do not talk.
pub(crate) const VERSION: u8 = 1;
/// Size of a message.
pub(crate) const MESSAGE_BYTES: usize = 256;
/// Maximum length of a name: what is left beside the fixed fields, rounded down.
pub(crate) const NAME_BYTES: usize = 200;
/// Position of the name.
const NAME_AT: usize = 8;

/// The meaning of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// To the holder: hold the descriptor of this message, in place of an earlier one of this name.
    Keep,
    /// To the holder: close the descriptor of this name.
    Release,
    /// To the holder: the server lives.
    Alive,
    /// To the holder: the server answers requests.
    Serving,
    /// To the holder: the server ends, and its successor is running already.
    HandOver,
    /// To the holder: close everything and end.
    Dismiss,
    /// To the holder: answer with `Flushed`.
    Flush,
    /// To the server: all messages before `Flush` were carried out.
    Flushed,
    /// To a successor, first: the number is the process id of the holder.
    Hello,
    /// To a successor: a descriptor.
    Held,
    /// To a successor: there are no more.
    End,
}

const OPERATIONS: [Operation; 11] = [
    Operation::Keep,
    Operation::Release,
    Operation::Alive,
    Operation::Serving,
    Operation::HandOver,
    Operation::Dismiss,
    Operation::Flush,
    Operation::Flushed,
    Operation::Hello,
    Operation::Held,
    Operation::End,
];

/// A name of bounded length, without allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    length: u8,
    bytes: [u8; NAME_BYTES],
}

/// A message, without its descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) operation: Operation,
    pub(crate) version: u8,
    pub(crate) number: u32,
    pub(crate) name: Name,
}

impl Name {
    /// # Errors
    /// The name is too long.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let length = u8::try_from(name.len()).ok().filter(|length| usize::from(*length) <= NAME_BYTES);
        let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a name that is too long"))?;
        let mut bytes = [0; NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { length, bytes })
    }

    const fn empty() -> Self {
        Self { length: 0, bytes: [0; NAME_BYTES] }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl Message {
    /// A message without a name.
    pub(crate) const fn new(operation: Operation) -> Self {
        Self { operation, version: VERSION, number: 0, name: Name::empty() }
    }

    /// A message about a descriptor.
    pub(crate) const fn named(operation: Operation, name: Name) -> Self {
        Self { name, ..Self::new(operation) }
    }

    pub(crate) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let number = OPERATIONS.iter().position(|operation| *operation == self.operation).unwrap_or_default();
        bytes[0] = u8::try_from(number).unwrap_or_default();
        (bytes[1], bytes[2]) = (self.version, self.name.length);
        bytes[4..8].copy_from_slice(&self.number.to_ne_bytes());
        bytes[NAME_AT..NAME_AT + NAME_BYTES].copy_from_slice(&self.name.bytes);
        bytes
    }

    /// # Errors
    /// The bytes are no message.
    pub(crate) fn decode(bytes: &[u8; MESSAGE_BYTES]) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "no message of a server or holder");
        let operation = *OPERATIONS.get(usize::from(bytes[0])).ok_or_else(invalid)?;
        let name = bytes.get(NAME_AT..NAME_AT + usize::from(bytes[2])).ok_or_else(invalid)?;
        let name = std::str::from_utf8(name).map_err(|_| invalid())?;
        let number = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        Ok(Self { operation, version: bytes[1], number, name: Name::new(name)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_decoded_as_it_was_encoded() {
        for operation in OPERATIONS {
            for name in ["", "fuse.41.ff", &"x".repeat(NAME_BYTES)] {
                let message = Message { number: 7, ..Message::named(operation, Name::new(name).unwrap()) };
                let decoded = Message::decode(&message.encode()).unwrap();
                assert_eq!((decoded.operation, decoded.number, decoded.name.as_str()), (operation, 7, name));
            }
        }
    }

    #[test]
    fn a_name_that_is_too_long_and_bytes_that_are_no_message_are_refused() {
        assert!(Name::new(&"x".repeat(NAME_BYTES + 1)).is_err());
        let good = Message::new(Operation::Alive).encode();
        for (at, value) in [(0, 99), (2, 255), (NAME_AT, 0xff)] {
            let mut bytes = good;
            bytes[2] = 1;
            bytes[at] = value;
            assert!(Message::decode(&bytes).is_err(), "byte {at} is {value}");
        }
    }
}
