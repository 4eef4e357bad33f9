//! [`Parts`]: an object that is sent in parts.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt as _, PutPayload};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::Result;
use crate::health::Purpose;
use crate::tier::Tier;
use crate::timing::PART;

/// Size of a part. Stores take at most 10,000 of them, and at least 5 MiB each.
pub(crate) const PART_BYTES: usize = 8 << 20;
/// Parts that are sent at the same time.
const PARTS: usize = 3;

/// Parts of an object that becomes visible with [`Parts::finish`]. At most four of them are in memory.
pub(crate) struct Parts {
    tier: Arc<Tier>,
    step: &'static str,
    upload: Box<dyn MultipartUpload>,
    next: Vec<Bytes>,
    next_bytes: usize,
    sending: JoinSet<object_store::Result<()>>,
}

impl Parts {
    pub(crate) async fn begin(tier: Arc<Tier>, step: &'static str, path: &Path) -> Result<Self> {
        let upload = tier.ask_briefly(Purpose::Write, step, tier.store().put_multipart(path)).await?;
        Ok(Self { tier, step, upload, next: Vec::new(), next_bytes: 0, sending: JoinSet::new() })
    }

    /// Adds the next bytes. Waits while as many parts as possible are on their way.
    pub(crate) async fn put(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            let now = bytes.split_to(bytes.len().min(PART_BYTES - self.next_bytes));
            self.next_bytes += now.len();
            self.next.push(now);
            if self.next_bytes == PART_BYTES {
                self.wait(PARTS - 1).await?;
                self.send();
            }
        }
        Ok(())
    }

    /// Makes the object visible.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        if self.next_bytes > 0 {
            self.wait(PARTS - 1).await?;
            self.send();
        }
        self.wait(0).await?;
        self.tier.ask(Purpose::Write, self.step, PART, self.upload.complete()).await.map(drop)
    }

    /// Parts that the store does not remove now are removed by its own rules for uploads that were never finished.
    pub(crate) async fn abort(mut self) {
        self.sending.shutdown().await;
        if !matches!(timeout(PART, self.upload.abort()).await, Ok(Ok(()))) {
            tracing::debug!("parts of an object are left in the tier");
        }
    }

    fn send(&mut self) {
        let part: PutPayload = std::mem::take(&mut self.next).into_iter().collect();
        self.next_bytes = 0;
        self.sending.spawn(self.upload.put_part(part));
    }

    /// Waits until at most so many parts are on their way.
    async fn wait(&mut self, most: usize) -> Result<()> {
        while self.sending.len() > most {
            let Self { tier, step, sending, .. } = self;
            let sent = async { sending.join_next().await.map_or(Ok(()), |sent| sent?) };
            tier.ask(Purpose::Write, step, PART, sent).await?;
        }
        Ok(())
    }
}
