//! Connects to the registry of an image while the client still fetches its manifest: the connection and the token of this process would
//! otherwise cost the boot pack round trips of its own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_images::Access;
use tarpon_images::sources::OpenedImage;
use tokio::sync::oneshot;

/// Maximum number of images that are expected at a time: as many as a client mounts at once. Others connect when they are mounted.
const READY_IMAGES: usize = 16;
/// An image is not expected for longer. Idle connections are closed after about this time anyway.
const KEPT: Duration = Duration::from_secs(60);

/// Images that were opened before they are mounted.
#[derive(Default)]
pub(super) struct ReadyImages(Mutex<Vec<Ready>>);

/// An expected image.
struct Ready {
    image: String,
    access: Access,
    /// The client's attempt to prepare it.
    attempt: u64,
    repository: Arc<dyn OpenedImage>,
    /// Closed when the image is taken.
    _taken: oneshot::Sender<()>,
}

impl Ready {
    fn is(&self, image: &str, access: &Access) -> bool {
        self.image == image && self.access == *access
    }
}

impl ReadyImages {
    /// Returns a future that connects to the registry of the image, and holds `user` until the image is taken or was expected for too long.
    /// `None` if it is expected already, or enough others are. Another attempt replaces what was opened before: the configuration of
    /// registries may have changed.
    pub(super) fn add<T>(
        self: Arc<Self>,
        image: String,
        access: Access,
        attempt: u64,
        repository: Arc<dyn OpenedImage>,
        user: T,
    ) -> Option<impl Future<Output = ()> + use<T>> {
        let mut ready = self.0.lock();
        let is_it = |known: &Ready| known.is(&image, &access);
        if ready.iter().any(|known| is_it(known) && known.attempt == attempt) {
            return None;
        }
        ready.retain(|known| !is_it(known));
        if ready.len() >= READY_IMAGES {
            return None;
        }
        let (sender, taken) = oneshot::channel();
        let connect = repository.get_ready();
        ready.push(Ready { image: image.clone(), access: access.clone(), attempt, repository, _taken: sender });
        drop(ready);
        Some(async move {
            let expect = async {
                let is_over = tokio::time::timeout(KEPT, taken).await.is_err();
                drop(user);
                // One that was taken may be expected again by now.
                drop(is_over.then(|| self.take(&image, &access)));
            };
            futures::join!(connect, expect);
        })
    }

    /// The opened image, which goes on being expected.
    pub(super) fn get(&self, image: &str, access: &Access) -> Option<Arc<dyn OpenedImage>> {
        let ready = self.0.lock();
        ready.iter().find(|known| known.is(image, access)).map(|known| known.repository.clone())
    }

    /// The opened image, if it was expected.
    pub(super) fn take(&self, image: &str, access: &Access) -> Option<Arc<dyn OpenedImage>> {
        let mut ready = self.0.lock();
        let place = ready.iter().position(|known| known.is(image, access))?;
        Some(ready.swap_remove(place).repository)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::endpoints::tests::opened;

    fn add(ready: &Arc<ReadyImages>, image: &str) -> Option<impl Future<Output = ()> + use<>> {
        ready.clone().add(image.to_owned(), Access::default(), 1, opened(Vec::new()), ())
    }

    #[tokio::test]
    async fn another_attempt_replaces_what_was_opened_for_the_last_one() {
        let ready: Arc<ReadyImages> = Arc::default();
        let (first, second) = (opened(Vec::new()), opened(Vec::new()));
        let add = |attempt, image: Arc<_>| ready.clone().add("app".to_owned(), Access::default(), attempt, image, ());
        let expect = add(1, first.clone()).unwrap();
        assert!(add(1, second.clone()).is_none());
        let _expect_again = add(2, second.clone()).unwrap();
        assert!(expect.now_or_never().is_some(), "the first is not expected any more");
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_expected_image_is_taken_once_and_then_its_user_is_released() {
        let ready: Arc<ReadyImages> = Arc::default();
        let (user, mut has_user) = oneshot::channel::<()>();
        let expect = ready.clone().add("app".to_owned(), Access::default(), 1, opened(Vec::new()), user).unwrap();
        tokio::pin!(expect);
        assert!(
            expect.as_mut().now_or_never().is_none() && has_user.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        );
        assert!(ready.take("other", &Access::default()).is_none());
        assert!(ready.take("app", &Access { tls_verify: Some(false), ..Access::default() }).is_none());
        assert!(ready.take("app", &Access::default()).is_some() && ready.take("app", &Access::default()).is_none());
        let _again = add(&ready, "app").unwrap();
        assert!(expect.now_or_never().is_some() && has_user.try_recv() == Err(oneshot::error::TryRecvError::Closed));
        assert!(ready.take("app", &Access::default()).is_some(), "the end of the first left the second alone");
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_that_is_not_mounted_is_forgotten_after_a_while() {
        let ready: Arc<ReadyImages> = Arc::default();
        add(&ready, "app").unwrap().await;
        assert!(ready.take("app", &Access::default()).is_none());
    }

    #[tokio::test]
    async fn a_bounded_number_of_images_is_expected_each_once() {
        let ready: Arc<ReadyImages> = Arc::default();
        let all: Vec<_> = (0..READY_IMAGES).map(|number| add(&ready, &number.to_string()).unwrap()).collect();
        assert!(add(&ready, "0").is_none() && add(&ready, "one more").is_none() && all.len() == READY_IMAGES);
        drop(ready.take("0", &Access::default()));
        assert!(add(&ready, "one more").is_some());
    }
}
