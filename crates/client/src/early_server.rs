//! Notifies the store's server of a boot pack's place as soon as that is known, so that it is fetched together with the rest of the index.

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
    server.settled().await;
    prepared
}

/// Notifies the store's server of a boot pack, before the request to mount its image.
struct EarlyServer {
    client: Client,
    image: String,
    access: Access,
    /// Where the image's indexes are in index repositories.
    places: Vec<String>,
    asked: Mutex<Option<JoinHandle<()>>>,
}

impl EarlyServer {
    fn new(client: Client, request: &ImageRequest) -> Self {
        let places = request.index_sources().map(|place| place.to_string()).collect();
        let (image, access) = (request.text.clone(), request.access.clone());
        Self { client, image, access, places, asked: Mutex::default() }
    }

    /// Returns once the server was notified: until then it may be starting, and a further request should not start another.
    async fn settled(&self) {
        let asked = self.asked.lock().take();
        if let Some(asked) = asked {
            let _done = asked.await;
        }
    }
}

impl PackListener for EarlyServer {
    fn found(&self, pack: Blob, place: Option<usize>) {
        let place = match place.map(|number| self.places.get(number)) {
            None => None,
            Some(Some(place)) => Some(place.clone()),
            // There is no such number.
            Some(None) => return,
        };
        let mut asked = self.asked.lock();
        if asked.is_some() {
            return;
        }
        let (client, image, access) = (self.client.clone(), self.image.clone(), self.access.clone());
        *asked = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = client.prefetch_pack(image, access, pack, place) {
                tracing::debug!(%error, "the boot pack is not prefetched");
            }
        }));
    }
}

impl std::fmt::Debug for EarlyServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlyServer").field("image", &self.image).finish_non_exhaustive()
    }
}
