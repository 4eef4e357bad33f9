//! Reads a whole blob that a mount waits for, such as an index.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::try_join_all;
use tarpon_blob::{BlobSource, SourceError};
use tarpon_oci::{Blob, Digest, Verified};
use tarpon_registry::Repository;

/// Requests at a time, on connections that were opened ahead. A new connection takes some round trips until its rate is that of a far link:
/// by slow start from ten segments, four bring an index of 1 MB over 25 Mbit/s and 80 ms in six round trips, and one in eight.
const PARTS: u64 = 4;
/// Least bytes of a request: what a new connection sends in its first three round trips. A shorter part comes as soon by itself.
const PART_BYTES: u64 = 96 << 10;
/// Most bytes that are hashed on a thread of the runtime: it takes a millisecond or a few, for which other responses wait.
const HASHED_AT_ONCE: usize = 1 << 20;

/// All bytes of a blob, verified. Wrong bytes of a mirror are requested elsewhere.
///
/// # Errors
/// The source failed, or its bytes are not those of the blob.
pub(crate) async fn whole(repository: &Repository, blob: Blob) -> Result<Verified<Bytes>, String> {
    let source = repository.blobs();
    // Each range would cost the bytes before it.
    let parts = if repository.ignores_ranges() || source.is_local() { 1 } else { PARTS };
    whole_of(&*source, blob, parts).await
}

async fn whole_of(source: &dyn BlobSource, blob: Blob, parts: u64) -> Result<Verified<Bytes>, String> {
    let read = || async { read(source, blob, parts).await.map_err(|error| error.to_string()) };
    match check(blob.digest, read().await?).await {
        Err(_) if source.distrust(&blob.digest) => check(blob.digest, read().await?).await,
        checked => checked,
    }
}

async fn check(digest: Digest, bytes: Bytes) -> Result<Verified<Bytes>, String> {
    let is_large = bytes.len() > HASHED_AT_ONCE;
    let check = move || Verified::check(&digest, bytes).map_err(|error| error.to_string());
    if !is_large {
        return check();
    }
    tokio::task::spawn_blocking(check).await.map_err(|error| error.to_string())?
}

async fn read(source: &dyn BlobSource, blob: Blob, parts: u64) -> Result<Bytes, SourceError> {
    let mut parts = try_join_all(ranges(blob.size, parts).map(|range| part(source, blob, range))).await?;
    let mut all = if parts.is_empty() { BytesMut::new() } else { parts.remove(0) };
    parts.iter().for_each(|part| all.extend_from_slice(part));
    Ok(all.freeze())
}

async fn part(source: &dyn BlobSource, blob: Blob, range: Range<u64>) -> Result<BytesMut, SourceError> {
    let mut bytes = BytesMut::new();
    let mut pieces = source.read(blob, range).await?;
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

/// Cuts a blob of this size into at most so many ranges, none of which is shorter than [`PART_BYTES`].
fn ranges(size: u64, most: u64) -> impl Iterator<Item = Range<u64>> {
    let count = (size / PART_BYTES).clamp(1, most);
    let at = move |number: u64| size / count * number + (size % count).min(number);
    (0..count).map(move |number| at(number)..at(number + 1))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use parking_lot::Mutex;
    use tarpon_blob::BlobStream;
    use tarpon_oci::Digest;

    use super::*;

    /// A source of bytes that count, in pieces. It records the requests.
    #[derive(Default)]
    struct Counted(Mutex<Vec<Range<u64>>>);

    fn content(range: Range<u64>) -> Vec<u8> {
        range.map(|at| (at % 251) as u8).collect()
    }

    impl BlobSource for Counted {
        fn read(&self, _: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
            self.0.lock().push(range.clone());
            let pieces: Vec<_> = content(range).chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            async move { Ok(futures::stream::iter(pieces).boxed()) }.boxed()
        }

        fn name(&self) -> String {
            "counted".to_owned()
        }
    }

    /// As [`Counted`], with wrong bytes in the first reads. A source that is not the last one has another behind it.
    struct Damaged {
        source: Counted,
        wrong: Mutex<usize>,
        is_last: bool,
    }

    impl BlobSource for Damaged {
        fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
            let mut wrong = self.wrong.lock();
            if *wrong == 0 {
                return self.source.read(blob, range);
            }
            *wrong -= 1;
            let bytes = vec![0xff; content(range).len()];
            async move { Ok(futures::stream::iter([Ok(bytes.into())]).boxed()) }.boxed()
        }

        fn distrust(&self, _: &Digest) -> bool {
            !self.is_last
        }

        fn name(&self) -> String {
            "damaged".to_owned()
        }
    }

    #[tokio::test]
    async fn a_small_and_a_large_blob_are_verified_and_wrong_bytes_are_requested_once_more() {
        for size in [1000, HASHED_AT_ONCE as u64, HASHED_AT_ONCE as u64 + 1] {
            let blob = Blob { digest: Digest::of(&content(0..size)), size };
            for (wrong, is_last, is_right, left) in
                [(0, false, true, 0), (1, false, true, 0), (2, false, false, 0), (2, true, false, 1)]
            {
                let source = Damaged { source: Counted::default(), wrong: wrong.into(), is_last };
                let read = whole_of(&source, blob, 1).await;
                assert_eq!(read.is_ok(), is_right, "{size}: {wrong} {is_last}");
                assert!(read.is_err() || *read.unwrap() == content(0..size));
                assert_eq!(*source.wrong.lock(), left, "{size}: {wrong} {is_last}");
            }
        }
    }

    #[tokio::test]
    async fn a_blob_is_read_in_parts_and_put_together_in_order() {
        for (size, most, requests) in
            [(1, 4, 1), (PART_BYTES * 2 - 1, 4, 1), (PART_BYTES * 2 + 1, 4, 2), (1_000_003, 4, 4), (1_000_003, 1, 1)]
        {
            let source = Counted::default();
            let blob = Blob { digest: Digest::of(b"an index"), size };
            assert!(read(&source, blob, most).await.unwrap() == content(0..size), "{size}");
            let asked = source.0.lock();
            assert_eq!(asked.len(), requests, "{size}");
            assert_eq!((asked[0].start, asked.last().unwrap().end), (0, size));
            assert!(asked.windows(2).all(|two| two[0].end == two[1].start), "{asked:?}");
            assert!(requests == 1 || asked.iter().all(|range| range.end - range.start >= PART_BYTES), "{asked:?}");
        }
    }
}
