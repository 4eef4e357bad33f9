//! What the daemon says of itself.

use axum::body::Body;
use axum::extract::State as With;
use axum::http::HeaderValue;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::Failure;
use super::answer::{Answer, found, typed};
use crate::state::State;

/// Where the description is.
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
    /// What is counted of all reads, as in `tarpon status --json`.
    #[schema(value_type = Object)]
    counters: serde_json::Value,
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
    // None while another process serves the store.
    let counters = state.observer.stats().unwrap_or_default();
    Ok(found(Stats {
        pid: std::process::id(),
        store: state.engine.store().folder().to_string_lossy().into_owned(),
        uptime_seconds: state.began.elapsed().as_secs(),
        mounts,
        jobs: state.jobs.list().len(),
        store_bytes: state.engine.store().estimated_usage(),
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

/// The description of all of this.
pub(super) async fn described() -> Response {
    typed(HeaderValue::from_static("application/json"), Body::from(super::description()))
}

fn ending() -> Failure {
    Failure::busy("the server is just ending")
}
