//! The image that a request names, and the options to access it.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tarpon_engine::oci::{Platform, Source};
use tarpon_engine::{
    Access, DEFAULT_PROFILE, ImageRequest, IndexChoice, LayerLimits, LockFile, Pull, RegistriesChoice, auth_files,
};
use utoipa::ToSchema;

use crate::failure::Failure;

const STEP: &str = "read the image name";

/// An image and its access options. Equal values share one preparation.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ImageSelection {
    pub(crate) image: String,
    options: ImageOptions,
}

/// Which variant of an image is used, and how it is accessed. All fields are optional.
#[derive(Clone, PartialEq, Eq, Hash, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ImageOptions {
    /// Platform to select from an image index, as OS/ARCH[/VARIANT]. Default: the platform of this machine.
    platform: Option<String>,
    /// When a tag is resolved by the registry.
    pull: PullWhen,
    /// The index that replaces tables of contents: `none`, `registry`, or a digest. Default: the one that the lock file of the daemon pins,
    /// else one of its index repositories, else a signed one.
    index: Option<String>,
    /// The boot pack; `none` disables it. Default: `default`.
    profile: Option<String>,
    /// `USER:PASSWORD` for the registry. Never stored on disk.
    creds: Option<String>,
    /// A credentials file. Default: the files that Podman and Docker use for the user of the daemon.
    #[schema(value_type = Option<String>)]
    authfile: Option<PathBuf>,
    /// A folder with the registry's certificates.
    #[schema(value_type = Option<String>)]
    cert_dir: Option<PathBuf>,
    /// `false`: certificates are not verified, and plain HTTP is accepted.
    tls_verify: Option<bool>,
}

/// When a tag is resolved by the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum PullWhen {
    /// Only if the image is not in the store.
    #[default]
    Missing,
    /// Always; if the registry does not respond, the image in the store is used.
    Newer,
    /// Always.
    Always,
    /// Never.
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

impl ImageSelection {
    pub(crate) fn new(image: String, options: ImageOptions) -> Self {
        Self { image, options }
    }

    /// The requested profile.
    pub(crate) fn profile(&self) -> Option<String> {
        let named = self.options.profile.clone().unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
        Some(named).filter(|profile| profile != "none")
    }

    /// Whether the request contains credentials of its own.
    pub(crate) fn has_credentials(&self) -> bool {
        self.options.creds.is_some() || self.options.authfile.is_some()
    }

    /// The request to the engine. Reads configuration files, which may block.
    pub(crate) fn request(&self) -> Result<ImageRequest, Failure> {
        let ImageOptions { platform, pull, index: _, profile: _, creds, authfile, cert_dir, tls_verify } =
            &self.options;
        let invalid = |cause: &dyn std::fmt::Display| Failure::invalid(STEP, cause);
        let registries = RegistriesChoice::of_environment();
        let text = registries.full_name(&self.image)?;
        let source: Source = text.parse().map_err(|error| invalid(&error))?;
        check_absolute(&source)?;
        if let Some(path) = [authfile, cert_dir].into_iter().flatten().find(|path| !path.is_absolute()) {
            return Err(invalid(&format!("{} is not absolute", path.display())));
        }
        let named = platform.as_deref().map(str::parse::<Platform>).transpose().map_err(|error| invalid(&error))?;
        Ok(ImageRequest {
            text,
            source,
            platform_named: named.is_some(),
            platform: named.unwrap_or_else(Platform::host),
            pull: (*pull).into(),
            index: self.index()?,
            index_repos: Vec::new(),
            profile: self.profile(),
            starts: false,
            access: Access {
                creds: creds.clone(),
                authfiles: authfile.as_ref().map_or_else(auth_files, |file| vec![file.clone()]),
                cert_dir: cert_dir.clone(),
                tls_verify: *tls_verify,
                registries,
                ..Access::default()
            },
            limits: LayerLimits::default(),
        })
    }

    fn index(&self) -> Result<IndexChoice, Failure> {
        match &self.options.index {
            Some(named) => named.parse().map_err(|error| Failure::invalid(STEP, error)),
            None => {
                let lock = LockFile::of_environment()?;
                Ok(lock.map_or(IndexChoice::Unset, |lock| IndexChoice::Locked(Arc::new(lock))))
            }
        }
    }
}

/// Whether the name is resolved for each request: by the registry, or from the layout or archive itself.
pub(crate) fn resolves_each_time(request: &ImageRequest) -> bool {
    match request.pull {
        Pull::Always | Pull::Newer => true,
        Pull::Missing => !matches!(request.source, Source::Registry(_)),
        Pull::Never => false,
    }
}

/// Refuses relative paths: the daemon has no meaningful working directory.
fn check_absolute(source: &Source) -> Result<(), Failure> {
    let path = match source {
        Source::Registry(_) => return Ok(()),
        Source::OciLayout { directory, .. } => directory,
        Source::OciArchive { file, .. } | Source::DockerArchive { file, .. } => file,
    };
    if path.is_absolute() { Ok(()) } else { Err(Failure::invalid(STEP, format!("{} is not absolute", path.display()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_resolves_its_name_each_time_is_recognised() {
        let resolves = |image: &str, pull: PullWhen| {
            let options = ImageOptions { pull, index: Some("none".to_owned()), ..ImageOptions::default() };
            resolves_each_time(&ImageSelection::new(image.to_owned(), options).request().unwrap())
        };
        for (pull, of_registry, of_layout) in [
            (PullWhen::Missing, false, true),
            (PullWhen::Newer, true, true),
            (PullWhen::Always, true, true),
            (PullWhen::Never, false, false),
        ] {
            assert_eq!(
                (resolves("localhost:5000/app:1", pull), resolves("oci:/a:1", pull)),
                (of_registry, of_layout),
                "{pull:?}"
            );
        }
    }
}
