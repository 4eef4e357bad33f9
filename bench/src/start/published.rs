//! The artifacts attached to an image in a registry: whether clients find an index and a boot pack.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use tarpon_harness::http;

/// The artifact type of tarpon's index, that of the boot packs in it, and the annotation with the name of the profile.
const INDEX: &str = "application/vnd.tarpon.index.v1";
const BOOT_INDEX: &str = "application/vnd.tarpon.boot.index.v1";
const PROFILE: &str = "dev.tarpon.boot.profile";

const ACCEPT: &str = "Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json\r\n";

/// The profiles of the boot packs in the newest index of an image; empty if it has no index.
pub(super) fn profiles(registry: &str, image: &str, digest: &str) -> Result<Vec<String>> {
    let Some(newest) = newest(registry, image, digest)? else { return Ok(Vec::new()) };
    Ok(get(registry, &format!("/v2/{image}/manifests/{newest}"))?.map(|index| packs(&index)).unwrap_or_default())
}

/// The digest of the newest index of an image.
pub(crate) fn newest(registry: &str, image: &str, digest: &str) -> Result<Option<String>> {
    let Some(list) = referrers(registry, image, digest)? else { return Ok(None) };
    let mut all = list["manifests"].as_array().into_iter().flatten();
    // The newest is the last.
    let newest = all.rfind(|entry| entry["artifactType"] == INDEX).and_then(|entry| entry["digest"].as_str());
    Ok(newest.map(str::to_owned))
}

/// The referrers of an image, from the registry's API, or from the fallback tag if it has no such API.
fn referrers(registry: &str, image: &str, digest: &str) -> Result<Option<Value>> {
    if let Some(list) = get(registry, &format!("/v2/{image}/referrers/{digest}"))? {
        return Ok(Some(list));
    }
    get(registry, &format!("/v2/{image}/manifests/{}", digest.replace(':', "-")))
}

fn packs(index: &Value) -> Vec<String> {
    let layers = index["layers"].as_array().into_iter().flatten();
    let packs = layers.filter(|layer| layer["mediaType"] == BOOT_INDEX);
    packs.filter_map(|layer| Some(layer["annotations"][PROFILE].as_str()?.to_owned())).collect()
}

/// A document, if it exists.
fn get(registry: &str, path: &str) -> Result<Option<Value>> {
    let answer = http::request(registry, "GET", path, ACCEPT, b"")?;
    match answer.status {
        200 => serde_json::from_slice(&answer.body).map(Some).with_context(|| format!("{path} is no JSON")),
        404 => Ok(None),
        other => bail!("{registry} answers {path} with {other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const LIST: &str = r#"{"manifests": [{"digest": "old", "artifactType": "application/vnd.tarpon.index.v1"},
        {"digest": "new", "artifactType": "application/vnd.tarpon.index.v1"}, {"digest": "sig", "artifactType": "a/b"}]}"#;
    const NEW: &str = r#"{"layers": [{"mediaType": "application/vnd.tarpon.index.layers.v1"},
        {"mediaType": "application/vnd.tarpon.boot.index.v1", "annotations": {"dev.tarpon.boot.profile": "redis"}}]}"#;

    /// A registry with only these documents.
    fn registry(documents: &'static [(&str, &str)]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let mut line = String::new();
                let mut reader = BufReader::new(&client);
                reader.read_line(&mut line).unwrap();
                // The rest must be read: otherwise closing the connection could discard the answer.
                reader.lines().map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                let path = line.split(' ').nth(1).unwrap();
                let answer = match documents.iter().find(|(known, _)| *known == path) {
                    Some((_, body)) => format!("HTTP/1.0 200 OK\r\n\r\n{body}"),
                    None => "HTTP/1.0 404 Not Found\r\n\r\n".to_owned(),
                };
                client.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn the_packs_are_those_of_the_newest_index_however_the_registry_lists_it() {
        let listed = registry(&[("/v2/a/b/referrers/sha256:ab", LIST), ("/v2/a/b/manifests/new", NEW)]);
        let tagged = registry(&[("/v2/a/b/manifests/sha256-ab", LIST), ("/v2/a/b/manifests/new", NEW)]);
        for registry in [listed, tagged] {
            assert_eq!(newest(&registry, "a/b", "sha256:ab").unwrap().as_deref(), Some("new"));
            assert_eq!(profiles(&registry, "a/b", "sha256:ab").unwrap(), ["redis"]);
        }
    }

    #[test]
    fn an_image_that_nothing_is_attached_to_has_no_packs() {
        assert!(profiles(&registry(&[]), "a/b", "sha256:ab").unwrap().is_empty());
        let other = registry(&[("/v2/a/b/referrers/sha256:ab", "{\"manifests\": []}")]);
        assert!(profiles(&other, "a/b", "sha256:ab").unwrap().is_empty());
    }
}
