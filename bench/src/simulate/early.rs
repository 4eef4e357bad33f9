//! [`EarlyPack`]: the boot pack is requested before the image is mounted, as the server of a store does (`crates/server/src/early.rs`): in
//! requests that grow, two at a time.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_fetch::{EARLY_REQUESTS, REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::clock::Moment;
use super::flow::{BlobName, Packet};
use super::network::{Client, Network, Wanted};

/// What was requested of the pack, and has arrived of it.
#[derive(Default)]
pub(super) struct EarlyPack {
    state: Mutex<EarlyState>,
}

#[derive(Default)]
struct EarlyState {
    segments: Vec<Segment>,
    /// Whether no more is requested.
    is_over: bool,
}

#[derive(Clone)]
struct Segment {
    range: Range<u64>,
    /// The end of what has arrived, and when.
    arrived: watch::Receiver<(u64, Moment)>,
}

impl EarlyPack {
    /// Requests the pack from `at` on, until [`EarlyPack::stop`].
    pub(super) async fn fetch(
        self: Arc<Self>,
        network: Arc<Network>,
        client: Arc<Client>,
        name: BlobName,
        size: u64,
        at: Moment,
    ) {
        let (mut next, mut width, mut at) = (0, REPLAY_FIRST_BYTES, at);
        let mut open = JoinSet::new();
        while next < size {
            let range = next..size.min(next + width);
            let Some(sender) = self.add(range.clone()) else { break };
            (next, width) = (range.end, (width * 2).min(REPLAY_MOST_BYTES));
            let mut packets = network.get(&client, Wanted::Blob(name, size), range, at);
            let clock = network.clock;
            open.spawn(async move {
                while let Some(packet) = packets.recv().await {
                    clock.until(packet.arrived).await;
                    sender.send_replace((packet.range.end, packet.arrived));
                }
            });
            while open.len() >= EARLY_REQUESTS {
                let _ended = open.join_next().await;
                at = clock.now();
            }
        }
        while open.join_next().await.is_some() {}
    }

    /// Adds a range that is requested now, unless no more is.
    fn add(&self, range: Range<u64>) -> Option<watch::Sender<(u64, Moment)>> {
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        let (sender, arrived) = watch::channel((range.start, 0));
        state.segments.push(Segment { range, arrived });
        Some(sender)
    }

    /// Makes no more requests: the planner does now.
    pub(super) fn stop(&self) {
        self.state.lock().is_over = true;
    }

    /// The bytes from `range.start` on that were requested early, once some have arrived; `None` if they were not requested.
    pub(super) async fn next(&self, range: &Range<u64>) -> Option<Packet> {
        let found = self.state.lock().segments.iter().find(|segment| segment.range.contains(&range.start)).cloned();
        let mut segment = found?;
        let (end, arrived) = *segment.arrived.wait_for(|(end, _)| *end > range.start).await.ok()?;
        Some(Packet { arrived, range: range.start..end.min(range.end) })
    }
}
