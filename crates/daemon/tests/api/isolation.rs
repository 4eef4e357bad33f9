//! Callers with different credentials, and their access to each other's images.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tarpon_engine::Isolation;
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::fixture::{Fixture, HELLO, with};

fn with_creds(body: Value, password: &str) -> Value {
    let options = json!({"platform": "linux/amd64", "tls_verify": false, "creds": format!("{USER}:{password}")});
    with(body, json!({ "image_options": options }))
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_with_credentials_make_a_new_store_isolated_and_share_nothing_with_those_without() {
    let mut fixture = Fixture::with(Auth::Basic).await;
    let app = fixture.image_body("app:v1");
    let (status, prepared) = fixture.post("/v1/images/prepare", &with_creds(app.clone(), PASSWORD)).await;
    assert_eq!(status, StatusCode::OK, "{prepared}");
    assert_eq!(fixture.engine.isolation().unwrap(), Isolation::Tenant);
    let by_digest = fixture.image_body(&format!("app@{}", prepared["image"]["manifest"].as_str().unwrap()));
    let place = fixture.directory("mnt");
    for body in [app.clone(), by_digest, with_creds(app.clone(), "guessed")] {
        for (path, more) in [
            ("/v1/images/prepare", json!({})),
            ("/v1/mounts", json!({"mountpoint": place})),
            ("/v1/containers", json!({"command": ["/bin/true"]})),
        ] {
            let (status, failure) = fixture.post(path, &with(body.clone(), more)).await;
            assert_eq!((status.as_u16(), &failure["kind"]), (403, &json!("denied")), "{path}: {failure}");
        }
    }
    if !can_mount() {
        return;
    }
    let body = with(with_creds(app, PASSWORD), json!({"mountpoint": place}));
    let (status, mounted) = fixture.post("/v1/mounts", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{mounted}");
    let file = format!("{place}/etc/hello");
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await.unwrap();
    assert_eq!(read.unwrap(), HELLO);
    assert_eq!(fixture.get("/v1/mounts").await.as_array().unwrap().len(), 1);
    assert_eq!(fixture.get("/v1/images").await.as_array().unwrap().len(), 1);
    let id = mounted["id"].as_str().unwrap();
    let (status, unmounted) = fixture.send(Method::DELETE, &format!("/v1/mounts/{id}"), b"").await;
    assert!(status.is_success(), "{unmounted}");
    fixture.stop().await;
}

#[tokio::test]
async fn a_store_of_unset_kind_rejects_credentials_of_a_caller() {
    let fixture = Fixture::new().await;
    let app = fixture.image_body("app:v1");
    assert_eq!(fixture.post("/v1/images/prepare", &app).await.0, StatusCode::OK);
    for path in ["/v1/images/prepare", "/v1/recordings"] {
        let (status, failure) = fixture.post(path, &with_creds(app.clone(), PASSWORD)).await;
        assert_eq!((status.as_u16(), &failure["kind"]), (409, &json!("conflict")), "{path}: {failure}");
        assert!(failure["hint"].as_str().unwrap().contains("--isolation shared"), "{failure}");
    }
    fixture.engine.set_isolation(Isolation::Shared).unwrap();
    let (status, failure) = fixture.post("/v1/images/prepare", &with_creds(app.clone(), PASSWORD)).await;
    assert_eq!(status, StatusCode::OK, "{failure}");
}
