//! A store whose containers are removed at the end of a test, and the registry of the images.

use crate::real;
use crate::tarpon::Tarpon;

/// Dropping it removes the containers, running or not, and the store.
pub struct ContainerFixture {
    /// The store.
    pub tarpon: Tarpon,
    /// Registry of the images.
    pub registry: String,
}

impl ContainerFixture {
    /// `None`, with a line that gives the reason, if containers cannot run here.
    pub fn new() -> Option<Self> {
        if let Some(reason) = real::missing_for_containers() {
            println!("skipped: {reason}");
            return None;
        }
        Some(Self { tarpon: Tarpon::new().expect("a folder"), registry: real::registry()? })
    }

    /// Full name of an image in the registry.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.registry)
    }
}

impl Drop for ContainerFixture {
    fn drop(&mut self) {
        self.tarpon.remove_containers();
    }
}
