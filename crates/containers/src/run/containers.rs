//! [`Containers`]: the containers of a store.

use tarpon_images::Images;
use tarpon_store::Store;

use tarpon_client::Client;

/// The containers of a store. Other files of this folder implement the operations on them.
#[derive(Debug, Clone)]
pub struct Containers {
    images: Images,
    client: Client,
}

impl Containers {
    /// The containers of the store of `images`, whose server mounts their root file systems.
    pub fn new(images: Images, client: Client) -> Self {
        Self { images, client }
    }

    /// The images of the store.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// The store's server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.images.store()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The containers of an empty store in `folder`, which has no server.
    pub(in crate::run) fn containers(folder: &std::path::Path) -> Containers {
        let images = Images::open(&folder.join("store")).unwrap();
        let client = Client::new(images.store().clone(), Vec::new());
        Containers::new(images, client)
    }
}
