//! `/v1/mounts`.

use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use axum::extract::{Path as InPath, State as With};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tarpon_engine::oci::Digest;
use tarpon_engine::{
    Backfill, BackfillState, BackfillStatus, Engine, Error, ErrorKind, MountRequest, MountStatus, Unmounted, Writable,
    is_directory, resolve_mountpoint, resolve_upper,
};
use utoipa::{IntoParams, ToSchema};

use super::Failure;
use super::answer::{Answer, found};
use super::image::{ImageOptions, ImageWish};
use super::said::{Asked, Said, patience};
use crate::state::{For, State};

/// Digits of a mount ID.
const ID_DIGITS: usize = 12;

/// A mount.
#[derive(Serialize, ToSchema)]
pub(super) struct Mount {
    /// Its name here, which is the same as long as something is mounted there.
    id: String,
    /// The image, as it was asked for.
    image: String,
    /// Digest of its manifest.
    manifest: String,
    /// Where.
    mountpoint: String,
    /// `native` or `fuse`.
    mode: String,
    /// Whether it can be written to.
    is_writable: bool,
    /// Where changes are kept, if they are.
    upper: Option<String>,
    /// Whether it is served. `false`: it could not be mounted again after a server died.
    alive: bool,
    /// Why it is not.
    problem: Option<String>,
    /// Why it may show damaged files to programs that had them open when the damage was found.
    damage: Option<String>,
    /// Whether it was mounted again without the credentials that it had, which are written nowhere.
    credentials_lost: bool,
    /// Compressed bytes of all layers.
    image_bytes: u64,
    /// Bytes that came over the wire when the image was prepared, before it was mounted.
    prepared_bytes: u64,
    /// Bytes that came over the wire since it was mounted.
    fetched_bytes: u64,
    /// Requests made since it was mounted.
    requests: u64,
    /// Reads since then that the image's source could not answer.
    failed_reads: u64,
    /// The last of these failures.
    last_error: Option<String>,
    /// What fell back to something slower or weaker, and why.
    fallbacks: Vec<String>,
    /// The completion in the background, if there is one.
    completion: Option<Completion>,
    /// Everything else that is counted of the image, as in `tarpon status --json`.
    #[schema(value_type = Object)]
    counters: serde_json::Value,
}

/// How far an image is completed in the background.
#[derive(Serialize, ToSchema)]
pub(super) struct Completion {
    /// Where it stands.
    state: CompletionState,
    /// Layers that are here and were found to be what they should be.
    layers_done: usize,
    /// Layers that the image has.
    layers: usize,
    /// What holds it up, or why it stopped.
    problem: Option<String>,
    /// Layers that are not what was said of them.
    alarms: Vec<String>,
}

/// Where a completion stands.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum CompletionState {
    /// It goes on, or waits to try again.
    Running,
    /// All of the image is here.
    Complete,
    /// It has given up.
    Stopped,
    /// Not all layers are what they should be.
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

impl From<MountStatus> for Mount {
    fn from(status: MountStatus) -> Self {
        let (is_writable, upper) = match status.writable {
            Writable::No => (false, None),
            Writable::Temporary => (true, None),
            Writable::Upper(upper) => (true, Some(upper.to_string_lossy().into_owned())),
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

/// An image to be mounted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MountWish {
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
    /// Whether it can be written to. Without `upper`, changes are thrown away at unmount.
    #[serde(default)]
    writable: bool,
    /// Where changes are kept: the absolute path of a directory. It makes the mount writable.
    #[schema(value_type = Option<String>)]
    upper: Option<PathBuf>,
    /// Whether setuid and setgid bits of the image take effect.
    #[serde(default)]
    suid: bool,
    /// Whether device nodes of the image work.
    #[serde(default)]
    dev: bool,
    /// Whether the rest of the image is brought in the background.
    #[serde(default)]
    backfill: When,
    /// Bytes that this may fetch in a second; else as many as come.
    #[schema(value_type = Option<u64>, minimum = 1)]
    backfill_rate: Option<NonZeroU64>,
    /// How long to wait for the image, 1 to 3600; else 600.
    timeout_seconds: Option<u32>,
}

/// How an image is mounted.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = MountMode)]
pub(super) enum Mode {
    /// `native` where it works, else `fuse`.
    #[default]
    Auto,
    /// The kernel serves everything that is local.
    Native,
    /// FUSE serves everything.
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

/// When the rest of an image is brought.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = BackfillWhen)]
pub(super) enum When {
    /// Not at all.
    #[default]
    Off,
    /// One layer at a time, while no reader waits.
    Idle,
    /// Several at a time, behind what readers wait for.
    Now,
}

impl From<When> for Backfill {
    fn from(when: When) -> Self {
        match when {
            When::Off => Self::Off,
            When::Idle => Self::Idle,
            When::Now => Self::Now,
        }
    }
}

/// How an unmount went.
#[derive(Serialize, ToSchema)]
#[schema(as = Unmounted)]
pub(super) struct Gone {
    how: How,
}

/// How an unmount went.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = UnmountedHow)]
enum How {
    /// Nobody used it.
    Clean,
    /// Somebody uses it: the path is free, and they are served until they close what they have open.
    Lazy,
    /// It was gone already.
    Already,
}

/// Lists the mounts of the store, whoever made them.
#[utoipa::path(get, path = "/v1/mounts", tag = "mounts", operation_id = "listMounts", responses(
    (status = 200, description = "All of them", body = [Mount]),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn list(With(state): With<State>) -> Result<Answer<Vec<Mount>>, Failure> {
    let mounts = state.call(|engine| engine.mounts()).await?;
    Ok(found(mounts.into_iter().map(Mount::from).collect()))
}

/// Mounts an image. It is usable when the answer comes. A client that goes away while the image is prepared leaves nothing mounted.
#[utoipa::path(post, path = "/v1/mounts", tag = "mounts", operation_id = "mount", request_body = MountWish, responses(
    (status = 201, description = "It is mounted", body = Mount),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn mount(With(state): With<State>, Said(wish): Said<MountWish>) -> Result<Answer<Mount>, Failure> {
    let patience = patience(wish.timeout_seconds)?;
    let mut paths = std::iter::once(&wish.mountpoint).chain(&wish.upper);
    if let Some(path) = paths.find(|path| !path.is_absolute()) {
        return Err(Failure::invalid("read where to mount", format!("{} is not absolute", path.display())));
    }
    let mountpoint = wish.mountpoint;
    // Checked before anything is fetched.
    let upper = wish.upper;
    let found = state.call(move |engine| {
        let mountpoint = place(&mountpoint)?;
        engine.check_mountpoint(&mountpoint)?;
        Ok((mountpoint, upper.as_deref().map(upper_place).transpose()?))
    });
    let (mountpoint, upper) = found.await?;
    let image = ImageWish::new(wish.image, wish.image_options);
    let prepared = state.prepare(image, For::Mount, patience).await?;
    let request = MountRequest {
        mode: wish.mode.into(),
        writable: match upper {
            Some(upper) => Writable::Upper(upper),
            None if wish.writable => Writable::Temporary,
            None => Writable::No,
        },
        suid: wish.suid,
        dev: wish.dev,
        backfill: wish.backfill.into(),
        backfill_rate: wish.backfill_rate,
        ..prepared.mount_on(mountpoint)
    };
    let mount = state.call(move |engine| engine.client().mount(request)).await?;
    Ok(Answer(StatusCode::CREATED, mount.into()))
}

/// The mount point as the kernel will list it.
fn place(wanted: &Path) -> tarpon_engine::Result<PathBuf> {
    let failed = |cause: String| {
        Error::new(ErrorKind::NotFound, "find the mount point", format!("{}: {cause}", wanted.display()))
    };
    let path = resolve_mountpoint(wanted).map_err(|error| failed(error.to_string()))?;
    if is_directory(&path) { Ok(path) } else { Err(failed("it is not a directory".to_owned())) }
}

/// The upper directory, with symbolic links in its path resolved.
fn upper_place(wanted: &Path) -> tarpon_engine::Result<PathBuf> {
    resolve_upper(wanted)
        .map_err(|error| Error::new(ErrorKind::CannotMount, format!("keep changes in {}", wanted.display()), error))
}

/// Describes one mount.
#[utoipa::path(get, path = "/v1/mounts/{mount}", tag = "mounts", operation_id = "showMount",
    params(("mount" = String, Path, description = "Its id, or the path of the mount point, with %2F for each slash")),
    responses(
        (status = 200, description = "It", body = Mount),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn show(With(state): With<State>, InPath(mount): InPath<String>) -> Result<Answer<Mount>, Failure> {
    Ok(found(find(&state, mount).await?.into()))
}

/// How an image is unmounted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UnmountQuery {
    /// Also while it is in use: it leaves the name space at once, and goes away with its last user.
    #[serde(default)]
    lazy: bool,
}

/// Unmounts an image that is not in use; with `lazy=true` any.
#[utoipa::path(delete, path = "/v1/mounts/{mount}", tag = "mounts", operation_id = "unmount",
    params(
        ("mount" = String, Path, description = "Its id, or the path of the mount point, with %2F for each slash"),
        UnmountQuery,
    ),
    responses(
        (status = 200, description = "It is unmounted", body = Gone),
        (status = 409, description = "It is in use, and `lazy` is not true", body = Failure),
        (status = "default", description = "It failed", body = Failure),
    ))]
pub(super) async fn unmount(
    With(state): With<State>,
    InPath(mount): InPath<String>,
    Asked(query): Asked<UnmountQuery>,
) -> Result<Answer<Gone>, Failure> {
    let mountpoint = find(&state, mount).await?.mountpoint;
    let unmount = move |engine: &Engine| match query.lazy {
        true => engine.client().unmount(&mountpoint),
        false => engine.client().unmount_unused(&mountpoint),
    };
    let how = match state.call(unmount).await? {
        Some(Unmounted::Clean) => How::Clean,
        Some(Unmounted::Lazy) => How::Lazy,
        Some(Unmounted::Already) | None => How::Already,
    };
    Ok(found(Gone { how }))
}

/// The mount with this ID or mount point.
async fn find(state: &State, name: String) -> Result<MountStatus, Failure> {
    let (mounts, path) = {
        let name = name.clone();
        let found = state.call(move |engine| Ok((engine.mounts()?, resolve_mountpoint(Path::new(&name)).ok())));
        found.await?
    };
    let path = path.filter(|_| name.starts_with('/'));
    let is_it = |mount: &MountStatus| Some(&mount.mountpoint) == path.as_ref() || id(&mount.mountpoint) == name;
    let cause = || format!("nothing of this store is mounted at {name}, and no mount has this id");
    mounts.into_iter().find(is_it).ok_or_else(|| Failure::not_found("find the mount", cause()))
}
