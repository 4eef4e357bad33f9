//! [`Cache`]: nginx as `contrib/nginx/tarpon-cache.conf` configures it: whole slices, each fetched once; access to a blob
//! is checked until the registry has granted it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::clock::{Clock, Moment, nanos};
use super::flow::{BlobName, Connections, Flow, Packet, Path, WAITING};
use super::link::Link;

/// As in the configuration: `slice 256k`.
pub(super) const SLICE_BYTES: u64 = 256 << 10;
/// nginx looks this often whether a slice that another request fetches has arrived (`ngx_http_file_cache_lock_wait`).
const LOCK_POLL: Duration = Duration::from_millis(500);

/// A cache between the hosts and the registry.
pub(super) struct Cache {
    clock: Clock,
    /// To the hosts.
    pub(super) link: Arc<Link>,
    from_registry: Path,
    connections: Connections,
    content: Mutex<HashMap<Item, State>>,
}

/// Something that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    /// That the registry grants access to the blob.
    Access(BlobName),
    Slice(BlobName, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    OnItsWay,
    Present,
}

impl Cache {
    pub(super) fn new(clock: Clock, link: Arc<Link>, from_registry: Path) -> Self {
        let (connections, content) = (Connections::default(), Mutex::default());
        Self { clock, link, from_registry, connections, content }
    }

    /// Answers a request that arrives at `at`, by `flow`.
    pub(super) async fn answer(
        self: &Arc<Self>,
        blob: BlobName,
        size: u64,
        range: Range<u64>,
        mut at: Moment,
        flow: &mut Flow,
        to: &mpsc::Sender<Packet>,
    ) {
        // Requests do not wait for each other's check.
        let is_granted = self.content.lock().contains_key(&Item::Access(blob));
        if !is_granted {
            at = self.fetch(0..0, at, None).await;
            self.keep(Item::Access(blob));
        }
        let mut number = range.start / SLICE_BYTES;
        while number * SLICE_BYTES < range.end && !to.is_closed() {
            let slice = number * SLICE_BYTES..size.min((number + 1) * SLICE_BYTES);
            let wanted = |of: &Range<u64>| of.start.max(range.start)..of.end.min(range.end);
            if self.claim(Item::Slice(blob, number), &mut at).await {
                // Fetched whole, also if the host goes away. What the host wants of it is passed on as it arrives.
                let (sender, mut packets) = mpsc::channel(WAITING);
                let (cache, begins) = (self.clone(), at);
                tokio::spawn(async move {
                    cache.fetch(slice, begins, Some(&sender)).await;
                    cache.keep(Item::Slice(blob, number));
                });
                while let Some(packet) = packets.recv().await {
                    self.clock.until(packet.arrived).await;
                    at = packet.arrived;
                    let wanted = wanted(&packet.range);
                    if !wanted.is_empty() {
                        flow.send(at, wanted, Some(to)).await;
                    }
                }
            } else {
                flow.send(at, wanted(&slice), Some(to)).await;
            }
            number += 1;
        }
    }

    /// Waits until the item is there, or returns that the caller must fetch it. `at` is then.
    async fn claim(&self, item: Item, at: &mut Moment) -> bool {
        loop {
            let state = self.content.lock().get(&item).copied();
            match state {
                Some(State::Present) => return false,
                Some(State::OnItsWay) => {
                    *at += nanos(LOCK_POLL);
                    self.clock.until(*at).await;
                }
                None => {
                    self.content.lock().insert(item, State::OnItsWay);
                    return true;
                }
            }
        }
    }

    fn keep(&self, item: Item) {
        self.content.lock().insert(item, State::Present);
    }

    /// Fetches from the registry, beginning at `at`. Returns when the last byte is here. The packets go on to `to`.
    async fn fetch(&self, range: Range<u64>, at: Moment, to: Option<&mpsc::Sender<Packet>>) -> Moment {
        let (mut flow, at) = self.connections.request(self.clock, &self.from_registry, at).await;
        let arrived = match range.is_empty() {
            true => at + nanos(self.from_registry.delay),
            false => flow.send(at, range, to).await,
        };
        self.clock.until(arrived).await;
        self.connections.give_back(flow.end());
        arrived
    }

    /// Passes a document on that is not kept, such as a manifest. Returns when it is here.
    pub(super) async fn pass_on(&self, bytes: u64, at: Moment) -> Moment {
        self.fetch(0..bytes, at, None).await
    }
}
