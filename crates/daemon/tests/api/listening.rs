//! Listeners get events, but the daemon does not wait for them; and it ends in order.

use hyper::{Method, StatusCode};
use serde_json::json;

use crate::lab::{Lab, Lines, with};

/// Clients that may listen.
const LISTENERS: usize = 16;

/// Requests whose events exceed what a socket and a listener's backlog hold: two events of some hundred bytes each.
const MANY: usize = 1300;

#[tokio::test]
async fn a_listener_that_does_not_read_is_cut_off_and_told_so_and_keeps_nobody_waiting() {
    let lab = Lab::new().await;
    let mut slow = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
    let name = lab.image(&format!("{}:v1", "a".repeat(200)));
    let wish = json!({"image": name, "image_options": {"pull": "never"}}).to_string();
    let mut client = lab.connect().await;
    for _ in 0..MANY {
        let asked = crate::lab::request(Method::POST, "/v1/images/prepare", wish.as_bytes());
        let response = client.send_request(asked).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        // Read to its end, so that the connection is free for the next request.
        http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        client.ready().await.unwrap();
    }
    let last = slow.until("cut-off").await;
    assert!(last["missed"].as_u64().unwrap() > 0, "{last}");
    assert!(slow.next().await.is_none());
}

#[tokio::test]
async fn one_listener_too_many_is_turned_away_until_another_has_gone() {
    let lab = Lab::new().await;
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS {
        let mut listener = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
        assert_eq!(listener.next().await.unwrap()["event"], "listening");
        listeners.push(listener);
    }
    let refused = lab.open(Method::GET, "/v1/events", b"").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    drop(listeners);
    // The daemon notices within a moment that they have disconnected.
    while lab.open(Method::GET, "/v1/events", b"").await.status() != StatusCode::OK {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_end_is_told_and_nothing_is_left_of_the_socket() {
    let mut lab = Lab::new().await;
    let mut events = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
    lab.registry.script([tarpon_testkit::registry::Fault::Never]);
    lab.post("/v1/images/prefetch", &with(lab.wish("app:v1"), json!({}))).await;
    events.until("preparing").await;
    lab.stop().await;
    events.until("stopping").await;
    assert!(events.next().await.is_none());
    assert!(!lab.path("api.sock").exists());
}
