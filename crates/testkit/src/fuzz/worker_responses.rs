//! Invariant: whatever bytes a worker sends to its user on any channel, the user accepts no more than it asked for: the
//! bytes of a range, a chunk of the requested size, events that an image within its limits can cause, questions for the
//! worker's own images. Texts become short lines without control characters.

/// Sends `data` to the user of a worker; its first byte chooses the channel.
pub fn worker_responses(data: &[u8]) {
    tarpon_worker::fuzz::responses(data);
}
