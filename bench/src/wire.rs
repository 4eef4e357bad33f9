//! The traffic over the link: the log of `cargo xtask link`, read from behind it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Maximum length of a request's name in the file of runs.
const NAME: usize = 60;

/// The log of this process's link.
pub(super) struct Wire(File);

/// One request and its response; times of day in seconds.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) asked: f64,
    /// Times of the first and the last bytes of the response, if any arrived.
    pub(super) answered: Option<(f64, f64)>,
    pub(super) bytes: u64,
    /// Method and path.
    pub(super) what: String,
}

impl Wire {
    /// Opens the log. `None` if this process is not behind a link.
    pub(super) fn open() -> Result<Option<Self>> {
        let Some(path) = std::env::var_os("TARPON_LINK_LOG") else { return Ok(None) };
        let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(Self(file)))
    }

    /// Skips everything logged so far.
    pub(super) fn mark(&mut self) -> Result<()> {
        self.0.seek(SeekFrom::End(0)).context("cannot read the log of the link").map(drop)
    }

    /// The requests since the mark.
    pub(super) fn requests(&mut self) -> Result<Vec<Request>> {
        let mut text = String::new();
        self.0.read_to_string(&mut text).context("cannot read the log of the link")?;
        Ok(parse(&text))
    }
}

fn parse(text: &str) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    // The current request of each connection.
    let mut current: HashMap<&str, usize> = HashMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(4, ' ');
        let (Some(micros), Some(connection), Some(way), Some(what)) =
            (fields.next().and_then(|m| m.parse::<f64>().ok()), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let at = micros / 1e6;
        if way == ">" {
            current.insert(connection, requests.len());
            requests.push(Request { asked: at, answered: None, bytes: 0, what: what.to_owned() });
        } else if let Some(request) = current.get(connection).and_then(|at| requests.get_mut(*at)) {
            let first = request.answered.map_or(at, |(first, _)| first);
            request.answered = Some((first, at));
            request.bytes += what.parse::<u64>().unwrap_or(0);
        }
    }
    requests
}

impl Request {
    /// The form in which a run that began at `began` stores it: seconds since then, bytes, name.
    pub(super) fn json(&self, began: f64) -> Value {
        let since = |at: f64| ((at - began) * 1e4).round() / 1e4;
        let (first, last) = self.answered.unwrap_or((self.asked, self.asked));
        json!([since(self.asked), since(first), since(last), self.bytes, name(&self.what)])
    }
}

/// The path without common parts, and with short digests.
fn name(what: &str) -> String {
    let (method, path) = what.split_once(' ').unwrap_or(("", what));
    let mut rest = path.to_owned();
    for kind in ["/manifests/", "/blobs/", "/referrers/"] {
        if let Some(at) = rest.find(kind) {
            rest = rest[at + 1..].to_owned();
        }
    }
    if let Some(at) = rest.find("sha256") {
        rest.truncate(rest[at..].char_indices().nth(19).map_or(rest.len(), |(end, _)| at + end));
    }
    let name = if method == "GET" { rest } else { format!("{method} {rest}") };
    name.chars().take(NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_belong_to_the_last_request_of_their_connection() {
        let log = "1000000 0 > GET /v2/\n1100000 1 > GET /v2/a/blobs/b\n1200000 0 < 10\n1300000 1 < 20\n1400000 1 < 30\n\
                   1500000 0 > GET /v2/c\n1600000 7 < 5\nbroken\n";
        let found = parse(log);
        let summary: Vec<_> = found.iter().map(|r| (r.asked, r.answered, r.bytes)).collect();
        assert_eq!(summary, [(1.0, Some((1.2, 1.2)), 10), (1.1, Some((1.3, 1.4)), 50), (1.5, None, 0)]);
        assert_eq!(found[1].json(1.0), json!([0.1, 0.3, 0.4, 50, "blobs/b"]));
    }

    #[test]
    fn names_are_short() {
        let digest = "0123456789abcdef".repeat(4);
        assert_eq!(name(&format!("GET /v2/dev/a/blobs/sha256:{digest}")), "blobs/sha256:0123456789ab");
        assert_eq!(name("HEAD /v2/dev/a/manifests/gzip"), "HEAD manifests/gzip");
        assert_eq!(name("GET /v2/"), "/v2/");
    }
}
