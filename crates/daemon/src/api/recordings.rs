//! `/v1/recordings`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::Response;
use regex::bytes::Regex;
use serde::Deserialize;
use tarpon_engine::{DEFAULT_PROFILE, RecordRequest, Until};
use utoipa::ToSchema;

use super::extract::{JsonBody, time_limit};
use crate::answer::{Answer, LINES, found, typed};
use crate::failure::Failure;
use crate::image::{ImageOptions, ImageSelection};
use crate::jobs::{Job, JobEntry, JobKind, JobOutcome};
use crate::state::{ApiState, Purpose, RunningJob};

/// How long a stopped recording may take to remove its container: the container itself has ten seconds.
const STOPPING: Duration = Duration::from_secs(60);

/// A start to record. The recording ends when the container exits or the recording is stopped, unless one of `until_port`, `until_http`, `until_log` and
/// `for_seconds` is set.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordBody {
    /// The image.
    #[schema(example = "docker.io/library/python:3.12")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// Replaces the command of the image.
    #[serde(default)]
    command: Vec<String>,
    /// `NAME=VALUE`: adds to or overrides the environment of the image.
    #[serde(default)]
    env: Vec<String>,
    /// Ends when this port of the host accepts connections.
    until_port: Option<u16>,
    /// Ends when an HTTP request to this port of the host, `PORT` or `PORT/PATH`, is answered with success or a redirect.
    until_http: Option<String>,
    /// Ends when a line of output matches this regular expression.
    until_log: Option<String>,
    /// Ends after this many seconds.
    for_seconds: Option<u32>,
    /// The OCI runtime. Default: crun or runc, whichever works on this host.
    #[schema(value_type = Option<String>)]
    runtime: Option<PathBuf>,
    /// Time limit of the recording in seconds, 1 to 3600. Default: 600.
    timeout_seconds: Option<u32>,
}

impl RecordBody {
    fn until(&self) -> Result<Until, Failure> {
        let invalid = |cause: String| Failure::invalid("read when the recording ends", cause);
        match (self.until_port, &self.until_http, &self.until_log, self.for_seconds) {
            (None, None, None, None) => Ok(Until::Exit),
            (Some(port), None, None, None) => Ok(Until::Port(port)),
            (None, Some(probe), None, None) => probe.parse().map(Until::Http).map_err(invalid),
            (None, None, Some(pattern), None) => {
                Regex::new(pattern).map(Until::Log).map_err(|error| invalid(error.to_string()))
            }
            (None, None, None, Some(seconds)) => Ok(Until::Elapsed(Duration::from_secs(seconds.into()))),
            _ => Err(invalid("until_port, until_http, until_log and for_seconds exclude each other".to_owned())),
        }
    }
}

/// Starts to record a start of an image, as `tarpon record` does. The output of the container goes to the log of the daemon. Returns the job.
#[utoipa::path(post, path = "/v1/recordings", tag = "recordings", operation_id = "record", request_body = RecordBody, responses(
    (status = 202, description = "The recording has started", body = Job),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn record(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<RecordBody>,
) -> Result<Answer<Job>, Failure> {
    let (until, time_limit) = (body.until()?, time_limit(body.timeout_seconds)?);
    let image = ImageSelection::new(body.image, body.image_options);
    let request = state.admit(&image).await?;
    let permit = state.limits.record()?;
    let entry = state.jobs.begin(JobKind::Recording, image.image.clone())?;
    let request = RecordRequest {
        profile: image.profile().unwrap_or_else(|| DEFAULT_PROFILE.to_owned()),
        image: request,
        command: body.command,
        env: body.env,
        until,
        enough: entry.enough.clone(),
        patience: time_limit,
        runtime: body.runtime.or_else(|| state.runtime.clone()),
        to_stderr: true,
    };
    let job = entry.job();
    let work = RunningJob::new(state.feed.clone(), entry.clone());
    tokio::spawn(async move {
        let _until_done = permit;
        let outcome = recorded(&state, &entry, image, request).await;
        work.end(outcome);
    });
    Ok(Answer(StatusCode::ACCEPTED, job))
}

async fn recorded(
    state: &ApiState,
    entry: &JobEntry,
    image: ImageSelection,
    request: RecordRequest,
) -> Result<JobOutcome, Failure> {
    // Shared with equal requests, and queued.
    let prepared = tokio::select! {
        prepared = state.prepare(image, request.image.clone(), Purpose::Later, request.patience) => prepared?,
        () = entry.cancelled() => return Err(Failure::cancelled("record")),
    };
    let recorded = state.engine.record_prepared(&request, prepared, entry.cancelled()).await?;
    entry.keep_trace(recorded.trace.write());
    Ok(JobOutcome {
        touches: Some(recorded.trace.touches.len()),
        exit_code: recorded.exit,
        ..JobOutcome::of(&recorded.trace.header.manifest)
    })
}

/// Ends a recording; its trace holds all accesses until now. The response is sent when the container is removed.
#[utoipa::path(post, path = "/v1/recordings/{id}/stop", tag = "recordings", operation_id = "stopRecording",
    params(("id" = String, Path, description = "ID of the job")),
    responses(
        (status = 200, description = "The recording has ended", body = Job),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn stop(State(state): State<ApiState>, UrlPath(id): UrlPath<String>) -> Result<Answer<Job>, Failure> {
    let entry = recording(&state, &id)?;
    let _permit = state.limits.stop()?;
    entry.stop();
    let late = |_| Failure::late("stop the recording", STOPPING);
    tokio::time::timeout(STOPPING, entry.ended()).await.map_err(late)?;
    Ok(found(entry.job()))
}

/// Returns the trace of a recording: the accessed content in the order of first access, as `tarpon record -o` writes it, for
/// `tarpon mount --trace`.
#[utoipa::path(get, path = "/v1/recordings/{id}/trace", tag = "recordings", operation_id = "recordedTrace",
    params(("id" = String, Path, description = "ID of the job")),
    responses(
        (status = 200, description = "JSON, one object per line", body = String, content_type = "application/x-ndjson"),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn trace(State(state): State<ApiState>, UrlPath(id): UrlPath<String>) -> Result<Response, Failure> {
    let entry = recording(&state, &id)?;
    let trace = entry.trace().ok_or_else(|| {
        let state = entry.job().state;
        Failure::conflict("read the trace", format!("it does not exist: the recording is {}", state.name()))
    })?;
    Ok(typed(LINES, Body::from(trace)))
}

fn recording(state: &ApiState, id: &str) -> Result<Arc<JobEntry>, Failure> {
    let entry = state.jobs.find(id)?;
    match entry.job().kind {
        JobKind::Recording => Ok(entry),
        JobKind::Prefetch => Err(Failure::not_found("find the recording", format!("job {id} is not a recording"))),
    }
}
