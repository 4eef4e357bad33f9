//! [`Message`]: what server and holder send each other, and its encoding.

/// Version of the protocol. The layout of `Attach` and `Hello` is the same in all versions.
pub(crate) const VERSION: u32 = 1;
/// Oldest version that this program can still speak.
pub(crate) const OLDEST_VERSION: u32 = 1;

/// Maximum number of descriptors that a holder keeps. A mount has one, and 2000 mounts on a host are a lot.
pub const MAX_HELD: usize = 4096;

/// Size of each message.
pub(crate) const MESSAGE_BYTES: usize = 256;
/// Longest name of a descriptor: the rest of a message.
pub(crate) const MAX_NAME: usize = MESSAGE_BYTES - NAME_AT;

/// Position of the length of the name; the operation is before it.
const LENGTH_AT: usize = 1;
/// Positions of the two numbers.
const NUMBER_AT: [usize; 2] = [4, 8];
const NAME_AT: usize = 16;

/// The name of a descriptor: 1 to [`MAX_NAME`] bytes of text. It has no allocation of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    length: u8,
    bytes: [u8; MAX_NAME],
}

impl Name {
    /// `None` if the text is empty or too long.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let length = u8::try_from(text.len()).ok().filter(|length| *length > 0)?;
        let mut bytes = [0; MAX_NAME];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { length, bytes })
    }

    pub(crate) fn as_str(&self) -> &str {
        // Both ways to create a name check the text.
        self.bytes.get(..self.length.into()).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(formatter)
    }
}

/// A message. `Keep` and `Retained` carry one descriptor, the others none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// The server's first message.
    Attach {
        version: u32,
    },
    /// The descriptor replaces an earlier one of that name.
    Keep(Name),
    Release(Name),
    /// A sign of life of the server. The holder answers with the same.
    Alive,
    /// The server answers requests now.
    Serving,
    /// Asks for [`Message::Confirmed`] with the same number.
    Confirm(u32),
    /// The server ends: no successor.
    Dismiss,
    /// The server ends, and this process is its successor; 0 if the server does not know which.
    HandOver(u32),
    /// The holder's first message.
    Hello {
        version: u32,
        pid: u32,
    },
    Retained(Name),
    /// The last of the descriptors was sent.
    End,
    /// The holder has everything that was sent before.
    Confirmed(u32),
    /// Another server is attached. The holder closes the connection.
    Busy,
}

impl Message {
    pub(crate) fn has_descriptor(&self) -> bool {
        matches!(self, Self::Keep(_) | Self::Retained(_))
    }

    pub(crate) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut packet = [0; MESSAGE_BYTES];
        packet[0] = self.operation();
        let numbers = match *self {
            Self::Attach { version } => [version, 0],
            Self::Hello { version, pid } => [version, pid],
            Self::Confirm(number) | Self::Confirmed(number) | Self::HandOver(number) => [number, 0],
            _ => [0, 0],
        };
        for (at, number) in NUMBER_AT.into_iter().zip(numbers) {
            packet[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        if let Self::Keep(name) | Self::Release(name) | Self::Retained(name) = self {
            packet[LENGTH_AT] = name.length;
            packet[NAME_AT..].copy_from_slice(&name.bytes);
        }
        packet
    }

    /// `None` if it is not a message of this version.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let packet: &[u8; MESSAGE_BYTES] = packet.try_into().ok()?;
        let [first, second] =
            NUMBER_AT.map(|at| u32::from_le_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]));
        let name = || {
            let bytes = packet[NAME_AT..].get(..packet[LENGTH_AT].into())?;
            Name::new(std::str::from_utf8(bytes).ok()?)
        };
        Some(match packet[0] {
            1 => Self::Attach { version: first },
            2 => Self::Keep(name()?),
            3 => Self::Release(name()?),
            4 => Self::Alive,
            5 => Self::Serving,
            6 => Self::Confirm(first),
            7 => Self::Dismiss,
            8 => Self::HandOver(first),
            65 => Self::Hello { version: first, pid: second },
            66 => Self::Retained(name()?),
            67 => Self::End,
            68 => Self::Confirmed(first),
            69 => Self::Busy,
            _ => return None,
        })
    }

    fn operation(&self) -> u8 {
        match self {
            Self::Attach { .. } => 1,
            Self::Keep(_) => 2,
            Self::Release(_) => 3,
            Self::Alive => 4,
            Self::Serving => 5,
            Self::Confirm(_) => 6,
            Self::Dismiss => 7,
            Self::HandOver(_) => 8,
            Self::Hello { .. } => 65,
            Self::Retained(_) => 66,
            Self::End => 67,
            Self::Confirmed(_) => 68,
            Self::Busy => 69,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_decoded_as_it_was_encoded() {
        let name = Name::new("objects/ä").unwrap();
        let longest = Name::new(&"n".repeat(MAX_NAME)).unwrap();
        let messages = [
            Message::Attach { version: 7 },
            Message::Keep(name),
            Message::Keep(longest),
            Message::Release(name),
            Message::Alive,
            Message::Serving,
            Message::Confirm(u32::MAX),
            Message::Dismiss,
            Message::Hello { version: 1, pid: 4_000_000 },
            Message::Retained(name),
            Message::End,
            Message::Confirmed(5),
            Message::Busy,
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn names_are_neither_empty_nor_too_long() {
        assert_eq!(Name::new(""), None);
        assert_eq!(Name::new(&"n".repeat(MAX_NAME + 1)), None);
        assert_eq!(Name::new(&"n".repeat(256)), None);
        assert_eq!(Name::new("mount").unwrap().as_str(), "mount");
    }

    #[test]
    fn other_bytes_are_no_message() {
        let keep = Message::Keep(Name::new("mount").unwrap()).encode();
        let changed = |at: usize, byte: u8| {
            let mut packet = keep;
            packet[at] = byte;
            Message::decode(&packet)
        };
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&keep[..255]), None);
        assert_eq!(Message::decode(&[keep.as_slice(), &[0]].concat()), None);
        assert_eq!(changed(0, 0), None, "no operation");
        assert_eq!(changed(0, 255), None, "an unknown operation");
        assert_eq!(changed(LENGTH_AT, 0), None, "no name");
        assert_eq!(changed(LENGTH_AT, 255), None, "a name beyond the message");
        assert_eq!(changed(NAME_AT, 0xff), None, "a name that is no text");
    }
}
