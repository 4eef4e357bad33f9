//! Images: prepared once for all requests that want them, as long as one of them waits, or fetched whole in the background.

use hyper::{Method, StatusCode};
use serde_json::json;
use tarpon_testkit::registry::Fault;

use crate::lab::{Lab, Lines, request, with};

/// Images that are prepared at once.
const PREPARES: usize = 4;

#[tokio::test]
async fn an_image_is_prepared_and_listed() {
    let lab = Lab::new().await;
    let (status, prepared) = lab.post("/v1/images/prepare", &lab.wish("app:v1")).await;
    assert_eq!(status, StatusCode::OK, "{prepared}");
    assert_eq!(prepared["image"]["layers"][0]["verification"], "toc-verified");
    let listed = lab.get("/v1/images").await;
    assert_eq!((&listed[0]["manifest"], listed.as_array().unwrap().len()), (&prepared["image"]["manifest"], 1));
    let stats = lab.get("/v1/stats").await;
    assert_eq!((&stats["pid"], &stats["mounts"]), (&std::process::id().into(), &0.into()));
    assert_eq!(lab.get("/healthz").await["status"], "ok");
    assert_eq!(lab.get("/version").await["api"], "v1");
}

#[tokio::test]
async fn two_who_want_one_image_at_once_cost_the_registry_one() {
    let (alone, crowd) = (Lab::new().await, Lab::new().await);
    alone.post("/v1/images/prepare", &alone.wish("app:v1")).await;
    let mut events = Lines::of(crowd.open(Method::GET, "/v1/events", b"").await);
    let wish = crowd.wish("app:v1");
    let asked = (0..8).map(|_| crowd.post("/v1/images/prepare", &wish));
    for (status, body) in futures::future::join_all(asked).await {
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
async fn what_nobody_waits_for_any_more_is_not_prepared() {
    let lab = Lab::new().await;
    let mut events = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
    // Accepts connections, but never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut clients = Vec::new();
    for number in 0..PREPARES {
        let mut client = lab.connect().await;
        let other = json!({"image": format!("{}/other:v{number}", silent.local_addr().unwrap())}).to_string();
        let asked = client.send_request(request(Method::POST, "/v1/images/prepare", other.as_bytes()));
        clients.push((tokio::spawn(asked), client));
        events.until("preparing").await;
    }
    // All permits are taken by requests that wait for a registry that does not answer. They would fail sooner or later.
    let wish = lab.wish("app:v1");
    let next = lab.post("/v1/images/prepare", &wish);
    let leave = async {
        for (asked, client) in clients {
            asked.abort();
            drop(client);
        }
    };
    let ((status, body), ()) = futures::join!(next, leave);
    assert_eq!(status, StatusCode::OK, "{body}");
    let told = events.next().await.unwrap();
    assert_eq!(
        (&told["event"], &told["image"]),
        (&json!("preparing"), &wish["image"]),
        "of the others nothing is told"
    );
}

#[tokio::test]
async fn an_image_is_brought_whole_by_a_job_that_is_remembered() {
    let lab = Lab::new().await;
    let mut events = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
    let (status, job) = lab.post("/v1/images/prefetch", &lab.wish("app:v1")).await;
    assert_eq!((status, &job["kind"]), (StatusCode::ACCEPTED, &json!("prefetch")));
    let ended = events.until("job-ended").await;
    assert_eq!((&ended["id"], &ended["state"]), (&job["id"], &json!("done")));
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let job = lab.get(&path).await;
    assert!(job["outcome"]["fetched_bytes"].as_u64().unwrap() > 0, "{job}");
    let images = lab.get("/v1/images").await;
    assert_eq!(images[0]["layers"][0]["verification"], "diffID-verified");
    let recording = format!("/v1/recordings/{}/stop", job["id"].as_str().unwrap());
    let (status, failure) = lab.send(Method::POST, &recording, b"").await;
    assert_eq!((status, &failure["kind"]), (StatusCode::NOT_FOUND, &json!("not-found")));
    assert_eq!(lab.send(Method::DELETE, &path, b"").await.0, StatusCode::NO_CONTENT);
    assert_eq!(lab.get("/v1/jobs").await, json!([]));
}

#[tokio::test]
async fn a_job_that_is_cancelled_or_fails_says_so() {
    let lab = Lab::new().await;
    let mut events = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
    lab.post("/v1/images/prefetch", &lab.wish("app:v2")).await;
    events.until("job-ended").await;
    let jobs = lab.get("/v1/jobs").await;
    assert_eq!((&jobs[0]["state"], &jobs[0]["failure"]["kind"]), (&json!("failed"), &json!("not-found")), "{jobs}");
    lab.registry.script([Fault::Never]);
    let (_, job) = lab.post("/v1/images/prefetch", &lab.wish("app:v1")).await;
    events.until("preparing").await;
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(lab.send(Method::DELETE, &path, b"").await.0, StatusCode::NO_CONTENT);
    assert_eq!(events.until("job-ended").await["id"], job["id"]);
}

#[tokio::test]
async fn an_image_that_is_not_there_is_told_to_listeners() {
    let lab = Lab::new().await;
    let mut events = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
    let wish = with(lab.wish("app:v1"), json!({"image_options": {"pull": "never"}}));
    lab.post("/v1/images/prepare", &wish).await;
    assert_eq!(events.until("not-prepared").await["failure"]["kind"], "not-found");
}
