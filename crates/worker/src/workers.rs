//! [`Workers`]: opens images in worker processes, and starts another process when one ends.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_blob::BlobSource;
use tarpon_images::prepare::complete::Completing;
use tarpon_images::sources::{OpenedImage, Sources};
use tarpon_images::{Access, Result, access};
use tarpon_layer::decode::Decoder;
use tarpon_oci::Digest;
use tarpon_store::Store;

use crate::completion::WorkerCompletion;
use crate::decoder::WorkerDecoder;
use crate::image::WorkerImage;
use crate::message::ImageName;
use crate::policy::Policy;
use crate::process::Process;
use crate::slot::Slot;
use crate::supervise::{self, Credentials};

/// The workers of a server, one for each policy. Images are opened in them, and what they fetch is decoded in them.
#[derive(Debug)]
pub struct Workers {
    command: Arc<[OsString]>,
    by_policy: Mutex<HashMap<Policy, Weak<Slot>>>,
    /// Decodes the bytes of all images.
    plain: Arc<Slot>,
    images: AtomicU64,
}

impl Workers {
    /// Starts a worker and ends it, to see how this kernel confines it: in one line, and whether it limits paths (Landlock).
    ///
    /// # Errors
    /// The worker cannot be started or confined.
    pub async fn trial(command: &[OsString]) -> io::Result<(String, bool)> {
        supervise::trial(&Process::start(command, &Policy::default().setup(), 0)?).await
    }

    /// Workers that `command` starts. It must run [`crate::serve`].
    pub fn new(command: Vec<OsString>) -> Self {
        let command: Arc<[OsString]> = command.into();
        let plain = Arc::new(Slot::new(command.clone(), Policy::default()));
        let by_policy = HashMap::from([(Policy::default(), Arc::downgrade(&plain))]);
        Self { command, by_policy: Mutex::new(by_policy), plain, images: AtomicU64::new(0) }
    }

    fn slot(&self, policy: Policy) -> Arc<Slot> {
        let mut by_policy = self.by_policy.lock();
        if let Some(known) = by_policy.get(&policy).and_then(Weak::upgrade) {
            return known;
        }
        by_policy.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::new(Slot::new(self.command.clone(), policy.clone()));
        by_policy.insert(policy, Arc::downgrade(&slot));
        slot
    }
}

impl Sources for Workers {
    fn open_later(&self, image: &str, access: &Access) -> Result<Arc<dyn OpenedImage>> {
        let settled = access::settle_later(image, access)?;
        let slot = self.slot(Policy::of(&settled, access));
        let number = self.images.fetch_add(1, Ordering::Relaxed);
        slot.add(number, Credentials::of(&settled));
        let name = ImageName::of(number, image, &settled, access);
        Ok(Arc::new(WorkerImage::new(slot, name, &settled.source, settled.credentials)))
    }

    fn decoder(&self) -> Arc<dyn Decoder> {
        Arc::new(WorkerDecoder::new(self.plain.clone()))
    }

    fn complete(
        &self,
        store: Store,
        manifest: Digest,
        source: Arc<dyn BlobSource>,
    ) -> BoxFuture<'static, Result<Box<dyn Completing>>> {
        let opened = WorkerCompletion::open(self.command.clone(), store, manifest, source);
        async move { Ok(Box::new(opened.await?) as Box<dyn Completing>) }.boxed()
    }
}
