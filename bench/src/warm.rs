//! Warms the registry with one request for each blob of an image, whose response is discarded. A registry with many clients
//! has popular images in memory.
//!
//! A benchmark behind a link cannot do that itself, because it would wait for the link. So the process in front of the link does it,
//! on request over a separate port: `IMAGE TAG` in a line, and a line back.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tarpon_harness::http;

use super::link_end::Here;

const MANIFESTS: &str = "Accept: application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json\r\n";

/// How long a registry may take to read an image from disk.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The server in front of the link. It works as long as this program runs.
pub(super) struct Warmer(u16);

impl Warmer {
    pub(super) fn start(registry: &str) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on loopback")?;
        let port = listener.local_addr()?.port();
        let registry = registry.to_owned();
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let answer = serve(&client, &registry);
                let answer = answer.map_or_else(|error| format!("{error:#}"), |()| "warm".to_owned());
                // The client may be gone and needs no answer then.
                let _gone = client.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes());
            }
        });
        Ok(Self(port))
    }

    pub(super) fn port(&self) -> u16 {
        self.0
    }
}

fn serve(client: &TcpStream, registry: &str) -> Result<()> {
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line)?;
    let (image, tag) = line.trim_end().split_once(' ').context("a line is IMAGE TAG")?;
    warm(registry, image, tag)
}

/// Sends a request to the process in front of the link.
pub(super) fn ask(here: &Here, image: &str, tag: &str) -> Result<()> {
    let port = std::env::var("TARPON_BENCH_WARMER").context("the registry is not warmed")?;
    let mut connection =
        TcpStream::connect(format!("{}:{port}", here.host)).context("cannot reach the process that warms it")?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.write_all(format!("{image} {tag}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer)?;
    match answer.trim_end() {
        "warm" => Ok(()),
        other => bail!("the registry was not warmed: {other}"),
    }
}

/// Requests all blobs of an image, and the artifacts attached to images of its repository.
fn warm(registry: &str, image: &str, tag: &str) -> Result<()> {
    let get = |path: &str| http::request(registry, "GET", &format!("/v2/{image}/{path}"), MANIFESTS, b"");
    let tags: Value = serde_json::from_slice(&get("tags/list")?.body).context("the registry lists no tags")?;
    let attached = tags["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    // Registries without the referrers API keep attached artifacts under tags that are digests.
    let attached = attached.filter(|tag| tag.starts_with("sha256-")).map(str::to_owned);
    let mut manifests: Vec<String> = attached.chain([tag.to_owned()]).collect();
    let mut seen = BTreeSet::new();
    while let Some(name) = manifests.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let answer = get(&format!("manifests/{name}"))?;
        if answer.status != 200 {
            bail!("{registry} has no {image}:{name}");
        }
        let manifest: Value = serde_json::from_slice(&answer.body).context("not a manifest")?;
        let digests = |field: &str| -> Vec<String> {
            let list = manifest[field].as_array().into_iter().flatten();
            list.filter_map(|entry| Some(entry["digest"].as_str()?.to_owned())).collect()
        };
        manifests.extend(digests("manifests"));
        let config = manifest["config"]["digest"].as_str().map(str::to_owned);
        for blob in digests("layers").into_iter().chain(config) {
            if seen.insert(blob.clone()) {
                get(&format!("blobs/{blob}"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A registry that records its requests.
    fn registry() -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, asked) = mpsc::channel();
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let mut line = String::new();
                BufReader::new(&client).read_line(&mut line).unwrap();
                let path = line.split(' ').nth(1).unwrap().to_owned();
                let body = match path.rsplit('/').next().unwrap() {
                    "list" => r#"{"tags": ["v1", "other", "sha256-ab"]}"#,
                    "v1" => r#"{"config": {"digest": "c"}, "layers": [{"digest": "l"}, {"digest": "l"}]}"#,
                    "sha256-ab" => r#"{"manifests": [{"digest": "m"}]}"#,
                    "m" => r#"{"layers": [{"digest": "pack"}]}"#,
                    _ => "bytes",
                };
                sender.send(path).unwrap();
                client.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{body}").as_bytes()).unwrap();
            }
        });
        (address, asked)
    }

    #[test]
    fn each_blob_of_the_image_and_of_what_is_attached_is_asked_for_once() {
        let (address, asked) = registry();
        warm(&address, "a/b", "v1").unwrap();
        let mut asked: Vec<String> = asked.try_iter().collect();
        asked.sort();
        let paths =
            ["blobs/c", "blobs/l", "blobs/pack", "manifests/m", "manifests/sha256-ab", "manifests/v1", "tags/list"];
        assert_eq!(asked, paths.map(|path| format!("/v2/a/b/{path}")));
    }
}
