//! A client with the requests that hosts make to a bucket that they share.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::Command;

use sha2::{Digest as _, Sha256};
use tarpon_harness::bucket::Bucket;
use tarpon_harness::http::{self, Answer};
use tarpon_harness::process;

/// Bytes that HMAC pads a key to.
const BLOCK: usize = 64;
/// The body is not part of a signature.
const PAYLOAD: &str = "UNSIGNED-PAYLOAD";
/// Creates an object, and never replaces one.
pub(crate) const CREATE: &str = "If-None-Match: *\r\n";

/// Sends signed requests, which take what they need from the environment of a bucket's client.
pub(crate) struct Client {
    environment: HashMap<&'static str, String>,
    host: String,
    /// Of all its signatures, as `YYYYMMDDTHHMMSSZ`.
    date: String,
}

impl Client {
    pub(crate) fn of(bucket: &Bucket) -> Self {
        let environment: HashMap<_, _> = bucket.environment().into_iter().collect();
        let host = environment["AWS_ENDPOINT"].strip_prefix("http://").unwrap().to_owned();
        let date = process::output(Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"])).unwrap();
        Self { environment, host, date }
    }

    /// Stores an object and returns the status.
    pub(crate) fn put(&self, key: &str, headers: &str, body: &[u8]) -> u16 {
        self.request("PUT", key, "", headers, body).status
    }

    pub(crate) fn get(&self, key: &str, headers: &str) -> Answer {
        self.request("GET", key, "", headers, b"")
    }

    pub(crate) fn delete(&self, key: &str) -> u16 {
        self.request("DELETE", key, "", "", b"").status
    }

    /// The keys with this prefix, which a query has in its escaped form, in pages of two.
    pub(crate) fn list(&self, prefix: &str) -> Vec<String> {
        let (mut keys, mut token) = (Vec::new(), String::new());
        loop {
            let query = format!("{token}list-type=2&max-keys=2&prefix={prefix}");
            let answer = self.request("GET", "", &query, "", b"");
            let page = text(&answer);
            assert_eq!(answer.status, 200, "{page}");
            keys.extend(elements(&page, "Key"));
            match elements(&page, "NextContinuationToken").first() {
                Some(next) => token = format!("continuation-token={}&", escaped(next)),
                None => return keys,
            }
        }
    }

    /// Uploads parts and returns the number of the upload.
    pub(crate) fn upload(&self, key: &str, parts: &[&[u8]]) -> String {
        let begun = self.request("POST", key, "uploads=", "", b"");
        let upload = elements(&text(&begun), "UploadId").remove(0);
        for (number, part) in (1..).zip(parts) {
            let answer = self.request("PUT", key, &format!("partNumber={number}&uploadId={upload}"), "", part);
            assert_eq!(answer.status, 200, "{}", text(&answer));
        }
        upload
    }

    /// Joins the parts of an upload.
    pub(crate) fn complete(&self, key: &str, upload: &str) {
        let listed = text(&self.request("GET", key, &format!("uploadId={upload}"), "", b""));
        let parts = elements(&listed, "PartNumber").into_iter().zip(elements(&listed, "ETag"));
        let parts: String = parts
            .map(|(number, tag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"))
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let answer = self.request("POST", key, &format!("uploadId={upload}"), "", body.as_bytes());
        assert_eq!(answer.status, 200, "{}", text(&answer));
    }

    pub(crate) fn abort(&self, key: &str, upload: &str) -> u16 {
        self.request("DELETE", key, &format!("uploadId={upload}"), "", b"").status
    }

    /// A request for a key of the bucket `tarpon`, with a sorted query.
    fn request(&self, method: &str, key: &str, query: &str, headers: &str, body: &[u8]) -> Answer {
        let path = format!("/tarpon/{key}");
        let signed = format!("x-amz-content-sha256: {PAYLOAD}\r\nx-amz-date: {}\r\n", self.date);
        let authorization = self.authorization(method, &path, query);
        let headers = format!("{signed}Authorization: {authorization}\r\n{headers}");
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        http::request(&self.host, method, &target, &headers, body).unwrap()
    }

    /// Version 4 of the signatures of AWS.
    fn authorization(&self, method: &str, path: &str, query: &str) -> String {
        let names = "host;x-amz-content-sha256;x-amz-date";
        let (host, date) = (&self.host, &self.date);
        let headers = format!("host:{host}\nx-amz-content-sha256:{PAYLOAD}\nx-amz-date:{date}\n");
        let request = format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{PAYLOAD}");
        let (day, region) = (&date[..8], &self.environment["AWS_REGION"]);
        let scope = format!("{day}/{region}/s3/aws4_request");
        let digest = hex(&Sha256::digest(request));
        let secret = format!("AWS4{}", self.environment["AWS_SECRET_ACCESS_KEY"]).into_bytes();
        let parts = [day, region, "s3", "aws4_request", &format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}")];
        let signature = parts.iter().fold(secret, |key, part| hmac(&key, part.as_bytes()));
        let key = &self.environment["AWS_ACCESS_KEY_ID"];
        format!("AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={}", hex(&signature))
    }
}

/// With a key that is not longer than a block.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let padded = |pad: u8| (0..BLOCK).map(|at| key.get(at).unwrap_or(&0) ^ pad).collect::<Vec<u8>>();
    let inner = Sha256::digest([&padded(0x36), text].concat());
    Sha256::digest([padded(0x5c), inner.to_vec()].concat()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// As a part of a query.
fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// The contents of all elements with this name.
fn elements(xml: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once(&end)?.0.to_owned())).collect()
}
