//! Many preparations of the same image at once: it is prepared once, and a caller that ends early blocks no other.

use std::sync::Arc;

use futures::future::join_all;
use tarpon_engine::{Engine, ErrorKind, ImageRequest, Prepared, Progress, Pull, Result, Silent};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::registry::Fault;
use tokio::sync::Notify;

use crate::support::EngineFixture;
use crate::{MANY, two_images};

/// Requests and bytes that the work costs.
async fn cost_of<T>(fixture: &Fixture, work: impl Future<Output = T>) -> (u64, u64, T) {
    let before = fixture.registry().stats();
    let done = work.await;
    let after = fixture.registry().stats();
    (after.requests - before.requests, after.bytes - before.bytes, done)
}

/// Compares the cost of one caller alone with that of many at once.
async fn compare(fixture: &Fixture, engines: Vec<Engine>, requests: &[ImageRequest]) {
    let alone = fixture.engine("alone");
    let (requests_alone, bytes_alone, one) = cost_of(fixture, alone.prepare(&requests[0], &Silent)).await;
    let many = engines.iter().zip(requests.iter().cycle());
    let many = many.map(|(engine, request)| engine.prepare(request, &Silent)).collect::<Vec<_>>();
    let (requests, bytes, all) = cost_of(fixture, join_all(many)).await;
    assert_eq!((requests, bytes), (requests_alone, bytes_alone));
    let one = one.unwrap();
    assert!(all.into_iter().all(|other: Result<Prepared>| other.unwrap().manifest() == one.manifest()));
}

/// Signals when a caller starts to wait.
#[derive(Default)]
struct Waits(Notify);

impl Progress for Waits {
    fn note(&self, line: &str) {
        assert!(line.contains("being prepared already"), "{line}");
        self.0.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_in_one_process_one_asks_the_registry() {
    let fixture = two_images().await;
    let engine = fixture.engine("store");
    compare(&fixture, vec![engine; MANY], &[fixture.request("app:v1")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_share_nothing_but_the_store_one_asks_the_registry() {
    let fixture = two_images().await;
    let engines = (0..MANY).map(|_| fixture.engine("store")).collect();
    compare(&fixture, engines, &[fixture.request("app:v1")]).await;
    let left = std::fs::read_dir(fixture.path("store/run")).unwrap();
    let locks = left.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("prepare-"));
    assert_eq!(locks.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_requested_again_or_by_two_names_is_resolved_by_each_and_fetched_once() {
    let fixture = two_images().await;
    let engine = fixture.engine("alone");
    let (one, bytes_of_one, _) = cost_of(&fixture, engine.prepare(&fixture.request("app:v1"), &Silent)).await;
    let again = ImageRequest { pull: Pull::Always, ..fixture.request("app:v1") };
    let (asked, bytes_of_asking, _) = cost_of(&fixture, engine.prepare(&again, &Silent)).await;
    let engines: Vec<_> = (0..4).map(|_| fixture.engine("store")).collect();
    let requests = ["app:v1", "app:v2"].map(|name| ImageRequest { pull: Pull::Always, ..fixture.request(name) });
    let all = engines.iter().zip(requests.iter().cycle()).map(|(engine, request)| engine.prepare(request, &Silent));
    let (many, bytes_of_many, _) = cost_of(&fixture, join_all(all)).await;
    assert_eq!((many, bytes_of_many), (one + 3 * asked, bytes_of_one + 3 * bytes_of_asking));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_caller_leaves_the_work_to_the_next_and_other_images_do_not_wait() {
    let fixture = two_images().await;
    let (first, second) = (fixture.engine("store"), fixture.engine("store"));
    let request = fixture.request("app:v1");
    // The first request never gets a response.
    fixture.registry().script([Fault::Never]);
    let start = |engine: &Engine, waits: &Arc<Waits>| {
        let (engine, request, waits) = (engine.clone(), request.clone(), waits.clone());
        tokio::spawn(async move { engine.prepare(&request, &*waits).await })
    };
    let waits = [(); 2].map(|()| Arc::new(Waits::default()));
    let [one, other] = [start(&first, &waits[0]), start(&second, &waits[1])];
    let (hanging, waiting, of_hanging) = tokio::select! {
        () = waits[0].0.notified() => (other, one, &second),
        () = waits[1].0.notified() => (one, other, &first),
    };
    // The other image's requests must not meet the fault.
    fixture.registry().script_ended().await;
    // In the same process as the one that hangs.
    let joined = start(of_hanging, &waits[0]);
    second.prepare(&fixture.request("other:v1"), &Silent).await.unwrap();
    first.prepare(&fixture.request("other:v1"), &Silent).await.unwrap();
    assert!(!waiting.is_finished() && !joined.is_finished());
    hanging.abort();
    assert!(waiting.await.unwrap().is_ok() && joined.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_fails_for_all_who_wait_for_it() {
    let fixture = two_images().await;
    let engine = fixture.engine("store");
    let (_, _, one) = cost_of(&fixture, engine.prepare(&fixture.request("none:v1"), &Silent)).await;
    assert_eq!(one.unwrap_err().kind, ErrorKind::NotFound);
    let missing = fixture.request("none:v1");
    let all = join_all((0..MANY).map(|_| engine.prepare(&missing, &Silent))).await;
    assert!(all.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound)));
    assert!(engine.prepare(&fixture.request("app:v1"), &Silent).await.is_ok(), "and not for those who come later");
}
