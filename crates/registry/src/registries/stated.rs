//! A file of tarpon's own configuration of endpoints, checked. It states what registries.conf(5) cannot state about a mirror.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{self, Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use tarpon_oci::{Reference, is_short_name};
use url::Url;
use zeroize::Zeroizing;

use super::endpoint::{Address, Endpoint, EndpointCredentials, Header, host_in_names};
use super::error::RegistriesError;
use super::file::{self, checked_prefix, located, matched};
use super::header_names;
use crate::timing;

/// Most endpoints of a registry: real ones have a few, and each request to a worker names all of them.
const ENDPOINTS: usize = 16;
/// Most headers of an endpoint: real ones have one or two.
const HEADERS: usize = 16;
/// Most bytes of the names and values of an endpoint's headers: a token has 1 to 4 KiB. Those of all endpoints fit into a request to a
/// worker, with their other settings and the mirrors of the image.
const HEADER_BYTES: usize = 4 << 10;
/// Longest path of a file, for the same reason.
const PATH_BYTES: usize = 1 << 10;
/// The shortest time limit: a host on another continent answers within it.
const TIME_LIMIT_LEAST: Duration = Duration::from_millis(100);

/// The endpoints that files state, by prefix.
#[derive(Debug, Clone, Default)]
pub(super) struct Stated {
    registries: BTreeMap<String, (StatedRegistry, PathBuf)>,
}

/// A file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    registry: Vec<StatedRegistry>,
}

/// A `[[registry]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatedRegistry {
    #[serde(deserialize_with = "prefix")]
    prefix: String,
    #[serde(default, deserialize_with = "endpoints")]
    endpoint: Vec<StatedEndpoint>,
}

/// A `[[registry.endpoint]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "WrittenEndpoint")]
struct StatedEndpoint {
    url: EndpointUrl,
    ca: Option<PathBuf>,
    time_limit: Option<Duration>,
    headers: Vec<Header>,
    credentials: EndpointCredentials,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEndpoint {
    url: EndpointUrl,
    #[serde(default, deserialize_with = "absolute")]
    ca: Option<PathBuf>,
    timeout: Option<TimeLimit>,
    #[serde(default)]
    headers: Headers,
    #[serde(default)]
    credentials: EndpointCredentials,
}

/// `http://` or `https://`, a host, and what replaces the prefix in names.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
struct EndpointUrl(Url);

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct TimeLimit(Duration);

#[derive(Default)]
struct Headers(Vec<Header>);

/// What a file configures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StatedEndpoints {
    /// The number of its endpoints.
    pub endpoints: usize,
    /// Whether some of them have headers, whose values may be secret.
    pub has_headers: bool,
}

impl Stated {
    /// Takes over the contents of a later file: registries with the same prefix replace earlier ones.
    pub(super) fn read(&mut self, file: &Path) -> Result<StatedEndpoints, RegistriesError> {
        let text = file::text(file).map(Zeroizing::new);
        let text = text.map_err(|error| RegistriesError::Read { file: file.to_owned(), error })?;
        self.take(&text, file)
    }

    pub(super) fn take(&mut self, text: &str, file: &Path) -> Result<StatedEndpoints, RegistriesError> {
        let written = toml_edit::de::from_str::<Written>(text);
        let Written { registry } = written
            .map_err(|error| RegistriesError::InvalidEndpoints { file: file.to_owned(), why: located(text, &error) })?;
        let all = || registry.iter().flat_map(|registry| &registry.endpoint);
        let summary = StatedEndpoints {
            endpoints: all().count(),
            has_headers: all().any(|endpoint| !endpoint.headers.is_empty()),
        };
        let by_prefix = registry.into_iter().map(|registry| (registry.prefix.clone(), (registry, file.to_owned())));
        self.registries.extend(by_prefix);
        Ok(summary)
    }

    /// The endpoints of an image, in their order: those of the longest prefix of its name. `registry` has the credentials of the
    /// registry, which is asked after them.
    pub(super) fn endpoints(&self, reference: &Reference, registry: &str) -> Result<Vec<Endpoint>, RegistriesError> {
        let name = format!("{}/{}", reference.registry(), reference.repository());
        let matching = self.registries.values().filter_map(|known| Some((matched(&name, &known.0.prefix)?, known)));
        let Some((length, (entry, file))) = matching.max_by_key(|(_, (entry, _))| entry.prefix.len()) else {
            return Ok(Vec::new());
        };
        let mut endpoints = Vec::with_capacity(entry.endpoint.len());
        for stated in &entry.endpoint {
            let mut endpoint = stated.endpoint(reference, length, file)?;
            let is_registry = [registry, reference.registry()].contains(&endpoint.reference.registry());
            if let Some(address) = endpoint.address.as_mut().filter(|address| is_registry && address.is_exposed()) {
                // Those under its name are those of the registry.
                address.credentials = EndpointCredentials::None;
            }
            endpoints.push(endpoint);
        }
        Ok(endpoints)
    }
}

impl StatedEndpoint {
    /// The endpoint of an image, of whose name the prefix is so long.
    fn endpoint(&self, reference: &Reference, prefix: usize, file: &Path) -> Result<Endpoint, RegistriesError> {
        let full = reference.to_string();
        let EndpointUrl(url) = &self.url;
        let path = url.path().trim_end_matches('/');
        let rest = if path.is_empty() { &full[reference.registry().len()..] } else { &full[prefix..] };
        let host = host_in_names(url);
        let name = format!("{host}{path}{rest}");
        let parsed = name.parse::<Reference>().map_err(|error| error.why());
        // Else it is a name at another host.
        let at = parsed.and_then(|at| match at.registry() == host {
            true => Ok(at),
            false => Err("it is a name at another registry"),
        });
        let failed = |why| RegistriesError::Location { location: url.to_string(), name, file: file.to_owned(), why };
        let at = at.map_err(failed)?;
        let address = Address {
            authorities: self.ca.iter().cloned().collect(),
            headers: self.headers.clone(),
            time_limit: self.time_limit,
            credentials: self.credentials,
            ..Address::at(format!("{}/v2", url.origin().ascii_serialization()))
        };
        Ok(Endpoint { address: Some(address), ..Endpoint::of(at, false) })
    }
}

impl TryFrom<WrittenEndpoint> for StatedEndpoint {
    type Error = String;

    fn try_from(written: WrittenEndpoint) -> Result<Self, String> {
        let WrittenEndpoint { url, ca, timeout, headers, credentials } = written;
        let is_exposed = Address::at(url.0.to_string()).is_exposed();
        if credentials == EndpointCredentials::Registry && is_exposed {
            return Err("the credentials of the registry are not sent over plain HTTP to another machine".to_owned());
        }
        if ca.is_some() && url.0.scheme() == "http" {
            return Err("ca is for https://".to_owned());
        }
        let time_limit = timeout.map(|TimeLimit(limit)| limit);
        Ok(Self { url, ca, time_limit, headers: headers.0, credentials })
    }
}

impl TryFrom<String> for EndpointUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // A password in it is not shown.
        let url = Url::parse(&text).map_err(|_| "the url is not of the form https://HOST[:PORT][/PATH]")?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the url has a user name or a password".to_owned());
        }
        let is_bare = url.query().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !is_bare {
            return Err(format!("{text:?} is not of the form https://HOST[:PORT][/PATH]"));
        }
        Ok(Self(url))
    }
}

impl TryFrom<String> for TimeLimit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u64>().ok();
        let millis = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
            (Some(millis), _) => number(millis),
            (None, Some(seconds)) => number(seconds).and_then(|seconds| seconds.checked_mul(1_000)),
            (None, None) => None,
        };
        let limit = millis.map(Duration::from_millis);
        let limit = limit.filter(|limit| (TIME_LIMIT_LEAST..=timing::MIRROR).contains(limit));
        limit.map(Self).ok_or_else(|| {
            format!(
                "the timeout {text:?} is not a time such as 800ms or 3s, from {TIME_LIMIT_LEAST:?} to {:?}",
                timing::MIRROR
            )
        })
    }
}

fn prefix<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let prefix = checked_prefix(&String::deserialize(from)?).map_err(D::Error::custom)?;
    if !prefix.starts_with("*.") && is_short_name(&format!("{prefix}/x")) {
        return Err(D::Error::custom(format!("the prefix {prefix} begins with no registry")));
    }
    Ok(prefix)
}

fn endpoints<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<StatedEndpoint>, D::Error> {
    let endpoints = Vec::<StatedEndpoint>::deserialize(from)?;
    match endpoints.len() {
        0..=ENDPOINTS => Ok(endpoints),
        _ => Err(D::Error::custom(format!("there are more than {ENDPOINTS} endpoints"))),
    }
}

fn absolute<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let file = PathBuf::deserialize(from)?;
    match (file.is_absolute(), file.as_os_str().len()) {
        (true, 0..=PATH_BYTES) => Ok(Some(file)),
        (true, _) => Err(D::Error::custom(format!("the path of ca is longer than {PATH_BYTES} bytes"))),
        (false, _) => Err(D::Error::custom(format!("ca is no absolute path: {}", file.display()))),
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Table;

        impl<'de> Visitor<'de> for Table {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of headers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Headers, A::Error> {
                let mut headers = Vec::new();
                let mut bytes = 0_usize;
                while let Some((name, HeaderValue(value))) = from.next_entry::<String, HeaderValue>()? {
                    header_names::check(&name).map_err(A::Error::custom)?;
                    if http::HeaderValue::from_str(&value).is_err() {
                        return Err(A::Error::custom(format!("the value of the header {name:?} is not valid")));
                    }
                    bytes = bytes.saturating_add(name.len()).saturating_add(value.len());
                    if headers.len() == HEADERS || bytes > HEADER_BYTES {
                        let limits = format!("there are more than {HEADERS} headers, or {HEADER_BYTES} bytes of them");
                        return Err(A::Error::custom(limits));
                    }
                    headers.push(Header::from((name, value)));
                }
                Ok(Headers(headers))
            }
        }

        from.deserialize_map(Table)
    }
}

/// The value of a header, which no error shows.
struct HeaderValue(Zeroizing<String>);

impl<'de> Deserialize<'de> for HeaderValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = HeaderValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(NO_TEXT)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HeaderValue, E> {
                Ok(HeaderValue(Zeroizing::new(text.to_owned())))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<HeaderValue, E> {
                Ok(HeaderValue(Zeroizing::new(text)))
            }

            // The usual errors for these quote them.
            fn visit_bool<E: de::Error>(self, _: bool) -> Result<HeaderValue, E> {
                Err(E::custom(NO_TEXT))
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<HeaderValue, E> {
                Err(E::custom(NO_TEXT))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<HeaderValue, E> {
                Err(E::custom(NO_TEXT))
            }
        }

        from.deserialize_any(Text)
    }
}

const NO_TEXT: &str = "the value of a header has to be a text in quotes";

#[cfg(test)]
mod tests;
