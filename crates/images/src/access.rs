//! Opens sources with a user's access options, and maps their errors to ours.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tarpon_blob::{Fault, LogLimit, SourceError};
use tarpon_oci::{Digest, ImageConfig, Platform, Source};
use tarpon_policy::PolicyChoice;
use tarpon_registry::{
    AccessOptions, CredentialLookup, CredentialSource, Credentials, Destination, Endpoint, Repository, ResolvedImage,
};
use tarpon_tier::TierLocation;

use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::registries::RegistriesChoice;

/// How to access an image's blobs. Carries no secret but `creds`, which stays in memory.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Access {
    /// `USER:PASSWORD` of `--creds`.
    pub creds: Option<String>,
    /// Whether `creds` are for the image's repository, and not for all repositories of its registry.
    #[serde(default)]
    pub creds_of_image: bool,
    /// Credential files, absolute, in lookup order: `--authfile`, or those from the client's environment ([`crate::auth_files`]). None:
    /// those from the server's environment.
    pub authfiles: Vec<PathBuf>,
    /// `--cert-dir`, absolute.
    pub cert_dir: Option<PathBuf>,
    /// `--tls-verify`: unset, true, false.
    pub tls_verify: Option<bool>,
    /// The configuration of registries: mirrors, locations, blocked registries.
    #[serde(default)]
    pub registries: RegistriesChoice,
    /// `--tier`: a bucket or folder in which hosts share layers.
    #[serde(default)]
    pub tier: Option<TierLocation>,
    /// `--policy`: which images may be used. Not part of what a mount needs later.
    #[serde(skip)]
    pub policy: PolicyChoice,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("creds", &self.creds.as_ref().map(|_| "…"))
            .field("authfiles", &self.authfiles)
            .field("cert_dir", &self.cert_dir)
            .field("tls_verify", &self.tls_verify)
            .field("registries", &self.registries)
            .field("tier", &self.tier)
            .field("policy", &self.policy)
            .finish()
    }
}

/// Opens `image`. A registry is not contacted yet; an archive is walked once.
pub async fn open(image: &str, access: &Access) -> Result<Repository> {
    let (source, options) = read(image, access)?;
    tarpon_registry::open(&source, &options).await.map_err(|error| registry("open the image", error))
}

/// As [`open`], but nothing is accessed yet.
pub fn open_unread(image: &str, access: &Access) -> Result<Repository> {
    let (source, options) = read(image, access)?;
    tarpon_registry::open_later(&source, &options).map_err(|error| registry("open the image", error))
}

/// As [`open_unread`], at the registry alone: what is changed there is not read from a mirror.
pub fn open_origin(image: &str, access: &Access) -> Result<Repository> {
    let (source, mut options) = read(image, access)?;
    let mirrors = options.endpoints.len().saturating_sub(1);
    options.endpoints.drain(..mirrors);
    tarpon_registry::open_later(&source, &options).map_err(|error| registry("open the image", error))
}

/// Opens `image`, whose record already exists: its source may be gone, and is accessed only for missing content. If the configuration of
/// registries cannot be used any more, the registry in the image's name is asked alone: what is mounted must not end by it.
pub fn open_later(image: &str, access: &Access) -> Result<Repository> {
    let (source, options) = read_later(image, access)?;
    tarpon_registry::open_later(&source, &options).map_err(|error| registry("open the image", error))
}

/// Whether everybody may read the image: its registry returns the manifest `digest` to a request without credentials. A token that it gives
/// to everybody is none. `Err`: why not; who may read a layout or an archive is unknown.
///
/// # Errors
/// The registry does not answer.
pub async fn is_public(image: &str, digest: &Digest, access: &Access) -> Result<std::result::Result<(), String>> {
    let (source, options) = read(image, access)?;
    let Source::Registry(reference) = source else {
        return Ok(Err("it is in no registry".to_owned()));
    };
    let step = "ask for the image without credentials";
    let repository = tarpon_registry::open_anonymously(&reference, &options).map_err(|error| registry(step, error))?;
    match repository.manifest(digest).await {
        Ok(_) => Ok(Ok(())),
        Err(error) if matches!(error.fault(), Fault::Unavailable | Fault::Timeout) => Err(registry(step, error)),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// An image's source and its hosts, for a process that opens it elsewhere.
#[derive(Debug, Clone)]
pub struct Settled {
    /// The source.
    pub source: Source,
    /// The hosts that serve it, in the order in which they are asked. None for a layout or an archive.
    pub endpoints: Vec<Endpoint>,
    /// How to find credentials for its registry.
    pub credentials: CredentialSource,
}

impl Settled {
    /// How to find credentials for the host with this number.
    pub fn credentials_at(&self, number: usize) -> CredentialSource {
        match &self.source {
            Source::Registry(image) => self.credentials.at(number, &self.endpoints, image),
            _ => self.credentials.clone(),
        }
    }
}

/// Reads what the configuration of this host states about an image.
pub fn settle(image: &str, access: &Access) -> Result<Settled> {
    read(image, access).map(|(source, options)| settled(source, &options))
}

/// As [`settle`], of an image whose record exists, as in [`open_later`].
pub fn settle_later(image: &str, access: &Access) -> Result<Settled> {
    read_later(image, access).map(|(source, options)| settled(source, &options))
}

fn settled(source: Source, options: &AccessOptions) -> Settled {
    let endpoints = match &source {
        Source::Registry(reference) => options.endpoints_of(reference),
        _ => Vec::new(),
    };
    Settled { source, endpoints, credentials: options.credential_source() }
}

/// As [`open`], with credentials that another process looks up.
pub async fn open_with(image: &str, access: &Access, lookup: Arc<dyn CredentialLookup>) -> Result<Repository> {
    let (source, options) = read(image, access)?;
    let options = AccessOptions { lookup: Some(lookup), ..options };
    tarpon_registry::open(&source, &options).await.map_err(|error| registry("open the image", error))
}

/// As [`open_later`], with credentials that another process looks up.
pub fn open_later_with(image: &str, access: &Access, lookup: Arc<dyn CredentialLookup>) -> Result<Repository> {
    let (source, options) = read(image, access)?;
    let options = AccessOptions { lookup: Some(lookup), ..options };
    tarpon_registry::open_later(&source, &options).map_err(|error| registry("open the image", error))
}

/// Opens `image` for writing. Nothing is requested or written yet.
pub fn destination(image: &str, access: &Access) -> Result<Destination> {
    open_destination(&parse(image)?, access)
}

/// As [`destination`], of a parsed reference.
pub fn open_destination(destination: &Source, access: &Access) -> Result<Destination> {
    let options = options(access, destination)?;
    tarpon_registry::open_destination(destination, &options).map_err(|error| registry("open the destination", error))
}

fn read(image: &str, access: &Access) -> Result<(Source, AccessOptions)> {
    let source = parse(image)?;
    let options = options(access, &source)?;
    Ok((source, options))
}

fn read_later(image: &str, access: &Access) -> Result<(Source, AccessOptions)> {
    let source = parse(image)?;
    let endpoints = endpoints(access, &source).unwrap_or_else(|error| {
        if let Some(left_out) = UNUSABLE.admit() {
            tracing::warn!("{image} is requested from its registry alone: {error}{left_out}");
        }
        Vec::new()
    });
    let options = options_with(access, endpoints)?;
    Ok((source, options))
}

/// The limit of lines about a configuration of registries that cannot be used.
static UNUSABLE: LogLimit = LogLimit::new();

pub(crate) fn parse(image: &str) -> Result<Source> {
    image.parse().context(ErrorKind::NotFound, "read the image's name")
}

/// The credentials of `--creds`, if there are any.
pub fn given(access: &Access) -> Result<Option<Credentials>> {
    let parse = |text| {
        Credentials::parse(text)
            .ok_or_else(|| Error::new(ErrorKind::Denied, "read the credentials", "--creds is not USER:PASSWORD"))
    };
    access.creds.as_deref().map(parse).transpose()
}

fn options(access: &Access, source: &Source) -> Result<AccessOptions> {
    options_with(access, endpoints(access, source)?)
}

/// The hosts of an image; none for a layout or an archive.
fn endpoints(access: &Access, source: &Source) -> Result<Vec<Endpoint>> {
    match source {
        Source::Registry(reference) => access.registries.endpoints(reference),
        _ => Ok(Vec::new()),
    }
}

fn options_with(access: &Access, endpoints: Vec<Endpoint>) -> Result<AccessOptions> {
    Ok(AccessOptions {
        credentials: given(access)?,
        authfiles: access.authfiles.clone(),
        lookup: None,
        tls_verify: access.tls_verify,
        cert_dir: access.cert_dir.clone(),
        endpoints,
    })
}

/// Pins the image for `platform`, whatever the policy demands.
pub(crate) async fn resolve_unchecked(repository: &Repository, platform: &Platform) -> Result<ResolvedImage> {
    repository.resolve(platform).await.map_err(|error| unresolved(repository, error))
}

/// The error for a tag or digest that leads to no image, with the host that was contacted: users write `alpine` and mean Docker Hub's.
fn unresolved(repository: &Repository, error: tarpon_registry::Error) -> Error {
    let cause = match (host(repository), &error) {
        (Some(host), tarpon_registry::Error::Source(cause)) => match cause.fault {
            Fault::NotFound => Some(format!("{host} has no such image: {cause}")),
            // Docker Hub replies this for repositories that do not exist.
            Fault::Denied if !cause.to_string().contains(&host) => {
                Some(format!("{host} denies access, or has no such image: {cause}"))
            }
            _ => None,
        },
        _ => None,
    };
    let error = registry("resolve", error);
    match cause {
        Some(cause) => error.because(cause),
        None => error,
    }
}

/// The registry's host; `None` for a layout or an archive.
fn host(repository: &Repository) -> Option<String> {
    match repository.name().parse() {
        Ok(Source::Registry(reference)) => Some(reference.registry().to_owned()),
        _ => None,
    }
}

/// The image's config.
pub async fn config(repository: &Repository, image: &ResolvedImage) -> Result<ImageConfig> {
    repository.config(image).await.map_err(|error| registry("read the config", error))
}

/// The error for a blob that could not be read while doing `step`.
pub fn source(step: impl Into<String>, error: SourceError) -> Error {
    let fault = error.fault;
    with_hint(Error::new(kind(fault), step, error), fault)
}

/// The error for a registry, layout or archive that failed while doing `step`.
pub fn registry(step: impl Into<String>, error: tarpon_registry::Error) -> Error {
    let fault = error.fault();
    with_hint(Error::new(kind(fault), step, error), fault)
}

fn kind(fault: Fault) -> ErrorKind {
    match fault {
        Fault::NotFound => ErrorKind::NotFound,
        Fault::Denied => ErrorKind::Denied,
        Fault::Unavailable | Fault::Timeout => ErrorKind::Unavailable,
        Fault::BadData | Fault::Refused => ErrorKind::Refused,
    }
}

fn with_hint(error: Error, fault: Fault) -> Error {
    match fault {
        Fault::Denied => {
            error.hint("log in with tarpon login, podman login or docker login, or give --creds or --authfile")
        }
        _ => error,
    }
}
