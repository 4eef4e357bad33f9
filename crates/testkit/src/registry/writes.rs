//! The write operations of the model: uploads, mounts, manifests and the list of referrers.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_RANGE, CONTENT_TYPE, LINK, LOCATION, RANGE};
use http::{Method, Request, Response};
use serde_json::{Value, json};
use tarpon_oci::{Digest, media_type};
use tarpon_registry::serve::Body;
use tokio::sync::Barrier;

use super::model::{FakeRegistry, Role};
use super::reply::{header, text};
use super::uploads::{Locations, Referrers, Upload};

impl FakeRegistry {
    /// Sets the location of further upload requests.
    pub fn set_locations(&self, locations: Locations) {
        self.state().writes.locations = locations;
    }

    /// Sets the list of referrers.
    pub fn set_referrers(&self, referrers: Referrers) {
        self.state().writes.referrers = referrers;
    }

    /// Allows mounting blobs from other repositories.
    pub fn allow_mounts(&self) {
        self.state().writes.mounts = true;
    }

    /// Answers requests for lists of referrers only when as many of them wait at the gate as it is for.
    pub fn gate_referrers(&self, gate: Arc<Barrier>) {
        self.state().writes.gate = Some(gate);
    }

    /// Refuses to change anything from now on.
    pub fn refuse_writes(&self) {
        self.state().writes.read_only = true;
    }

    /// Number of uploads that were neither finished nor cancelled.
    pub fn open_uploads(&self) -> usize {
        self.state().writes.uploads.len()
    }

    /// Answers a request that writes or lists; `None` for any other.
    pub(super) async fn write(&self, role: Role, request: &Request<Bytes>) -> Option<Response<Body>> {
        let path = request.uri().path();
        if ![Method::GET, Method::HEAD].contains(request.method()) && self.state().writes.read_only {
            return Some(error(403, "DENIED"));
        }
        if let Some((_, session)) = path.split_once("/blobs/uploads/") {
            return Some(self.upload(role, session, request).await);
        }
        if let Some((_, subject)) = path.split_once("/referrers/") {
            let gate = self.state().writes.gate.clone();
            if let Some(gate) = gate {
                gate.wait().await;
            }
            return self.referrers(subject, request);
        }
        match path.split_once("/manifests/") {
            Some((before, name)) if *request.method() == Method::PUT => {
                let repository = before.trim_start_matches("/v2/");
                Some(self.put_manifest(repository, name, request).await)
            }
            Some((_, name)) if *request.method() == Method::DELETE => Some(self.delete_manifest(name).await),
            _ => None,
        }
    }

    async fn upload(&self, role: Role, session: &str, request: &Request<Bytes>) -> Response<Body> {
        let query: HashMap<String, String> =
            url::form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned().collect();
        if *request.method() == Method::POST {
            return self.open_upload(&query).await;
        }
        let mut ended = None;
        let answer = {
            let mut state = self.state();
            let locations = state.writes.locations;
            let elsewhere = locations == Locations::Elsewhere;
            let known = state.writes.uploads.get_mut(session);
            // A client that lost an answer may query with the previous address.
            let asks = *request.method() == Method::GET;
            let right_address = query.get("secret").is_some_and(|secret| secret == "a/b")
                && known.as_ref().is_some_and(|upload| asks || query.get("turn") == Some(&upload.turn.to_string()));
            let Some(upload) = known.filter(|_| right_address && elsewhere == (role == Role::Blobs)) else {
                return error(404, "BLOB_UPLOAD_UNKNOWN");
            };
            let start = request.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok()?.split_once('-'));
            if start.is_some_and(|(start, _)| start != upload.bytes.len().to_string()) {
                return error(416, "BLOB_UPLOAD_INVALID");
            }
            match *request.method() {
                Method::GET => Some(204),
                Method::PATCH => {
                    upload.bytes.extend_from_slice(request.body());
                    Some(202)
                }
                Method::PUT => {
                    upload.bytes.extend_from_slice(request.body());
                    let bytes = upload.bytes.clone().freeze();
                    if query.get("digest") != Some(&Digest::of(&bytes).to_string()) {
                        return error(400, "DIGEST_INVALID");
                    }
                    ended = Some(bytes);
                    None
                }
                Method::DELETE => None,
                _ => return error(405, "UNSUPPORTED"),
            }
            .map(|status| self.progress(session, upload, locations, status))
        };
        if let Some(answer) = answer {
            return answer;
        }
        self.state().writes.uploads.remove(session);
        match ended {
            Some(bytes) => created(self.contents.write().await.add_blob(bytes)),
            None => text(204, ""),
        }
    }

    async fn open_upload(&self, query: &HashMap<String, String>) -> Response<Body> {
        if let Some(mount) = query.get("mount").filter(|_| self.state().writes.mounts)
            && let Ok(digest) = mount.parse()
        {
            return created(digest);
        }
        let mut state = self.state();
        state.writes.opened += 1;
        let session = format!("session-{}", state.writes.opened);
        let locations = state.writes.locations;
        let upload = state.writes.uploads.entry(session.clone()).or_default();
        self.progress(&session, upload, locations, 202)
    }

    /// Reports the location of an upload and the number of received bytes.
    fn progress(&self, session: &str, upload: &mut Upload, locations: Locations, status: u16) -> Response<Body> {
        upload.turn += 1;
        let hosts = self.hosts();
        let base = match locations {
            Locations::Relative => "",
            Locations::Absolute => &hosts.registry,
            Locations::Elsewhere => &hosts.blobs,
        };
        let mut answer = text(status, "");
        let location = format!("{base}/v2/app/blobs/uploads/{session}?secret=a%2Fb&turn={}", upload.turn);
        answer.headers_mut().insert(LOCATION, header(&location));
        answer.headers_mut().insert(RANGE, header(&format!("0-{}", upload.bytes.len().saturating_sub(1))));
        answer
    }

    async fn put_manifest(&self, repository: &str, name: &str, request: &Request<Bytes>) -> Response<Body> {
        let bytes = request.body().clone();
        let digest = Digest::of(&bytes);
        if name.contains(':') && name != digest.to_string() {
            return error(400, "DIGEST_INVALID");
        }
        let tag = (!name.contains(':')).then_some((repository, name));
        let media_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let subject = self.add_manifest(tag, media_type, bytes).await;
        let mut answer = created(digest);
        if let Some(subject) = subject {
            answer.headers_mut().insert("oci-subject", header(&subject));
        }
        answer
    }

    async fn delete_manifest(&self, name: &str) -> Response<Body> {
        let Ok(digest) = name.parse() else { return error(405, "UNSUPPORTED") };
        if self.remove_manifest(&digest).await { text(202, "") } else { error(404, "MANIFEST_UNKNOWN") }
    }

    /// Removes a manifest with its tags and its entries in lists of referrers. `false`: there was none.
    pub async fn remove_manifest(&self, digest: &Digest) -> bool {
        for about in self.state().writes.about.values_mut() {
            about.retain(|entry| entry["digest"] != digest.to_string());
        }
        self.contents.write().await.remove_manifest(digest)
    }

    /// Adds a manifest, and lists it among the referrers of its subject if the model keeps such a list. Returns the subject then.
    pub async fn add_manifest(&self, tag: Option<(&str, &str)>, media_type: &str, bytes: Bytes) -> Option<String> {
        let digest = self.contents.write().await.add_manifest(tag, media_type, bytes.clone());
        let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let subject = document["subject"]["digest"].as_str()?.to_owned();
        let mut state = self.state();
        if state.writes.referrers == Referrers::Unknown {
            return None;
        }
        let mut entry = json!({
            "mediaType": media_type, "digest": digest, "size": bytes.len(),
            "artifactType": document["artifactType"],
        });
        if document["annotations"].is_object() {
            entry["annotations"] = document["annotations"].clone();
        }
        state.writes.about.entry(subject.clone()).or_default().push(entry);
        Some(subject)
    }

    fn referrers(&self, subject: &str, request: &Request<Bytes>) -> Option<Response<Body>> {
        let query: HashMap<String, String> =
            url::form_urlencoded::parse(request.uri().query()?.as_bytes()).into_owned().collect();
        let kind = query.get("artifactType").cloned().unwrap_or_default();
        let from: usize = query.get("from").and_then(|from| from.parse().ok()).unwrap_or_default();
        let state = self.state();
        let mut entries = state.writes.about.get(subject).cloned().unwrap_or_default();
        let (page, filters) = match state.writes.referrers {
            Referrers::Unknown => return None,
            Referrers::Kept { page, filters } => (page, filters),
            Referrers::Endless => (0, false),
            Referrers::Refused => return Some(error(403, "DENIED")),
        };
        entries.retain(|entry| !filters || entry["artifactType"] == kind);
        let rest = entries.split_off(from.min(entries.len()));
        let shown: Vec<_> = rest.iter().take(page).collect();
        let index = json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": shown});
        let mut answer = text(200, &index.to_string());
        answer.headers_mut().insert(CONTENT_TYPE, header(media_type::OCI_INDEX));
        if filters {
            answer.headers_mut().insert("oci-filters-applied", header("artifactType"));
        }
        if rest.len() > page || state.writes.referrers == Referrers::Endless {
            let next = format!("</v2/app/referrers/{subject}?artifactType={kind}&from={}>; rel=\"next\"", from + page);
            answer.headers_mut().insert(LINK, header(&next));
        }
        Some(answer)
    }
}

fn created(digest: Digest) -> Response<Body> {
    let mut answer = text(201, "");
    answer.headers_mut().insert("docker-content-digest", header(&digest.to_string()));
    answer
}

fn error(status: u16, code: &str) -> Response<Body> {
    text(status, &format!(r#"{{"errors":[{{"code":"{code}"}}]}}"#))
}
