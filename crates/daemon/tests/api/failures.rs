//! Failures have one form and the right status.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tarpon_testkit::registry::{Auth, Fault, PASSWORD, USER};

use crate::fixture::{Fixture, with};

fn assert_failed(answer: &(StatusCode, Value), status: u16, kind: &str) {
    assert_eq!((answer.0.as_u16(), answer.1["kind"].as_str()), (status, Some(kind)), "{}", answer.1);
    assert!(answer.1["step"].is_string() && answer.1["cause"].is_string());
}

#[tokio::test]
async fn an_invalid_request_fails_with_its_cause() {
    let fixture = Fixture::new().await;
    let (app, place) = (fixture.image_body("app:v1"), fixture.directory("mnt"));
    for (path, body, message) in [
        ("/v1/images/prepare", json!({}), "missing field `image`"),
        ("/v1/images/prepare", json!({"image": "a b"}), "a b"),
        ("/v1/images/prepare", json!({"image": "oci:here:v1"}), "here is not absolute"),
        ("/v1/images/prepare", with(app.clone(), json!({"imagine": 1})), "unknown field `imagine`"),
        ("/v1/images/prepare", json!({"image": "a", "image_options": {"pull": "often"}}), "unknown variant `often`"),
        ("/v1/images/prepare", json!({"image": "a", "image_options": {"platform": "///"}}), "platform"),
        (
            "/v1/images/prepare",
            json!({"image": "a", "image_options": {"index": "some"}}),
            "none, signed, registry or a digest",
        ),
        ("/v1/images/prepare", json!({"image": "a", "image_options": {"authfile": "x"}}), "x is not absolute"),
        ("/v1/images/prepare", with(app.clone(), json!({"timeout_seconds": 0})), "1 to 3600"),
        ("/v1/images/prepare", with(app.clone(), json!({"timeout_seconds": 86_400})), "1 to 3600"),
        ("/v1/images/prefetch", json!({"image": ""}), ""),
        ("/v1/images/prefetch", with(app.clone(), json!({"extent": "half"})), "unknown variant `half`"),
        ("/v1/images/prefetch", with(app.clone(), json!({"rate": 0})), "at least 65536 bytes per second"),
        ("/v1/images/prefetch", with(app.clone(), json!({"rate": 65_535})), "at least 65536 bytes per second"),
        ("/v1/mounts", with(app.clone(), json!({"mountpoint": "mnt"})), "mnt is not absolute"),
        ("/v1/mounts", with(app.clone(), json!({"mountpoint": place, "upper": "up"})), "up is not absolute"),
        ("/v1/containers", with(app.clone(), json!({"name": "../x"})), "no name of a container"),
        ("/v1/containers", with(app.clone(), json!({"env": ["ALONE"]})), "is not NAME=VALUE"),
        ("/v1/containers", with(app.clone(), json!({"volumes": ["relative"]})), "relative"),
        ("/v1/recordings", with(app.clone(), json!({"until_log": "("})), "unclosed"),
        ("/v1/recordings", with(app.clone(), json!({"until_log": "x", "until_port": 1})), "exclude each other"),
        ("/v1/containers/web/stop?patience=3", json!({}), "unknown field `patience`"),
        ("/v1/containers/web/kill?signal=NO-NE", json!({}), "is no signal"),
        ("/v1/containers/-web/stop", json!({}), "no name of a container"),
    ] {
        let answer = fixture.post(path, &body).await;
        assert_failed(&answer, 400, "invalid");
        assert!(answer.1["cause"].as_str().unwrap().contains(message), "{path} {body}: {}", answer.1);
    }
    assert_failed(&fixture.send(Method::POST, "/v1/mounts", b"{").await, 400, "invalid");
    assert_failed(&fixture.send(Method::POST, "/v1/mounts", &vec![b' '; 2 << 20]).await, 413, "too-long");
    assert_eq!(fixture.registry.stats().requests, 0, "invalid requests reach no registry");
}

#[tokio::test]
async fn missing_objects_and_paths_are_not_found() {
    let fixture = Fixture::new().await;
    std::fs::write(fixture.path("file"), "").unwrap();
    let file = fixture.path("file").display().to_string();
    let none = |name: &str| with(fixture.image_body("app:v1"), json!({"mountpoint": name}));
    assert_failed(&fixture.post("/v1/images/prepare", &fixture.image_body("app:v2")).await, 404, "not-found");
    let never = with(fixture.image_body("app:v1"), json!({"image_options": {"pull": "never"}}));
    assert_failed(&fixture.post("/v1/images/prepare", &never).await, 404, "not-found");
    assert_failed(&fixture.post("/v1/mounts", &none("/nowhere/at/all")).await, 404, "not-found");
    assert_failed(&fixture.post("/v1/mounts", &none(&file)).await, 404, "not-found");
    for path in ["/v1/mounts/0123456789ab", "/v1/mounts/%2Fnowhere", "/v1/containers/none", "/v1/jobs/7", "/v1/jobs/x"]
    {
        assert_failed(&fixture.send(Method::GET, path, b"").await, 404, "not-found");
        assert_failed(&fixture.send(Method::DELETE, path, b"").await, 404, "not-found");
    }
    for path in ["/v1/containers/none/logs", "/v1/recordings/7/trace", "/", "/v2/mounts"] {
        assert_failed(&fixture.send(Method::GET, path, b"").await, 404, "not-found");
    }
    for path in ["/v1/containers/none/stop", "/v1/containers/none/kill", "/v1/recordings/7/stop"] {
        assert_failed(&fixture.send(Method::POST, path, b"").await, 404, "not-found");
    }
    assert_failed(&fixture.send(Method::PUT, "/v1/mounts", b"").await, 405, "no-such-method");
}

#[tokio::test]
async fn failures_of_the_registry_have_distinct_kinds() {
    let fixture = Fixture::new().await;
    assert_failed(&fixture.post("/v1/images/prepare", &fixture.image_body("odd:v1")).await, 422, "refused");
    fixture.registry.script([Fault::Html]);
    assert_eq!(fixture.post("/v1/images/prepare", &fixture.image_body("app:v1")).await.1["kind"], "refused");
    let unreachable = json!({"image": "127.0.0.1:1/app:v1"});
    assert_failed(&fixture.post("/v1/images/prepare", &unreachable).await, 502, "unavailable");
    let closed = Fixture::with(Auth::Basic).await;
    let answer = closed.post("/v1/images/prepare", &closed.image_body("app:v1")).await;
    assert_failed(&answer, 403, "denied");
    assert!(answer.1["hint"].is_string());
    let options = json!({"image_options": {"platform": "linux/amd64", "tls_verify": false, "creds": format!("{USER}:{PASSWORD}")}});
    let answer = closed.post("/v1/images/prepare", &with(closed.image_body("app:v1"), options)).await;
    assert_eq!(answer.0, StatusCode::OK, "{}", answer.1);
}

#[tokio::test]
async fn a_request_has_a_deadline() {
    let fixture = Fixture::new().await;
    fixture.registry.script([Fault::Never]);
    let answer =
        fixture.post("/v1/images/prepare", &with(fixture.image_body("app:v1"), json!({"timeout_seconds": 1}))).await;
    assert_failed(&answer, 504, "late");
    assert!(answer.1["hint"].as_str().unwrap().contains("timeout_seconds"));
}
