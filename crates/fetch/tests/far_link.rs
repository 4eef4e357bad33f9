//! A large file, read from front to back over a far link: a model of 25 Mbit/s and 80 ms on which only the link takes time.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::noise;
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, StreamExt as _, stream};
use parking_lot::Mutex;
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_fetch::{Config, Fetcher};
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::source::{Form, MemoryStore, Packer, table_of};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes per second.
const RATE: u64 = 25_000_000 / 8;
const ROUND_TRIP: Duration = Duration::from_millis(80);
/// Bytes that a response sends at once.
const PART: usize = 32 * KIB;
const FILE: usize = 48 * MIB;
const CHUNK: usize = MIB;
/// A request of the kernel, and how many are under way.
const REQUEST: usize = 256 * KIB;
const UNDER_WAY: usize = 4;

/// A source behind one link that all responses share. A request takes a round trip, in which its connection sends nothing.
struct FarLink {
    blob: Bytes,
    /// When the link has sent what it has to send.
    free: Arc<Mutex<Instant>>,
    requests: Mutex<usize>,
}

impl FarLink {
    fn new(blob: Bytes) -> Self {
        Self { blob, free: Arc::new(Mutex::new(Instant::now())), requests: Mutex::default() }
    }
}

impl BlobSource for FarLink {
    fn read(&self, _: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        *self.requests.lock() += 1;
        let bytes = self.blob.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap());
        let link = self.free.clone();
        async move {
            sleep(ROUND_TRIP).await;
            let parts = stream::unfold((bytes, link), |(mut rest, link)| async {
                let part = rest.split_to(PART.min(rest.len()));
                let took = Duration::from_secs(1) * u32::try_from(part.len()).unwrap() / u32::try_from(RATE).unwrap();
                let sent = {
                    let mut free = link.lock();
                    *free = (*free).max(Instant::now()) + took;
                    *free
                };
                sleep_until(sent).await;
                (!part.is_empty()).then_some((Ok(part), (rest, link)))
            });
            Ok(parts.boxed())
        }
        .boxed()
    }

    fn name(&self) -> String {
        "far".to_owned()
    }
}

/// Reads the file as the kernel does, whose requests arrive in this order, and returns the time against that of the transfer alone, and
/// the number of requests.
async fn read_whole(arrives: fn(usize) -> usize) -> (f64, usize) {
    let content = noise(1, FILE);
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, CHUNK);
    let layer = packer.finish();
    let source = Arc::new(FarLink::new(layer.bytes.clone()));
    let config = Config { blocking_threads: false, ..Config::default() };
    let fetcher = Fetcher::new(Arc::new(MemoryStore::default()), Handle::current(), config);
    let _image = fetcher.add_image(table_of(&[&layer]), source.clone(), "test:latest");
    let began = Instant::now();
    for group in 0..FILE / REQUEST / UNDER_WAY {
        let requests = (0..UNDER_WAY).map(|number| (group * UNDER_WAY + arrives(number)) * REQUEST);
        join_all(requests.map(|at| read(&fetcher, &object, &content, at))).await;
    }
    let transfer = layer.bytes.len() as f64 / RATE as f64;
    let requests = *source.requests.lock();
    (began.elapsed().as_secs_f64() / transfer, requests)
}

async fn read(fetcher: &Fetcher, object: &Digest, content: &[u8], at: usize) {
    let bytes = fetcher.read(object, at as u64, REQUEST as u64).await.unwrap().into_bytes();
    assert!(bytes == content[at..at + REQUEST], "at {at}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_a_large_file_keeps_a_far_link_busy_in_whatever_order_the_kernel_asks() {
    for arrives in [|number| number, |number| UNDER_WAY - 1 - number, |number| number ^ 1, |number| number * 3 % 4] {
        let (share, requests) = read_whole(arrives).await;
        assert!(share <= 1.05, "it took {share:.3} times as long as the transfer, with {requests} requests");
        assert!(requests <= 32, "{requests} requests");
    }
}
