//! [`SharedLayer`]: a layer in a tier.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStoreExt as _, PutPayload};
use tarpon_oci::{Blob, Verified};
use tokio::time::timeout;

use crate::claim::{Claim, SeenClaim};
use crate::error::{Error, Result};
use crate::health::Purpose;
use crate::names::{Name, claim_name};
use crate::tier::Tier;
use crate::timing::SILENCE;
use crate::upload::Upload;

/// Most objects of a layer that are listed: a blob, an index of each version of the program, a few claims.
const OBJECTS: usize = 64;
/// Longest index. Hosts write none that is longer.
const INDEX_BYTES: u64 = 64 << 20;
/// How long a listed index may take to arrive, besides a second for each MiB of its size: 8 Mbit/s.
const INDEX: Duration = Duration::from_secs(5);
/// The time of the last use is precise to this: each host writes it at most this often.
const USE_PRECISION: Duration = Duration::from_secs(24 * 3600);

/// A layer in a tier.
#[derive(Debug, Clone)]
pub struct SharedLayer {
    tier: Arc<Tier>,
    blob: Blob,
    path: Path,
}

/// What the tier has of a layer.
#[derive(Debug, Clone, Default)]
pub struct LayerState {
    /// Whether its blob is there, with the right size.
    pub has_blob: bool,
    /// Its indexes: digest and size.
    pub indexes: Vec<Blob>,
    /// The claim with the highest number.
    pub claim: Option<SeenClaim>,
    /// Whether all of its objects are known. If not, the layer has more than any host writes, and should not be shared.
    pub is_complete: bool,
    /// Whether the time of its last use should be written again.
    is_use_old: bool,
}

impl LayerState {
    /// The number that a new claim gets.
    pub fn next_claim(&self) -> u64 {
        SeenClaim::next(self.claim.as_ref())
    }
}

impl SharedLayer {
    /// The layer with this blob.
    pub fn new(tier: &Arc<Tier>, blob: Blob) -> Self {
        Self { tier: tier.clone(), blob, path: tier.layer_path(&blob.digest) }
    }

    /// The layer's blob.
    pub fn blob(&self) -> Blob {
        self.blob
    }

    fn object(&self, name: &str) -> Path {
        self.path.clone().join(name)
    }

    /// What the tier has of the layer. One request.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn look(&self) -> Result<LayerState> {
        let list = self.tier.store().list(Some(&self.path)).take(OBJECTS);
        let objects: Vec<ObjectMeta> =
            self.tier.ask_briefly(Purpose::Read, "list the layer in the tier", list.try_collect()).await?;
        let is_complete = objects.len() < OBJECTS;
        let mut state = LayerState { is_complete, is_use_old: true, ..LayerState::default() };
        for object in &objects {
            let Some(name) = self.tier.name_in(&self.path, &object.location) else { continue };
            match Name::parse(name) {
                Some(Name::Blob) => state.has_blob = object.size == self.blob.size,
                Some(Name::Used) => {
                    let age = SystemTime::now().duration_since(object.last_modified.into()).unwrap_or_default();
                    state.is_use_old = age > USE_PRECISION;
                }
                Some(Name::Index(digest)) if object.size <= INDEX_BYTES => {
                    state.indexes.push(Blob { digest, size: object.size });
                }
                Some(Name::Claim(number)) => {
                    let seen = Some(SeenClaim::new(number, object));
                    state.claim = state.claim.into_iter().chain(seen).max_by_key(SeenClaim::number);
                }
                Some(Name::Index(_)) | None => {}
            }
        }
        Ok(state)
    }

    /// As [`SharedLayer::look`], by a host that knows that the claim with the number `known` exists or existed. A shared file system may list
    /// a folder as it was a second ago, or without a file that is being replaced. So a claim that is not listed is looked up by its name.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn look_again(&self, known: Option<u32>) -> Result<LayerState> {
        let mut state = self.look().await?;
        let listed = state.claim.as_ref().map(SeenClaim::number);
        if let Some(number) = known.filter(|known| !state.has_blob && listed < Some(*known)) {
            state.claim = self.claim_by_name(number).await?.or(state.claim);
        }
        Ok(state)
    }

    async fn claim_by_name(&self, number: u32) -> Result<Option<SeenClaim>> {
        let path = self.object(&claim_name(number.into()));
        let head = async {
            match self.tier.store().head(&path).await {
                Ok(object) => Ok(Some(SeenClaim::new(number, &object))),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.tier.ask_briefly(Purpose::Read, "look up a claim in the tier", head).await
    }

    /// One of the layer's indexes, compared with its digest.
    ///
    /// # Errors
    /// The tier does not return it, or returns other bytes.
    pub async fn index(&self, index: Blob) -> Result<Verified<Bytes>> {
        let step = "read an index in the tier";
        let path = self.object(&format!("index-{}", index.digest.hex()));
        let read = async {
            let response = self.tier.store().get_opts(&path, GetOptions::default()).await?;
            let mut bytes = BytesMut::new();
            let mut body = response.into_stream();
            // Memory follows what arrives. A file that became shorter meanwhile has empty pieces without end.
            loop {
                let piece = timeout(SILENCE, body.try_next()).await.map_err(|_| silent())??;
                let Some(piece) = piece.filter(|piece| !piece.is_empty()) else { break };
                bytes.extend_from_slice(&piece);
                if bytes.len() as u64 > index.size {
                    break;
                }
            }
            Ok(bytes.freeze())
        };
        let limit = INDEX + Duration::from_secs(index.size >> 20);
        let bytes = self.tier.ask(Purpose::Read, step, limit, read).await?;
        self.tier.received(bytes.len() as u64);
        Verified::check(&index.digest, bytes).map_err(|error| Error::new(step, error.to_string()))
    }

    /// Keeps an index of the layer.
    ///
    /// # Errors
    /// The tier does not take it, or nothing is written to it now.
    pub async fn keep_index(&self, index: &Verified<Bytes>) -> Result<()> {
        let step = "keep an index in the tier";
        if index.len() as u64 > INDEX_BYTES {
            return Err(Error::new(
                step,
                format!("it has more than {INDEX_BYTES} bytes: other hosts would not read it"),
            ));
        }
        self.tier.check_may_write(step)?;
        let path = self.object(&format!("index-{}", index.digest().hex()));
        let bytes: &Bytes = index;
        self.tier.replace(step, &path, bytes.clone()).await
    }

    /// Notes that the layer was used, if that was not noted within a day.
    pub async fn note_use(&self, state: &LayerState) {
        if state.is_use_old && self.tier.may_write() {
            let path = self.object("used");
            let put = self.tier.store().put_opts(&path, PutPayload::new(), Default::default());
            if let Err(error) = self.tier.ask_briefly(Purpose::Write, "note a use in the tier", put).await {
                tracing::debug!("{error}");
            }
        }
    }

    /// Claims the layer, unless another host has claimed it after `state` was seen. The owner streams it.
    ///
    /// # Errors
    /// The tier does not answer, or nothing is written to it now ([`Tier::may_write`]).
    pub async fn claim(&self, state: &LayerState) -> Result<Option<Claim>> {
        Claim::create(&self.tier, &self.path, state.claim.as_ref()).await
    }

    /// Begins to copy the layer's blob to the tier, behind its reader. `claim` is kept alive by what was copied.
    pub fn upload(&self, claim: &Claim) -> Upload {
        Upload::begin(self.tier.clone(), self.object("blob"), self.blob, claim.progress())
    }

    /// Requests bytes of the blob.
    pub(crate) async fn open(&self, range: Range<u64>, limit: Duration) -> Result<Opened> {
        let (path, size, start) = (self.object("blob"), self.blob.size, range.start);
        let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
        let get = async {
            match self.tier.store().get_opts(&path, options).await {
                Ok(response) if response.meta.size != size => Ok(Opened::OfSize(response.meta.size)),
                Ok(response) => Ok(Opened::Body(response.into_stream())),
                Err(object_store::Error::NotFound { .. }) => Ok(Opened::Absent),
                // Perhaps the object ends before the range.
                Err(error @ object_store::Error::Generic { .. }) if start > 0 => {
                    match self.tier.store().head(&path).await {
                        Ok(object) if object.size != size => Ok(Opened::OfSize(object.size)),
                        _ => Err(error),
                    }
                }
                Err(error) => Err(error),
            }
        };
        self.tier.ask(Purpose::Head, "read a blob in the tier", limit, get).await
    }
}

fn silent() -> object_store::Error {
    object_store::Error::Generic { store: "tier", source: format!("it sends nothing for {SILENCE:?}").into() }
}

/// The tier's answer to a request for bytes of a blob.
pub(crate) enum Opened {
    Body(BoxStream<'static, object_store::Result<Bytes>>),
    Absent,
    /// The object is not the blob: it has this size.
    OfSize(u64),
}

/// The next piece of a body, within `limit`.
pub(crate) async fn next_piece(
    body: &mut BoxStream<'static, object_store::Result<Bytes>>,
    limit: Duration,
) -> Result<Option<Bytes>> {
    let step = "read a blob in the tier";
    match timeout(limit, body.next()).await {
        Ok(Some(Ok(piece))) => Ok(Some(piece)),
        Ok(None) => Ok(None),
        Ok(Some(Err(error))) => Err(Error::of(step, &error)),
        Err(_) => Err(Error::late(step)),
    }
}
