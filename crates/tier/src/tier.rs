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
use crate::health::{Health, Purpose, Sent};
use crate::location::{Kind, TierLocation};
use crate::options::TierOptions;
use crate::timing::{CREATE, PART, REQUEST};

/// How long a connection may take. A store in the same data centre takes a millisecond.
const CONNECT: Duration = Duration::from_secs(2);
/// Repetitions of a request, within its limit.
const REPETITIONS: usize = 2;
/// Pause before the first repetition; it doubles.
const PAUSE: Duration = Duration::from_millis(50);
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
    /// Requests that failed, of reads and of writes.
    pub failures: u64,
    /// How long nothing is still read from it, because a read failed.
    pub rest: Option<Duration>,
    /// Why it failed the last time, a read or a write.
    pub last_failure: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    reading: Health,
    writing: Health,
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
    fn health(&mut self, purpose: Purpose) -> &mut Health {
        if purpose.is_read() { &mut self.reading } else { &mut self.writing }
    }

    fn may_read(&self) -> bool {
        self.reading.is_well() && !self.is_damaged()
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
        let own = self.account.lock().clone();
        // Another image may have found out.
        let of = |health: &Health| health.last_failure().filter(|_| !health.is_well()).cloned();
        let last_failure = own.last_failure.or_else(|| of(&state.reading)).or_else(|| of(&state.writing));
        TierAccount { rest: state.reading.rest(), last_failure, ..own }
    }

    /// Why nothing is read from it now; `None` if it is.
    pub fn is_resting(&self) -> Option<String> {
        let state = self.state.lock();
        (!state.may_read()).then(|| state.reading.last_failure().cloned().unwrap_or_default())
    }

    /// Whether layers are shared now. Not for a while after a write failed, and never again by this process if one was not permitted.
    pub fn may_write(&self) -> bool {
        self.state.lock().writing.is_well()
    }

    /// Fails if nothing is written now.
    pub(crate) fn check_may_write(&self, step: &'static str) -> Result<()> {
        let state = self.state.lock();
        if state.writing.is_well() {
            return Ok(());
        }
        let why = state.writing.last_failure().map(String::as_str).unwrap_or_default();
        Err(Error::new(step, format!("nothing is written to the tier at the moment: {why}")))
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

    /// When a read is sent that is sent now.
    pub(crate) fn sent(&self) -> Sent {
        self.state.lock().reading.sent()
    }

    /// Counts a request, and lets the tier rest, for reads or for writes, if it failed.
    pub(crate) async fn ask<T>(
        &self,
        purpose: Purpose,
        step: &'static str,
        limit: Duration,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        use object_store::Error as E;
        let (began, sent) = (Instant::now(), self.state.lock().health(purpose).sent());
        let outcome = timeout(limit, request).await;
        self.account.lock().requests += 1;
        let error = match outcome {
            Ok(Ok(answer)) => {
                self.answered(purpose, began, sent);
                return Ok(answer);
            }
            Ok(Err(error)) => {
                // An answer as any other. A folder with a file that no tier has answers, all the same.
                if matches!(error, E::NotFound { .. } | E::AlreadyExists { .. } | E::InvalidPath { .. }) {
                    self.answered(purpose, began, sent);
                    return Err(Error::of(step, &error));
                }
                Error::of(step, &error)
            }
            Err(_) => Error::late(step),
        };
        self.failed(purpose, &error);
        Err(error)
    }

    /// As [`Tier::ask`], with the limit of small requests.
    pub(crate) async fn ask_briefly<T>(
        &self,
        purpose: Purpose,
        step: &'static str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.ask(purpose, step, REQUEST, request).await
    }

    fn answered(&self, purpose: Purpose, began: Instant, sent: Sent) {
        self.account.lock().wait += began.elapsed();
        if purpose != Purpose::Head {
            self.state.lock().health(purpose).succeeded(sent);
        }
    }

    /// A read was answered as a whole.
    pub(crate) fn was_read(&self, sent: Sent) {
        self.state.lock().reading.succeeded(sent);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.account.lock().bytes += bytes;
    }

    pub(crate) fn failed(&self, purpose: Purpose, error: &Error) {
        self.account.lock().failed(error.to_string());
        let mut state = self.state.lock();
        if purpose.is_read() {
            state.reading.failed(error.to_string());
        } else {
            state.writing.write_failed(error, purpose);
        }
    }

    /// Whether the blob should be requested here.
    pub(crate) fn may_have(&self, blob: &Digest) -> bool {
        let state = self.state.lock();
        if !state.may_read() || state.wrong.contains(blob) {
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
            state.reading.note(why);
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

    /// Creates a claim. Returns whether it was absent.
    pub(crate) async fn create(&self, step: &'static str, path: &Path, bytes: Bytes) -> Result<bool> {
        let put = async {
            match self.store.put_opts(path, PutPayload::from_bytes(bytes), PutMode::Create.into()).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.ask(Purpose::Write, step, CREATE, put).await
    }

    /// Writes an object that is named by its digest: one that is there already is the same, or is wrong.
    pub(crate) async fn replace(&self, step: &'static str, path: &Path, bytes: Bytes) -> Result<()> {
        // Nothing waits for it: a megabyte may take a second.
        let limit = REQUEST + Duration::from_secs(bytes.len() as u64 >> 20);
        let put = self.store.put_opts(path, PutPayload::from_bytes(bytes), PutMode::Overwrite.into());
        self.ask(Purpose::Write, step, limit, put).await.map(drop)
    }

    /// Removes an object, if it exists.
    pub(crate) async fn remove(&self, step: &'static str, path: &Path) -> Result<()> {
        let removal = async {
            match self.store.delete(path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                done => done,
            }
        };
        self.ask_briefly(Purpose::Remove, step, removal).await
    }
}

/// Deadlines are those of [`Tier::ask`] and of bodies: a total limit would end the response of a large layer.
fn client() -> ClientOptions {
    // Without effect if the program has chosen one.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    ClientOptions::new().with_connect_timeout(CONNECT).with_timeout_disabled().with_read_timeout_disabled()
}

/// The client stops to repeat a request after the limit of the longest ones. [`Tier::ask`] ends others earlier.
fn retries() -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: PAUSE, max_backoff: PAUSE * 4, base: 2.0 };
    RetryConfig { backoff, max_retries: REPETITIONS, retry_timeout: PART }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tier").field(&self.location.to_string()).finish()
    }
}
