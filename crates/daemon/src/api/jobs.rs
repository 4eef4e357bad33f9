//! `/v1/jobs`.

use axum::extract::{Path as InPath, State as With};
use axum::http::StatusCode;

use super::Failure;
use super::answer::{Answer, found};
use crate::jobs::Job;
use crate::state::State;

/// Lists the jobs, the last of those that have ended among them.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "listJobs", responses(
    (status = 200, description = "All of them", body = [Job]),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn list(With(state): With<State>) -> Answer<Vec<Job>> {
    found(state.jobs.list())
}

/// Describes one job.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "showJob",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "It", body = Job),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn show(With(state): With<State>, InPath(id): InPath<String>) -> Result<Answer<Job>, Failure> {
    Ok(found(state.jobs.find(&id)?.job()))
}

/// Ends a job if it runs, and forgets it. What it has brought stays in the store; a trace is gone.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "cancelJob",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 204, description = "It is forgotten"),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn cancel(With(state): With<State>, InPath(id): InPath<String>) -> Result<StatusCode, Failure> {
    let entry = state.jobs.find(&id)?;
    state.jobs.forget(&entry);
    Ok(StatusCode::NO_CONTENT)
}
