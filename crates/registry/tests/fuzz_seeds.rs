//! The seeds of the fuzz targets of names, manifests, headers and responses, as plain tests.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use tarpon_oci::Digest;
use tarpon_testkit::fuzz;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(name)
}

fn replay(name: &str, target: fn(&[u8])) {
    let mut seeds = 0;
    for entry in fs::read_dir(folder(name)).unwrap() {
        let seed = fs::read(entry.unwrap().path()).unwrap();
        target(&seed);
        // Every prefix too: cheap, and where parsers stumble.
        (0..seed.len().min(300)).for_each(|end| target(&seed[..end]));
        seeds += 1;
    }
    assert!(seeds >= 10, "{name}: {seeds} seeds");
}

#[test]
fn seeds_of_names_manifests_and_headers_keep_their_invariants() {
    replay("digest_reference", fuzz::digest_reference);
    replay("manifest_index", fuzz::manifest_index);
    replay("index_lock", fuzz::index_lock);
    replay("www_authenticate", fuzz::www_authenticate);
    replay("content_range", fuzz::content_range);
    replay("registries_conf", fuzz::registries_conf);
    replay("policy", fuzz::policy);
}

#[test]
fn seeds_of_http_responses_keep_their_invariants() {
    let seeds: Vec<_> = fs::read_dir(folder("http_responses")).unwrap().collect();
    assert!(seeds.len() >= 10, "{} seeds", seeds.len());
    for seed in seeds {
        let seed = fs::read(seed.unwrap().path()).unwrap();
        fuzz::http_responses(&seed);
        // Ends of connections in many places.
        (0..seed.len()).step_by(37).for_each(|end| fuzz::http_responses(&seed[..end]));
    }
}

/// A response with this head, and a body of the right length.
fn response(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Responses with everything that the client interprets, each for an operation.
fn responses() -> Vec<(u8, u8, Vec<String>)> {
    let part = "a part of the blob, ".repeat(100);
    let ranged =
        |head: &str| response(&format!("206 Partial Content{head}\r\nContent-Range: bytes 1000-2999/4000"), &part);
    let range = ranged("");
    let whole = "the whole blob 00 11".repeat(200);
    let chunked = |body: &str| {
        let (one, other) = body.split_at(body.len() / 3);
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{one}\r\n{:X};a=b\r\n{other}\r\n0\r\nX: y\r\n\r\n",
            one.len(),
            other.len()
        )
    };
    let status = |head: &str| response(head, "");
    let to = |place: &str| status(&format!("307 Temporary Redirect\r\nLocation: {place}"));
    let bearer = |realm: &str| {
        let challenge = format!(r#"Bearer realm="{realm}",service="registry.test",scope="repository:app:pull""#);
        status(&format!("401 Unauthorized\r\nWWW-Authenticate: {challenge}"))
    };
    let token = response("200 OK\r\nContent-Type: application/json", r#"{"token":"t0k","expires_in":60}"#);
    let config = r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}"#;
    let kind = "application/vnd.oci.image";
    let descriptor = |kind: &str, text: &str, more: &str| {
        let (digest, size) = (Digest::of(text.as_bytes()), text.len());
        format!(r#"{{"mediaType":"{kind}","digest":"{digest}","size":{size}{more}}}"#)
    };
    let config_at = descriptor(&format!("{kind}.config.v1+json"), config, "");
    let manifest =
        format!(r#"{{"schemaVersion":2,"mediaType":"{kind}.manifest.v1+json","config":{config_at},"layers":[]}}"#);
    let platform = r#","platform":{"os":"linux","architecture":"amd64"}"#;
    let manifest_at = descriptor(&format!("{kind}.manifest.v1+json"), &manifest, platform);
    let index = format!(r#"{{"schemaVersion":2,"mediaType":"{kind}.index.v1+json","manifests":[{manifest_at}]}}"#);
    let typed = |text: &str, kind: &str| response(&format!("200 OK\r\nContent-Type: {kind}"), text);
    let manifest_served = typed(&manifest, &format!("{kind}.manifest.v1+json"));
    let page = |more: &str| typed(&index, &format!("{kind}.index.v1+json{more}"));
    let (from, half) = (&part[700..], &part[..700]);
    let broken = format!("{}{half}", &range[..range.len() - part.len()]);
    let rest = response("206 Partial Content\r\nContent-Range: bytes 1700-2999/4000", from);
    vec![
        (0, 0, vec![range.clone()]),
        (0, 0, vec![broken, rest]),
        (0, 0, vec![response("200 OK", &whole)]),
        (1, 0, vec![chunked(&whole)]),
        (0, 1, vec![bearer("https://registry.test/token"), token.clone(), range.clone()]),
        (0, 1, vec![bearer("https://evil.test/token"), token.clone(), range.clone()]),
        (0, 0, vec![bearer("https://auth.test/token"), token, range.clone()]),
        (0, 1, vec![status("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"r\""), range.clone()]),
        (
            0,
            1,
            vec![
                to("https://cdn.test/blob?sig=1"),
                status("403 Forbidden"),
                to("https://cdn.test/other"),
                range.clone(),
            ],
        ),
        (
            0,
            0,
            vec![
                to("https://cdn.test/blob?sig=1"),
                status("403 Forbidden"),
                to("https://cdn.test/2"),
                status("403 No"),
            ],
        ),
        (1, 0, vec![to("/v2/app/elsewhere"), to("http://cdn.test/"), chunked(&whole)]),
        (0, 0, vec![status("429 Too Many Requests\r\nRetry-After: 2"), status("503 Busy"), range.clone()]),
        (0, 0, vec![ranged("\r\nContent-Encoding: gzip")]),
        (
            0,
            0,
            vec![
                "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nshort".to_owned(),
                "HTTP/1.1 100 Continue\r\n\r\n".to_owned(),
            ],
        ),
        (2, 0, vec![response("206 Partial Content\r\nContent-Range: bytes 7-7/*", "x")]),
        (3, 0, vec![manifest_served.clone(), response("200 OK", config)]),
        (3, 0, vec![page(""), manifest_served, response("200 OK", config)]),
        (3, 0, vec![response("404 Not Found", r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no such tag"}]}"#)]),
        (
            4,
            0,
            vec![
                page("\r\nLink: </v2/app/referrers/x?n=1>; rel=\"next\""),
                page("\r\nOCI-Filters-Applied: artifactType"),
            ],
        ),
        (4, 0, vec![status("404 Not Found"), page("")]),
        (5, 0, vec![response("200 OK\r\nDocker-Content-Digest: sha256:00", r#"{"schemaVersion":2}"#)]),
    ]
}

#[test]
#[ignore = "rewrites the first seeds in fixtures/fuzz"]
fn write_seeds() {
    fs::create_dir_all(folder("http_responses")).unwrap();
    for (number, (operation, options, responses)) in responses().into_iter().enumerate() {
        let seed = [&[operation, options][..], responses.join("\x1e").as_bytes()].concat();
        fs::write(folder("http_responses").join(format!("{number:03}")), seed).unwrap();
    }
}
