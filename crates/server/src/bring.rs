//! Brings what the start of an image needs into the store, before any mount of it: by [`StartBringer`] in any process, and by
//! [`serve`] in the server for a client, where it gives way to the readers of all mounts and shares objects with them.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tarpon_blob::{BlobSource, Pace};
use tarpon_client::protocol::{BroughtStart, Response, StartKind, StartRequest};
use tarpon_client::{traces, wire};
use tarpon_fetch::{BootIndex, Brought, Config, Fetcher, Hint, ImageHandle, PackOrigin, StartContent};
use tarpon_images::index::places;
use tarpon_images::sources::{OpenedImage, Sources};
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::Digest;
use tarpon_store::{ImageRecord, LoadedImage, Store};
use tarpon_trace::Trace;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::elsewhere::PackElsewhere;
use super::hints;
use super::images::{boot_index, boot_source, pack_origin};
use super::mount_table::{BRINGING_CLIENTS, MountTable};
use super::start::Profile;
use crate::{Error, ErrorKind, Result, ResultExt};

/// How often the progress is sent to a client, which shows whether the client is still there.
const INTERVAL: Duration = Duration::from_secs(1);

const STEP: &str = "fetch what a start needs";

/// A store, and how its images are read.
#[derive(Clone)]
pub struct StartBringer {
    store: Store,
    fetcher: Fetcher,
    sources: Arc<dyn Sources>,
}

/// The sources of an image.
struct Opened {
    repository: Arc<dyn OpenedImage>,
    /// The index repository that has its boot pack.
    pack_repository: Option<Arc<dyn OpenedImage>>,
    source: Arc<dyn BlobSource>,
}

/// What the start of an image needs, and the image.
struct Start {
    /// How it is known.
    kind: StartKind,
    /// In the order in which it is fetched.
    contents: Vec<StartContent>,
    handle: ImageHandle,
    opened: Opened,
}

impl StartBringer {
    /// Fetches by itself into the store, or into the part of it that belongs to a tenant.
    pub fn new(store: Store, sources: Arc<dyn Sources>) -> Self {
        let config = Config { decoder: sources.decoder(), ..Config::default() };
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), config);
        Self { store, fetcher, sources }
    }

    /// Fetches what the start of a prepared image needs and the store lacks. `progress` gets the bytes requested, of those that were
    /// missing. Dropping the future stops it.
    ///
    /// # Errors
    /// The image is not in the store, or the options to access it are invalid. What its source does not provide is no error but missing.
    pub async fn bring(
        &self,
        request: &StartRequest,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<BroughtStart> {
        let (bringer, asked) = (self.clone(), request.clone());
        let Some(start) = in_thread(move || bringer.find(&asked)).await? else { return Ok(BroughtStart::UNKNOWN) };
        let Start { kind, contents, handle, opened: Opened { repository, pack_repository, .. } } = start;
        let (mut all, pace) = (Brought::default(), Pace::new(request.rate));
        for content in contents {
            let before = all.missing_before;
            let brought =
                handle.bring(content, &pace, &|some, missing| progress(before + some, before + missing)).await;
            all = all.and(brought);
        }
        let Brought { wanted, missing_before, missing, problem, refused } = all;
        let own = repository.stats();
        let stats = pack_repository.map_or(own, |repository| own + repository.stats());
        Ok(BroughtStart {
            kind,
            wanted,
            missing_before,
            missing,
            problem,
            refused,
            requests: stats.requests,
            bytes: stats.bytes,
        })
    }

    /// What the start needs, and where it is. `None`: nothing is known of it. Blocks on the disk: it reads all traces of the store.
    fn find(&self, request: &StartRequest) -> Result<Option<Start>> {
        let found = self.store.load_image(&request.manifest).context(ErrorKind::Store, STEP)?;
        let LoadedImage { record, chunks, boot, .. } =
            found.ok_or_else(|| Error::new(ErrorKind::Store, STEP, "the image is not in the store any more"))?;
        let pack = boot.as_deref().and_then(|boot| boot_index(&request.image, boot));
        let opened = self.open(request, &record, pack.as_ref())?;
        let table = ChunkTable::open(Bytes::from_owner(chunks)).context(ErrorKind::Store, STEP)?;
        let handle = self.fetcher.add_image(table, opened.source.clone(), request.image.as_str());
        let hints = || self.hints(request, &record).into_iter().find(|(_, hints)| handle.has_hinted(hints));
        let (kind, contents) = match pack {
            Some(pack) => {
                let origin = pack_origin(&pack);
                // A recorded pack is all that is needed. A predicted one may lack what earlier starts read, and is more precise than landmarks.
                let read = if origin == PackOrigin::Predicted { hints() } else { None };
                let read = read.filter(|(kind, _)| *kind == StartKind::LearnedTrace);
                let read = read.map(|(_, hints)| StartContent::Hints(hints));
                (StartKind::BootPack, [StartContent::Pack(pack, origin)].into_iter().chain(read).collect())
            }
            None => match hints() {
                Some((kind, hints)) => (kind, vec![StartContent::Hints(hints)]),
                None => return Ok(None),
            },
        };
        Ok(Some(Start { kind, contents, handle, opened }))
    }

    /// What is known of the start without a pack, from the best source of knowledge on.
    fn hints(&self, request: &StartRequest, record: &ImageRecord) -> Vec<(StartKind, Vec<Hint>)> {
        let learned = self.learned(request, record).iter().flat_map(hints::of_trace).collect::<Vec<_>>();
        let landmarks = if request.landmarks { hints::of_landmarks(&record.layers) } else { Vec::new() };
        let known = [(StartKind::LearnedTrace, learned), (StartKind::Landmarks, landmarks)];
        known.into_iter().filter(|(_, hints)| !hints.is_empty()).collect()
    }

    /// The traces that starts of the image's repository left, by any command.
    fn learned(&self, request: &StartRequest, record: &ImageRecord) -> Vec<Trace> {
        let stored = self.store.traces().unwrap_or_default();
        let is_of_image = |key: &Digest, trace: &Trace| {
            let profile = Profile::of(&request.image, &record.platform, &trace.header.command);
            profile.is_some_and(|profile| profile.key == *key)
        };
        let read = |key: Digest| traces::learned(&self.store, &key).filter(|trace| is_of_image(&key, trace));
        stored.into_iter().filter_map(|(_, stored)| read(stored.key)).collect()
    }

    fn open(&self, request: &StartRequest, record: &ImageRecord, pack: Option<&BootIndex>) -> Result<Opened> {
        let repository = self.sources.open_later(&request.image, &request.access)?;
        let rest = repository.blobs();
        // A blob that is a layer too is read from the image's repository, as by a mount.
        let is_layer = |blob: &Digest| record.layers.iter().any(|layer| layer.digest == *blob);
        let elsewhere = pack.filter(|index| !is_layer(&index.blob.digest)).and_then(|index| {
            boot_source(record, &request.image, &request.index_places).map(|place| (place, index.blob))
        });
        let Some((place, blob)) = elsewhere else {
            return Ok(Opened { repository, pack_repository: None, source: rest });
        };
        let image = request.image.parse().context(ErrorKind::Other, "read the image's name")?;
        let access = places::access_to(place, &image, &request.access);
        let pack_repository = self.sources.open_later(place, &access)?;
        let source = Arc::new(PackElsewhere { blob, pack: pack_repository.blobs(), rest });
        Ok(Opened { repository, pack_repository: Some(pack_repository), source })
    }
}

/// Does what a client requests, and reports it on `stream` until the client is gone.
pub(super) async fn serve(stream: UnixStream, mounts: Arc<MountTable>, request: StartRequest) {
    let stream = Arc::new(stream);
    let Ok(_place) = mounts.bringing.clients.try_acquire() else {
        let cause = format!("{BRINGING_CLIENTS} clients have the server do this already");
        send(&stream, Response::Failed(Error::new(ErrorKind::Unavailable, STEP, cause).hint("try again later"))).await;
        return;
    };
    let (reported, seen) = watch::channel((0, 0));
    let work = async {
        let _turn = mounts.bringing.turns.acquire().await.context(ErrorKind::Other, STEP)?;
        let (table, asked) = (mounts.clone(), request.clone());
        let domain = in_thread(move || table.domains.of(&asked.image, &asked.access)).await?;
        let images = &domain.images;
        let bringer = StartBringer {
            store: domain.store.clone(),
            fetcher: images.fetcher().clone(),
            sources: images.sources().clone(),
        };
        let progress = |requested, missing| {
            reported.send_replace((requested, missing));
        };
        bringer.bring(&request, &progress).await
    };
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                send(&stream, done.map_or_else(Response::Failed, Response::Brought)).await;
                return;
            }
            () = tokio::time::sleep(INTERVAL) => {
                let (requested, missing) = *seen.borrow();
                if !send(&stream, Response::Bringing { requested, missing }).await {
                    return;
                }
            }
        }
    }
}

/// Runs work that blocks on the disk.
async fn in_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context(ErrorKind::Other, STEP)?
}

/// Sends a response. `false`: the client is gone.
async fn send(stream: &Arc<UnixStream>, response: Response) -> bool {
    let stream = stream.clone();
    let sent = tokio::task::spawn_blocking(move || wire::send(&stream, &response)).await;
    matches!(sent, Ok(Ok(())))
}

#[cfg(test)]
mod tests;
