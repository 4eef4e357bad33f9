//! Notifies the store's server of an image before its registry is contacted, so that the server connects to the registry meanwhile, and of
//! the boot pack's place as soon as that is known, so that the pack is fetched together with the rest of the index.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use parking_lot::Mutex;
use tarpon_images::index::pack::PackListener;
use tarpon_images::{Access, ImageRequest, Images, Prepared, Progress, Result};
use tarpon_oci::Blob;
use tokio::task::JoinHandle;

use crate::client::Client;

/// As [`Images::prepare`], for a mount by the store's server, which starts to fetch the image's boot pack as soon as its place is known.
pub async fn prepare_to_mount(
    images: &Images,
    client: &Client,
    request: &ImageRequest,
    progress: &dyn Progress,
) -> Result<Prepared> {
    let server = EarlyServer::new(client.clone(), request);
    let prepared = images.prepare_with(request, Some(&server), progress).await;
    if prepared.is_err() {
        server.forget();
    }
    server.settled().await;
    prepared
}

/// Notifies the store's server of an image and of its boot pack, before the request to mount it.
struct EarlyServer {
    client: Client,
    image: String,
    access: Access,
    /// Where the image's indexes are in index repositories.
    places: Vec<String>,
    /// Different for each attempt to prepare an image.
    attempt: u64,
    notices: Mutex<Notices>,
}

/// The notices, each of which is sent once.
#[derive(Default)]
struct Notices {
    /// The last one, which waits for the one before it: that may be starting the server, and another request should not start one more.
    last: Option<JoinHandle<()>>,
    is_expected: bool,
    has_pack: bool,
}

impl EarlyServer {
    fn new(client: Client, request: &ImageRequest) -> Self {
        let places = request.index_sources().map(|place| place.to_string()).collect();
        let (image, access) = (request.text.clone(), request.access.clone());
        let attempt = RandomState::new().build_hasher().finish();
        Self { client, image, access, places, attempt, notices: Mutex::default() }
    }

    /// Has the server forget an image that could not be prepared, if it was notified of it.
    fn forget(&self) {
        let mut notices = self.notices.lock();
        if notices.last.is_some() {
            self.notify(&mut notices, Client::not_ready);
        }
    }

    /// Returns once the server was notified: until then it may be starting, and a further request should not start another.
    async fn settled(&self) {
        let last = self.notices.lock().last.take();
        if let Some(last) = last {
            let _done = last.await;
        }
    }

    /// Sends a notice after the last one. Its failure costs time only.
    fn notify(
        &self,
        notices: &mut Notices,
        notice: impl FnOnce(&Client, String, Access) -> Result<()> + Send + 'static,
    ) {
        let (client, image, access) = (self.client.clone(), self.image.clone(), self.access.clone());
        let before = notices.last.take();
        notices.last = Some(tokio::spawn(async move {
            if let Some(before) = before {
                let _done = before.await;
            }
            let notified = tokio::task::spawn_blocking(move || notice(&client, image, access)).await;
            if let Ok(Err(error)) = notified {
                tracing::debug!(%error, "the server does nothing ahead of the mount");
            }
        }));
    }
}

impl PackListener for EarlyServer {
    /// Only a server that runs: an image that does not exist should start none.
    fn requested(&self) {
        let attempt = self.attempt;
        let notice = move |client: &Client, image, access| client.get_ready(image, access, attempt, false);
        self.notify(&mut self.notices.lock(), notice);
    }

    fn expected(&self) {
        let attempt = self.attempt;
        let mut notices = self.notices.lock();
        if std::mem::replace(&mut notices.is_expected, true) {
            return;
        }
        let notice = move |client: &Client, image, access| client.get_ready(image, access, attempt, true);
        self.notify(&mut notices, notice);
    }

    fn found(&self, pack: Blob, place: Option<usize>) {
        let place = match place.map(|number| self.places.get(number)) {
            None => None,
            Some(Some(place)) => Some(place.clone()),
            // There is no such number.
            Some(None) => return,
        };
        let mut notices = self.notices.lock();
        if std::mem::replace(&mut notices.has_pack, true) {
            return;
        }
        self.notify(&mut notices, move |client, image, access| client.prefetch_pack(image, access, pack, place));
    }
}

impl std::fmt::Debug for EarlyServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlyServer").field("image", &self.image).finish_non_exhaustive()
    }
}
