//! [`IndexPlaces`]: where indexes of an image are in the user's index repositories.

use std::fmt;
use std::ops::Add;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tarpon_oci::{Source, limits};
use tarpon_policy::Demands;
use tarpon_registry::{Repository, Stats};

use crate::access::{self, Access};
use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::image::ImageRequest;

/// The indexes of one image in an index repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexPlace {
    /// The repository or layout, as text: the name of a source.
    pub source: String,
    /// What the policy demands of what is there.
    pub demands: Demands,
}

/// Opens the place with this number.
type Open<'a> = dyn Fn(usize, &IndexPlace) -> Result<Repository> + Send + Sync + 'a;

/// The places of an image, in the order of the user's index repositories.
pub struct IndexPlaces<'a> {
    list: Vec<IndexPlace>,
    open: Box<Open<'a>>,
    opened: Vec<OnceLock<Arc<Repository>>>,
}

impl<'a> IndexPlaces<'a> {
    /// Places that this process opens.
    ///
    /// # Errors
    /// The policy cannot be read, or there are too many index repositories.
    pub fn of(request: &'a ImageRequest) -> Result<Self> {
        let open = |_, place: &IndexPlace| {
            access::open_unread(&place.source, &access_to(&place.source, &request.source, &request.access))
        };
        Ok(Self::opened_by(list(request)?, open))
    }

    /// Places that `open` opens, each by its number.
    pub fn opened_by(
        list: Vec<IndexPlace>,
        open: impl Fn(usize, &IndexPlace) -> Result<Repository> + Send + Sync + 'a,
    ) -> Self {
        let opened = list.iter().map(|_| OnceLock::new()).collect();
        Self { list, open: Box::new(open), opened }
    }

    /// No places.
    pub fn none() -> Self {
        Self::opened_by(Vec::new(), |_, _| {
            Err(Error::new(ErrorKind::Other, "open an index repository", "there is none"))
        })
    }

    /// All of them.
    pub fn list(&self) -> &[IndexPlace] {
        &self.list
    }

    /// Opens the place with this number.
    ///
    /// # Errors
    /// The options are invalid, or there is no such place.
    pub fn open(&self, number: usize) -> Result<Arc<Repository>> {
        let (Some(place), Some(opened)) = (self.list.get(number), self.opened.get(number)) else {
            return Err(Error::new(ErrorKind::Other, "open an index repository", "there is none of this number"));
        };
        if let Some(repository) = opened.get() {
            return Ok(repository.clone());
        }
        let repository = Arc::new((self.open)(number, place)?);
        Ok(opened.get_or_init(|| repository).clone())
    }

    /// Requests to all places that were opened, and bytes received.
    pub fn stats(&self) -> Stats {
        self.opened.iter().filter_map(|opened| Some(opened.get()?.stats())).fold(Stats::default(), Stats::add)
    }

    /// Connects to the places in the background, while the image is resolved.
    pub(crate) fn get_ready(&self) {
        let may_be_asked = |place: &IndexPlace| place.demands.check_before().is_ok();
        for (number, _) in self.list.iter().enumerate().filter(|(_, place)| may_be_asked(place)) {
            // A place that cannot be opened is reported when it is searched.
            if let Ok(repository) = self.open(number) {
                tokio::spawn(async move { repository.get_ready(1).await });
            }
        }
    }
}

impl fmt::Debug for IndexPlaces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IndexPlaces").field(&self.list).finish()
    }
}

/// The places of the requested image, with what the policy demands there.
///
/// # Errors
/// As [`IndexPlaces::of`].
pub fn list(request: &ImageRequest) -> Result<Vec<IndexPlace>> {
    if request.index_repos.len() > limits::INDEX_REPOS {
        let cause = format!("there are {} of them, more than {}", request.index_repos.len(), limits::INDEX_REPOS);
        return Err(Error::new(ErrorKind::Refused, "use the index repositories", cause));
    }
    let place = |source: Source| {
        let demands = request.access.policy.demands(&source).context(ErrorKind::Forbidden, "read the policy")?;
        Ok(IndexPlace { source: source.to_string(), demands })
    };
    request.index_sources().map(place).collect()
}

/// How to access the source `place` of indexes of `image`, which is accessed by `access`. Credentials and options for the connection are for
/// the registry of the image. Another registry has those of the user's files only: it must not get the password of the first, and its
/// certificates are verified even if those of the first are not. Credentials of the image alone are for no index repository, and neither is its
/// tier.
pub fn access_to(place: &str, image: &Source, access: &Access) -> Access {
    let is_same = match (place.parse(), image) {
        (Ok(Source::Registry(place)), Source::Registry(image)) => place.registry() == image.registry(),
        _ => false,
    };
    if is_same {
        let creds = access.creds.clone().filter(|_| !access.creds_of_image);
        return Access { creds, tier: None, ..access.clone() };
    }
    Access { creds: None, creds_of_image: false, tls_verify: None, cert_dir: None, tier: None, ..access.clone() }
}

/// A place for messages: the default tag, which all of its names have, is left out.
pub fn shown(place: &str) -> &str {
    place.strip_suffix(":latest").unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_for_the_registry_of_the_image_alone() {
        let access = Access { creds: Some("user:password".to_owned()), tls_verify: Some(false), ..Access::default() };
        let image: Source = "registry.example/app".parse().unwrap();
        let to = |place: &str| access_to(place, &image, &access);
        assert_eq!(to("registry.example/tarpon/registry.example/app"), access);
        for place in ["registry.example:5000/tarpon/app", "other.example/app", "oci:/shared"] {
            assert_eq!(to(place), Access::default(), "{place}");
        }
        let of_pod = Access { creds_of_image: true, ..access.clone() };
        assert_eq!(access_to("registry.example/tarpon/registry.example/app", &image, &of_pod).creds, None);
    }
}
