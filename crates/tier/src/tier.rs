//! [`Tier`]: an opened tier.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, RetryConfig};
use parking_lot::Mutex;
use tarpon_oci::Digest;
use tokio::time::{Instant, timeout};

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::location::{Kind, TierLocation};
use crate::options::TierOptions;
use crate::timing::REQUEST;

/// How long a connection may take. A store in the same data centre takes a millisecond.
const CONNECT: Duration = Duration::from_secs(2);
/// Repetitions of a request within [`REQUEST`].
const REPETITIONS: usize = 2;
/// Pause before the first repetition; it doubles.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a tier that failed is not asked. It doubles with each failure in a row, up to the longest.
pub(crate) const REST: Duration = Duration::from_secs(5);
pub(crate) const LONGEST_REST: Duration = Duration::from_secs(60);
/// Most blobs of which it is known what the tier has: 512 layers of a few images.
const KNOWN: usize = 4096;
/// How long a blob that the tier lacks is not asked for again.
pub(crate) const ABSENT: Duration = Duration::from_secs(30);
/// A tier with so many wrong blobs is not asked for any: it is damaged as a whole.
const WRONG: usize = 1024;

/// An opened tier. Nothing was requested from it yet.
pub struct Tier {
    location: TierLocation,
    store: Arc<dyn ObjectStore>,
    base: Path,
    state: Arc<Mutex<State>>,
    account: Mutex<TierAccount>,
}

/// What was counted for a tier since it was opened, or since [`Tier::with_own_account`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierAccount {
    /// Requests sent.
    pub requests: u64,
    /// Bytes of blobs and indexes received.
    pub bytes: u64,
    /// How long requests waited for the head of their response, all together.
    pub wait: Duration,
    /// Requests that failed.
    pub failures: u64,
    /// How long it is still not asked, because it failed.
    pub rest: Option<Duration>,
    /// Why it failed the last time.
    pub last_failure: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    last_failure: Option<String>,
    failures_in_row: u32,
    rests_until: Option<Instant>,
    known: HashMap<Digest, Holding>,
    /// Blobs whose bytes were wrong. They are not requested here again.
    wrong: HashSet<Digest>,
}

/// What is known of a blob in the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holding {
    /// It was absent at this moment.
    Absent(Instant),
    /// Bytes of it were returned.
    Served,
}

impl State {
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| until > Instant::now())
    }

    fn is_new_wrong(&mut self, blob: &Digest) -> bool {
        !self.is_damaged() && self.wrong.insert(*blob)
    }

    fn is_damaged(&self) -> bool {
        self.wrong.len() >= WRONG
    }
}

impl TierAccount {
    fn failed(&mut self, why: String) {
        self.failures += 1;
        self.last_failure = Some(why);
    }
}

impl Tier {
    /// Opens the tier at `location`.
    ///
    /// # Errors
    /// The options are invalid, or the folder does not exist.
    pub fn open(location: &TierLocation, options: &TierOptions) -> Result<Arc<Self>> {
        let step = "open the tier";
        let refused = |error: object_store::Error| Error::of(step, &error);
        // The builders have the same methods, but no trait.
        macro_rules! built {
            ($builder:expr, $with_bucket:ident) => {{
                let mut builder = $builder.with_client_options(client()).with_retry(retries());
                for (name, value) in options.each() {
                    if let Ok(key) = name.parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                Arc::new(builder.$with_bucket(location.bucket()).build().map_err(refused)?)
            }};
        }
        let store: Arc<dyn ObjectStore> = match location.kind() {
            Kind::Folder => Arc::new(Folder::open(location.folder().map(Into::into).unwrap_or_default())?),
            // Not every server removes several objects with a request.
            Kind::S3 => built!(AmazonS3Builder::new().with_disable_bulk_delete(true), with_bucket_name),
            Kind::Google => built!(GoogleCloudStorageBuilder::new(), with_bucket_name),
            Kind::Azure => built!(MicrosoftAzureBuilder::new(), with_container_name),
        };
        Ok(Self::over(location.clone(), store))
    }

    /// A tier in this store, for tests.
    pub fn over(location: TierLocation, store: Arc<dyn ObjectStore>) -> Arc<Self> {
        let base = Path::from(location.prefix()).join("v1");
        Arc::new(Self { location, store, base, state: Arc::default(), account: Mutex::default() })
    }

    /// The same tier with an account of its own, for one of several images. Whether it rests is known to all.
    pub fn with_own_account(&self) -> Arc<Self> {
        let Self { location, store, base, state, .. } = self;
        let (location, store, base) = (location.clone(), store.clone(), base.clone());
        Arc::new(Self { location, store, base, state: state.clone(), account: Mutex::default() })
    }

    /// Its URL.
    pub fn location(&self) -> &TierLocation {
        &self.location
    }

    /// What was counted.
    pub fn account(&self) -> TierAccount {
        let state = self.state.lock();
        let rest = state.rests_until.map(|until| until.saturating_duration_since(Instant::now()));
        let rest = rest.filter(|rest| !rest.is_zero());
        let own = self.account.lock().clone();
        // Another image may have found out.
        let last_failure = own.last_failure.or_else(|| state.last_failure.clone().filter(|_| rest.is_some()));
        TierAccount { rest, last_failure, ..own }
    }

    /// Why it is not asked now; `None` if it is.
    pub fn is_resting(&self) -> Option<String> {
        let state = self.state.lock();
        (state.rests() || state.is_damaged()).then(|| state.last_failure.clone().unwrap_or_default())
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    pub(crate) fn layers_path(&self) -> Path {
        self.base.clone().join("layers")
    }

    pub(crate) fn layer_path(&self, layer: &Digest) -> Path {
        self.layers_path().join(layer.hex())
    }

    /// The name of an object directly below `folder`: what is listed below it may be in folders of its own.
    pub(crate) fn name_in<'a>(&self, folder: &Path, object: &'a Path) -> Option<&'a str> {
        let mut parts = object.prefix_match(folder)?;
        (parts.next().is_some() && parts.next().is_none()).then(|| object.filename())?
    }

    /// Counts a request, and lets the tier rest if it failed.
    pub(crate) async fn ask<T>(
        &self,
        step: &'static str,
        limit: Duration,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let began = Instant::now();
        let outcome = match timeout(limit, request).await {
            Ok(Ok(answer)) => Ok(answer),
            // An answer as any other, for the account.
            Ok(Err(
                error @ (object_store::Error::NotFound { .. }
                | object_store::Error::AlreadyExists { .. }
                // A folder has a file that no tier has: it answers, all the same.
                | object_store::Error::InvalidPath { .. }),
            )) => {
                self.answered(began);
                return Err(Error::of(step, &error));
            }
            Ok(Err(error)) => Err(Error::of(step, &error)),
            Err(_) => Err(Error::late(step)),
        };
        match outcome {
            Ok(answer) => {
                self.answered(began);
                Ok(answer)
            }
            Err(error) => {
                self.account.lock().requests += 1;
                self.failed(&error);
                Err(error)
            }
        }
    }

    /// As [`Tier::ask`], with the limit of small requests.
    pub(crate) async fn ask_briefly<T>(
        &self,
        step: &'static str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.ask(step, REQUEST, request).await
    }

    fn answered(&self, began: Instant) {
        let mut account = self.account.lock();
        account.requests += 1;
        account.wait += began.elapsed();
        drop(account);
        let mut state = self.state.lock();
        (state.failures_in_row, state.rests_until) = (0, None);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.account.lock().bytes += bytes;
    }

    pub(crate) fn failed(&self, error: &Error) {
        self.account.lock().failed(error.to_string());
        let mut state = self.state.lock();
        state.last_failure = Some(error.to_string());
        // Requests that were sent before the tier failed are no reason to let it rest longer.
        if !state.rests() {
            let doublings = state.failures_in_row.min(8);
            state.failures_in_row += 1;
            state.rests_until = Some(Instant::now() + LONGEST_REST.min(REST * (1 << doublings)));
        }
    }

    /// Whether the blob should be requested here.
    pub(crate) fn may_have(&self, blob: &Digest) -> bool {
        let state = self.state.lock();
        if state.rests() || state.is_damaged() || state.wrong.contains(blob) {
            return false;
        }
        match state.known.get(blob) {
            None | Some(Holding::Served) => true,
            Some(Holding::Absent(since)) => since.elapsed() > ABSENT,
        }
    }

    pub(crate) fn is_absent(&self, blob: &Digest) {
        self.know(blob, Holding::Absent(Instant::now()));
    }

    pub(crate) fn has_served(&self, blob: &Digest) {
        self.know(blob, Holding::Served);
    }

    /// The tier's object is not the blob.
    pub(crate) fn is_wrong(&self, blob: &Digest, why: &str) {
        let why = format!("its blob {blob} {why}");
        let mut state = self.state.lock();
        if state.is_new_wrong(blob) {
            self.account.lock().failed(why.clone());
            state.last_failure = Some(why);
        }
    }

    /// The blob's bytes did not match a digest. Returns whether they came from here.
    pub(crate) fn distrust(&self, blob: &Digest) -> bool {
        let is_ours = self.state.lock().known.remove(blob) == Some(Holding::Served);
        if is_ours {
            self.is_wrong(blob, "has wrong bytes");
        } else {
            // Perhaps they came through another process of this host.
            self.state.lock().is_new_wrong(blob);
        }
        is_ours
    }

    fn know(&self, blob: &Digest, known: Holding) {
        let mut state = self.state.lock();
        if state.known.len() >= KNOWN {
            state.known.clear();
        }
        state.known.insert(*blob, known);
    }

    /// Creates an object. Returns whether it was absent.
    pub(crate) async fn create(&self, step: &'static str, path: &Path, bytes: Bytes) -> Result<bool> {
        let put = async {
            match self.store.put_opts(path, PutPayload::from_bytes(bytes), PutMode::Create.into()).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.ask_briefly(step, put).await
    }

    /// Writes an object that is named by its digest: one that is there already is the same, or is wrong.
    pub(crate) async fn replace(&self, step: &'static str, path: &Path, bytes: Bytes) -> Result<()> {
        // Nothing waits for it: a megabyte may take a second.
        let limit = REQUEST + Duration::from_secs(bytes.len() as u64 >> 20);
        let put = self.store.put_opts(path, PutPayload::from_bytes(bytes), PutMode::Overwrite.into());
        self.ask(step, limit, put).await.map(drop)
    }

    /// Removes an object, if it exists.
    pub(crate) async fn remove(&self, step: &'static str, path: &Path) -> Result<()> {
        let removal = async {
            match self.store.delete(path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                done => done,
            }
        };
        self.ask_briefly(step, removal).await
    }
}

/// Deadlines are those of [`Tier::ask`] and of bodies: a total limit would end the response of a large layer.
fn client() -> ClientOptions {
    // Without effect if the program has chosen one.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    ClientOptions::new().with_connect_timeout(CONNECT).with_timeout_disabled().with_read_timeout_disabled()
}

fn retries() -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: PAUSE, max_backoff: PAUSE * 4, base: 2.0 };
    RetryConfig { backoff, max_retries: REPETITIONS, retry_timeout: REQUEST }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tier").field(&self.location.to_string()).finish()
    }
}
