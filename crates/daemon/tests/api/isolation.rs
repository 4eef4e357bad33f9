//! Callers with different credentials, and their access to each other's images.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tarpon_engine::Isolation;
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::lab::{HELLO, Lab, with};

fn with_creds(wish: Value, password: &str) -> Value {
    let options = json!({"platform": "linux/amd64", "tls_verify": false, "creds": format!("{USER}:{password}")});
    with(wish, json!({ "image_options": options }))
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_with_credentials_make_a_new_store_isolated_and_share_nothing_with_those_without() {
    let mut lab = Lab::with(Auth::Basic).await;
    let app = lab.wish("app:v1");
    let (status, prepared) = lab.post("/v1/images/prepare", &with_creds(app.clone(), PASSWORD)).await;
    assert_eq!(status, StatusCode::OK, "{prepared}");
    assert_eq!(lab.engine.isolation().unwrap(), Isolation::Tenant);
    let by_digest = lab.wish(&format!("app@{}", prepared["image"]["manifest"].as_str().unwrap()));
    let place = lab.directory("mnt");
    for wish in [app.clone(), by_digest, with_creds(app.clone(), "guessed")] {
        for (path, more) in [
            ("/v1/images/prepare", json!({})),
            ("/v1/mounts", json!({"mountpoint": place})),
            ("/v1/containers", json!({"command": ["/bin/true"]})),
        ] {
            let (status, said) = lab.post(path, &with(wish.clone(), more)).await;
            assert_eq!((status.as_u16(), &said["kind"]), (403, &json!("denied")), "{path}: {said}");
        }
    }
    if !can_mount() {
        return;
    }
    let wish = with(with_creds(app, PASSWORD), json!({"mountpoint": place}));
    let (status, mounted) = lab.post("/v1/mounts", &wish).await;
    assert_eq!(status, StatusCode::CREATED, "{mounted}");
    let file = format!("{place}/etc/hello");
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await.unwrap();
    assert_eq!(read.unwrap(), HELLO);
    assert_eq!(lab.get("/v1/mounts").await.as_array().unwrap().len(), 1);
    assert_eq!(lab.get("/v1/images").await.as_array().unwrap().len(), 1);
    let id = mounted["id"].as_str().unwrap();
    let (status, gone) = lab.send(Method::DELETE, &format!("/v1/mounts/{id}"), b"").await;
    assert!(status.is_success(), "{gone}");
    lab.stop().await;
}

#[tokio::test]
async fn a_store_that_is_shared_by_default_takes_no_credentials_of_a_caller_until_that_is_settled() {
    let lab = Lab::new().await;
    let app = lab.wish("app:v1");
    assert_eq!(lab.post("/v1/images/prepare", &app).await.0, StatusCode::OK);
    for path in ["/v1/images/prepare", "/v1/recordings"] {
        let (status, said) = lab.post(path, &with_creds(app.clone(), PASSWORD)).await;
        assert_eq!((status.as_u16(), &said["kind"]), (409, &json!("conflict")), "{path}: {said}");
        assert!(said["hint"].as_str().unwrap().contains("--isolation shared"), "{said}");
    }
    lab.engine.settle_isolation(Isolation::Shared).unwrap();
    let (status, said) = lab.post("/v1/images/prepare", &with_creds(app.clone(), PASSWORD)).await;
    assert_eq!(status, StatusCode::OK, "{said}");
}
