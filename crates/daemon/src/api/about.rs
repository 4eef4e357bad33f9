//! The daemon's own endpoints: counters, health, version and API description.

use axum::body::Body;
use axum::extract::State as With;
use axum::http::HeaderValue;
use axum::response::Response;
use serde::Serialize;
use tarpon_engine::ScrubStatus;
use tarpon_engine::store::ScrubRun;
use utoipa::ToSchema;

use super::Failure;
use super::answer::{Answer, found, typed};
use crate::state::State;

/// Path of the API description.
pub(super) const DESCRIPTION: &str = "/openapi.json";

/// What the daemon has counted.
#[derive(Serialize, ToSchema)]
pub(super) struct Stats {
    /// Its process.
    pid: u32,
    /// Its store.
    store: String,
    /// Seconds since it was started.
    uptime_seconds: u64,
    /// What is mounted.
    mounts: usize,
    /// Jobs that are running or remembered.
    jobs: usize,
    /// Bytes that the store holds, as far as that is known without counting.
    store_bytes: u64,
    /// The scrub of the store, if there ever was one.
    scrub: Option<Scrub>,
    /// What is counted of all reads, as in `tarpon status --json`.
    #[schema(value_type = Object)]
    counters: serde_json::Value,
}

/// The scrub of the store, which hashes all objects from time to time.
#[derive(Serialize, ToSchema)]
pub(super) struct Scrub {
    /// Bytes that it reads in a second, at most. None: no server of the store scrubs.
    rate: Option<u64>,
    /// Whether a run is going on just now.
    running: bool,
    /// The run that was begun and has not ended.
    under_way: Option<Run>,
    /// The last run that went through the whole store.
    last: Option<Run>,
}

/// Figures of a scrub.
#[derive(Serialize, ToSchema)]
#[schema(as = ScrubRun)]
pub(super) struct Run {
    /// When it began, in seconds since 1970.
    began: u64,
    /// When it ended, in seconds since 1970.
    ended: Option<u64>,
    /// Objects that were hashed.
    objects: u64,
    /// Their bytes.
    bytes: u64,
    /// Objects that were not what their names say.
    damaged: u64,
    /// Objects that the disk does not give back.
    unreadable: u64,
    /// Objects that could not be looked at for another reason.
    skipped: u64,
}

impl From<ScrubStatus> for Scrub {
    fn from(status: ScrubStatus) -> Self {
        let ScrubStatus { rate, running, under_way, last } = status;
        Self { rate: rate.map(u64::from), running, under_way: under_way.map(Run::from), last: last.map(Run::from) }
    }
}

impl From<ScrubRun> for Run {
    fn from(run: ScrubRun) -> Self {
        let ScrubRun { began, ended, objects, bytes, damaged, unreadable, skipped } = run;
        Self { began, ended, objects, bytes, damaged, unreadable, skipped }
    }
}

/// That the daemon answers.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// `ok`.
    status: &'static str,
}

/// Which program this is.
#[derive(Serialize, ToSchema)]
pub(super) struct Version {
    /// Its version.
    version: &'static str,
    /// The version of this API.
    api: &'static str,
}

/// What the daemon has counted since it was started.
#[utoipa::path(get, path = "/v1/stats", tag = "daemon", operation_id = "stats", responses(
    (status = 200, description = "Figures", body = Stats),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn stats(With(state): With<State>) -> Result<Answer<Stats>, Failure> {
    let mounts = state.call(|engine| engine.mounts()).await?.len();
    let scrub = state.call(|engine| engine.scrub_status()).await?.map(Scrub::from);
    // None while another process serves the store.
    let counters = state.observer.stats().unwrap_or_default();
    Ok(found(Stats {
        pid: std::process::id(),
        store: state.engine.store().folder().to_string_lossy().into_owned(),
        uptime_seconds: state.began.elapsed().as_secs(),
        mounts,
        jobs: state.jobs.list().len(),
        store_bytes: state.engine.store().estimated_usage(),
        scrub,
        counters: serde_json::to_value(counters).unwrap_or_default(),
    }))
}

/// Whether the daemon and its server answer.
#[utoipa::path(get, path = "/healthz", tag = "daemon", operation_id = "health", responses(
    (status = 200, description = "They do", body = Health),
    (status = "default", description = "They do not", body = Failure),
))]
pub(super) async fn health(With(state): With<State>) -> Result<Answer<Health>, Failure> {
    state.call(|engine| engine.client().status()).await?.ok_or_else(ending)?;
    Ok(found(Health { status: "ok" }))
}

/// Which program this is.
#[utoipa::path(get, path = "/version", tag = "daemon", operation_id = "version", responses(
    (status = 200, description = "Its version", body = Version),
))]
pub(super) async fn version() -> Answer<Version> {
    found(Version { version: env!("CARGO_PKG_VERSION"), api: "v1" })
}

/// Serves the API description.
pub(super) async fn described() -> Response {
    typed(HeaderValue::from_static("application/json"), Body::from(super::description()))
}

fn ending() -> Failure {
    Failure::busy("the server is just ending")
}
