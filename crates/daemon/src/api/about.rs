//! The daemon's own endpoints: counters, health and version.

use std::path::Path;

use axum::extract::State;
use serde::Serialize;
use tarpon_engine::store::ScrubRun;
use tarpon_engine::{Client, ErrorKind, ScrubStatus};
use utoipa::ToSchema;

use crate::answer::{Answer, found};
use crate::failure::Failure;
use crate::state::ApiState;

/// A path where no image is mounted: a mount point has a parent directory.
const NO_MOUNT: &str = "/";

/// Counters of the daemon.
#[derive(Serialize, ToSchema)]
pub(super) struct Stats {
    /// PID of the daemon.
    pid: u32,
    /// Path of the store.
    store: String,
    /// Seconds since the daemon was started.
    uptime_seconds: u64,
    /// Number of mounts.
    mounts: usize,
    /// Number of jobs in the list.
    jobs: usize,
    /// Size of the store in bytes, estimated without a scan.
    store_bytes: u64,
    /// The scrub of the store, if one was ever started.
    scrub: Option<Scrub>,
    /// Counters of all reads, as in `tarpon status --json`.
    #[schema(value_type = Object)]
    counters: serde_json::Value,
}

/// The scrub of the store, which periodically hashes all objects.
#[derive(Serialize, ToSchema)]
pub(super) struct Scrub {
    /// Limit in bytes per second. None: no server of the store scrubs.
    rate: Option<u64>,
    /// Whether a run is in progress.
    running: bool,
    /// The run that has started and not ended.
    under_way: Option<Run>,
    /// The last run that covered the whole store.
    last: Option<Run>,
}

/// Statistics of a scrub run.
#[derive(Serialize, ToSchema)]
#[schema(as = ScrubRun)]
pub(super) struct Run {
    /// Start time, in seconds since 1970.
    began: u64,
    /// End time, in seconds since 1970.
    ended: Option<u64>,
    /// Number of hashed objects.
    objects: u64,
    /// Bytes of these objects.
    bytes: u64,
    /// Objects whose content did not match their digest.
    damaged: u64,
    /// Objects that the disk could not read.
    unreadable: u64,
    /// Objects that were skipped for another reason.
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

/// Health of the daemon.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// `ok`.
    status: &'static str,
}

/// Version of the daemon.
#[derive(Serialize, ToSchema)]
pub(super) struct Version {
    /// Version of the program.
    version: &'static str,
    /// The version of this API.
    api: &'static str,
}

/// Returns the counters of the daemon since it was started.
#[utoipa::path(get, path = "/v1/stats", tag = "daemon", operation_id = "stats", responses(
    (status = 200, description = "The counters", body = Stats),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn stats(State(state): State<ApiState>) -> Result<Answer<Stats>, Failure> {
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

/// Checks that the daemon and its server respond.
#[utoipa::path(get, path = "/healthz", tag = "daemon", operation_id = "health", responses(
    (status = 200, description = "Both respond", body = Health),
    (status = "default", description = "One does not respond", body = Failure),
))]
pub(super) async fn health(State(state): State<ApiState>) -> Result<Answer<Health>, Failure> {
    if state.call(|engine| is_served(&engine.client())).await? {
        Ok(found(Health { status: "ok" }))
    } else {
        Err(server_stopping())
    }
}

/// Whether the store's server responds. Asks about one path where it mounts nothing: to describe ten thousand mounts takes a second.
fn is_served(server: &Client) -> tarpon_engine::Result<bool> {
    match server.why(Path::new(NO_MOUNT)) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(true),
        answer => answer.map(|account| account.is_some()),
    }
}

/// Returns the version of the daemon.
#[utoipa::path(get, path = "/version", tag = "daemon", operation_id = "version", responses(
    (status = 200, description = "The version", body = Version),
))]
pub(super) async fn version() -> Answer<Version> {
    found(Version { version: env!("CARGO_PKG_VERSION"), api: "v1" })
}

fn server_stopping() -> Failure {
    Failure::busy("the server is stopping")
}
