//! [`Network`]: the registry, the caches and the links between them and the hosts.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::cache::Cache;
use super::clock::{Clock, Moment};
use super::flow::{BlobName, Connections, Packet, Path, WAITING};
use super::link::{Link, Processors};

/// What is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A blob of this size, which caches keep.
    Blob(BlobName, u64),
    /// A document of this size that caches do not keep, such as a manifest.
    Document(u64),
}

/// The figures of a network.
#[derive(Debug, Clone)]
pub(super) struct Links {
    /// Bits per second of the registry, of each cache and of each host; `None` for no limit.
    pub(super) registry: Option<f64>,
    pub(super) cache: Option<f64>,
    pub(super) host: Option<f64>,
    /// Round trips to the registry, and between hosts and caches.
    pub(super) far: Duration,
    pub(super) near: Duration,
    /// The processors that carry the registry's link, and their time for each MiB, if it is made in software.
    pub(super) carrier: Option<(Arc<Processors>, Duration)>,
}

/// A host in the network.
pub(super) struct Client {
    link: Arc<Link>,
    to_registry: Connections,
    to_caches: Vec<Connections>,
}

/// The registry and the caches.
pub(super) struct Network {
    pub(super) clock: Clock,
    links: Links,
    registry: Arc<Link>,
    caches: Vec<Arc<Cache>>,
}

impl Network {
    /// A network with empty caches.
    pub(super) fn new(clock: Clock, links: Links, caches: usize) -> Self {
        let registry = Arc::new(Link::carried(links.registry, links.carrier.clone()));
        let new = |_| {
            // What a cache receives does not share its link with what it sends.
            let last = Arc::new(Link::new(links.cache));
            let path = Path { first: registry.clone(), last, delay: links.far / 2 };
            Arc::new(Cache::new(clock, Arc::new(Link::new(links.cache)), path))
        };
        let caches = (0..caches).map(new).collect();
        Self { clock, links, registry, caches }
    }

    pub(super) fn client(&self) -> Client {
        Client {
            link: Arc::new(Link::new(self.links.host)),
            to_registry: Connections::default(),
            to_caches: self.caches.iter().map(|_| Connections::default()).collect(),
        }
    }

    /// Bytes that the registry has sent, headers included.
    pub(super) fn registry_bytes(&self) -> u64 {
        self.registry.wire_bytes()
    }

    /// Requests a range at `at`. The packets arrive in order.
    pub(super) fn get(
        self: &Arc<Self>,
        client: &Arc<Client>,
        wanted: Wanted,
        range: Range<u64>,
        at: Moment,
    ) -> mpsc::Receiver<Packet> {
        let (sender, packets) = mpsc::channel(WAITING);
        let (network, client) = (self.clone(), client.clone());
        tokio::spawn(async move { network.answer(&client, wanted, range, at, &sender).await });
        packets
    }

    /// Requests all of it at `at`, and returns when the last byte arrives.
    pub(super) async fn whole(self: &Arc<Self>, client: &Arc<Client>, wanted: Wanted, at: Moment) -> Moment {
        let (Wanted::Blob(_, size) | Wanted::Document(size)) = wanted;
        let mut packets = self.get(client, wanted, 0..size.max(1), at);
        let mut arrived = at;
        while let Some(packet) = packets.recv().await {
            arrived = packet.arrived;
        }
        self.clock.until(arrived).await;
        arrived
    }

    async fn answer(&self, client: &Client, wanted: Wanted, range: Range<u64>, at: Moment, to: &mpsc::Sender<Packet>) {
        let hash = match wanted {
            Wanted::Blob(name, _) => name.hash,
            Wanted::Document(_) => 0,
        };
        let last = client.link.clone();
        let number = hash as usize % self.caches.len().max(1);
        let Some((cache, connections)) = self.caches.get(number).zip(client.to_caches.get(number)) else {
            let path = Path { first: self.registry.clone(), last, delay: (self.links.far + self.links.near) / 2 };
            let (mut flow, at) = client.to_registry.request(self.clock, &path, at).await;
            flow.send(at, range, Some(to)).await;
            return client.to_registry.give_back(flow.end());
        };
        let path = Path { first: cache.link.clone(), last, delay: self.links.near / 2 };
        let (mut flow, at) = connections.request(self.clock, &path, at).await;
        match wanted {
            Wanted::Blob(name, size) => cache.answer(name, size, range, at, &mut flow, to).await,
            Wanted::Document(bytes) => {
                let at = cache.pass_on(bytes, at).await;
                flow.send(at, range, Some(to)).await;
            }
        }
        connections.give_back(flow.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BLOB: BlobName = BlobName { number: 0, hash: 0 };

    fn network(caches: usize) -> (Arc<Network>, Arc<Client>) {
        let links = Links {
            registry: Some(1e8),
            cache: Some(25e9),
            host: Some(1e9),
            far: Duration::from_millis(10),
            near: Duration::from_millis(1),
            carrier: None,
        };
        let network = Arc::new(Network::new(Clock::begin(), links, caches));
        let client = Arc::new(network.client());
        (network, client)
    }

    async fn received(network: &Arc<Network>, client: &Arc<Client>, range: Range<u64>) -> Vec<Packet> {
        let mut packets = network.get(client, Wanted::Blob(BLOB, 10 * MIB), range, network.clock.now());
        let mut all = Vec::new();
        while let Some(packet) = packets.recv().await {
            all.push(packet);
        }
        network.clock.until(all.last().unwrap().arrived).await;
        all
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_fetches_a_slice_once_whole_and_for_all() {
        let (network, first) = network(1);
        let clients: Vec<_> = (0..5).map(|_| Arc::new(network.client())).chain([first]).collect();
        let all = clients.iter().map(|client| received(&network, client, 1_000..2_000));
        let all = futures::future::join_all(all).await;
        assert!(all.iter().all(|packets| packets.iter().map(|packet| packet.range.end - packet.range.start).sum::<u64>() == 1_000));
        let slice = 256 << 10;
        // A sixteenth more for the headers of packets, and the answers to six checks of access.
        let sent = network.registry_bytes();
        assert!((slice..slice + slice / 16).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_that_wait_for_a_slice_get_it_when_the_cache_looks_again() {
        let (network, first) = network(1);
        let second = Arc::new(network.client());
        let (one, two) = tokio::join!(received(&network, &first, 0..1_000), received(&network, &second, 0..1_000));
        let [one, two] = [one, two].map(|packets| packets.last().unwrap().arrived / 1_000_000);
        assert!(one < 100 && (500..600).contains(&two), "{one} and {two} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn every_byte_of_a_range_arrives_once_and_in_order() {
        for caches in [0, 1, 3] {
            let (network, client) = network(caches);
            let range = MIB / 3..3 * MIB + 17;
            let packets = received(&network, &client, range.clone()).await;
            assert_eq!((packets[0].range.start, packets.last().unwrap().range.end), (range.start, range.end));
            assert!(packets.windows(2).all(|two| two[0].range.end == two[1].range.start));
            assert!(packets.windows(2).all(|two| two[0].arrived <= two[1].arrived));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_cache_the_registry_sends_everything_to_each_host() {
        let (network, first) = network(0);
        let second = Arc::new(network.client());
        let one = received(&network, &first, 0..8 * MIB).await.last().unwrap().arrived;
        let sent = network.registry_bytes();
        let (began, third) = (network.clock.now(), Arc::new(network.client()));
        let (two, _) = tokio::join!(received(&network, &second, 0..8 * MIB), received(&network, &third, 0..8 * MIB));
        // Each count is rounded.
        assert!(network.registry_bytes().abs_diff(3 * sent) <= 2, "{sent}");
        let two = two.last().unwrap().arrived - began;
        assert!(two > one * 3 / 2, "two transfers share the link: {two} and {one}");
    }
}
