//! The image and access arguments that `mount`, `ls` and `inspect` share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use clap::builder::TypedValueParser;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use rustix::fs::{Access as Mode, access};
use tarpon_engine::{
    Access, DEFAULT_PROFILE, ErrorKind, ImageRequest, IndexChoice, LayerLimits, LockFile, PREDICTED_PROFILE,
    PROFILE_BYTES, PolicyChoice, Pull, RegistriesChoice, ResultExt as _, TierLocation, auth_files,
};
use tarpon_oci::{IndexRepo, InvalidIndexRepo, InvalidSource, Platform, Source};

use super::creds::{Creds, creds, creds_file};
use super::options::path;

/// The heading of [`RegistryOptions`] in help.
pub(super) const REGISTRY_OPTIONS: &str = "Registry options";

/// An image and its options.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageArgs {
    #[command(flatten)]
    options: ImageOptions,
    /// Image, for example docker.io/library/alpine:3.20
    #[arg(value_name = "IMAGE", value_parser = image_name)]
    image: ImageName,
}

impl ImageArgs {
    /// The image, as the user wrote it.
    pub(crate) fn text(&self) -> &str {
        &self.image.text
    }

    pub(crate) fn request(&self) -> tarpon_engine::Result<ImageRequest> {
        self.options.request(self.image.clone())
    }

    /// The same request with only the layers' own tables of contents: no lock file is read.
    pub(crate) fn request_without_index(&self) -> tarpon_engine::Result<ImageRequest> {
        self.options.request_with(self.image.clone(), IndexChoice::None)
    }

    /// The lock file, if the user named one.
    pub(crate) fn named_lock_file(&self) -> Option<&Path> {
        self.options.choice.lock_file.as_deref()
    }

    /// The profile, if the user named one.
    pub(crate) fn named_profile(&self) -> Option<&str> {
        self.options.choice.profile.as_deref()
    }
}

/// An image and its options, of a command that has subcommands instead. The parser demands the image where there is no subcommand.
#[derive(Debug, Clone)]
pub(super) struct OptionalImage(pub(super) Option<ImageArgs>);

/// The name of the argument of [`ImageArgs`] without a default.
const IMAGE: &str = "image";

impl FromArgMatches for OptionalImage {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        if matches.contains_id(IMAGE) {
            ImageArgs::from_arg_matches(matches).map(Some).map(Self)
        } else {
            Ok(Self(None))
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for OptionalImage {
    fn augment_args(command: Command) -> Command {
        ImageArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        ImageArgs::augment_args_for_update(command)
    }
}

/// An image name as written, and its parsed form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageName {
    pub(crate) text: String,
    pub(crate) source: Source,
}

impl ImageName {
    /// The full name, where the configuration of registries completes a short one.
    pub(crate) fn completed(self, registries: &RegistriesChoice) -> tarpon_engine::Result<Self> {
        let text = registries.full_name(&self.text)?;
        if text == self.text {
            return Ok(self);
        }
        let source = text.parse().context(ErrorKind::NotFound, "complete the image's name")?;
        Ok(Self { text, source })
    }
}

/// Parses an image name from the command line. A relative path in it is made absolute, because the server works in another
/// directory.
pub(crate) fn image_name(argument: &str) -> Result<ImageName, ImageNameError> {
    let mut source: Source = argument.parse()?;
    let path = match &mut source {
        Source::Registry(_) => return Ok(ImageName { text: argument.to_owned(), source }),
        Source::OciLayout { directory, .. } => directory,
        Source::OciArchive { file, .. } | Source::DockerArchive { file, .. } => file,
    };
    *path = std::path::absolute(&path)?;
    if path.to_str().is_none_or(|path| path.contains(':')) {
        return Err(ImageNameError::Path(path.clone()));
    }
    Ok(ImageName { text: source.to_string(), source })
}

/// Parses the name of an image that can be written to.
pub(super) fn destination_name(argument: &str) -> Result<ImageName, String> {
    let name = image_name(argument).map_err(|error| error.to_string())?;
    match &name.source {
        Source::Registry(reference) if reference.tag().is_none() || reference.digest().is_some() => {}
        Source::OciLayout { tag, .. } if tag.as_deref().is_some_and(|tag| tag.starts_with('@')) => {}
        Source::Registry(_) | Source::OciLayout { .. } => return Ok(name),
        Source::OciArchive { .. } | Source::DockerArchive { .. } => {
            return Err("an archive cannot be a destination: use a registry or oci:DIR[:TAG]".to_owned());
        }
    }
    Err("a destination has no digest, and in a registry it has a tag".to_owned())
}

/// Why an argument is not an image name.
#[derive(Debug)]
pub(crate) enum ImageNameError {
    /// Invalid syntax.
    Syntax(InvalidSource),
    /// The current directory cannot be determined.
    Here(io::Error),
    /// The path of the current directory cannot be part of an image name.
    Path(PathBuf),
}

impl std::error::Error for ImageNameError {}

impl fmt::Display for ImageNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The message already contains the argument.
            Self::Syntax(InvalidSource::Reference(error)) => write!(f, "not an image reference: {}", error.why()),
            Self::Syntax(error) => error.fmt(f),
            Self::Here(error) => write!(f, "cannot determine the current directory: {error}"),
            Self::Path(path) => write!(f, "{} contains a colon or is not UTF-8", path.display()),
        }
    }
}

impl From<InvalidSource> for ImageNameError {
    fn from(error: InvalidSource) -> Self {
        Self::Syntax(error)
    }
}

impl From<io::Error> for ImageNameError {
    fn from(error: io::Error) -> Self {
        Self::Here(error)
    }
}

/// Reads the path of a credentials file, which must exist: a missing one would silently mean no credentials.
fn authfile() -> impl TypedValueParser<Value = PathBuf> {
    path().try_map(|file| match access(&file, Mode::READ_OK) {
        Ok(()) => Ok(file),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot read the file: {error}"))),
    })
}

/// Options that choose among an image's variants and sources.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageOptions {
    /// Platform to select from an image index, as OS/ARCH[/VARIANT] [default: this machine's]
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<Platform>,
    /// When to resolve the tag in the registry
    #[arg(long, value_name = "WHEN", default_value = "missing")]
    pull: PullWhen,
    #[command(flatten)]
    choice: ImageChoice,
    #[command(flatten)]
    login: Login,
}

/// Options for the index, the boot pack and the registry of an image.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageChoice {
    /// Index for layers without a table of contents: none, signed, registry, or a DIGEST [default: the one pinned by the lock file, else
    /// one of an index repository, else signed]
    ///
    /// signed: an index that the registry lists, if a key signed it that the policy names for the image. registry: the index that the
    /// registry lists for the image, tarpon's own or SOCI; its content is trusted. A SOCI index that the image itself names is always used.
    #[arg(long, value_name = "INDEX", env = "TARPON_INDEX")]
    index: Option<IndexChoice>,
    /// Index repository: registry prefix (HOST[:PORT]/PATH) or OCI layout (oci:DIR) with indexes and boot packs of images of other registries;
    /// may be repeated
    ///
    /// The indexes of docker.io/library/redis are in PREFIX/docker.io/library/redis. Without --index, indexes that an index repository lists are
    /// trusted, unless the policy demands signatures there; --index none disables the search. All of them and the image's own repository are
    /// asked at the same time; the first that has an index is used, in this order, the image's repository last.
    #[arg(long = "index-repo", value_name = "PREFIX", env = "TARPON_INDEX_REPO", value_delimiter = ',', value_parser = index_repo)]
    index_repos: Vec<IndexRepo>,
    #[command(flatten)]
    tier: TierChoice,
    /// Lock file that pins indexes of images [default: $XDG_CONFIG_HOME/tarpon/tarpon.lock, else /etc/tarpon/tarpon.lock, if it exists]
    ///
    /// --index takes precedence. A lock file in the current directory is used only if this option names it: the author of a directory
    /// must not decide which indexes are trusted.
    #[arg(long, value_name = "FILE", value_parser = path(), env = "TARPON_LOCK")]
    lock_file: Option<PathBuf>,
    /// Profile of the boot pack to use, or none [default: default]
    ///
    /// An index has one boot pack for each profile, which is one way to start the image.
    #[arg(long, value_name = "NAME", value_parser = profile_name, env = "TARPON_PROFILE")]
    profile: Option<String>,
    #[command(flatten)]
    registry: RegistryConnection,
}

/// The option for the tier.
#[derive(Debug, Clone, Args)]
pub(crate) struct TierChoice {
    /// Tier: bucket (s3://BUCKET/PREFIX, gs://…, az://…) or shared folder (file:///DIR) in which hosts share layers
    ///
    /// A layer without a table of contents and without an index is streamed by one host, which copies it to the tier with its index. Other
    /// hosts wait for it, and read ranges of it there. Credentials for a bucket come from the environment, as for its own tools: AWS_…,
    /// GOOGLE_… or AZURE_…. A tier that fails is not used until it answers again.
    #[arg(long, value_name = "URL", env = "TARPON_TIER")]
    tier: Option<TierLocation>,
}

impl TierChoice {
    pub(crate) fn location(&self) -> Option<TierLocation> {
        self.tier.clone()
    }
}

/// Parses an index repository. A relative path of a layout is made absolute, because the server works in another directory.
pub(super) fn index_repo(text: &str) -> Result<IndexRepo, String> {
    match text.parse().map_err(|error: InvalidIndexRepo| error.to_string())? {
        IndexRepo::Layout(directory) => {
            let directory = std::path::absolute(directory).map_err(|error| error.to_string())?;
            if directory.to_str().is_none_or(|path| path.contains([':', '@'])) {
                return Err(format!("{} contains a colon or an @, or is not UTF-8", directory.display()));
            }
            Ok(IndexRepo::Layout(directory))
        }
        registry @ IndexRepo::Registry { .. } => Ok(registry),
    }
}

fn profile_name(name: &str) -> Result<String, String> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if name.is_empty() || name.len() > PROFILE_BYTES || !name.chars().all(is_plain) {
        return Err(format!("expected up to {PROFILE_BYTES} letters, digits, -, _ and ."));
    }
    if name == PREDICTED_PROFILE {
        return Err("this name is that of predicted starts, which `tarpon index` publishes".to_owned());
    }
    Ok(name.to_owned())
}

impl ImageChoice {
    /// The requested index, boot pack and access options.
    pub(crate) fn read(&self) -> tarpon_engine::Result<(IndexChoice, Option<String>, Access)> {
        Ok((self.index()?, self.profile(), self.access()))
    }

    /// The options for the connection.
    pub(crate) fn access(&self) -> Access {
        Access { tier: self.tier.location(), ..self.registry.access() }
    }

    /// The index repositories.
    pub(crate) fn index_repos(&self) -> &[IndexRepo] {
        &self.index_repos
    }

    /// The requested profile.
    fn profile(&self) -> Option<String> {
        let named = self.profile.clone().unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
        Some(named).filter(|profile| profile != "none")
    }

    /// The requested index. One that is named on the command line overrides the lock file.
    fn index(&self) -> tarpon_engine::Result<IndexChoice> {
        if let Some(named) = &self.index {
            return Ok(named.clone());
        }
        let lock = match &self.lock_file {
            Some(file) => Some(LockFile::at(file).read()?),
            None => LockFile::of_environment()?,
        };
        Ok(lock.map_or(IndexChoice::Unset, |lock| IndexChoice::Locked(Arc::new(lock))))
    }
}

impl ImageOptions {
    /// The requested index. For several images it is read once.
    pub(super) fn index(&self) -> tarpon_engine::Result<IndexChoice> {
        self.choice.index()
    }

    /// Builds the request to the engine.
    pub(crate) fn request(&self, image: ImageName) -> tarpon_engine::Result<ImageRequest> {
        self.request_with(image, self.index()?)
    }

    pub(super) fn request_with(&self, image: ImageName, index: IndexChoice) -> tarpon_engine::Result<ImageRequest> {
        let access = self.login.with(self.choice.access());
        let ImageName { text, source } = image.completed(&access.registries)?;
        Ok(ImageRequest {
            text,
            source,
            platform: self.platform.clone().unwrap_or_else(Platform::host),
            platform_named: self.platform.is_some(),
            pull: self.pull.into(),
            index,
            index_repos: self.choice.index_repos.clone(),
            profile: self.choice.profile(),
            starts: false,
            access,
            limits: LayerLimits::default(),
        })
    }
}

/// When to resolve the tag in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PullWhen {
    /// Only if the image is not in the store
    Missing,
    /// Always; if the registry does not respond, use the store
    Newer,
    /// Always; fail if the registry does not respond
    Always,
    /// Never; fail if the image is not in the store
    Never,
}

impl From<PullWhen> for Pull {
    fn from(when: PullWhen) -> Self {
        match when {
            PullWhen::Missing => Self::Missing,
            PullWhen::Newer => Self::Newer,
            PullWhen::Always => Self::Always,
            PullWhen::Never => Self::Never,
        }
    }
}

/// Options for the connection to a registry, with credentials.
#[derive(Debug, Clone, Args)]
pub(super) struct RegistryOptions {
    #[command(flatten)]
    connection: RegistryConnection,
    #[command(flatten)]
    login: Login,
}

impl RegistryOptions {
    pub(super) fn access(&self) -> Access {
        self.login.with(self.connection.access())
    }
}

/// Options for the connection to registries.
#[derive(Debug, Clone, Args)]
pub(super) struct RegistryConnection {
    /// Credentials file [default: $REGISTRY_AUTH_FILE, then Podman's, then Docker's]
    #[arg(long, value_name = "FILE", help_heading = REGISTRY_OPTIONS, value_parser = authfile())]
    authfile: Option<PathBuf>,
    /// Verify TLS certificates; `false` also allows plain HTTP, which is otherwise limited to loopback addresses [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = REGISTRY_OPTIONS)]
    tls_verify: Option<bool>,
    /// Directory with CA certificates (*.crt) and client certificates (*.cert, *.key) for registries
    #[arg(long, value_name = "DIR", help_heading = REGISTRY_OPTIONS, value_parser = path())]
    cert_dir: Option<PathBuf>,
    /// Policy for images, containers-policy.json(5) [default: $XDG_CONFIG_HOME/containers/policy.json, else /etc/containers/policy.json, if
    /// it exists]
    #[arg(long, value_name = "FILE", help_heading = REGISTRY_OPTIONS, value_parser = path(), env = POLICY_VARIABLE)]
    policy: Option<PathBuf>,
}

/// The variable for `--policy`.
pub(super) const POLICY_VARIABLE: &str = "TARPON_POLICY";

/// The policy of an option.
pub(super) fn policy(file: Option<&Path>) -> PolicyChoice {
    file.map_or(PolicyChoice::Host, |file| PolicyChoice::File(file.to_owned()))
}

impl RegistryConnection {
    pub(super) fn access(&self) -> Access {
        Access {
            creds: None,
            creds_of_image: false,
            authfiles: self.authfile.clone().map_or_else(auth_files, |file| vec![file]),
            cert_dir: self.cert_dir.clone(),
            tls_verify: self.tls_verify,
            registries: RegistriesChoice::of_environment(),
            tier: None,
            policy: policy(self.policy.as_deref()),
        }
    }
}

/// Credentials for one registry.
#[derive(Debug, Clone, Args)]
struct Login {
    /// Credentials for the registry; visible to other users, so prefer --creds-file or --authfile
    #[arg(long, value_name = "USER:PASSWORD", value_parser = creds, help_heading = REGISTRY_OPTIONS)]
    creds: Option<Creds>,
    /// File with the credentials for the registry as USER:PASSWORD; - for standard input, /dev/fd/3 for a descriptor
    #[arg(long, value_name = "FILE", value_parser = creds_file(), conflicts_with = "creds")]
    #[arg(help_heading = REGISTRY_OPTIONS)]
    creds_file: Option<Creds>,
}

impl Login {
    fn with(&self, access: Access) -> Access {
        let creds = self.creds.as_ref().or(self.creds_file.as_ref());
        Access { creds: creds.map(|creds| creds.0.clone()), ..access }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_layout_or_archive_becomes_absolute() {
        let here = std::env::current_dir().expect("somewhere").display().to_string();
        for (written, expected) in [
            ("oci:app", format!("oci:{here}/app")),
            ("oci:./app:v1", format!("oci:{here}/app:v1")),
            ("oci-archive:/srv/app.tar", "oci-archive:/srv/app.tar".to_owned()),
            ("docker-archive:app.tar:a:v1", format!("docker-archive:{here}/app.tar:docker.io/library/a:v1")),
            ("alpine", "alpine".to_owned()),
        ] {
            assert_eq!(image_name(written).expect(written).text, expected);
        }
    }

    #[test]
    fn a_destination_can_be_written_to_and_has_a_tag() {
        for good in ["localhost:5000/a", "docker://quay.io/a/b:v1", "oci:/srv/layout", "oci:/srv/layout:v1"] {
            assert!(destination_name(good).is_ok(), "{good}");
        }
        let digest = format!("sha256:{}", "0".repeat(64));
        let pinned = [format!("localhost:5000/a@{digest}"), format!("oci:/srv/layout@{digest}")];
        for bad in pinned.iter().map(String::as_str).chain(["oci-archive:a.tar", "docker-archive:a.tar", "dir:/a"]) {
            assert!(destination_name(bad).is_err(), "{bad}");
        }
    }
}
