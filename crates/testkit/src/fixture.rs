//! A temporary folder with what most tests need in it: an OCI layout, or a scripted registry on loopback.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tarpon_registry::serve::Contents;
use tempfile::TempDir;

use crate::layers::Image;
use crate::registry::{Auth, FakeRegistry};
use crate::server::TestServer;

/// A folder, and perhaps a registry. Dropping it stops the registry and removes the folder.
pub struct Fixture {
    folder: TempDir,
    host: String,
    registry: Option<Arc<TestServer>>,
}

impl Default for Fixture {
    fn default() -> Self {
        Self::new()
    }
}

impl Fixture {
    /// An empty folder.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), host: String::new(), registry: None }
    }

    /// A layout that contains `image` as `v1`: see [`layout_name`](Self::layout_name).
    pub fn with_layout(image: &Image) -> Self {
        let fixture = Self::new();
        image.write_layout("v1", &fixture.layout());
        fixture
    }

    /// A registry that serves `image` to everyone as `app:v1`.
    pub async fn with_image(image: &Image) -> Self {
        let mut contents = Contents::new();
        image.add_to(&mut contents, "app", "v1");
        Self::with_registry(contents, Auth::Anonymous).await
    }

    /// A registry with these contents.
    pub async fn with_registry(contents: Contents, auth: Auth) -> Self {
        let model = Arc::new(FakeRegistry::new(contents, auth, None));
        let server = TestServer::start(model).await.expect("a registry");
        Self { host: server.host(), registry: Some(Arc::new(server)), ..Self::new() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// A directory in the folder, created if it is missing. The path has no symbolic links.
    pub fn directory(&self, name: &str) -> PathBuf {
        let directory = self.path(name);
        std::fs::create_dir_all(&directory).and_then(|()| directory.canonicalize()).expect("a directory")
    }

    /// Path of the layout.
    pub fn layout(&self) -> PathBuf {
        self.path("layout")
    }

    /// Name of the image in the layout.
    pub fn layout_name(&self) -> String {
        format!("oci:{}:v1", self.layout().display())
    }

    /// The registry.
    pub fn registry(&self) -> &Arc<TestServer> {
        self.registry.as_ref().expect("a registry that was not stopped")
    }

    /// Full name of `repository:tag` in the registry, also after the registry was stopped.
    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.host)
    }

    /// From now on nothing listens at the registry's address.
    pub fn stop_registry(&mut self) {
        self.registry = None;
    }
}
