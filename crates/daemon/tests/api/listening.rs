//! Listeners get events, but the daemon does not wait for them; and it ends in order.

use hyper::{Method, StatusCode};
use serde_json::json;

use crate::fixture::{Fixture, Lines, with};

/// Clients that may listen.
const LISTENERS: usize = 16;

/// Requests whose events exceed what a socket and a listener's backlog hold: two events of some hundred bytes each.
const MANY: usize = 1300;

#[tokio::test]
async fn a_listener_that_does_not_read_is_disconnected_and_delays_no_other_client() {
    let fixture = Fixture::new().await;
    let mut slow = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    let name = fixture.image(&format!("{}:v1", "a".repeat(200)));
    let body = json!({"image": name, "image_options": {"pull": "never"}}).to_string();
    let mut client = fixture.connect().await;
    for _ in 0..MANY {
        let asked = crate::fixture::request(Method::POST, "/v1/images/prepare", body.as_bytes());
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
async fn a_listener_over_the_limit_is_rejected_until_another_disconnects() {
    let fixture = Fixture::new().await;
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS {
        let mut listener = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
        assert_eq!(listener.next().await.unwrap()["event"], "listening");
        listeners.push(listener);
    }
    let refused = fixture.open(Method::GET, "/v1/events", b"").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    drop(listeners);
    // The daemon notices within a moment that they have disconnected.
    while fixture.open(Method::GET, "/v1/events", b"").await.status() != StatusCode::OK {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stopping_daemon_notifies_listeners_and_removes_its_socket() {
    let mut fixture = Fixture::new().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    fixture.registry.script([tarpon_testkit::registry::Fault::Never]);
    fixture.post("/v1/images/prefetch", &with(fixture.image_body("app:v1"), json!({}))).await;
    events.until("preparing").await;
    fixture.stop().await;
    events.until("stopping").await;
    assert!(events.next().await.is_none());
    assert!(!fixture.path("api.sock").exists());
}
