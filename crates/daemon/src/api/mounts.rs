//! `/v1/mounts`.

use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tarpon_engine::oci::Digest;
use tarpon_engine::{
    Backfill, BackfillState, BackfillStatus, EndpointKind, EndpointStatus, Engine, Error, ErrorKind, MountRequest,
    MountStatus, Unmounted, Writable, is_directory, resolve_mountpoint, resolve_upper,
};
use utoipa::{IntoParams, ToSchema};

use super::extract::{JsonBody, QueryParams, time_limit};
use crate::answer::{Answer, found};
use crate::failure::Failure;
use crate::image::{ImageOptions, ImageSelection};
use crate::state::{ApiState, Purpose};

/// Digits of a mount ID.
const ID_DIGITS: usize = 12;

/// A mount.
#[derive(Serialize, ToSchema)]
pub(super) struct Mount {
    /// Its ID, derived from the mount point.
    id: String,
    /// The image, as named in the request.
    image: String,
    /// Digest of its manifest.
    manifest: String,
    /// The mount point.
    mountpoint: String,
    /// `native` or `fuse`.
    mode: String,
    /// Whether it is writable.
    is_writable: bool,
    /// The directory that keeps changes, if any.
    upper: Option<String>,
    /// Whether a server serves it. `false`: it could not be mounted again after a server died.
    alive: bool,
    /// Why it is not served.
    problem: Option<String>,
    /// Why programs that had files open when damage was found may read damaged data.
    damage: Option<String>,
    /// Whether it was mounted again without its credentials, which are never stored.
    credentials_lost: bool,
    /// Compressed bytes of all layers.
    image_bytes: u64,
    /// Bytes fetched while the image was prepared, before it was mounted.
    prepared_bytes: u64,
    /// Bytes fetched since it was mounted.
    fetched_bytes: u64,
    /// Requests made since it was mounted.
    requests: u64,
    /// Reads since then that failed because the source of the image failed.
    failed_reads: u64,
    /// The last of these failures.
    last_error: Option<String>,
    /// The hosts that serve the image, in the order in which they are asked. None for a layout or an archive.
    endpoints: Vec<ImageEndpoint>,
    /// Features that fell back to a slower or weaker form, and why.
    fallbacks: Vec<String>,
    /// The background completion, if enabled.
    completion: Option<Completion>,
    /// All other counters of the image, as in `tarpon status --json`.
    #[schema(value_type = Object)]
    counters: serde_json::Value,
}

/// What was requested from one host that serves an image, since a server loaded the image.
#[derive(Serialize, ToSchema)]
pub(super) struct ImageEndpoint {
    /// `HOST[:PORT]`.
    endpoint: String,
    /// Its role.
    kind: ImageEndpointKind,
    /// Requests sent to it, tokens and redirects included.
    requests: u64,
    /// Bytes received from it.
    bytes: u64,
    /// How long all requests together waited for the head of their response, or for their failure.
    wait_millis: u64,
    /// Requests that failed with all their attempts, or found nothing, and responses that broke off.
    failures: u64,
    /// How long it is still not asked, because it failed. Zero: the next request finds out whether it answers again.
    rest_millis: Option<u64>,
    /// Its last failure.
    last_failure: Option<String>,
}

/// Role of a host that serves an image.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum ImageEndpointKind {
    /// The tier in which hosts share layers.
    Tier,
    /// A mirror of the image's registry.
    Mirror,
    /// The image's registry.
    Registry,
    /// A mirror of the index repository that has the image's boot pack.
    IndexMirror,
    /// The registry of that index repository.
    Index,
}

/// Progress of the background completion of an image.
#[derive(Serialize, ToSchema)]
pub(super) struct Completion {
    /// Its state.
    state: CompletionState,
    /// Layers that are complete and verified.
    layers_done: usize,
    /// Layers of the image.
    layers: usize,
    /// Why it is delayed, or why it stopped.
    problem: Option<String>,
    /// Layers that failed verification.
    alarms: Vec<String>,
}

/// State of a completion.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum CompletionState {
    /// It runs, or waits to retry.
    Running,
    /// The whole image is local.
    Complete,
    /// It has stopped after a failure.
    Stopped,
    /// A layer failed verification.
    Alarm,
}

impl From<BackfillStatus> for Completion {
    fn from(status: BackfillStatus) -> Self {
        let BackfillStatus { how: _, state, layers_done, layers, problem, alarms } = status;
        let state = match state {
            BackfillState::Running => CompletionState::Running,
            BackfillState::Complete => CompletionState::Complete,
            BackfillState::Stopped => CompletionState::Stopped,
            BackfillState::Alarm => CompletionState::Alarm,
        };
        Self { state, layers_done, layers, problem, alarms }
    }
}

impl From<EndpointStatus> for ImageEndpoint {
    fn from(status: EndpointStatus) -> Self {
        let kind = match status.kind {
            EndpointKind::Tier => ImageEndpointKind::Tier,
            EndpointKind::Mirror => ImageEndpointKind::Mirror,
            EndpointKind::Registry => ImageEndpointKind::Registry,
            EndpointKind::IndexMirror => ImageEndpointKind::IndexMirror,
            EndpointKind::Index => ImageEndpointKind::Index,
        };
        Self {
            endpoint: status.endpoint,
            kind,
            requests: status.requests,
            bytes: status.bytes,
            wait_millis: status.wait_millis,
            failures: status.failures,
            rest_millis: status.rest_millis,
            last_failure: status.last_failure,
        }
    }
}

impl From<MountStatus> for Mount {
    fn from(status: MountStatus) -> Self {
        let (is_writable, upper) = match status.writable {
            Writable::No => (false, None),
            Writable::Temporary => (true, None),
            Writable::Upper(upper) | Writable::Discarded(upper) => (true, Some(upper.to_string_lossy().into_owned())),
        };
        Self {
            id: id(&status.mountpoint),
            image: status.image,
            manifest: status.manifest.to_string(),
            mountpoint: status.mountpoint.to_string_lossy().into_owned(),
            mode: status.mode,
            is_writable,
            upper,
            alive: status.alive,
            problem: status.problem,
            damage: status.damage,
            credentials_lost: status.credentials_lost,
            image_bytes: status.image_bytes,
            prepared_bytes: status.prepared_bytes,
            fetched_bytes: status.fetched_bytes,
            requests: status.requests,
            failed_reads: status.failed_reads,
            last_error: status.last_error,
            endpoints: status.endpoints.into_iter().map(ImageEndpoint::from).collect(),
            fallbacks: status.fallbacks,
            completion: status.backfill.map(Completion::from),
            counters: match status.counters {
                serde_json::Value::Null => serde_json::json!({}),
                counters => counters,
            },
        }
    }
}

/// The ID of a mount. A mount point holds one mount, so its path identifies it.
fn id(mountpoint: &Path) -> String {
    let mut digits = Digest::of(mountpoint.as_os_str().as_bytes()).hex().to_string();
    digits.truncate(ID_DIGITS);
    digits
}

/// An image to mount.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MountBody {
    /// The image: NAME[:TAG|@DIGEST], or `oci:`, `oci-archive:`, `docker-archive:` and an absolute path.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// An existing directory, by its absolute path.
    #[schema(value_type = String, example = "/mnt")]
    mountpoint: PathBuf,
    /// How it is mounted.
    #[serde(default)]
    mode: Mode,
    /// Whether it is writable. Without `upper`, changes are discarded at unmount.
    #[serde(default)]
    writable: bool,
    /// Absolute path of the directory that keeps changes. Makes the mount writable.
    #[schema(value_type = Option<String>)]
    upper: Option<PathBuf>,
    /// Whether setuid and setgid bits of the image take effect.
    #[serde(default)]
    suid: bool,
    /// Whether device nodes of the image work.
    #[serde(default)]
    dev: bool,
    /// Whether the rest of the image is fetched in the background.
    #[serde(default)]
    backfill: BackfillWhen,
    /// Limit of the background fetch in bytes per second. Default: unlimited.
    #[schema(value_type = Option<u64>, minimum = 1)]
    backfill_rate: Option<NonZeroU64>,
    /// Whether what the start reads is kept for the next start, and what earlier ones read is fetched first.
    #[serde(default = "super::on")]
    #[schema(default = true)]
    learn: bool,
    /// Seconds to wait for the image, 1 to 3600. Default: 600.
    timeout_seconds: Option<u32>,
}

/// How an image is mounted.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = MountMode)]
pub(super) enum Mode {
    /// `native` if it works on this host, else `fuse`.
    #[default]
    Auto,
    /// The kernel serves all local data.
    Native,
    /// FUSE serves all data.
    Fuse,
}

impl From<Mode> for tarpon_engine::ModeChoice {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Auto => Self::Auto,
            Mode::Native => Self::Only(tarpon_engine::Mode::Native),
            Mode::Fuse => Self::Only(tarpon_engine::Mode::Fuse),
        }
    }
}

/// When the rest of an image is fetched.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BackfillWhen {
    /// Never.
    #[default]
    Off,
    /// One layer at a time, while no reader waits.
    Idle,
    /// Several layers at a time, with lower priority than reads.
    Now,
}

impl From<BackfillWhen> for Backfill {
    fn from(when: BackfillWhen) -> Self {
        match when {
            BackfillWhen::Off => Self::Off,
            BackfillWhen::Idle => Self::Idle,
            BackfillWhen::Now => Self::Now,
        }
    }
}

/// Result of an unmount.
#[derive(Serialize, ToSchema)]
#[schema(as = Unmounted)]
pub(super) struct UnmountResult {
    how: UnmountKind,
}

/// Result of an unmount.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = UnmountedHow)]
enum UnmountKind {
    /// The mount was not in use.
    Clean,
    /// The mount was in use: the path is free, and open files are served until they are closed.
    Lazy,
    /// The mount did not exist any more.
    Already,
}

/// Lists all mounts of the store.
#[utoipa::path(get, path = "/v1/mounts", tag = "mounts", operation_id = "listMounts", responses(
    (status = 200, description = "All mounts", body = [Mount]),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn list(State(state): State<ApiState>) -> Result<Answer<Vec<Mount>>, Failure> {
    let mounts = state.call(|engine| engine.mounts()).await?;
    Ok(found(mounts.into_iter().map(Mount::from).collect()))
}

/// Mounts an image. The response is sent when the mount is usable. If the client disconnects while the image is prepared, nothing is mounted.
#[utoipa::path(post, path = "/v1/mounts", tag = "mounts", operation_id = "mount", request_body = MountBody, responses(
    (status = 201, description = "The mount", body = Mount),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn mount(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<MountBody>,
) -> Result<Answer<Mount>, Failure> {
    let time_limit = time_limit(body.timeout_seconds)?;
    let mut paths = std::iter::once(&body.mountpoint).chain(&body.upper);
    if let Some(path) = paths.find(|path| !path.is_absolute()) {
        return Err(Failure::invalid("read the mount options", format!("{} is not absolute", path.display())));
    }
    let mountpoint = body.mountpoint;
    // Checked before anything is fetched.
    let upper = body.upper;
    let found = state.call(move |engine| {
        let mountpoint = resolved_mountpoint(&mountpoint)?;
        engine.check_mountpoint(&mountpoint)?;
        Ok((mountpoint, upper.as_deref().map(resolved_upper).transpose()?))
    });
    let (mountpoint, upper) = found.await?;
    let image = ImageSelection::new(body.image, body.image_options);
    let admitted = state.admit(&image).await?;
    let prepared = state.prepare(image, admitted, Purpose::Mount, time_limit).await?;
    let request = MountRequest {
        mode: body.mode.into(),
        writable: match upper {
            Some(upper) => Writable::Upper(upper),
            None if body.writable => Writable::Temporary,
            None => Writable::No,
        },
        suid: body.suid,
        dev: body.dev,
        backfill: body.backfill.into(),
        backfill_rate: body.backfill_rate,
        learn: body.learn,
        ..MountRequest::for_image(&prepared, mountpoint)
    };
    let mount = state.call(move |engine| engine.client().mount(request)).await?;
    Ok(Answer(StatusCode::CREATED, mount.into()))
}

/// The mount point as the kernel will list it.
fn resolved_mountpoint(wanted: &Path) -> tarpon_engine::Result<PathBuf> {
    let failed = |cause: String| {
        Error::new(ErrorKind::NotFound, "find the mount point", format!("{}: {cause}", wanted.display()))
    };
    let path = resolve_mountpoint(wanted).map_err(|error| failed(error.to_string()))?;
    if is_directory(&path) { Ok(path) } else { Err(failed("it is not a directory".to_owned())) }
}

/// The upper directory, with symbolic links in its path resolved.
fn resolved_upper(wanted: &Path) -> tarpon_engine::Result<PathBuf> {
    resolve_upper(wanted)
        .map_err(|error| Error::new(ErrorKind::CannotMount, format!("keep changes in {}", wanted.display()), error))
}

/// Describes one mount.
#[utoipa::path(get, path = "/v1/mounts/{mount}", tag = "mounts", operation_id = "showMount",
    params(("mount" = String, Path, description = "ID of the mount, or the path of its mount point, with %2F for each slash")),
    responses(
        (status = 200, description = "The mount", body = Mount),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn show(
    State(state): State<ApiState>,
    UrlPath(mount): UrlPath<String>,
) -> Result<Answer<Mount>, Failure> {
    Ok(found(find(&state, mount).await?.into()))
}

/// Options of an unmount.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UnmountQuery {
    /// Whether to unmount even if it is in use: it leaves the mount namespace at once, and is released by its last user.
    #[serde(default)]
    lazy: bool,
}

/// Unmounts an image that is not in use; with `lazy=true` any image.
#[utoipa::path(delete, path = "/v1/mounts/{mount}", tag = "mounts", operation_id = "unmount",
    params(
        ("mount" = String, Path, description = "ID of the mount, or the path of its mount point, with %2F for each slash"),
        UnmountQuery,
    ),
    responses(
        (status = 200, description = "The image is unmounted", body = UnmountResult),
        (status = 409, description = "The mount is in use, and `lazy` is not true", body = Failure),
        (status = "default", description = "The request failed", body = Failure),
    ))]
pub(super) async fn unmount(
    State(state): State<ApiState>,
    UrlPath(mount): UrlPath<String>,
    QueryParams(query): QueryParams<UnmountQuery>,
) -> Result<Answer<UnmountResult>, Failure> {
    let mountpoint = find(&state, mount).await?.mountpoint;
    let unmount = move |engine: &Engine| match query.lazy {
        true => engine.client().unmount(&mountpoint),
        false => engine.client().unmount_unused(&mountpoint),
    };
    let how = match state.call(unmount).await? {
        Some(Unmounted::Clean) => UnmountKind::Clean,
        Some(Unmounted::Lazy) => UnmountKind::Lazy,
        Some(Unmounted::Already) | None => UnmountKind::Already,
    };
    Ok(found(UnmountResult { how }))
}

/// The mount with this ID or mount point.
async fn find(state: &ApiState, name: String) -> Result<MountStatus, Failure> {
    let (mounts, path) = {
        let name = name.clone();
        let found = state.call(move |engine| Ok((engine.mounts()?, resolve_mountpoint(Path::new(&name)).ok())));
        found.await?
    };
    let path = path.filter(|_| name.starts_with('/'));
    let matches = |mount: &MountStatus| Some(&mount.mountpoint) == path.as_ref() || id(&mount.mountpoint) == name;
    let cause = || format!("this store has no mount with this ID or mount point: {name}");
    mounts.into_iter().find(matches).ok_or_else(|| Failure::not_found("find the mount", cause()))
}
