//! [`ContainerdHosts`]: the hosts of registries as containerd finds them, in `HOST/hosts.toml` of a folder
//! (described in the repository github.com/containerd/containerd).

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tarpon_oci::Reference;
use toml_edit::{Document, Item, TableLike};
use url::Url;

use super::endpoint::{Address, Endpoint, Header, host_in_names};
use super::error::RegistriesError;
use super::file;

/// The folder for registries without one of their own.
const DEFAULT: &str = "_default";

/// Most hosts of a file: real ones have a few.
const HOSTS: usize = 64;

/// A folder with a folder for each registry, such as `/etc/containerd/certs.d`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerdHosts(pub PathBuf);

/// A host as the file states it.
struct Stated {
    url: Url,
    pulls: bool,
    resolves: bool,
    insecure: bool,
    address: Address,
}

impl ContainerdHosts {
    /// The hosts that serve the image, in the order in which they are tried: those of the file, then the registry itself.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn endpoints(&self, reference: &Reference) -> Result<Vec<Endpoint>, RegistriesError> {
        let Some(folder) = self.folder_of(reference.registry()) else {
            return Ok(vec![Endpoint::of(reference.clone(), false)]);
        };
        let file = folder.join("hosts.toml");
        let text = match file::text(&file) {
            Ok(text) => text,
            // Certificates alone, which are found by the name of the host.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(vec![Endpoint::of(reference.clone(), false)]);
            }
            Err(error) => return Err(RegistriesError::Read { file, error }),
        };
        let stated = stated(&text, &folder, reference).and_then(|stated| endpoints(stated, reference));
        stated.map_err(|why| RegistriesError::Invalid { file, why })
    }

    /// The folder of a registry: `HOST_PORT_`, `HOST:PORT`, or the default one.
    fn folder_of(&self, registry: &str) -> Option<PathBuf> {
        let escaped = registry.rsplit_once(':').map(|(host, port)| format!("{host}_{port}_"));
        let names = escaped.into_iter().chain([registry.to_owned(), DEFAULT.to_owned()]);
        names.map(|name| self.0.join(name)).find(|folder| folder.is_dir())
    }
}

/// The hosts of a file in their order, and its server.
fn stated(text: &str, folder: &Path, reference: &Reference) -> Result<(Vec<Stated>, Option<Stated>), String> {
    let document = Document::parse(text).map_err(|error| error.message().to_owned())?;
    let root = document.as_table();
    let mut stated = Vec::new();
    if let Some(hosts) = root.get("host") {
        let hosts = hosts.as_table_like().ok_or("host is not a table")?;
        if hosts.len() > HOSTS {
            return Err(format!("there are more than {HOSTS} hosts"));
        }
        for (name, item) in hosts.iter() {
            let fields = item.as_table_like().ok_or_else(|| format!("{name} is not a table"))?;
            stated.push(Stated::of(name, fields, folder)?);
        }
    }
    // Without it the registry is reached as if there were no file, unless the file has its certificates.
    let server = text_of(root, "server")?;
    let has_fields = ["ca", "client", "skip_verify", "header"].iter().any(|field| root.contains_key(field));
    if server.is_some() || has_fields {
        let server = server.unwrap_or_else(|| format!("https://{}", reference.api_host()));
        return Ok((stated, Some(Stated::of(&server, root, folder)?)));
    }
    Ok((stated, None))
}

fn endpoints((hosts, server): (Vec<Stated>, Option<Stated>), reference: &Reference) -> Result<Vec<Endpoint>, String> {
    let mut endpoints = Vec::new();
    for host in hosts.into_iter().filter(|host| host.pulls) {
        endpoints.push(host.endpoint(reference)?);
    }
    // It is asked if no mirror has the image, whatever the file states about it.
    endpoints.push(match server {
        Some(server) => Endpoint { resolves: true, ..server.endpoint(reference)? },
        None => Endpoint::of(reference.clone(), false),
    });
    Ok(endpoints)
}

/// Whether the URL is that of the registry itself.
fn is_at(url: &Url, reference: &Reference) -> bool {
    let registry = format!("{}://{}", url.scheme(), reference.api_host()).parse::<Url>();
    registry.is_ok_and(|registry| registry.origin() == url.origin())
}

impl Stated {
    fn endpoint(self, reference: &Reference) -> Result<Endpoint, String> {
        let Self { url, resolves, insecure, address, .. } = self;
        let is_itself = is_at(&url, reference);
        let registry = if is_itself { reference.registry().to_owned() } else { host_in_names(&url) };
        let version = match (reference.digest(), reference.tag()) {
            (Some(digest), _) => format!("@{digest}"),
            (None, tag) => format!(":{}", tag.unwrap_or(tarpon_oci::DEFAULT_TAG)),
        };
        let name = format!("{registry}/{}{version}", reference.repository());
        let at: Reference = name.parse().map_err(|_| format!("{url} is not a host"))?;
        if at.repository() != reference.repository() {
            return Err(format!("{url} is not a host"));
        }
        let namespace = (!is_itself).then(|| reference.registry().to_owned());
        let address = Some(Address { namespace, ..address });
        Ok(Endpoint { reference: at, insecure, resolves, address })
    }
}

impl Stated {
    fn of(host: &str, fields: &dyn TableLike, folder: &Path) -> Result<Self, String> {
        let bad = |what: &str| format!("{what} of {host} has another form");
        let full = if host.contains("://") { host.to_owned() } else { format!("https://{host}") };
        let url: Url = full.parse().map_err(|_| "the name of a host is not a URL".to_owned())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL of a host has a user name".to_owned());
        }
        let is_plain = url.scheme() == "http";
        if !(is_plain || url.scheme() == "https") || url.host().is_none() || url.query().is_some() {
            return Err(format!("{host:?} is not the URL of a host"));
        }
        let path = url.path().trim_end_matches('/');
        let overrides = flag(fields, "override_path").ok_or_else(|| bad("override_path"))?;
        let end = if overrides || path.ends_with("/v2") { "" } else { "/v2" };
        let api = format!("{}{path}{end}", url.origin().ascii_serialization());
        let can = |what: &str| match fields.get("capabilities") {
            None => Ok(true),
            Some(list) => {
                let list = list.as_array().ok_or_else(|| bad("capabilities"))?;
                Ok::<_, String>(list.iter().any(|capability| capability.as_str() == Some(what)))
            }
        };
        let authorities = files(fields.get("ca"), folder).ok_or_else(|| bad("ca"))?;
        let identities = identities(fields.get("client"), folder).ok_or_else(|| bad("client"))?;
        let headers = headers(fields.get("header")).ok_or_else(|| bad("header"))?;
        let skips = flag(fields, "skip_verify").ok_or_else(|| bad("skip_verify"))?;
        let address = Address { authorities, identities, headers, ..Address::at(api) };
        let (pulls, resolves) = (can("pull")?, can("resolve")?);
        Ok(Self { url, pulls, resolves, insecure: is_plain || skips, address })
    }
}

fn text_of(fields: &dyn TableLike, name: &str) -> Result<Option<String>, String> {
    match fields.get(name) {
        None => Ok(None),
        Some(item) => item.as_str().map(|text| Some(text.to_owned())).ok_or_else(|| format!("{name} is not a text")),
    }
}

/// A boolean, false if absent. None if it is something else.
fn flag(fields: &dyn TableLike, name: &str) -> Option<bool> {
    match fields.get(name) {
        None => Some(false),
        Some(item) => item.as_bool(),
    }
}

/// A file or several, relative to the folder.
fn files(item: Option<&Item>, folder: &Path) -> Option<Vec<PathBuf>> {
    let Some(item) = item else { return Some(Vec::new()) };
    match item.as_str() {
        Some(one) => Some(vec![folder.join(one)]),
        None => item.as_array()?.iter().map(|file| Some(folder.join(file.as_str()?))).collect(),
    }
}

/// Files with certificate and key, or pairs of them.
fn identities(item: Option<&Item>, folder: &Path) -> Option<Vec<(PathBuf, Option<PathBuf>)>> {
    let Some(item) = item else { return Some(Vec::new()) };
    if let Some(one) = item.as_str() {
        return Some(vec![(folder.join(one), None)]);
    }
    let pair = |value: &toml_edit::Value| match value.as_array() {
        None => Some((folder.join(value.as_str()?), None)),
        Some(pair) => {
            let mut files = pair.iter().map(|file| file.as_str().map(|file| folder.join(file)));
            let certificate = files.next()??;
            let key = match files.next() {
                Some(file) => Some(file?).filter(|key| *key != *folder),
                None => None,
            };
            Some((certificate, key))
        }
    };
    item.as_array()?.iter().map(pair).collect()
}

/// Headers with one value or several.
fn headers(item: Option<&Item>) -> Option<Vec<Header>> {
    let Some(item) = item else { return Some(Vec::new()) };
    let mut headers = Vec::new();
    for (name, value) in item.as_table_like()?.iter() {
        match value.as_str() {
            Some(one) => headers.push(Header::new(name, one)),
            None => {
                for one in value.as_array()? {
                    headers.push(Header::new(name, one.as_str()?));
                }
            }
        }
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, registry: &str, text: &str) {
        let folder = folder.join(registry);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("hosts.toml"), text).unwrap();
    }

    /// The endpoints of an image: name, root of the API, and what differs from the usual.
    fn found(folder: &Path, image: &str) -> Vec<String> {
        let endpoints = ContainerdHosts(folder.to_owned()).endpoints(&image.parse().unwrap()).unwrap();
        let show = |endpoint: &Endpoint| {
            let api = endpoint.address.as_ref().map_or("", |address| &address.api);
            let namespace = endpoint.address.as_ref().and_then(|address| address.namespace.clone());
            let namespace = namespace.map(|name| format!(" ns={name}")).unwrap_or_default();
            let insecure = if endpoint.insecure { " insecure" } else { "" };
            let resolves = if endpoint.resolves { "" } else { " digests" };
            format!("{} {api}{namespace}{insecure}{resolves}", endpoint.reference)
        };
        endpoints.iter().map(show).collect()
    }

    const MIRRORS: &str = r#"
        server = "https://registry-1.docker.io"
        [host."https://z.example:5000"]
          capabilities = ["pull"]
          skip_verify = true
        [host."http://a.example/cache"]
          capabilities = ["pull", "resolve"]
        [host."https://c.example/v2/hub"]
          override_path = true
        [host."https://push.example"]
          capabilities = ["push"]
    "#;

    #[test]
    fn the_hosts_of_the_file_come_before_its_server_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "docker.io", MIRRORS);
        let expected = [
            "z.example:5000/library/redis:7 https://z.example:5000/v2 ns=docker.io insecure digests",
            "a.example/library/redis:7 http://a.example/cache/v2 ns=docker.io insecure",
            "c.example/library/redis:7 https://c.example/v2/hub ns=docker.io",
            "docker.io/library/redis:7 https://registry-1.docker.io/v2",
        ];
        assert_eq!(found(folder.path(), "redis:7"), expected);
        assert_eq!(found(folder.path(), "quay.io/a"), ["quay.io/a:latest "]);
    }

    #[test]
    fn a_registry_has_its_own_folder_or_the_default_one() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "_default", "[host.\"https://all.example\"]");
        write(folder.path(), "r.example_5000_", "[host.\"https://mirror\"]");
        let expected = ["mirror:443/a:1 https://mirror/v2 ns=r.example:5000", "r.example:5000/a:1 "];
        assert_eq!(found(folder.path(), "r.example:5000/a:1"), expected);
        assert_eq!(
            found(folder.path(), "other.example/a:1")[0],
            "all.example/a:1 https://all.example/v2 ns=other.example"
        );
    }

    #[test]
    fn files_are_relative_to_the_folder_and_headers_are_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"
            ca = "server.crt"
            [host."https://m.example"]
              ca = ["/etc/ca.pem", "own.pem"]
              client = [["c.cert", "c.key"], ["both.pem", ""]]
              [host."https://m.example".header]
                x-token = "s3cret"
                x-many = ["1", "2"]
        "#;
        write(folder.path(), "r.example", text);
        let endpoints = ContainerdHosts(folder.path().to_owned()).endpoints(&"r.example/a".parse().unwrap()).unwrap();
        let address = endpoints[0].address.as_ref().unwrap();
        let own = folder.path().join("r.example");
        assert_eq!(address.authorities, [PathBuf::from("/etc/ca.pem"), own.join("own.pem")]);
        assert_eq!(address.identities, [(own.join("c.cert"), Some(own.join("c.key"))), (own.join("both.pem"), None)]);
        assert_eq!(address.headers.len(), 3);
        assert_eq!(address.files().count(), 5);
        assert!(!format!("{address:?}").contains("s3cret"));
        assert_eq!(endpoints[1].address.as_ref().unwrap().authorities, [own.join("server.crt")]);
    }

    #[test]
    fn a_registry_is_itself_with_its_usual_port() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "_default", "server = \"https://r.example\"");
        assert_eq!(found(folder.path(), "r.example:443/a:1"), ["r.example:443/a:1 https://r.example/v2"]);
        write(folder.path(), "_default", "[host.\"https://m.example\"]");
        let expected = ["m.example/a:1 https://m.example/v2 ns=localhost:5000", "localhost:5000/a:1 "];
        assert_eq!(found(folder.path(), "localhost:5000/a:1"), expected, "which may speak plain HTTP");
    }

    #[test]
    fn an_invalid_file_is_an_error_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        for (text, why) in [
            ("server = 7", "server is not a text"),
            ("server = \"ftp://a.example\"", "is not the URL of a host"),
            ("host = 1", "host is not a table"),
            ("[host.\"https://me:secret@a.example\"]", "the URL of a host has a user name"),
            ("[host.\"https://a.example\"]\ncapabilities = \"pull\"", "capabilities of https://a.example"),
            ("[host.\"https://a.example\"]\nskip_verify = \"yes\"", "skip_verify of"),
            ("[host.\"https://a.example\"]\nca = 1", "ca of"),
            ("[host.\"https://a.example\"]\nclient = [[]]", "client of"),
            ("[host.\"https://a.example\"]\nheader = [\"x\"]", "header of"),
            ("a = ", "hosts.toml"),
        ] {
            write(folder.path(), "r.example", text);
            let hosts = ContainerdHosts(folder.path().to_owned());
            let error = hosts.endpoints(&"r.example/a".parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        std::fs::remove_file(folder.path().join("r.example/hosts.toml")).unwrap();
        assert_eq!(found(folder.path(), "r.example/a"), ["r.example/a:latest "], "a folder of certificates");
    }
}
