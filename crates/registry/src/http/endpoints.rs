//! [`Endpoints`]: the hosts that serve an image: its mirrors, and the registry itself as the last.
//!
//! A request goes to the first endpoint that is likely to answer, and on to the next one if that fails. A mirror has a single, short
//! attempt and rests after a failure, so that a dead one costs little time. If the registry fails too, resting mirrors are tried.

mod health;

use std::ops::{Add as _, Range};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tarpon_blob::{Fault, LogLimit, SourceError};
use tarpon_oci::{Blob, Descriptor, Digest, Reference, Verified};
use tokio::time::Instant;

use self::health::Health;
use super::blobs::{Answer, Blobs};
use super::session::Session;
use crate::Error;
use crate::registries::Endpoint;
use crate::stats::{Counters, EndpointAccount, Stats};
use crate::timing;

/// The hosts that serve an image.
pub(crate) struct Endpoints {
    mirrors: Vec<Mirror>,
    registry: Host,
}

/// A host and the image's name there.
pub(crate) struct Host {
    /// As `HOST[:PORT]`.
    host: String,
    session: Arc<Session>,
    blobs: Blobs,
    reference: Reference,
    resolves: bool,
}

/// A host that is tried before the registry.
struct Mirror {
    host: Host,
    health: Health,
    log: LogLimit,
}

/// The number of an endpoint. The registry has the last one.
pub(super) type Number = usize;

impl Host {
    pub(crate) fn new(session: Session, endpoint: Endpoint) -> Self {
        let (session, host) = (Arc::new(session), endpoint.host());
        let Endpoint { reference, resolves, .. } = endpoint;
        Self { host, blobs: Blobs::new(session.clone()), session, reference, resolves }
    }

    fn counters(&self) -> &Counters {
        self.session.counters()
    }

    fn account(&self, rest: Option<Duration>) -> EndpointAccount {
        self.counters().account(&self.host, rest)
    }

    /// Notes a failure in the account of the host.
    fn noted<T>(&self, outcome: Result<T, SourceError>) -> Result<T, SourceError> {
        outcome.inspect_err(|error| self.counters().failed(error))
    }

    /// The tag or digest of the image.
    fn version(&self) -> String {
        match self.reference.digest() {
            Some(digest) => digest.to_string(),
            None => self.reference.tag().unwrap_or(tarpon_oci::DEFAULT_TAG).to_owned(),
        }
    }
}

impl Endpoints {
    /// `hosts`: the mirrors in their order, then the registry.
    pub(crate) fn new(mirrors: Vec<Host>, registry: Host) -> Self {
        let mirrors = mirrors.into_iter().map(|host| Mirror { host, health: Health::default(), log: LogLimit::new() });
        Self { mirrors: mirrors.collect(), registry }
    }

    /// Opens connections for the next requests.
    pub(crate) fn warm_up(&self) {
        let session = self.first().session.clone();
        tokio::spawn(async move { session.warm_up().await });
    }

    /// Connects to the host that is asked first, for so many requests at once, and logs in.
    pub(crate) async fn get_ready(&self, requests: usize) {
        self.first().session.get_ready(requests).await;
    }

    /// The tags of the repository at the registry itself: a mirror may not have all of them.
    pub(crate) async fn tags(&self) -> Result<Vec<String>, SourceError> {
        self.registry.noted(self.registry.session.tags().await)
    }

    /// What was transferred, of all endpoints together.
    pub(crate) fn stats(&self) -> Stats {
        let hosts = self.mirrors.iter().map(|mirror| &mirror.host).chain([&self.registry]);
        hosts.map(|host| host.counters().read()).fold(Stats::default(), Stats::add)
    }

    /// The account of each endpoint, by its number.
    pub(crate) fn accounts(&self) -> Vec<EndpointAccount> {
        let mirrors = self.mirrors.iter().map(|mirror| mirror.host.account(mirror.health.rest()));
        mirrors.chain([self.registry.account(None)]).collect()
    }

    /// Whether the host that is asked first recently answered a ranged request with the whole blob.
    pub(crate) fn ignores_ranges(&self) -> bool {
        self.first().blobs.ignores_ranges()
    }

    /// The manifest or index that the image's name leads to, and its `Content-Type`.
    pub(crate) async fn root(&self) -> Result<(Verified<Bytes>, Option<String>), SourceError> {
        let ask = |host: &Host| {
            let (session, version, digest) = (host.session.clone(), host.version(), host.reference.digest().copied());
            async move { session.manifest(&version, digest.as_ref()).await }
        };
        let by_tag = self.registry.reference.digest().is_none();
        let what = if by_tag { What::Tag } else { What::Digest(None) };
        self.try_from(0, what, |_| true, ask).await.map(|(_, found)| found)
    }

    /// The manifest or index with this digest.
    pub(crate) async fn manifest(&self, digest: &Digest) -> Result<Verified<Bytes>, SourceError> {
        let name = digest.to_string();
        let (_, (bytes, _)) = self.try_each(Some(digest), |host| host.session.manifest(&name, Some(digest))).await?;
        Ok(bytes)
    }

    /// The manifest under a tag of the image's repository; `None` if no endpoint has one.
    pub(crate) async fn attached(&self, tag: &str) -> Result<Option<Verified<Bytes>>, SourceError> {
        // A mirror need not have what was attached later.
        let found = self.try_from(0, What::Tag, Option::is_some, |host| async {
            match host.session.manifest(tag, None).await {
                Ok((bytes, _)) => Ok(Some(bytes)),
                Err(error) if error.fault == Fault::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        });
        found.await.map(|(_, found)| found)
    }

    /// The manifests of kind `artifact_type` whose subject is `subject`. An empty result is no error.
    pub(crate) async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>, Error> {
        let all_began = Instant::now();
        // A mirror may have no list, or an old one. No list is verified, so one of a mirror is worth as much.
        for mirror in self.mirrors.iter().filter(|mirror| mirror.admits(What::Tag)) {
            let began = Instant::now();
            // As in `try_mirrored`: the registry must answer within the same request.
            if all_began.elapsed() >= timing::MIRRORS {
                break;
            }
            match mirror.host.session.referrers(subject, artifact_type).await {
                Ok(found) => {
                    mirror.health.answered();
                    if !found.is_empty() {
                        return Ok(found);
                    }
                }
                Err(Error::Source(error)) => mirror.failed(None, &error, began.elapsed()),
                Err(error) => tracing::debug!("the list of a mirror is not used: {error}"),
            }
        }
        let found = self.registry.session.referrers(subject, artifact_type).await;
        if let Err(Error::Source(error)) = &found {
            self.registry.counters().failed(error);
        }
        found
    }

    /// Reads a short blob whole.
    pub(crate) async fn small_blob(&self, blob: Blob) -> Result<Verified<Bytes>, SourceError> {
        self.try_each(Some(&blob.digest), |host| host.blobs.small_blob(blob)).await.map(|(_, found)| found)
    }

    /// Opens `range` of `blob` at the endpoint `from` or a later one.
    pub(super) async fn open(
        &self,
        blob: Blob,
        range: Range<u64>,
        from: Number,
    ) -> Result<(Number, Answer), SourceError> {
        self.try_from(from, What::Digest(Some(&blob.digest)), |_| true, |host| host.blobs.open(blob, range.clone()))
            .await
    }

    /// As [`Endpoints::open`] for one byte, in one attempt at each endpoint.
    pub(super) async fn probe(&self, blob: Blob, at: u64) -> Result<(Number, Answer), SourceError> {
        self.try_each(Some(&blob.digest), |host| host.blobs.probe(blob, at)).await
    }

    /// Whether the endpoint with this number is a mirror.
    pub(super) fn is_mirror(&self, number: Number) -> bool {
        number < self.mirrors.len()
    }

    /// The host with this number.
    pub(super) fn blobs(&self, number: Number) -> &Blobs {
        &self.mirrors.get(number).map_or(&self.registry, |mirror| &mirror.host).blobs
    }

    /// A body of this endpoint broke off or was wrong. Returns whether it was a mirror: then another endpoint is asked at once.
    pub(super) fn broke_off(&self, number: Number, blob: &Digest, error: &SourceError) -> bool {
        let Some(mirror) = self.mirrors.get(number) else {
            self.registry.counters().failed(error);
            return false;
        };
        // A body that stalls has been silent for this long.
        let took = if error.fault == Fault::Timeout { timing::MIRROR } else { Duration::ZERO };
        mirror.failed(Some(blob), error, took);
        true
    }

    /// The bytes of the blob were wrong, whichever endpoint sent them. Returns whether another one will be asked.
    pub(super) fn distrust(&self, blob: &Digest) -> bool {
        let mut is_another_asked = false;
        // Each of them is marked.
        for mirror in &self.mirrors {
            if !mirror.health.note_lacking(blob) {
                continue;
            }
            is_another_asked = true;
            if mirror.host.counters().read().bytes > 0 {
                let why =
                    format!("bytes of {blob} from this or another host were wrong: it is not asked for the blob again");
                mirror.host.counters().failed(&SourceError::new(Fault::BadData, why));
            }
        }
        is_another_asked
    }

    fn first(&self) -> &Host {
        let rested = self.mirrors.iter().find(|mirror| !mirror.health.is_resting());
        rested.map_or(&self.registry, |mirror| &mirror.host)
    }

    async fn try_each<'a, T, F>(
        &'a self,
        blob: Option<&Digest>,
        ask: impl Fn(&'a Host) -> F,
    ) -> Result<(Number, T), SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        self.try_from(0, What::Digest(blob), |_| true, ask).await
    }

    /// Asks one endpoint after the other, beginning with the number `from`, until one has what is wanted.
    async fn try_from<'a, T, F>(
        &'a self,
        from: Number,
        what: What<'_>,
        is_wanted: impl Fn(&T) -> bool,
        ask: impl Fn(&'a Host) -> F,
    ) -> Result<(Number, T), SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        match from < self.mirrors.len() {
            // Boxed: most images have no mirrors, and the future of their requests should be small.
            true => Box::pin(self.try_mirrored(from, what, is_wanted, ask)).await,
            false => self.registry.noted(ask(&self.registry).await).map(|found| (from, found)),
        }
    }

    async fn try_mirrored<'a, T, F>(
        &'a self,
        from: Number,
        what: What<'_>,
        is_wanted: impl Fn(&T) -> bool,
        ask: impl Fn(&'a Host) -> F,
    ) -> Result<(Number, T), SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        let began = Instant::now();
        let (mut rested, mut failed) = (Vec::new(), None);
        for (number, mirror) in self.mirrors.iter().enumerate().skip(from) {
            if began.elapsed() >= timing::MIRRORS || !mirror.admits(what) {
                rested.push((number, mirror));
                continue;
            }
            match mirror.ask(what, &ask).await {
                Ok(found) if is_wanted(&found) => return Ok((number, found)),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        let error = match self.registry.noted(ask(&self.registry).await) {
            Ok(found) => return Ok((self.mirrors.len(), found)),
            Err(error) => error,
        };
        if !matches!(error.fault, Fault::Unavailable | Fault::Timeout) {
            return Err(with_cause(&error, failed.as_ref()));
        }
        for (number, mirror) in rested.into_iter().filter(|(_, mirror)| mirror.has(what)) {
            if began.elapsed() + timing::MIRROR > timing::REQUEST {
                break;
            }
            match mirror.ask(what, &ask).await {
                Ok(found) if is_wanted(&found) => return Ok((number, found)),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(with_cause(&error, failed.as_ref()))
    }
}

/// What is requested.
#[derive(Clone, Copy)]
enum What<'a> {
    /// What a tag leads to, or a list: a host without the right answer may have an old one.
    Tag,
    /// What has a digest; the digest of a blob or a manifest that other hosts may have too.
    Digest(Option<&'a Digest>),
}

impl Mirror {
    /// Whether the host may be asked for it at all.
    fn has(&self, what: What<'_>) -> bool {
        self.host.resolves || matches!(what, What::Digest(_))
    }

    fn admits(&self, what: What<'_>) -> bool {
        let blob = match what {
            What::Tag => None,
            What::Digest(blob) => blob,
        };
        self.has(what) && self.health.admits(blob)
    }

    async fn ask<'a, T, F>(&'a self, what: What<'_>, ask: impl Fn(&'a Host) -> F) -> Result<T, SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        let began = Instant::now();
        let answer = ask(&self.host).await;
        match &answer {
            Ok(_) => self.health.answered(),
            Err(error) => match what {
                What::Tag => self.failed(None, error, began.elapsed()),
                What::Digest(blob) => self.failed(blob, error, began.elapsed()),
            },
        }
        answer
    }

    fn failed(&self, blob: Option<&Digest>, error: &SourceError, took: Duration) {
        self.host.counters().failed(error);
        let lacks_it = matches!(error.fault, Fault::NotFound | Fault::BadData);
        if let Some(blob) = blob.filter(|_| lacks_it) {
            self.health.note_lacking(blob);
        } else {
            let pause = self.health.failed(took);
            if let Some(left_out) = self.log.admit() {
                let (name, seconds) = (&self.host.reference, pause.as_secs());
                tracing::info!("the mirror {name} is not asked for {seconds} s: {error}{left_out}");
            }
        }
    }
}

/// The error of the registry, with the last one of its mirrors.
fn with_cause(error: &SourceError, of_mirror: Option<&SourceError>) -> SourceError {
    match of_mirror {
        Some(cause) => SourceError::new(error.fault, format!("{error}; before that its mirror: {cause}")),
        None => error.clone(),
    }
}
