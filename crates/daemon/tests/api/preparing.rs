//! Images: prepared once for all requests that want them, as long as one of them waits, or fetched whole in the background.

use hyper::{Method, StatusCode};
use serde_json::json;
use tarpon_engine::oci::Digest;
use tarpon_testkit::registry::Fault;

use crate::fixture::{Fixture, Lines, request, with};

/// Images that are prepared at once.
const PREPARES: usize = 4;

#[tokio::test]
async fn an_image_is_prepared_and_listed() {
    let fixture = Fixture::new().await;
    let (status, prepared) = fixture.post("/v1/images/prepare", &fixture.image_body("app:v1")).await;
    assert_eq!(status, StatusCode::OK, "{prepared}");
    assert_eq!(prepared["image"]["layers"][0]["verification"], "toc-verified");
    let listed = fixture.get("/v1/images").await;
    assert_eq!((&listed[0]["manifest"], listed.as_array().unwrap().len()), (&prepared["image"]["manifest"], 1));
    let stats = fixture.get("/v1/stats").await;
    assert_eq!((&stats["pid"], &stats["mounts"]), (&std::process::id().into(), &0.into()));
    assert_eq!(fixture.get("/healthz").await["status"], "ok");
    assert_eq!(fixture.get("/version").await["api"], "v1");
}

#[tokio::test]
async fn concurrent_requests_for_one_image_share_one_preparation() {
    let (alone, crowd) = (Fixture::new().await, Fixture::new().await);
    alone.post("/v1/images/prepare", &alone.image_body("app:v1")).await;
    let mut events = Lines::of(crowd.open(Method::GET, "/v1/events", b"").await);
    let body = crowd.image_body("app:v1");
    let request = (0..8).map(|_| crowd.post("/v1/images/prepare", &body));
    for (status, body) in futures::future::join_all(request).await {
        assert_eq!(status, StatusCode::OK, "{body}");
    }
    assert_eq!(crowd.registry.stats().requests, alone.registry.stats().requests);
    assert_eq!(events.next().await.unwrap()["event"], "listening");
    for event in ["preparing", "resolved", "layer-done", "prepared"] {
        let line = events.until(event).await;
        assert_eq!(line["image"], crowd.image("app:v1"), "{line}");
    }
}

#[tokio::test]
async fn a_preparation_is_cancelled_when_no_client_waits() {
    let fixture = Fixture::new().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    // Accepts connections, but never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut clients = Vec::new();
    for number in 0..PREPARES {
        let mut client = fixture.connect().await;
        let other = json!({"image": format!("{}/other:v{number}", silent.local_addr().unwrap())}).to_string();
        let request = client.send_request(request(Method::POST, "/v1/images/prepare", other.as_bytes()));
        clients.push((tokio::spawn(request), client));
        events.until("preparing").await;
    }
    // All permits are taken by requests that wait for a registry that does not answer. They would fail sooner or later.
    let body = fixture.image_body("app:v1");
    let next = fixture.post("/v1/images/prepare", &body);
    let leave = async {
        for (request, client) in clients {
            request.abort();
            drop(client);
        }
    };
    let ((status, prepared), ()) = futures::join!(next, leave);
    assert_eq!(status, StatusCode::OK, "{prepared}");
    let event = events.next().await.unwrap();
    assert_eq!(
        (&event["event"], &event["image"]),
        (&json!("preparing"), &body["image"]),
        "no event for cancelled preparations"
    );
}

#[tokio::test]
async fn a_prefetch_job_fetches_a_whole_image_and_stays_listed() {
    let fixture = Fixture::new().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    let (status, job) = fixture.post("/v1/images/prefetch", &fixture.image_body("app:v1")).await;
    assert_eq!((status, &job["kind"]), (StatusCode::ACCEPTED, &json!("prefetch")));
    let ended = events.until("job-ended").await;
    assert_eq!((&ended["id"], &ended["state"]), (&job["id"], &json!("done")));
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let job = fixture.get(&path).await;
    assert!(job["outcome"]["fetched_bytes"].as_u64().unwrap() > 0, "{job}");
    let images = fixture.get("/v1/images").await;
    assert_eq!(images[0]["layers"][0]["verification"], "diffID-verified");
    let recording = format!("/v1/recordings/{}/stop", job["id"].as_str().unwrap());
    let (status, failure) = fixture.send(Method::POST, &recording, b"").await;
    assert_eq!((status, &failure["kind"]), (StatusCode::NOT_FOUND, &json!("not-found")));
    assert_eq!(fixture.send(Method::DELETE, &path, b"").await.0, StatusCode::NO_CONTENT);
    assert_eq!(fixture.get("/v1/jobs").await, json!([]));
}

#[tokio::test]
async fn a_prefetch_job_fetches_what_a_start_needs_and_nothing_if_that_is_there() {
    let fixture = Fixture::new().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    let mut outcomes = Vec::new();
    for (image, extent) in [("marked:v1", "pack-only"), ("marked:v1", "start"), ("marked:v1", "start")] {
        let body = with(fixture.image_body(image), json!({"extent": extent, "rate": 1 << 20}));
        let (status, job) = fixture.post("/v1/images/prefetch", &body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{job}");
        assert_eq!(events.until("job-ended").await["state"], "done");
        let job = fixture.get(&format!("/v1/jobs/{}", job["id"].as_str().unwrap())).await;
        outcomes.push(job["outcome"].clone());
    }
    let of = |field: &str| outcomes.iter().map(|outcome| outcome[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("content"), ["unknown", "landmarks", "landmarks"], "{outcomes:?}");
    let (bytes, fetched) = (of("content_bytes"), of("fetched_bytes"));
    assert!(bytes[0] == 0 && bytes[1].as_u64() > Some(0) && bytes[2] == bytes[1], "{outcomes:?}");
    assert!(fetched[2].as_u64() < fetched[1].as_u64(), "only the manifest again: {outcomes:?}");
    assert!(fixture.engine.store().contains(&Digest::of(b"tool")));
    let images = fixture.get("/v1/images").await;
    assert_eq!(images[0]["layers"][0]["verification"], "toc-verified");
}

#[tokio::test]
async fn a_cancelled_or_failed_job_reports_its_failure() {
    let fixture = Fixture::new().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    fixture.post("/v1/images/prefetch", &fixture.image_body("app:v2")).await;
    events.until("job-ended").await;
    let jobs = fixture.get("/v1/jobs").await;
    assert_eq!((&jobs[0]["state"], &jobs[0]["failure"]["kind"]), (&json!("failed"), &json!("not-found")), "{jobs}");
    fixture.registry.script([Fault::Never]);
    let (_, job) = fixture.post("/v1/images/prefetch", &fixture.image_body("app:v1")).await;
    events.until("preparing").await;
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(fixture.send(Method::DELETE, &path, b"").await.0, StatusCode::NO_CONTENT);
    assert_eq!(events.until("job-ended").await["id"], job["id"]);
}

#[tokio::test]
async fn listeners_get_the_failure_of_a_missing_image() {
    let fixture = Fixture::new().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    let body = with(fixture.image_body("app:v1"), json!({"image_options": {"pull": "never"}}));
    fixture.post("/v1/images/prepare", &body).await;
    assert_eq!(events.until("not-prepared").await["failure"]["kind"], "not-found");
}
