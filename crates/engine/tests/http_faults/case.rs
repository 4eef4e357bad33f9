//! One case: a start under a fault, and again after it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tarpon_engine::oci::Digest;
use tarpon_engine::{Engine, ErrorKind, ImageRequest, IndexChoice, Prepared};
use tarpon_fetch::{BootIndex, Config, Fetcher, ImageHandle};
use tarpon_layer::chunks::ChunkTable;
use tarpon_registry::{Repository, open_with};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::registry::FakeRegistry;
use tarpon_testkit::seeds::Random;
use tarpon_testkit::transport::{Attack, ScriptedTransport};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::clock;
use crate::faults::{Expect, Row};
use crate::published::Published;
use crate::requests::Phase;
use crate::seconds;
use crate::secrets::{self, BLOBS, REGISTRY};
use crate::support::{EngineFixture as _, Notes, load, request};

/// The promise of docs/guarantees.md to a reader.
const READ: Duration = Duration::from_secs(30);
/// Only one kind of request has the fault. It has 30 s for a document, or four bodies that stall for 10 s; pauses come on top.
const PREPARE: Duration = Duration::from_secs(45);
/// By then a preparation would never end.
const HANG: Duration = Duration::from_secs(3_600);
/// Longest pause that a registry can request.
const PAUSE: Duration = Duration::from_secs(310);
/// Requests of one case: a client that repeats itself would make more.
const REQUESTS: usize = 300;
/// Bytes of one read.
const PIECE: u64 = 128 << 10;

/// A case.
pub(crate) struct Case<'a> {
    pub(crate) published: &'a Published,
    pub(crate) phase: Phase,
    pub(crate) fault: &'a Row,
}

/// The most of all cases, and how they ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    prepare: Duration,
    read: Duration,
    requests: usize,
    /// Cases by their outcomes.
    right: usize,
    unread: usize,
    unprepared: usize,
}

impl Figures {
    pub(crate) fn with(self, other: &Self) -> Self {
        Self {
            prepare: self.prepare.max(other.prepare),
            read: self.read.max(other.read),
            requests: self.requests.max(other.requests),
            right: self.right + other.right,
            unread: self.unread + other.unread,
            unprepared: self.unprepared + other.unprepared,
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prepare, read, requests, right, unread, unprepared } = self;
        write!(f, "{right} right, {unread} with unread files, {unprepared} not prepared; ")?;
        write!(
            f,
            "longest preparation {}, longest read {}, most requests {requests}",
            seconds(*prepare),
            seconds(*read)
        )
    }
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Published { format, seed, .. } = self.published;
        write!(f, "{} / {:?} / {} / SEED={seed}", self.fault.name, self.phase, format.name)
    }
}

/// Cases that failed once, by fault, phase and format: they are part of each run, with the fault at the host of blobs.
pub(crate) const BUGS: [(&str, Phase, &str); 3] = [
    ("first byte wrong once", Phase::Index, "zstd:chunked, presigned"),
    ("no answer", Phase::Referrers, "gzip with an index"),
    ("429, again tomorrow", Phase::Chunk, "zstd:chunked, presigned"),
];

impl Case<'_> {
    /// Whether it failed once.
    pub(crate) fn was_a_bug(&self) -> bool {
        BUGS.contains(&(self.fault.name, self.phase, self.published.format.name))
    }

    /// Runs the case under a clock of its own.
    pub(crate) fn run(&self, random: Random) -> Result<Figures, String> {
        clock::run(async {
            let host = Host::new(self.published).await;
            self.play(&host, random).await
        })
    }

    async fn play(&self, host: &Host<'_>, mut random: Random) -> Result<Figures, String> {
        let at = if self.was_a_bug() { BLOBS } else { [REGISTRY, BLOBS][random.index(2)] };
        let at = (self.published.format.is_presigned && self.phase.is_of_blobs()).then_some(at);
        // The registry is asked for the address of a layer once, unless the address expires.
        host.expires.store(self.phase == Phase::Chunk && at == Some(REGISTRY), Ordering::Relaxed);
        let on = self.published.names.recogniser(self.phase, host.is_reading.clone(), at);
        let attack = Attack { on: Box::new(on), fault: self.fault.fault(&mut random), times: self.fault.times };
        host.transport.set_attack(Some(attack));
        let (outcome, prepare) = host.start().await?;
        let read = outcome.as_ref().map_or(Duration::ZERO, |read| read.longest);
        let left = host.transport.set_attack(None).map_or(0, |attack| attack.times);
        let requests = host.transport.seen().len();
        host.check()?;
        let problem = match &outcome {
            _ if left == self.fault.times => Some("no request met the fault".to_owned()),
            _ if prepare > PREPARE => Some(format!("the preparation took {}", seconds(prepare))),
            _ if read > READ => Some(format!("a read took {}", seconds(read))),
            _ if requests > REQUESTS => Some(format!("{requests} requests, {}", host.most_requested())),
            Err(error) if self.fault.expect == Expect::Right => Some(format!("must be prepared: {error}")),
            Ok(Reading { failed: Some(error), .. }) if self.fault.expect == Expect::Right => {
                Some(format!("must be read: {error}"))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(problem);
        }
        sleep(PAUSE).await;
        match host.start().await?.0 {
            Err(error) => return Err(format!("after the fault: {error}")),
            Ok(Reading { failed: Some(error), .. }) => return Err(format!("after the fault: {error}")),
            Ok(_) => {}
        }
        host.check()?;
        let (right, unread, unprepared) = match outcome {
            Ok(Reading { failed: None, .. }) => (1, 0, 0),
            Ok(Reading { failed: Some(_), .. }) => (0, 1, 0),
            Err(_) => (0, 0, 1),
        };
        Ok(Figures { prepare, read, requests, right, unread, unprepared })
    }
}

/// A host that starts the image.
struct Host<'a> {
    published: &'a Published,
    engine: Engine,
    fetcher: Fetcher,
    registry: Arc<FakeRegistry>,
    transport: Arc<ScriptedTransport>,
    repository: Repository,
    request: ImageRequest,
    notes: Notes,
    is_reading: Arc<AtomicBool>,
    /// Whether presigned addresses expire before files are read.
    expires: AtomicBool,
    _fixture: Fixture,
}

/// The reads of all files.
struct Reading {
    longest: Duration,
    /// The first error.
    failed: Option<String>,
}

impl<'a> Host<'a> {
    async fn new(published: &'a Published) -> Self {
        let fixture = Fixture::new();
        let registry = published.registry().await;
        let transport = Arc::new(ScriptedTransport::new(registry.clone()));
        let name = format!("{REGISTRY}/app:v1");
        let credentials = secrets::credentials(fixture.folder());
        let repository = open_with(&name.parse().unwrap(), transport.clone(), credentials, true).unwrap();
        let profile = Some("default".to_owned());
        let request = ImageRequest { index: IndexChoice::Registry, profile, ..request(&name) };
        let (engine, notes) = (fixture.engine("store"), Notes::default());
        let fetcher = Fetcher::new(Arc::new(engine.store().clone()), Handle::current(), Config::default());
        let (is_reading, expires) = (Arc::default(), AtomicBool::default());
        Self {
            published,
            engine,
            fetcher,
            registry,
            transport,
            repository,
            request,
            notes,
            is_reading,
            expires,
            _fixture: fixture,
        }
    }

    /// Prepares the image and reads all files. Returns the reads, or the error of the preparation; and the time of the preparation.
    async fn start(&self) -> Result<(Result<Reading, String>, Duration), String> {
        self.is_reading.store(false, Ordering::Relaxed);
        let began = Instant::now();
        let preparing = self.engine.images().prepare_through(&self.request, &self.repository, &self.notes);
        let prepared = timeout(HANG, preparing).await.map_err(|_| "the preparation never ends".to_owned())?;
        let took = began.elapsed();
        for note in self.notes.take() {
            secrets::check_message(&note)?;
        }
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                secrets::check_message(&error.to_string())?;
                secrets::check_message(&format!("{error:?}"))?;
                let is_typed = !matches!(error.kind, ErrorKind::Other | ErrorKind::Store | ErrorKind::Conflict);
                let text = format!("{:?}: {error}", error.kind);
                return if is_typed { Ok((Err(text), took)) } else { Err(format!("an error of no kind: {text}")) };
            }
        };
        if load(&self.engine, &prepared).tree.as_ref() != self.published.tree {
            return Err("the tree is another one".to_owned());
        }
        self.is_reading.store(true, Ordering::Relaxed);
        if self.expires.load(Ordering::Relaxed) {
            self.registry.expire_signatures();
        }
        Ok((Ok(self.read_all(&prepared).await?), took))
    }

    /// Reads all files at once, as processes do.
    async fn read_all(&self, prepared: &Prepared) -> Result<Reading, String> {
        let _image = self.serve(prepared);
        let reads = self.published.files.iter().map(|(object, content)| read(&self.fetcher, object, content));
        let reads = join_all(reads).await;
        let mut all = Reading { longest: Duration::ZERO, failed: None };
        for read in reads {
            let read = read?;
            all.longest = all.longest.max(read.longest);
            all.failed = all.failed.or(read.failed);
        }
        Ok(all)
    }

    /// Serves the image, and replays its boot pack.
    fn serve(&self, prepared: &Prepared) -> ImageHandle {
        let record = load(&self.engine, prepared);
        let table = ChunkTable::open(Bytes::from_owner(record.chunks)).unwrap();
        let image = self.fetcher.add_image(table, self.repository.blobs(), "app:v1");
        if let Some(boot) = &record.boot {
            image.replay(&BootIndex::read(boot).unwrap());
        }
        image
    }

    /// The address that was requested most often.
    fn most_requested(&self) -> String {
        let mut counts = HashMap::<String, usize>::new();
        for seen in self.transport.seen() {
            *counts.entry(format!("{}{}", seen.url.authority(), seen.url.path())).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or_else(String::new, |(address, count)| format!("{count} to {address}"))
    }

    /// Nothing wrong is in the store, and no request had a secret that it may not have.
    fn check(&self) -> Result<(), String> {
        let checked = self.engine.store().verify(|_| {}).unwrap();
        if checked.bad_objects() > 0 || !checked.damaged_images.is_empty() {
            return Err(format!("wrong content in the store: {checked:?}"));
        }
        self.transport.seen().iter().try_for_each(secrets::check_request)
    }
}

/// Reads a file from its start to its end, or to an error. The kernel repeats a failed read once.
async fn read(fetcher: &Fetcher, object: &Digest, content: &Bytes) -> Result<Reading, String> {
    let mut reading = Reading { longest: Duration::ZERO, failed: None };
    let mut at = 0;
    while at < content.len() {
        let began = Instant::now();
        let mut outcome = fetcher.read(object, at as u64, PIECE).await;
        if outcome.is_err() {
            outcome = fetcher.read(object, at as u64, PIECE).await;
        }
        reading.longest = reading.longest.max(began.elapsed());
        match outcome {
            Ok(bytes) => {
                let bytes = bytes.into_bytes();
                if bytes.is_empty() || content.get(at..at + bytes.len()) != Some(&bytes[..]) {
                    return Err(format!("wrong bytes of {object} at {at}"));
                }
                at += bytes.len();
            }
            Err(error) => {
                secrets::check_message(&error.to_string())?;
                reading.failed = Some(error.to_string());
                break;
            }
        }
    }
    Ok(reading)
}
