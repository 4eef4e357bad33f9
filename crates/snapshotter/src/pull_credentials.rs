//! [`PullCredentials`]: the credentials that the kubelet passes to pulls, in memory only.
//!
//! ```text
//! PullImage begins ─► of a pull in progress, by the name as it is pulled ─► Prepare of this name
//!                                   │ the pull succeeds: containerd's registry has accepted them
//!                                   ▼
//!                     of an image: its repository and the digest of its manifest ─► mounts of this image
//! ```
//!
//! A failed pull leaves nothing, and credentials of one image are never found for another one, also not for one of the same repository.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_engine::Credentials;
use tarpon_oci::Reference;
use tokio::time::Instant;

/// Images whose credentials are kept. A kubelet runs 110 pods by default, and removes images that none uses when its disk fills.
const IMAGES: usize = 1024;

/// How long credentials are kept after the last pull that brought them. Images may be pulled days before their first start, which needs
/// the credentials; the kubelet does not pull again for it.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Manifests of one pull. It has one; if its tag moves while another pull of the tag is in progress, each sees those of both.
const MANIFESTS: usize = 4;

/// Credentials of pulls in progress, and of pulled images.
#[derive(Default)]
pub(crate) struct PullCredentials(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pulls: Vec<Pull>,
    images: HashMap<Reference, ImageCredentials>,
    /// Counts pulls, and uses of images.
    clock: u64,
}

/// A pull in progress, with credentials.
struct Pull {
    number: u64,
    name: Reference,
    credentials: Credentials,
    /// What containerd has resolved the name to, pinned.
    images: Vec<Reference>,
}

/// Credentials with which an image was pulled.
struct ImageCredentials {
    credentials: Credentials,
    pulled: Instant,
    used: u64,
}

/// The name by which containerd pulls: with a digest the tag does not count.
pub(crate) fn name_of(image: Reference) -> Reference {
    match image.digest().copied() {
        Some(digest) => image.pinned(digest),
        None => image,
    }
}

impl PullCredentials {
    /// A pull of `name` begins. It ends when the returned value is dropped.
    pub(crate) fn begin(&self, name: Reference, credentials: Credentials) -> PullInProgress {
        let mut state = self.0.lock();
        let number = state.tick();
        state.pulls.push(Pull { number, name: name.clone(), credentials, images: Vec::new() });
        PullInProgress { state: self.0.clone(), number, name }
    }

    /// The credentials of pulls of `name` in progress, latest first. Containerd has resolved it to `image`.
    pub(crate) fn of_pulls(&self, name: &Reference, image: &Reference) -> Vec<Credentials> {
        let mut all = Vec::new();
        for pull in self.0.lock().pulls.iter_mut().rev().filter(|pull| pull.name == *name) {
            if !pull.images.contains(image) && pull.images.len() < MANIFESTS {
                pull.images.push(image.clone());
            }
            if !all.contains(&pull.credentials) {
                all.push(pull.credentials.clone());
            }
        }
        all
    }

    /// The credentials with which `image`, which is pinned, was pulled last, or is being pulled.
    pub(crate) fn of_image(&self, image: &Reference) -> Option<Credentials> {
        let mut state = self.0.lock();
        let now = state.tick();
        state.forget_old();
        if let Some(kept) = state.images.get_mut(image) {
            kept.used = now;
            return Some(kept.credentials.clone());
        }
        let pulled = state.pulls.iter().rev().find(|pull| pull.images.contains(image));
        pulled.map(|pull| pull.credentials.clone())
    }

    /// Forgets the credentials of an image that is removed.
    pub(crate) fn forget(&self, image: &Reference) {
        self.0.lock().images.remove(image);
    }

    /// Images whose credentials are kept.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock().images.len()
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn forget_old(&mut self) {
        self.images.retain(|_, kept| kept.pulled.elapsed() < KEPT_FOR);
    }

    fn keep(&mut self, image: Reference, credentials: Credentials) {
        self.forget_old();
        if self.images.len() >= IMAGES && !self.images.contains_key(&image) {
            let oldest = self.images.iter().min_by_key(|(_, kept)| kept.used).map(|(image, _)| image.clone());
            oldest.and_then(|oldest| self.images.remove(&oldest));
        }
        let used = self.tick();
        self.images.insert(image, ImageCredentials { credentials, pulled: Instant::now(), used });
    }
}

impl std::fmt::Debug for PullCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.0.lock();
        write!(f, "PullCredentials({} pulls, {} images)", state.pulls.len(), state.images.len())
    }
}

/// A pull in progress.
pub(crate) struct PullInProgress {
    state: Arc<Mutex<State>>,
    number: u64,
    name: Reference,
}

impl PullInProgress {
    /// The name by which the image is pulled.
    pub(crate) fn name(&self) -> &Reference {
        &self.name
    }

    /// What containerd has resolved the name to, if it has asked for layers.
    pub(crate) fn images(&self) -> Vec<Reference> {
        let state = self.state.lock();
        state.pulls.iter().find(|pull| pull.number == self.number).map(|pull| pull.images.clone()).unwrap_or_default()
    }

    /// The pull has succeeded, and brought these images. From now on its credentials are theirs.
    pub(crate) fn succeeded(self, images: impl IntoIterator<Item = Reference>) {
        let mut state = self.state.lock();
        let Some(place) = state.pulls.iter().position(|pull| pull.number == self.number) else { return };
        let pull = state.pulls.remove(place);
        images.into_iter().for_each(|image| state.keep(image, pull.credentials.clone()));
    }
}

impl Drop for PullInProgress {
    fn drop(&mut self) {
        self.state.lock().pulls.retain(|pull| pull.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Digest;

    use super::*;

    fn credentials(user: &str) -> Credentials {
        Credentials::from_pair(user, "0pen-sesame")
    }

    fn image(name: &str, manifest: &str) -> (Reference, Reference) {
        let name: Reference = format!("registry.test/{name}").parse().unwrap();
        (name_of(name.clone()), name.pinned(Digest::of(manifest.as_bytes())))
    }

    #[test]
    fn credentials_are_those_of_the_image_that_was_pulled_with_them_and_of_no_other() {
        let kept = PullCredentials::default();
        let (one, one_image) = image("team/one:v1", "1");
        let (other, other_image) = image("team/other:v1", "2");
        let (tag, tag_image) = image("team/one:v2", "3");
        let pull = kept.begin(one.clone(), credentials("alice"));
        assert_eq!(kept.of_image(&one_image), None, "it is not resolved yet");
        assert_eq!(kept.of_pulls(&other, &other_image), []);
        assert_eq!(kept.of_pulls(&tag, &tag_image), [], "another tag of the repository");
        assert_eq!(kept.of_pulls(&one, &one_image), [credentials("alice")]);
        assert_eq!(kept.of_image(&one_image), Some(credentials("alice")), "as long as the pull lasts");
        let images = pull.images();
        assert_eq!(images, std::slice::from_ref(&one_image));
        pull.succeeded(images);
        assert_eq!(kept.of_pulls(&one, &one_image), [], "the next pull has its own");
        assert_eq!(kept.of_image(&one_image), Some(credentials("alice")));
        assert_eq!(kept.of_image(&other_image), None);
        assert_eq!(kept.of_image(&tag_image), None);
        let elsewhere = image("team/other:v1", "1").1;
        assert_eq!(kept.of_image(&elsewhere), None, "the same manifest in another repository");
        kept.begin(one, credentials("bob")).succeeded([one_image.clone()]);
        assert_eq!(kept.of_image(&one_image), Some(credentials("bob")), "a later pull renews them");
        kept.forget(&one_image);
        assert_eq!(kept.of_image(&one_image), None);
    }

    #[test]
    fn a_failed_pull_leaves_the_credentials_of_an_earlier_one() {
        let kept = PullCredentials::default();
        let (name, image) = image("team/one:v1", "1");
        let failed = kept.begin(name.clone(), credentials("mallory"));
        kept.of_pulls(&name, &image);
        drop(failed);
        assert_eq!(kept.of_image(&image), None);
        kept.begin(name.clone(), credentials("alice")).succeeded([image.clone()]);
        let failed = kept.begin(name.clone(), credentials("mallory"));
        assert_eq!(kept.of_pulls(&name, &image), [credentials("mallory")]);
        assert_eq!(kept.of_image(&image), Some(credentials("alice")), "those that a registry has accepted");
        drop(failed);
        assert_eq!(kept.of_image(&image), Some(credentials("alice")));
    }

    #[test]
    fn of_concurrent_pulls_of_one_name_all_credentials_are_tried() {
        let kept = PullCredentials::default();
        let (name, image) = image("team/one:v1", "1");
        let _pulls = ["alice", "bob", "alice"].map(|user| kept.begin(name.clone(), credentials(user)));
        assert_eq!(kept.of_pulls(&name, &image), [credentials("alice"), credentials("bob")]);
    }

    #[test]
    fn a_digest_counts_more_than_a_tag() {
        let digest = Digest::of(b"1");
        let both = format!("registry.test/one:v1@{digest}").parse().unwrap();
        assert_eq!(name_of(both).to_string(), format!("registry.test/one@{digest}"));
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_are_bounded_in_number_and_in_age() {
        let kept = PullCredentials::default();
        let names: Vec<_> = (0..=IMAGES).map(|number| image(&format!("image-{number}"), "1")).collect();
        for (name, image) in &names[..IMAGES] {
            kept.begin(name.clone(), credentials("alice")).succeeded([image.clone()]);
        }
        assert_eq!(kept.of_image(&names[0].1), Some(credentials("alice")), "used again");
        tokio::time::advance(KEPT_FOR / 2).await;
        let (name, image) = &names[IMAGES];
        kept.begin(name.clone(), credentials("bob")).succeeded([image.clone()]);
        assert_eq!(kept.count(), IMAGES);
        assert_eq!(kept.of_image(&names[1].1), None, "the one that was not used for the longest time");
        assert!(kept.of_image(&names[0].1).is_some() && kept.of_image(&names[2].1).is_some());
        tokio::time::advance(KEPT_FOR / 2).await;
        assert_eq!(kept.of_image(&names[0].1), None);
        assert_eq!(kept.of_image(image), Some(credentials("bob")));
        assert_eq!(kept.count(), 1, "old ones are forgotten");
    }

    #[test]
    fn neither_users_nor_passwords_are_printed() {
        let kept = PullCredentials::default();
        let (name, image) = image("team/one:v1", "1");
        let _pull = kept.begin(name.clone(), credentials("alice"));
        kept.begin(name, credentials("bob")).succeeded([image]);
        assert_eq!(format!("{kept:?}"), "PullCredentials(1 pulls, 1 images)");
    }
}
