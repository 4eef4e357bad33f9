//! Learned starts are published by another process, for one image at a time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use tarpon_daemon::{Learning, Options, Socket};
use tarpon_engine::oci::Digest;
use tarpon_engine::trace::{Header, Trace};

use crate::fixture::{Fixture, Lines, options};

const IMAGE: &str = "registry.example/app:v1";

/// How long a process may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon on a store with learned starts. The process that publishes writes its ID and its image to the first file, and what it reports
/// comes from the second one, on which it waits.
async fn fixture() -> (Fixture, PathBuf, PathBuf) {
    let mut fixture = Fixture::new().await;
    fixture.stop().await;
    for (image, starts) in [(IMAGE, 2), ("registry.example/other:v1", 1)] {
        let header = Header { starts, ..Header::new(image, Digest::of(b"manifest"), "default") };
        let trace = Trace { header, touches: Vec::new() };
        fixture.engine.store().set_trace(&Digest::of(image.as_bytes()), &trace.write()).unwrap();
    }
    let (told, report) = (fixture.path("told"), fixture.path("report"));
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    for pipe in [&told, &report] {
        rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }
    let script = format!("echo $$ \"$1\" > {}; exec cat {}", told.display(), report.display());
    let command = ["sh", "-c", &script, "sh"].map(OsString::from).into();
    let socket = Socket::open(&fixture.path("api.sock")).unwrap();
    let learning = Some(Learning { command, after: 2 });
    fixture.start_with(Options { learning, ..options(socket) }).await;
    (fixture, told, report)
}

/// What the process writes when it begins: its ID and its image.
async fn begun(told: &Path) -> (String, String) {
    let told = told.to_owned();
    let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(told)).await.unwrap().unwrap();
    let (process, image) = text.trim_end().split_once(' ').unwrap();
    (process.to_owned(), image.to_owned())
}

#[tokio::test]
async fn an_image_that_started_often_enough_is_published_with_an_event() {
    let (fixture, told, report) = fixture().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    events.until("listening").await;
    let manifest = Digest::of(b"manifest");
    assert_eq!(begun(&told).await.1, format!("registry.example/app@{manifest}"));
    let published = json!({"images": [{"image": IMAGE, "state": "published", "place": "registry.example/tarpon"}]});
    tokio::task::spawn_blocking(move || std::fs::write(report, published.to_string())).await.unwrap().unwrap();
    let event = events.until("learned-start").await;
    let told = ["image", "manifest", "outcome", "place"].map(|name| event[name].clone());
    assert_eq!(told, [json!(IMAGE), json!(manifest), json!("published"), json!("registry.example/tarpon")]);
}

#[tokio::test]
async fn a_daemon_that_stops_ends_the_process_that_publishes() {
    let (mut fixture, told, _report) = fixture().await;
    let (process, _) = begun(&told).await;
    fixture.stop().await;
    // It is gone, or its parent has not waited for it yet.
    let is_running = || {
        let status = std::fs::read_to_string(format!("/proc/{process}/stat"));
        status.is_ok_and(|status| !status.contains(") Z "))
    };
    let ended = async {
        while is_running() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
}
