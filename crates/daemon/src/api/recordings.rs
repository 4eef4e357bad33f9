//! `/v1/recordings`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path as InPath, State as With};
use axum::http::StatusCode;
use axum::response::Response;
use regex::bytes::Regex;
use serde::Deserialize;
use tarpon_engine::{DEFAULT_PROFILE, RecordRequest, Until};
use utoipa::ToSchema;

use super::Failure;
use super::answer::{Answer, LINES, found, typed};
use super::image::{ImageOptions, ImageWish};
use super::said::{Said, patience};
use crate::jobs::{Entry, Job, Kind, Outcome, UnderWay};
use crate::state::{For, State};

/// How long a stopped recording may take to remove its container: the container itself has ten seconds.
const STOPPING: Duration = Duration::from_secs(60);

/// A start to be recorded. It is over when the container ends, unless one of `until_port`, `until_log` and `for_seconds` says otherwise, or when
/// it is stopped.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordWish {
    /// The image.
    #[schema(example = "docker.io/library/python:3.12")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// Instead of the image's command.
    #[serde(default)]
    command: Vec<String>,
    /// `NAME=VALUE`, beside or instead of the image's.
    #[serde(default)]
    env: Vec<String>,
    /// It is over when this port of this host accepts connections.
    until_port: Option<u16>,
    /// It is over when a line of output matches this regular expression.
    until_log: Option<String>,
    /// It is over after so many seconds.
    for_seconds: Option<u32>,
    /// The OCI runtime; else crun or runc, whichever works here.
    #[schema(value_type = Option<String>)]
    runtime: Option<PathBuf>,
    /// How long to wait until it is over, 1 to 3600; else 600.
    timeout_seconds: Option<u32>,
}

impl RecordWish {
    fn until(&self) -> Result<Until, Failure> {
        let invalid = |cause: String| Failure::invalid("read when the start is over", cause);
        match (self.until_port, &self.until_log, self.for_seconds) {
            (None, None, None) => Ok(Until::Exit),
            (Some(port), None, None) => Ok(Until::Port(port)),
            (None, Some(pattern), None) => {
                Regex::new(pattern).map(Until::Log).map_err(|error| invalid(error.to_string()))
            }
            (None, None, Some(seconds)) => Ok(Until::Elapsed(Duration::from_secs(seconds.into()))),
            _ => Err(invalid("only one of until_port, until_log and for_seconds can say so".to_owned())),
        }
    }
}

/// Begins to record a start of an image, as `tarpon record` does. What the container prints goes to the daemon's log. Answers with
/// the job that does so.
#[utoipa::path(post, path = "/v1/recordings", tag = "recordings", operation_id = "record", request_body = RecordWish, responses(
    (status = 202, description = "It has begun", body = Job),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn record(With(state): With<State>, Said(wish): Said<RecordWish>) -> Result<Answer<Job>, Failure> {
    let (until, patience) = (wish.until()?, patience(wish.timeout_seconds)?);
    let image = ImageWish::new(wish.image, wish.image_options);
    let request = state.admit(&image).await?;
    let place = state.gates.record()?;
    let entry = state.jobs.begin(Kind::Recording, image.image.clone())?;
    let request = RecordRequest {
        profile: image.profile().unwrap_or_else(|| DEFAULT_PROFILE.to_owned()),
        image: request,
        command: wish.command,
        env: wish.env,
        until,
        enough: entry.enough.clone(),
        patience,
        runtime: wish.runtime.or_else(|| state.runtime.clone()),
        to_stderr: true,
    };
    let job = entry.job();
    let work = UnderWay::new(state.feed.clone(), entry.clone());
    tokio::spawn(async move {
        let _until_done = place;
        let outcome = recorded(&state, &entry, image, request).await;
        work.end(outcome);
    });
    Ok(Answer(StatusCode::ACCEPTED, job))
}

async fn recorded(state: &State, entry: &Entry, image: ImageWish, request: RecordRequest) -> Result<Outcome, Failure> {
    // Shared with equal requests, and queued.
    let prepared = tokio::select! {
        prepared = state.prepare(image, For::Later, request.patience) => prepared?,
        () = entry.cancelled() => return Err(Failure::cancelled("record")),
    };
    let recorded = state.engine.record_prepared(&request, prepared, entry.cancelled()).await?;
    entry.keep_trace(recorded.trace.write());
    Ok(Outcome {
        manifest: recorded.trace.header.manifest.to_string(),
        fetched_bytes: None,
        touches: Some(recorded.trace.touches.len()),
        exit_code: recorded.exit,
    })
}

/// Ends a recording: what was touched until now is its trace. Answers when its container is gone.
#[utoipa::path(post, path = "/v1/recordings/{id}/stop", tag = "recordings", operation_id = "stopRecording",
    params(("id" = String, Path, description = "The id of its job")),
    responses(
        (status = 200, description = "It is over", body = Job),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn stop(With(state): With<State>, InPath(id): InPath<String>) -> Result<Answer<Job>, Failure> {
    let entry = recording(&state, &id)?;
    let _place = state.gates.stop()?;
    entry.stop();
    let late = |_| Failure::late("stop the recording", STOPPING);
    tokio::time::timeout(STOPPING, entry.ended()).await.map_err(late)?;
    Ok(found(entry.job()))
}

/// What a recorded start touched, in the order of first touch: a trace as `tarpon record -o` writes it, for `tarpon mount --trace`.
#[utoipa::path(get, path = "/v1/recordings/{id}/trace", tag = "recordings", operation_id = "recordedTrace",
    params(("id" = String, Path, description = "The id of its job")),
    responses(
        (status = 200, description = "JSON, one object a line", body = String, content_type = "application/x-ndjson"),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn trace(With(state): With<State>, InPath(id): InPath<String>) -> Result<Response, Failure> {
    let entry = recording(&state, &id)?;
    let trace = entry.trace().ok_or_else(|| {
        let state = entry.job().state;
        Failure::conflict("read the trace", format!("there is none: the recording is {}", state.name()))
    })?;
    Ok(typed(LINES, Body::from(trace)))
}

fn recording(state: &State, id: &str) -> Result<Arc<Entry>, Failure> {
    let entry = state.jobs.find(id)?;
    match entry.job().kind {
        Kind::Recording => Ok(entry),
        Kind::Prefetch => Err(Failure::not_found("find the recording", format!("job {id} is none"))),
    }
}
