//! Many at once: preparing one image, and root file systems of it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cold;
mod rootfs;
#[path = "../support/mod.rs"]
mod support;

use tarpon_registry::serve::Contents;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Image, Item, Layer};
use tarpon_testkit::registry::Auth;

/// Number of concurrent callers.
const MANY: usize = 32;

/// A registry with two images of two layers: one is streamed, one is read lazily.
async fn two_images() -> Fixture {
    let mut contents = Contents::new();
    for name in ["app", "other"] {
        let streamed = Layer::gzip(&[Item::file("etc/streamed", format!("{name} streamed\n"))]);
        let lazy = Layer::estargz(&[Item::file("etc/lazy", format!("{name} lazy\n"))]);
        let image = Image::of([streamed, lazy]);
        for tag in ["v1", "v2"] {
            image.add_to(&mut contents, name, tag);
        }
    }
    Fixture::with_registry(contents, Auth::Anonymous).await
}
