//! `/v1/containers`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path as InPath, State as With};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarpon_engine::{
    CapabilityChanges, ContainerName, ContainerOptions, ContainerState, ContainerStatus, ImageRequest, Limits, LogLine,
    LogWish, Network, Output, Prepared, ProcessLimit, RunError, RunOutcome, RunRequest, Signals, Tmpfs, Volume,
};
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};

use super::Failure;
use super::answer::{Answer, found, typed};
use super::image::{ImageOptions, ImageWish};
use super::mounts::{Mode, When};
use super::said::{Asked, Said, patience};
use crate::feed::What;
use crate::state::{For, State};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain");

/// Default time in seconds until a container that does not stop is killed, as with `tarpon stop`.
const STOPPING: u32 = 10;

/// Pieces of a log that are queued for a slow client: each is a line of at most 16 KiB.
const PIECES: usize = 16;

/// A container.
#[derive(Serialize, ToSchema)]
pub(super) struct Container {
    /// Its name.
    name: String,
    /// `starting`, `running`, `exited`, `lost` (whoever kept it was killed), `unreadable`.
    status: String,
    /// It runs, and the server that it read its image through is gone: it has what is local, and nothing else.
    source_lost: bool,
    /// Why its record cannot be read. Then nothing else is known.
    problem: Option<String>,
    /// The image, as it was asked for.
    image: Option<String>,
    /// Digest of its manifest.
    manifest: Option<String>,
    /// What is run.
    command: Vec<String>,
    /// When it was made, in seconds since 1970.
    created: Option<u64>,
    /// Its first process, as this host numbers it, if it runs.
    pid: Option<u32>,
    /// Its exit code, if it has ended and somebody saw it.
    exit_code: Option<u8>,
    /// Whether its output is kept.
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

/// A container to be run. What is left out is as the image says.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunWish {
    /// The image: NAME[:TAG|@DIGEST], or `oci:`, `oci-archive:`, `docker-archive:` and an absolute path.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// What to call it; else a random name.
    name: Option<String>,
    /// Instead of the image's entrypoint; without the image's command. Empty: none.
    entrypoint: Option<Vec<String>>,
    /// Instead of the image's command.
    #[serde(default)]
    command: Vec<String>,
    /// `NAME=VALUE`, beside or instead of the image's.
    #[serde(default)]
    env: Vec<String>,
    /// `USER[:GROUP]`.
    user: Option<String>,
    /// Where it starts.
    directory: Option<String>,
    /// Its own host name.
    hostname: Option<String>,
    /// What it is connected to.
    #[serde(default)]
    network: Connected,
    /// Whether it has a terminal.
    #[serde(default)]
    terminal: bool,
    /// Whether its standard input stays open.
    #[serde(default)]
    input: bool,
    /// Whether its root file system cannot be written.
    #[serde(default)]
    read_only: bool,
    /// Whether setuid programs give it nothing.
    #[serde(default)]
    no_new_privileges: bool,
    /// Whether its system calls are not filtered, as they are else if the runtime can.
    #[serde(default)]
    any_system_call: bool,
    /// Capabilities beside the usual ones, or `ALL`.
    #[serde(default)]
    cap_add: Vec<String>,
    /// Usual capabilities that it does not get, or `ALL`.
    #[serde(default)]
    cap_drop: Vec<String>,
    /// `SOURCE:DESTINATION[:ro,nosuid,nodev,noexec]`, or `DESTINATION` alone.
    #[serde(default)]
    volumes: Vec<String>,
    /// `DESTINATION[:size=SIZE,mode=MODE,ro,noexec]`.
    #[serde(default)]
    tmpfs: Vec<String>,
    /// Bytes of memory, swap included.
    memory: Option<u64>,
    /// Processors, such as 1.5.
    cpus: Option<f64>,
    /// Processes and threads; else 2048, where the cgroups of the host can limit it.
    pids: Option<u32>,
    /// Whether it is removed when it ends.
    #[serde(default)]
    remove: bool,
    /// The signal that asks it to end.
    stop_signal: Option<String>,
    /// The OCI runtime; else crun or runc, whichever works here.
    #[schema(value_type = Option<String>)]
    runtime: Option<PathBuf>,
    /// How the image is mounted.
    #[serde(default)]
    mode: Mode,
    /// Whether the rest of the image is brought in the background.
    #[serde(default)]
    backfill: When,
    /// How long to wait for the image, 1 to 3600; else 600.
    timeout_seconds: Option<u32>,
}

/// What a container is connected to.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Network)]
enum Connected {
    /// The network of this host, as it is.
    #[default]
    Host,
    /// Nothing but itself.
    None,
}

impl RunWish {
    /// The request to the engine.
    fn request(self, image: ImageRequest, state: &State) -> Result<RunRequest, Failure> {
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
    Failure::invalid("read what to run", cause)
}

fn name(text: &str) -> Result<ContainerName, Failure> {
    text.parse().map_err(|cause| Failure::invalid("read the name of the container", cause))
}

/// How long a container may take to stop.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StopQuery {
    /// Seconds until a container that does not stop is killed, at most 3600; else 10.
    #[param(maximum = 3600)]
    patience_seconds: Option<u32>,
}

/// What a container is told.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct KillQuery {
    /// A signal, by its name or number; else KILL.
    signal: Option<String>,
}

/// How a container is removed.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveQuery {
    /// Also one that runs, or whose record cannot be read.
    #[serde(default)]
    force: bool,
}

/// Which part of a log is wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogsQuery {
    /// Go on until the container ends.
    #[serde(default)]
    follow: bool,
    /// Only what it wrote there.
    stream: Option<Stream>,
}

/// Where a container wrote something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = LogStream)]
enum Stream {
    /// Standard output, and all that a terminal shows.
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

/// Lists the containers of the store, with those that have ended.
#[utoipa::path(get, path = "/v1/containers", tag = "containers", operation_id = "listContainers", responses(
    (status = 200, description = "All of them", body = [Container]),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn list(With(state): With<State>) -> Result<Answer<Vec<Container>>, Failure> {
    let containers = state.call(|engine| engine.containers()).await?;
    Ok(found(containers.into_iter().map(Container::from).collect()))
}

/// Runs a container in the background. It runs when the answer comes; its output is kept.
#[utoipa::path(post, path = "/v1/containers", tag = "containers", operation_id = "runContainer", request_body = RunWish, responses(
    (status = 201, description = "It runs, or has ended already", body = Container),
    (status = "default", description = "It failed, and nothing of it is left", body = Failure),
))]
pub(super) async fn run(With(state): With<State>, Said(mut wish): Said<RunWish>) -> Result<Answer<Container>, Failure> {
    let patience = patience(wish.timeout_seconds)?;
    let image = ImageWish::new(wish.image.clone(), std::mem::take(&mut wish.image_options));
    // Invalid requests and names that are in use fail before anything is fetched.
    let request = wish.request(image.request()?, &state)?;
    if let Some(name) = request.name.clone() {
        state.call(move |engine| engine.check_container_name(&name)).await?;
    }
    let prepared = state.prepare(image, For::Mount, patience).await?;
    // From here on the container is created even if the client disconnects: a half-created one would have no owner.
    let made = tokio::spawn(start(state, request, prepared));
    made.await.map_err(|error| Failure::of_us("run the container", error))?
}

async fn start(state: State, request: RunRequest, prepared: Prepared) -> Result<Answer<Container>, Failure> {
    let image = request.image.text.clone();
    let place = state.gates.call().await?;
    let ran = state.engine.run_prepared(&request, prepared, &mut Signals::none()).await;
    drop(place);
    let name = match ran? {
        RunOutcome::Detached(name) => name,
        RunOutcome::Exited(exit) => return Err(RunError { exit, error: unexpected() }.into()),
    };
    state.feed.tell(What::ContainerStarted { name: name.to_string(), image });
    let known = find(&state, name.clone()).await;
    let gone = || Container { name: name.to_string(), status: "removed".to_owned(), ..Container::nothing() };
    Ok(Answer(StatusCode::CREATED, known.map_or_else(|_| gone(), Container::from)))
}

fn unexpected() -> tarpon_engine::Error {
    tarpon_engine::Error::new(tarpon_engine::ErrorKind::Other, "run the container", "it ran in the foreground")
}

impl Container {
    /// A container that was removed at its end, before its status could be read.
    fn nothing() -> Self {
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
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "It", body = Container),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn show(With(state): With<State>, InPath(text): InPath<String>) -> Result<Answer<Container>, Failure> {
    Ok(found(find(&state, name(&text)?).await?.into()))
}

async fn find(state: &State, name: ContainerName) -> Result<ContainerStatus, Failure> {
    let containers = state.call(|engine| engine.containers()).await?;
    let found = containers.into_iter().find(|container| container.name == name);
    found.ok_or_else(|| Failure::not_found("find the container", format!("there is no container {name}")))
}

/// Asks a container to stop, and kills it if it does not. Answers when it has ended; one that has already is no failure.
#[utoipa::path(post, path = "/v1/containers/{name}/stop", tag = "containers", operation_id = "stopContainer",
    params(("name" = String, Path, description = "Its name"), StopQuery),
    responses(
        (status = 204, description = "It has ended"),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn stop(
    With(state): With<State>,
    InPath(text): InPath<String>,
    Asked(query): Asked<StopQuery>,
) -> Result<StatusCode, Failure> {
    let name = name(&text)?;
    let patience = match query.patience_seconds {
        Some(0) => Duration::ZERO,
        other => patience(Some(other.unwrap_or(STOPPING)))?,
    };
    let place = state.gates.stop()?;
    state.call_from(place, move |engine| engine.stop_container(&name, patience)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a container a signal.
#[utoipa::path(post, path = "/v1/containers/{name}/kill", tag = "containers", operation_id = "killContainer",
    params(("name" = String, Path, description = "Its name"), KillQuery),
    responses(
        (status = 204, description = "It was sent"),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn kill(
    With(state): With<State>,
    InPath(text): InPath<String>,
    Asked(query): Asked<KillQuery>,
) -> Result<StatusCode, Failure> {
    let name = name(&text)?;
    let signal = query.signal.unwrap_or_else(|| "KILL".to_owned());
    tarpon_engine::signal_name(&signal).map_err(|cause| Failure::invalid("read the signal", cause))?;
    state.call(move |engine| engine.kill_container(&name, &signal)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a container with everything that it wrote.
#[utoipa::path(delete, path = "/v1/containers/{name}", tag = "containers", operation_id = "removeContainer",
    params(("name" = String, Path, description = "Its name"), RemoveQuery),
    responses(
        (status = 204, description = "It is gone"),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn remove(
    With(state): With<State>,
    InPath(text): InPath<String>,
    Asked(query): Asked<RemoveQuery>,
) -> Result<StatusCode, Failure> {
    let name = name(&text)?;
    state.call(move |engine| engine.remove_container(&name, query.force)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The output of a container that runs in the background, oldest first, as it wrote it.
#[utoipa::path(get, path = "/v1/containers/{name}/logs", tag = "containers", operation_id = "containerLogs",
    params(("name" = String, Path, description = "Its name"), LogsQuery),
    responses(
        (status = 200, description = "Its output", body = String, content_type = "text/plain"),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn logs(
    With(state): With<State>,
    InPath(text): InPath<String>,
    Asked(query): Asked<LogsQuery>,
) -> Result<Response, Failure> {
    let place = state.gates.listen()?;
    let name = name(&text)?;
    if let Ok(record) = find(&state, name.clone()).await?.record
        && !record.detached
    {
        let cause = "its output went to where it was started: only of those in the background a log is kept";
        return Err(Failure::not_found("read the container's log", cause));
    }
    let (engine, stopping) = (state.engine.clone(), state.stopping.subscribe());
    let (send, receive) = mpsc::channel::<Bytes>(PIECES);
    tokio::task::spawn_blocking(move || {
        let _until_done = place;
        let mut sink = |line: &LogLine<'_>| {
            if query.stream.is_none_or(|wanted| wanted == line.output.into()) {
                return send.blocking_send(Bytes::copy_from_slice(line.text)).map_err(std::io::Error::other);
            }
            Ok(())
        };
        let is_enough = || send.is_closed() || *stopping.borrow();
        let follow: Option<&dyn Fn() -> bool> = if query.follow { Some(&is_enough) } else { None };
        if let Err(error) = engine.container_logs(&name, &LogWish::default(), follow, &mut sink) {
            tracing::debug!(%name, %error, "a log was not read to its end");
        }
    });
    let pieces = futures::stream::unfold(receive, |mut receive| async {
        Some((Ok::<_, Infallible>(receive.recv().await?), receive))
    });
    Ok(typed(TEXT, Body::from_stream(pieces)))
}
