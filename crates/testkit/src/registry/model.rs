//! [`FakeRegistry`]: the model, and its answers to requests that read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{Method, Request, Response, Uri};
use tarpon_registry::serve::{Body, Contents};
use tokio::time::Instant;

use super::reply::{header, redirect, text};
use super::scopes;
use super::uploads::Writes;

/// The host that a request addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The registry itself.
    Registry,
    /// Its token service.
    Tokens,
    /// The host of its blobs.
    Blobs,
}

/// The authentication that the registry requires.
#[derive(Debug, Clone, Default)]
pub enum Auth {
    /// Nothing.
    #[default]
    Anonymous,
    /// A user and password in every request.
    Basic,
    /// A token. `anonymous`: without credentials.
    Bearer {
        /// Whether tokens are issued without a password.
        anonymous: bool,
        /// Lifetime of a token in seconds, if the service states it.
        expires_in: Option<u64>,
    },
}

/// The user known to the registry.
pub const USER: &str = "alice";
/// The user's password.
pub const PASSWORD: &str = "s3cret-passw0rd";
/// The user's identity token.
pub const IDENTITY: &str = "identity-t0ken";

/// Base addresses of the three hosts, without a slash at the end.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Address of the registry.
    pub registry: String,
    /// Address of the token service.
    pub tokens: String,
    /// Address of the blobs.
    pub blobs: String,
}

/// The model.
pub struct FakeRegistry {
    pub(super) contents: tokio::sync::RwLock<Contents>,
    auth: Auth,
    presigned: Option<Duration>,
    hosts: RwLock<Hosts>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    issued: u64,
    tokens: HashMap<String, (Instant, Vec<String>)>,
    refused_scope: Option<String>,
    pub(super) writes: Writes,
    signatures: HashMap<String, Instant>,
    password: Option<String>,
    /// The `Authorization` value that each private repository requires.
    private: HashMap<String, String>,
    redirect_to: Option<(u16, String)>,
}

impl FakeRegistry {
    /// Serves `contents`. `presigned`: blobs are on another host, behind addresses with this lifetime.
    pub fn new(contents: Contents, auth: Auth, presigned: Option<Duration>) -> Self {
        let hosts = Hosts {
            registry: "https://registry.test".to_owned(),
            tokens: "https://auth.test".to_owned(),
            blobs: "https://cdn.test".to_owned(),
        };
        let contents = tokio::sync::RwLock::new(contents);
        Self { contents, auth, presigned, hosts: RwLock::new(hosts), state: Mutex::default() }
    }

    /// Sets the addresses of the three hosts.
    pub fn set_hosts(&self, hosts: Hosts) {
        *self.hosts.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// Addresses of the three hosts.
    pub fn hosts(&self) -> Hosts {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Revokes all tokens issued so far.
    pub fn revoke_tokens(&self) {
        self.state().tokens.clear();
    }

    /// Issues tokens without this scope from now on.
    pub fn refuse_scope(&self, scope: &str) {
        self.state().refused_scope = Some(scope.to_owned());
    }

    /// Invalidates all presigned addresses issued so far.
    pub fn expire_signatures(&self) {
        self.state().signatures.clear();
    }

    /// Changes the password of [`USER`].
    pub fn change_password(&self, password: &str) {
        self.state().password = Some(password.to_owned());
    }

    /// Restricts this repository to this user from now on, regardless of the general authentication.
    pub fn make_private(&self, repository: &str, user: &str, password: &str) {
        let given = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        self.state().private.insert(repository.to_owned(), given);
    }

    /// The `Authorization` that a request must carry, if it is for a private repository.
    fn asked_of(&self, request: &Request<Bytes>) -> Option<String> {
        let path = request.uri().path().strip_prefix("/v2/")?;
        let state = self.state();
        let mut private = state.private.iter();
        private
            .find(|(name, _)| path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/')))
            .map(|(_, given)| given.clone())
    }

    /// Redirects requests for blobs to any `location`.
    pub fn redirect_blobs(&self, status: u16, location: &str) {
        self.state().redirect_to = Some((status, location.to_owned()));
    }

    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to `request`, without faults.
    pub async fn answer(&self, role: Role, request: &Request<Bytes>) -> Response<Body> {
        match role {
            Role::Registry => self.registry(request).await,
            Role::Tokens => self.token(request),
            Role::Blobs if request.uri().path().contains("/blobs/uploads/") => {
                assert!(!request.headers().contains_key(AUTHORIZATION), "credentials for another host");
                self.write(role, request).await.unwrap_or_else(|| text(404, ""))
            }
            Role::Blobs => self.presigned_blob(request).await,
        }
    }

    async fn registry(&self, request: &Request<Bytes>) -> Response<Body> {
        if let Some(refusal) = self.unauthorized(request) {
            return refusal;
        }
        if let Some(answer) = self.write(Role::Registry, request).await {
            return answer;
        }
        let Some((_, digest)) = request.uri().path().split_once("/blobs/") else {
            return self.contents.read().await.answer(request).await;
        };
        let target = {
            let hosts = self.hosts();
            let mut state = self.state();
            match (&state.redirect_to, self.presigned) {
                (Some((status, location)), _) => Some((*status, location.clone())),
                (None, Some(lifetime)) => {
                    state.issued += 1;
                    let signature = format!("signature-{}", state.issued);
                    state.signatures.insert(signature.clone(), Instant::now() + lifetime);
                    Some((307, format!("{}/blobs/{digest}?sig={signature}", hosts.blobs)))
                }
                (None, None) => None,
            }
        };
        match target {
            Some((status, location)) => redirect(status, &location),
            None => self.contents.read().await.answer(request).await,
        }
    }

    fn unauthorized(&self, request: &Request<Bytes>) -> Option<Response<Body>> {
        let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let asked = self.asked_of(request);
        let (good, challenge) = match &self.auth {
            _ if asked.is_some() => (given == asked.as_deref(), "Basic realm=\"test\"".to_owned()),
            Auth::Anonymous => (true, String::new()),
            Auth::Basic => (given == Some(&self.basic()), "Basic realm=\"test\"".to_owned()),
            Auth::Bearer { .. } => {
                let token = given.and_then(|given| given.strip_prefix("Bearer "));
                let known = token.and_then(|token| self.state().tokens.get(token).cloned());
                let tokens = self.hosts().tokens;
                let needed = scopes::needed(request);
                let challenge =
                    format!(r#"Bearer realm="{tokens}/token",service="registry.test",scope="{}""#, needed.join(" "));
                let good = known.is_some_and(|(expiry, given)| {
                    Instant::now() < expiry && needed.iter().all(|needed| scopes::allows(&given, needed))
                });
                (good, challenge)
            }
        };
        if good {
            return None;
        }
        let mut answer = text(401, r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#);
        answer.headers_mut().insert(WWW_AUTHENTICATE, header(&challenge));
        Some(answer)
    }

    fn basic(&self) -> String {
        let password = self.state().password.clone().unwrap_or_else(|| PASSWORD.to_owned());
        format!("Basic {}", STANDARD.encode(format!("{USER}:{password}")))
    }

    fn token(&self, request: &Request<Bytes>) -> Response<Body> {
        let Auth::Bearer { anonymous, expires_in } = self.auth else { return text(404, "") };
        let by_password = request.headers().get(AUTHORIZATION).is_some_and(|value| *value == *self.basic());
        let form = String::from_utf8_lossy(request.body()).into_owned();
        let by_identity = *request.method() == Method::POST
            && form.contains("grant_type=refresh_token")
            && form.contains(&format!("refresh_token={IDENTITY}"));
        if !(by_password || by_identity || anonymous) {
            return text(401, r#"{"errors":[{"code":"UNAUTHORIZED"}]}"#);
        }
        let query = request.uri().query().unwrap_or_default().as_bytes();
        let pairs = url::form_urlencoded::parse(query).chain(url::form_urlencoded::parse(request.body()));
        let scopes = pairs.filter(|(name, _)| name == "scope").map(|(_, scope)| scope.into_owned());
        let scopes: Vec<String> =
            scopes.flat_map(|scopes| scopes.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect();
        let mut state = self.state();
        let granted = scopes.into_iter().filter(|scope| state.refused_scope.as_ref() != Some(scope)).collect();
        state.issued += 1;
        let token = format!("token-{}", state.issued);
        state.tokens.insert(token.clone(), (Instant::now() + Duration::from_secs(expires_in.unwrap_or(60)), granted));
        let expires = expires_in.map(|seconds| format!(r#","expires_in":{seconds}"#)).unwrap_or_default();
        let field = if by_identity { "access_token" } else { "token" };
        text(200, &format!(r#"{{"{field}":"{token}"{expires}}}"#))
    }

    async fn presigned_blob(&self, request: &Request<Bytes>) -> Response<Body> {
        // As S3 does: a signature and an Authorization header exclude each other.
        if request.headers().contains_key(AUTHORIZATION) {
            return text(400, "<Error><Code>InvalidArgument</Code></Error>");
        }
        let signature = request.uri().query().and_then(|query| query.strip_prefix("sig=")).unwrap_or_default();
        let expiry = self.state().signatures.get(signature).copied();
        if expiry.is_none_or(|expiry| Instant::now() >= expiry) {
            return text(403, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>");
        }
        let mut inner = request.clone();
        let path = format!("/v2/app{}", request.uri().path());
        *inner.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
        self.contents.read().await.answer(&inner).await
    }
}
