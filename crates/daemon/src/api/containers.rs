//! `/v1/containers`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarpon_engine::{
    CapabilityChanges, ContainerName, ContainerOptions, ContainerState, ContainerStatus, ImageRequest, Limits, LogLine,
    LogRequest, Network, Output, Prepared, ProcessLimit, RunError, RunOutcome, RunRequest, Signals, Tmpfs, Volume,
};
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};

use super::extract::{JsonBody, QueryParams, time_limit};
use super::mounts::{BackfillWhen, Mode};
use crate::answer::{Answer, found, typed};
use crate::failure::Failure;
use crate::feed::EventKind;
use crate::image::{ImageOptions, ImageSelection};
use crate::state::{ApiState, Purpose};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain");

/// Default time in seconds until a container that does not stop is killed, as with `tarpon stop`.
const STOPPING: u32 = 10;

/// Pieces of a log that are queued for a slow client: each is a line of at most 16 KiB.
const QUEUED_LINES: usize = 16;

/// A container.
#[derive(Serialize, ToSchema)]
pub(super) struct Container {
    /// Its name.
    name: String,
    /// `starting`, `running`, `exited`, `lost` (its keeper process was killed), `unreadable`.
    status: String,
    /// It runs, but the server that served its image has exited: only local data can be read.
    source_lost: bool,
    /// Why its record cannot be read. If set, the fields below are empty.
    problem: Option<String>,
    /// The image, as named in the request.
    image: Option<String>,
    /// Digest of its manifest.
    manifest: Option<String>,
    /// Its command line.
    command: Vec<String>,
    /// Creation time, in seconds since 1970.
    created: Option<u64>,
    /// Host PID of its first process, if it runs.
    pid: Option<u32>,
    /// Its exit code, if it has ended and the code was recorded.
    exit_code: Option<u8>,
    /// Whether it runs in the background and its output is logged.
    is_detached: bool,
}

impl From<ContainerStatus> for Container {
    fn from(status: ContainerStatus) -> Self {
        let ContainerStatus { name, record, standing, source_lost } = status;
        let (record, problem) = match record {
            Ok(record) => (Some(record), None),
            Err(problem) => (None, Some(problem)),
        };
        let (mut pid, mut exit_code) = (None, None);
        match record.as_ref().map(|record| &record.state) {
            Some(ContainerState::Running { pid: number, .. }) => pid = Some(*number),
            Some(ContainerState::Exited { code, .. }) => exit_code = *code,
            Some(ContainerState::Created) | None => {}
        }
        Self {
            name: name.to_string(),
            status: standing.name().to_owned(),
            source_lost,
            problem,
            image: record.as_ref().map(|record| record.image.clone()),
            manifest: record.as_ref().map(|record| record.manifest.to_string()),
            created: record.as_ref().map(|record| record.created),
            pid,
            exit_code,
            is_detached: record.as_ref().is_some_and(|record| record.detached),
            command: record.map(|record| record.command).unwrap_or_default(),
        }
    }
}

/// A container to run. Fields that are left out default to the image configuration.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunBody {
    /// The image: NAME[:TAG|@DIGEST], or `oci:`, `oci-archive:`, `docker-archive:` and an absolute path.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// Its name. Default: a random name.
    name: Option<String>,
    /// Replaces the entrypoint of the image, and drops its command. Empty: no entrypoint.
    entrypoint: Option<Vec<String>>,
    /// Replaces the command of the image.
    #[serde(default)]
    command: Vec<String>,
    /// `NAME=VALUE`: adds to or overrides the environment of the image.
    #[serde(default)]
    env: Vec<String>,
    /// `USER[:GROUP]`.
    user: Option<String>,
    /// Working directory.
    directory: Option<String>,
    /// Host name.
    hostname: Option<String>,
    /// Its network.
    #[serde(default)]
    network: Connected,
    /// Whether it has a terminal.
    #[serde(default)]
    terminal: bool,
    /// Whether its standard input stays open.
    #[serde(default)]
    input: bool,
    /// Whether its root file system is read-only.
    #[serde(default)]
    read_only: bool,
    /// Whether setuid programs cannot raise its privileges.
    #[serde(default)]
    no_new_privileges: bool,
    /// Whether the seccomp filter is disabled. By default it is applied if the runtime supports it.
    #[serde(default)]
    any_system_call: bool,
    /// Capabilities added to the default set, or `ALL`.
    #[serde(default)]
    cap_add: Vec<String>,
    /// Capabilities removed from the default set, or `ALL`.
    #[serde(default)]
    cap_drop: Vec<String>,
    /// `SOURCE:DESTINATION[:ro,nosuid,nodev,noexec]`, or `DESTINATION` alone.
    #[serde(default)]
    volumes: Vec<String>,
    /// `DESTINATION[:size=SIZE,mode=MODE,ro,noexec]`.
    #[serde(default)]
    tmpfs: Vec<String>,
    /// Memory limit in bytes, including swap.
    memory: Option<u64>,
    /// CPU limit, such as 1.5.
    cpus: Option<f64>,
    /// Limit on processes and threads. Default: 2048, if the cgroups of the host support the limit.
    pids: Option<u32>,
    /// Whether it is removed when it exits.
    #[serde(default)]
    remove: bool,
    /// The signal that stops it.
    stop_signal: Option<String>,
    /// The OCI runtime. Default: crun or runc, whichever works on this host.
    #[schema(value_type = Option<String>)]
    runtime: Option<PathBuf>,
    /// How the image is mounted.
    #[serde(default)]
    mode: Mode,
    /// Whether the rest of the image is fetched in the background.
    #[serde(default)]
    backfill: BackfillWhen,
    /// Whether what the start reads is kept for the next start, and what earlier ones read is fetched first.
    #[serde(default = "super::on")]
    #[schema(default = true)]
    learn: bool,
    /// Seconds to wait for the image, 1 to 3600. Default: 600.
    timeout_seconds: Option<u32>,
}

/// Network of a container.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Network)]
enum Connected {
    /// The network of the host.
    #[default]
    Host,
    /// No network except loopback.
    None,
}

impl RunBody {
    /// The request to the engine.
    fn request(self, image: ImageRequest, state: &ApiState) -> Result<RunRequest, Failure> {
        let volumes =
            self.volumes.iter().map(|text| text.parse().map_err(invalid)).collect::<Result<Vec<Volume>, _>>()?;
        let tmpfs = self.tmpfs.iter().map(|text| text.parse().map_err(invalid)).collect::<Result<Vec<Tmpfs>, _>>()?;
        let options = ContainerOptions {
            entrypoint: self.entrypoint,
            command: self.command,
            env: self.env,
            user: self.user,
            directory: self.directory,
            hostname: self.hostname,
            network: match self.network {
                Connected::Host => Network::Host,
                Connected::None => Network::None,
            },
            ports: Vec::new(),
            terminal: self.terminal,
            read_only: self.read_only,
            no_new_privileges: self.no_new_privileges,
            filtered: !self.any_system_call,
            capabilities: CapabilityChanges { add: self.cap_add, drop: self.cap_drop },
            volumes,
            tmpfs,
            limits: Limits {
                memory: self.memory,
                cpus: self.cpus,
                pids: self.pids.map_or(ProcessLimit::Usual, ProcessLimit::At),
            },
            ..ContainerOptions::default()
        };
        if let Some(odd) = options.env.iter().find(|variable| !variable.contains('=') || variable.starts_with('=')) {
            return Err(invalid(format!("{odd:?} is not NAME=VALUE")));
        }
        Ok(RunRequest {
            image,
            mode: self.mode.into(),
            backfill: self.backfill.into(),
            learn: self.learn,
            options,
            name: self.name.as_deref().map(name).transpose()?,
            name_file: None,
            remove: self.remove,
            detach: true,
            input: self.input,
            stop_signal: self.stop_signal,
            runtime: self.runtime.or_else(|| state.runtime.clone()),
            keeper_command: state.keeper_command.clone(),
        })
    }
}

fn invalid(cause: String) -> Failure {
    Failure::invalid("read the container options", cause)
}

fn name(text: &str) -> Result<ContainerName, Failure> {
    text.parse().map_err(|cause| Failure::invalid("read the name of the container", cause))
}

/// Options of a stop.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StopQuery {
    /// Seconds until a container that does not stop is killed, at most 3600. Default: 10.
    #[param(maximum = 3600)]
    patience_seconds: Option<u32>,
}

/// Options of a kill.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct KillQuery {
    /// The signal, by name or number. Default: KILL.
    signal: Option<String>,
}

/// Options of a removal.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveQuery {
    /// Whether to remove a container that runs, or whose record cannot be read.
    #[serde(default)]
    force: bool,
}

/// Options of a log request.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogsQuery {
    /// Whether to follow the log until the container exits.
    #[serde(default)]
    follow: bool,
    /// Return only this stream. Default: both.
    stream: Option<Stream>,
}

/// An output stream of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = LogStream)]
enum Stream {
    /// Standard output, or all output of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl From<Output> for Stream {
    fn from(output: Output) -> Self {
        match output {
            Output::Stdout => Self::Stdout,
            Output::Stderr => Self::Stderr,
        }
    }
}

/// Lists all containers of the store, including those that have exited.
#[utoipa::path(get, path = "/v1/containers", tag = "containers", operation_id = "listContainers", responses(
    (status = 200, description = "All containers", body = [Container]),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn list(State(state): State<ApiState>) -> Result<Answer<Vec<Container>>, Failure> {
    let containers = state.call(|engine| engine.containers()).await?;
    Ok(found(containers.into_iter().map(Container::from).collect()))
}

/// Runs a container in the background. The response is sent when the container runs; its output is logged.
#[utoipa::path(post, path = "/v1/containers", tag = "containers", operation_id = "runContainer", request_body = RunBody, responses(
    (status = 201, description = "The container runs or has already exited", body = Container),
    (status = "default", description = "The request failed, and no container was created", body = Failure),
))]
pub(super) async fn run(
    State(state): State<ApiState>,
    JsonBody(mut body): JsonBody<RunBody>,
) -> Result<Answer<Container>, Failure> {
    let time_limit = time_limit(body.timeout_seconds)?;
    let image = ImageSelection::new(body.image.clone(), std::mem::take(&mut body.image_options));
    // Invalid requests and names that are in use fail before anything is fetched.
    let admitted = state.admit(&image).await?;
    let request = body.request(admitted.clone(), &state)?;
    if let Some(name) = request.name.clone() {
        state.call(move |engine| engine.check_container_name(&name)).await?;
    }
    let prepared = state.prepare(image, admitted, Purpose::Mount, time_limit).await?;
    // From here on the container is created even if the client disconnects: a half-created one would have no owner.
    let made = tokio::spawn(start(state, request, prepared));
    made.await.map_err(|error| Failure::internal("run the container", error))?
}

async fn start(state: ApiState, request: RunRequest, prepared: Prepared) -> Result<Answer<Container>, Failure> {
    let image = request.image.text.clone();
    let permit = state.limits.call().await?;
    let ran = state.engine.run_prepared(&request, prepared, &mut Signals::none()).await;
    drop(permit);
    let name = match ran? {
        RunOutcome::Detached(name) => name,
        RunOutcome::Exited(exit) => return Err(RunError { exit, error: unexpected() }.into()),
    };
    state.feed.publish(EventKind::ContainerStarted { name: name.to_string(), image });
    let known = find(&state, name.clone()).await;
    let removed = || Container { name: name.to_string(), status: "removed".to_owned(), ..Container::empty() };
    Ok(Answer(StatusCode::CREATED, known.map_or_else(|_| removed(), Container::from)))
}

fn unexpected() -> tarpon_engine::Error {
    tarpon_engine::Error::new(tarpon_engine::ErrorKind::Other, "run the container", "it ran in the foreground")
}

impl Container {
    /// A container that was removed at its end, before its status could be read.
    fn empty() -> Self {
        Self {
            name: String::new(),
            status: String::new(),
            source_lost: false,
            problem: None,
            image: None,
            manifest: None,
            command: Vec::new(),
            created: None,
            pid: None,
            exit_code: None,
            is_detached: true,
        }
    }
}

/// Describes one container.
#[utoipa::path(get, path = "/v1/containers/{name}", tag = "containers", operation_id = "showContainer",
    params(("name" = String, Path, description = "Name of the container")),
    responses(
        (status = 200, description = "The container", body = Container),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn show(
    State(state): State<ApiState>,
    UrlPath(text): UrlPath<String>,
) -> Result<Answer<Container>, Failure> {
    Ok(found(find(&state, name(&text)?).await?.into()))
}

async fn find(state: &ApiState, name: ContainerName) -> Result<ContainerStatus, Failure> {
    let containers = state.call(|engine| engine.containers()).await?;
    let found = containers.into_iter().find(|container| container.name == name);
    found.ok_or_else(|| Failure::not_found("find the container", format!("there is no container {name}")))
}

/// Stops a container, and kills it after the time limit. The response is sent when it has exited. A container that has already exited is not an
/// error.
#[utoipa::path(post, path = "/v1/containers/{name}/stop", tag = "containers", operation_id = "stopContainer",
    params(("name" = String, Path, description = "Name of the container"), StopQuery),
    responses(
        (status = 204, description = "The container has exited"),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn stop(
    State(state): State<ApiState>,
    UrlPath(text): UrlPath<String>,
    QueryParams(query): QueryParams<StopQuery>,
) -> Result<StatusCode, Failure> {
    let name = name(&text)?;
    let time_limit = match query.patience_seconds {
        Some(0) => Duration::ZERO,
        other => time_limit(Some(other.unwrap_or(STOPPING)))?,
    };
    let permit = state.limits.stop()?;
    state.call_from(permit, move |engine| engine.stop_container(&name, time_limit)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a container a signal.
#[utoipa::path(post, path = "/v1/containers/{name}/kill", tag = "containers", operation_id = "killContainer",
    params(("name" = String, Path, description = "Name of the container"), KillQuery),
    responses(
        (status = 204, description = "The signal was sent"),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn kill(
    State(state): State<ApiState>,
    UrlPath(text): UrlPath<String>,
    QueryParams(query): QueryParams<KillQuery>,
) -> Result<StatusCode, Failure> {
    let name = name(&text)?;
    let signal = query.signal.unwrap_or_else(|| "KILL".to_owned());
    tarpon_engine::signal_name(&signal).map_err(|cause| Failure::invalid("read the signal", cause))?;
    state.call(move |engine| engine.kill_container(&name, &signal)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a container and all data that it wrote.
#[utoipa::path(delete, path = "/v1/containers/{name}", tag = "containers", operation_id = "removeContainer",
    params(("name" = String, Path, description = "Name of the container"), RemoveQuery),
    responses(
        (status = 204, description = "The container was removed"),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn remove(
    State(state): State<ApiState>,
    UrlPath(text): UrlPath<String>,
    QueryParams(query): QueryParams<RemoveQuery>,
) -> Result<StatusCode, Failure> {
    let name = name(&text)?;
    state.call(move |engine| engine.remove_container(&name, query.force)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the output of a container that runs in the background, oldest first.
#[utoipa::path(get, path = "/v1/containers/{name}/logs", tag = "containers", operation_id = "containerLogs",
    params(("name" = String, Path, description = "Name of the container"), LogsQuery),
    responses(
        (status = 200, description = "The output of the container", body = String, content_type = "text/plain"),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn logs(
    State(state): State<ApiState>,
    UrlPath(text): UrlPath<String>,
    QueryParams(query): QueryParams<LogsQuery>,
) -> Result<Response, Failure> {
    let permit = state.limits.listen()?;
    let name = name(&text)?;
    if let Ok(record) = find(&state, name.clone()).await?.record
        && !record.detached
    {
        let cause = "it runs in the foreground: only containers in the background have a log";
        return Err(Failure::not_found("read the container's log", cause));
    }
    let (engine, stopping) = (state.engine.clone(), state.stopping.subscribe());
    let (send, receive) = mpsc::channel::<Bytes>(QUEUED_LINES);
    tokio::task::spawn_blocking(move || {
        let _until_done = permit;
        let mut sink = |line: &LogLine<'_>| {
            if query.stream.is_none_or(|wanted| wanted == line.output.into()) {
                return send.blocking_send(Bytes::copy_from_slice(line.text)).map_err(std::io::Error::other);
            }
            Ok(())
        };
        let should_stop = || send.is_closed() || *stopping.borrow();
        let follow: Option<&dyn Fn() -> bool> = if query.follow { Some(&should_stop) } else { None };
        if let Err(error) = engine.container_logs(&name, &LogRequest::default(), follow, &mut sink) {
            tracing::debug!(%name, %error, "log not read to its end");
        }
    });
    let pieces = futures::stream::unfold(receive, |mut receive| async {
        Some((Ok::<_, Infallible>(receive.recv().await?), receive))
    });
    Ok(typed(TEXT, Body::from_stream(pieces)))
}
