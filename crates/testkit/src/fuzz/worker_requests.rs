//! Invariant: whatever bytes a worker receives from its user on any channel, it answers each sound request with what was
//! requested or with an error, closes the channel at the first that is not sound, and allocates nothing by a claim.

/// Sends `data` to a worker; its first byte chooses the channel.
pub fn worker_requests(data: &[u8]) {
    tarpon_worker::fuzz::requests(data);
}
