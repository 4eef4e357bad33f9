//! Completion of a lazily mounted image: its layers are streamed as `pull` streams them, one by one, and at the end its record states that
//! all of it was seen.
//!
//! The image's record determines what to complete, not its name: a tag may meanwhile refer to another image. Layers are independent: a
//! streamed layer is kept, and a restarted completion continues with the next one.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_blob::BlobSource;
use tarpon_layer::Allowance;
use tarpon_layer::chunks::{ChunkTable, ObjectEntry};
use tarpon_layer::toc::Claim;
use tarpon_oci::{Digest, ImageConfig, Manifest};
use tarpon_store::{ImageRecord, LoadedImage, Store, StoreError, Verification};

use super::layer::{Layer, Wanted, step, wanted};
use super::obtain::{self, ByToc};
use super::stream::{self, StreamError};
use super::stream_job::StreamJob;
use super::{assemble, kept};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::seen_whole;
use crate::index::compare::{self, Verdict};
use crate::progress::Silent;

/// Tries to record a refuted layer while another process holds the store's lock: together as long as a walk over a large store takes.
const NOTE_TRIES: usize = 3;

/// An image to be completed.
pub struct Completion {
    store: Store,
    record: ImageRecord,
    manifest: Manifest,
    config: ImageConfig,
    table: ChunkTable<Bytes>,
    layers: Vec<Wanted>,
    source: Arc<dyn BlobSource>,
    noting: Mutex<()>,
}

/// The completion of an image, in this process or in another one.
pub trait Completing: Send + Sync {
    /// As [`Completion::layers`].
    fn layers(&self) -> Vec<Digest>;

    /// As [`Completion::by_index`].
    fn by_index(&self) -> Vec<Digest>;

    /// As [`Completion::was_seen`].
    fn was_seen(&self) -> bool;

    /// As [`Completion::note_lie`].
    fn note_lie(&self, layer: Digest) -> BoxFuture<'_, ()>;

    /// As [`Completion::layer`].
    fn layer(&self, at: usize) -> BoxFuture<'_, std::result::Result<(), Incomplete>>;

    /// As [`Completion::install`].
    fn install(&self) -> BoxFuture<'_, std::result::Result<bool, Incomplete>>;
}

impl Completing for Arc<Completion> {
    fn layers(&self) -> Vec<Digest> {
        Completion::layers(self)
    }

    fn by_index(&self) -> Vec<Digest> {
        Completion::by_index(self)
    }

    fn was_seen(&self) -> bool {
        Completion::was_seen(self)
    }

    fn note_lie(&self, layer: Digest) -> BoxFuture<'_, ()> {
        Completion::note_lie(self, layer).boxed()
    }

    fn layer(&self, at: usize) -> BoxFuture<'_, std::result::Result<(), Incomplete>> {
        Completion::layer(self, at).boxed()
    }

    fn install(&self) -> BoxFuture<'_, std::result::Result<bool, Incomplete>> {
        Completion::install(self).boxed()
    }
}

/// Why a layer or the image is not complete.
#[derive(Debug)]
pub enum Incomplete {
    /// The layer is sound, and the image's index describes it incorrectly.
    Lie(String),
    /// The content received is not the layer that the manifest and the config name.
    Refused(String),
    /// The store does not keep it.
    NoRoom,
    /// Anything else.
    Failed(Error),
}

impl Completion {
    /// Opens the image's record.
    ///
    /// # Errors
    /// It is not in the store, or damaged.
    pub fn open(store: Store, manifest: &Digest, source: Arc<dyn BlobSource>) -> Result<Self> {
        let step = "load the image's record";
        let found = store.load_image(manifest).context(ErrorKind::Store, step)?;
        let LoadedImage { record, manifest, config, chunks, .. } =
            found.ok_or_else(|| Error::new(ErrorKind::Store, step, "it is not in the store, or damaged"))?;
        let manifest = Manifest::parse(manifest).context(ErrorKind::Store, step)?;
        let config = ImageConfig::parse(config).context(ErrorKind::Store, step)?;
        manifest.check_config(&config).context(ErrorKind::Store, step)?;
        let table = ChunkTable::open(Bytes::from_owner(chunks)).context(ErrorKind::Store, step)?;
        let layers = wanted(&manifest.layers)?;
        Ok(Self { store, record, manifest, config, table, layers, source, noting: Mutex::default() })
    }

    /// Blobs of its layers, each once.
    pub fn layers(&self) -> Vec<Digest> {
        self.layers.iter().map(|layer| layer.blob.digest).collect()
    }

    /// Layers for which an external index was trusted.
    pub fn by_index(&self) -> Vec<Digest> {
        let by_index = self.record.layers.iter().filter(|layer| layer.verification.is_by_index());
        by_index.map(|layer| layer.digest).collect()
    }

    /// Whether every byte of every layer was seen when the record was written.
    pub fn was_seen(&self) -> bool {
        seen_whole(&self.record)
    }

    /// Records that the layer's description is wrong, so that later readers of the record need not find out again.
    pub async fn note_lie(self: &Arc<Self>, layer: Digest) {
        let noted = self.blocking(move |image| {
            // The record also holds the findings for other layers.
            let _one_at_a_time = image.noting.lock();
            let Some(mut record) = image.store.image(&image.record.manifest)? else { return Ok(()) };
            for known in record.layers.iter_mut().filter(|known| known.digest == layer) {
                known.verification = known.verification.refuted();
            }
            let set = || image.store.set_layers(&image.record.manifest, record.layers.clone());
            let mut outcome = set();
            for _ in 1..NOTE_TRIES {
                if !matches!(outcome, Err(StoreError::Busy { .. })) {
                    break;
                }
                outcome = set();
            }
            Ok(outcome?)
        });
        if let Err(error) = noted.await {
            tracing::warn!(?error, %layer, "cannot note in the image's record that its index is wrong");
        }
    }

    /// Fetches the layer with this number in [`Completion::layers`], unless it is local, and compares it with its description.
    pub async fn layer(self: &Arc<Self>, at: usize) -> std::result::Result<(), Incomplete> {
        if self.blocking(move |image| Ok(image.was_compared(at) && image.is_here(at))).await? {
            return Ok(());
        }
        // While this lives, nothing of the layer is evicted.
        let pin = self.blocking(|image| image.store.pin().map_err(Incomplete::from)).await?;
        let (known, is_here) = self.blocking(move |image| Ok((image.known(at)?, image.is_here(at)))).await?;
        let (layer, is_new) = match known {
            Some(layer) if is_here && layer.was_streamed() => (layer, false),
            known => (self.bring(at, known).await?, true),
        };
        self.blocking(move |image| {
            let _pin = pin;
            let compared = image.contradict(&layer).and_then(|()| image.has_all(at));
            // What was read from the layer itself is true, whatever its description states.
            if let Some(wanted) = image.layers.get(at).filter(|wanted| wanted.claim == Claim::Plain || compared.is_ok())
                && is_new
            {
                kept::save(&image.store, &wanted.claim, &layer);
            }
            compared
        })
        .await
    }

    /// Whether the record states that every byte of the layer was seen.
    fn was_compared(&self, at: usize) -> bool {
        let digest = self.layers.get(at).map(|layer| layer.blob.digest);
        let mut records = self.record.layers.iter().filter(|layer| Some(layer.digest) == digest);
        records.all(|layer| layer.verification == Verification::DiffId)
    }

    /// The kept layer, unless the config contradicts it. If it was streamed before, for this image or another, it is compared with its
    /// description right away.
    fn known(&self, at: usize) -> std::result::Result<Option<Layer>, Incomplete> {
        let known = self.kept(at, &Allowance::default());
        if let Some(seen) = known.as_ref().filter(|known| known.was_streamed()) {
            self.contradict(seen)?;
        }
        Ok(known)
    }

    fn kept(&self, at: usize, allowance: &Allowance) -> Option<Layer> {
        let Wanted { blob, claim, number } = self.layers.get(at)?;
        kept::load(&self.store, *blob, claim, allowance).filter(|kept| kept.is_what_config_names(&self.config, *number))
    }

    /// Streams the layer. `known`: its table of contents, through which every reader reads it.
    async fn bring(self: &Arc<Self>, at: usize, known: Option<Layer>) -> std::result::Result<Layer, Incomplete> {
        let failed = |cause: &str| Incomplete::Failed(Error::new(ErrorKind::Refused, "complete the image", cause));
        let wanted = self.layers.get(at).ok_or_else(|| failed("there is no such layer"))?;
        let allowance = Allowance::default();
        let known = match known {
            Some(known) => Some(known),
            None => match obtain::through_toc(wanted, &*self.source, &allowance, &Silent)
                .await
                .map_err(Incomplete::Failed)?
            {
                ByToc::Indexed(layer) => Some(*layer),
                ByToc::MustStream { .. } => None,
            },
        };
        let diff_id =
            *self.config.diff_ids.get(wanted.number).ok_or_else(|| failed("the config has no diffID for it"))?;
        let job = StreamJob {
            blob: wanted.blob,
            diff_id,
            hides_toc_files: matches!(wanted.claim, Claim::Toc(_)),
            source: self.source.clone(),
            store: self.store.clone(),
            must_keep: true,
            allowance,
        };
        let (streamed, _) = obtain::seen(job, None, |_| ()).await.map_err(|error| match error {
            StreamError::Store(StoreError::Full) => Incomplete::NoRoom,
            StreamError::Bad(cause) => Incomplete::Refused(cause),
            other => Incomplete::Failed(stream::outward(step(wanted.number, &wanted.blob.digest), other)),
        })?;
        // Keep the table of contents, through which every reader reads the layer. Streaming only proves it.
        Ok(match known {
            Some(by_toc) if wanted.claim != Claim::Plain => by_toc.proved_by(&streamed),
            _ => streamed,
        })
    }

    /// Compares the layer, of which every byte was seen, with the index that the image was mounted with.
    fn contradict(&self, layer: &Layer) -> std::result::Result<(), Incomplete> {
        let claimed = kept::load_claim(&self.store, &self.record.manifest, layer.blob);
        if let Some(claimed) = claimed.filter(|_| self.by_index().contains(&layer.blob.digest))
            && let Verdict::Lie(path) = compare::compare(&self.store, &claimed.index, &layer.index)?
        {
            return Err(Incomplete::Lie(format!("the index {} is wrong about {path}", claimed.by)));
        }
        Ok(())
    }

    /// An error if objects of the layer are missing. All of it has just been fetched and nothing evicted: they are not in it.
    fn has_all(&self, at: usize) -> std::result::Result<(), Incomplete> {
        let lie = || Incomplete::Lie("its index names entries that the layer does not have".into());
        self.is_here(at).then_some(()).ok_or_else(lie)
    }

    /// Whether the store has all objects that the image takes from the layer.
    fn is_here(&self, at: usize) -> bool {
        let Some(wanted) = self.layers.get(at) else { return false };
        // An object that is named by its place has another name in the store.
        let is_of_layer = |object: &ObjectEntry| {
            let chunk = self.table.chunk(object.chunks.start).filter(|entry| entry.chunk.place.names_content());
            let layer = chunk.and_then(|chunk| self.table.layer(chunk.layer));
            layer.is_some_and(|layer| layer.blob.digest == wanted.blob.digest)
        };
        self.table.objects().all(|(id, object)| !is_of_layer(&object) || self.store.contains(&id))
    }

    /// Merges the layers once all are local, compares the result with the mount, and records that all was seen. `false`: this record cannot
    /// state that, because its index names or cuts files in another way.
    pub async fn install(self: &Arc<Self>) -> std::result::Result<bool, Incomplete> {
        self.blocking(|image| {
            let mut layers = Vec::with_capacity(image.manifest.layers.len());
            let allowance = Allowance::default();
            for layer in &image.manifest.layers {
                let at = image.layers.iter().position(|wanted| wanted.blob.digest == layer.digest);
                let known = at.and_then(|at| image.kept(at, &allowance)).filter(Layer::was_streamed);
                let lost = || {
                    Error::new(
                        ErrorKind::Store,
                        "complete the image",
                        format!("the index of layer {} was not kept", layer.digest),
                    )
                };
                layers.push(known.ok_or_else(|| Incomplete::Failed(lost()))?);
            }
            let assembled = assemble::Image {
                name: image.record.references.last().cloned().unwrap_or_default(),
                platform: image.record.platform.clone(),
                manifest: image.manifest.clone(),
                config: image.config.clone(),
                layers,
                // The mount counts the bytes received.
                fetched: 0,
                // Nothing is left to fetch.
                boot: None,
            };
            match assemble::assemble(&image.store, assembled) {
                Ok(record) => Ok(seen_whole(&record)),
                Err(error) if error.kind == ErrorKind::Refused => Err(Incomplete::Lie(error.cause().to_string())),
                Err(error) => Err(Incomplete::Failed(error)),
            }
        })
        .await
    }

    /// Runs work on the processor or the disk in a thread that blocks no task.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> std::result::Result<T, Incomplete> + Send + 'static,
    ) -> std::result::Result<T, Incomplete> {
        let image = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&image)).await;
        done.map_err(|error| Incomplete::Failed(Error::new(ErrorKind::Other, "complete the image", error)))?
    }
}

impl From<StoreError> for Incomplete {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::NoRoom,
            other => Self::Failed(Error::new(ErrorKind::Store, "complete the image", other)),
        }
    }
}
