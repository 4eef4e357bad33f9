//! `/v1/jobs`.

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;

use crate::answer::{Answer, found};
use crate::failure::Failure;
use crate::jobs::Job;
use crate::state::ApiState;

/// Lists the jobs that run, and the last ones that have ended.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "listJobs", responses(
    (status = 200, description = "All jobs", body = [Job]),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn list(State(state): State<ApiState>) -> Answer<Vec<Job>> {
    found(state.jobs.list())
}

/// Describes one job.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "showJob",
    params(("id" = String, Path, description = "ID of the job")),
    responses(
        (status = 200, description = "The job", body = Job),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn show(State(state): State<ApiState>, UrlPath(id): UrlPath<String>) -> Result<Answer<Job>, Failure> {
    Ok(found(state.jobs.find(&id)?.job()))
}

/// Cancels a job if it runs, and removes it from the list. Fetched data stays in the store; the trace of a recording is deleted.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "cancelJob",
    params(("id" = String, Path, description = "ID of the job")),
    responses(
        (status = 204, description = "The job was removed"),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn cancel(State(state): State<ApiState>, UrlPath(id): UrlPath<String>) -> Result<StatusCode, Failure> {
    let entry = state.jobs.find(&id)?;
    state.jobs.forget(&entry);
    Ok(StatusCode::NO_CONTENT)
}
