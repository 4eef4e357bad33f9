//! The `Authorization` header for one repository: fetched once, renewed before it expires, by one task at a time.
//!
//! Credentials are sent to the registry (Basic) or to the token service that the registry named (Bearer), if that belongs to the
//! registry (`credentials/token_services.rs`), and nowhere else. This module only makes headers. The session keeps them at the registry.

use std::time::Duration;

use http::HeaderValue;
use tarpon_blob::Fault;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use super::challenge::Challenge;
use super::retry::{Failure, Retry};
use super::token::{self, TokenRequest};
use super::wire::Wire;
use crate::credentials::{CredentialSource, Credentials};
use crate::timing;
use crate::transport::is_loopback;

/// The required rights of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To read.
    Pull,
    /// To read and write.
    Push,
    /// To read, write and delete.
    Delete,
    /// To show that the registry accepts the credentials.
    Login,
    /// To read and write, and to read this other repository.
    Mount(String),
}

impl Purpose {
    /// The scopes to request. `challenged` is the scope that the registry names for a request: it has the right name of the
    /// repository, but not the scopes of later requests.
    fn scopes(&self, repository: &str, challenged: Option<&str>) -> Vec<String> {
        let own = match self {
            Self::Pull => {
                return vec![challenged.map_or_else(|| format!("repository:{repository}:pull"), str::to_owned)];
            }
            Self::Login => return challenged.map(str::to_owned).into_iter().collect(),
            Self::Push => vec![format!("repository:{repository}:pull,push")],
            Self::Delete => vec![format!("repository:{repository}:pull,push,delete")],
            Self::Mount(from) => {
                vec![format!("repository:{repository}:pull,push"), format!("repository:{from}:pull")]
            }
        };
        fn resource(scope: &str) -> &str {
            scope.rsplit_once(':').map_or(scope, |(resource, _)| resource)
        }
        let others = challenged.unwrap_or_default().split_ascii_whitespace();
        let others = others.filter(|scope| own.iter().all(|own| resource(own) != resource(scope)));
        others.map(str::to_owned).collect::<Vec<_>>().into_iter().chain(own.clone()).collect()
    }
}

/// Authorises requests to one repository.
pub(super) struct Authenticator {
    source: CredentialSource,
    /// The registry as written in references, which is the key of its credentials.
    registry: String,
    repository: String,
    purpose: Purpose,
    /// Held while a token is fetched, so that one task fetches it for all.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    challenge: Option<Challenge>,
    current: Option<Current>,
    denied: Option<Denied>,
    /// The last attempt to get a header, if it failed for another reason than a denial.
    failed: Option<Failed>,
    /// Counts headers, so that a task whose request was refused can detect that another renewed it meanwhile.
    generation: u64,
}

#[derive(Clone)]
struct Current {
    header: HeaderValue,
    renew_at: Option<Instant>,
}

/// The registry refused a fresh header, or the token service the credentials.
struct Denied {
    credentials: Option<Credentials>,
    until: Instant,
    message: String,
    /// The pause that ends then. It doubles with each denial in a row: a single one may be a mistake, and servers lock accounts
    /// after too many wrong passwords.
    pause: Duration,
}

/// A failed attempt. Tasks that waited for it share the failure: if each tried by itself, one after the other, a silent token service would
/// use up the time of all, and they would report a timeout instead of the cause.
struct Failed {
    at: Instant,
    failure: Failure,
}

/// A header to send, and its generation.
#[derive(Clone)]
pub(super) struct Authorization {
    pub(super) header: Option<HeaderValue>,
    generation: u64,
    /// Whether the header before it was denied.
    after_denial: bool,
}

impl Denied {
    /// The failure of a request during the pause. After the first denials it waits, and then tries by itself.
    fn failure(&self) -> Failure {
        let left = self.until.saturating_duration_since(Instant::now());
        let retry = if self.pause <= timing::DENIED_WAIT { Retry::AfterOwn(left) } else { Retry::Never };
        Failure::new(Fault::Denied, retry, self.message.clone())
    }
}

impl State {
    /// The failure of an attempt that ended since `began`, when a task began to wait for its outcome.
    fn failure_since(&self, began: Instant) -> Option<Failure> {
        let failed = self.failed.as_ref().filter(|failed| began < failed.at)?;
        Some(failed.failure.clone())
    }
}

impl Authenticator {
    pub(super) fn new(source: CredentialSource, registry: String, repository: String, purpose: Purpose) -> Self {
        Self { source, registry, repository, purpose, state: Mutex::default() }
    }

    /// An authenticator like this one for another purpose.
    pub(super) fn for_purpose(&self, purpose: Purpose) -> Self {
        Self::new(self.source.clone(), self.registry.clone(), self.repository.clone(), purpose)
    }

    /// The header for the next request. None as long as the registry required none.
    pub(super) async fn authorize(&self, wire: &Wire) -> Result<Authorization, Failure> {
        let began = Instant::now();
        let mut state = self.state.lock().await;
        let fresh = |current: &Current| current.renew_at.is_none_or(|at| Instant::now() < at);
        if state.challenge.is_some() && !state.current.as_ref().is_some_and(fresh) {
            self.renew(&mut state, wire, began).await?;
        }
        let header = state.current.as_ref().map(|current| current.header.clone());
        let after_denial = header.is_some() && state.denied.is_some();
        Ok(Authorization { header, generation: state.generation, after_denial })
    }

    /// Handles a 401 to a request with `used` (`None`: sent without a call here). Afterwards another attempt has a new header.
    pub(super) async fn challenged(
        &self,
        used: Option<&Authorization>,
        challenge: Option<Challenge>,
        wire: &Wire,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let mut state = self.state.lock().await;
        if used.is_some_and(|used| state.generation != used.generation) {
            return Ok(());
        }
        if challenge.is_some() && challenge != state.challenge {
            // The failure was that of another token service.
            (state.challenge, state.failed) = (challenge, None);
        }
        if state.challenge.is_none() {
            return Err(Failure::new(
                Fault::Denied,
                Retry::Never,
                format!("{}: 401 without a challenge", self.registry),
            ));
        }
        self.renew(&mut state, wire, began).await
    }

    /// Records that a fresh header was refused too: retries are useless before the credentials change.
    pub(super) async fn denied(&self, message: &str) {
        let credentials = self.credentials().await;
        let mut state = self.state.lock().await;
        self.remember_denial(&mut state, credentials, message.to_owned());
    }

    /// Records that the registry accepted the header.
    pub(super) async fn accepted(&self, used: &Authorization) {
        // Only a header that was made after a denial ends the denial, and these are few.
        if used.after_denial {
            let mut state = self.state.lock().await;
            if state.generation == used.generation {
                state.denied = None;
            }
        }
    }

    fn remember_denial(&self, state: &mut State, credentials: Option<Credentials>, message: String) {
        state.current = None;
        state.generation += 1;
        let before = state.denied.as_ref().filter(|denied| denied.credentials == credentials);
        // Of requests that were refused together, one counts.
        if before.is_some_and(|denied| Instant::now() < denied.until) {
            return;
        }
        let pause = before.map_or(timing::DENIED_FIRST, |denied| (denied.pause * 2).min(timing::DENIED_LONGEST));
        state.denied = Some(Denied { credentials, until: Instant::now() + pause, message, pause });
    }

    async fn credentials(&self) -> Option<Credentials> {
        self.source.find(&self.registry, &self.repository).await
    }

    /// Gets another header, for a task that has waited for its turn since `began`.
    async fn renew(&self, state: &mut State, wire: &Wire, began: Instant) -> Result<(), Failure> {
        if let Some(failure) = state.failure_since(began) {
            return Err(failure);
        }
        let credentials = self.credentials().await;
        if let Some(denied) = &state.denied {
            if denied.credentials != credentials {
                state.denied = None;
            } else if Instant::now() < denied.until {
                return Err(denied.failure());
            }
        }
        (state.current, state.failed) = (None, None);
        let renewed = match state.challenge.clone() {
            Some(Challenge::Bearer { realm, service, scope }) => {
                self.fetch_token(wire, &realm, service.as_deref(), scope.as_deref(), credentials.as_ref()).await
            }
            _ => self.basic(credentials.as_ref()),
        };
        match renewed {
            Ok(current) => {
                state.current = Some(current);
                state.generation += 1;
                Ok(())
            }
            Err(failure) => {
                if failure.error.fault == Fault::Denied {
                    self.remember_denial(state, credentials, failure.error.to_string());
                } else {
                    state.failed = Some(Failed { at: Instant::now(), failure: failure.clone() });
                }
                Err(failure)
            }
        }
    }

    fn basic(&self, credentials: Option<&Credentials>) -> Result<Current, Failure> {
        match credentials {
            Some(Credentials::Basic { user, password }) => {
                Ok(Current { header: token::basic(user, password), renew_at: None })
            }
            _ => {
                let message = format!("{} requires credentials: log in or use --creds", self.registry);
                Err(Failure::new(Fault::Denied, Retry::Never, message))
            }
        }
    }

    async fn fetch_token(
        &self,
        wire: &Wire,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        credentials: Option<&Credentials>,
    ) -> Result<Current, Failure> {
        let realm = self.check_realm(realm, wire)?;
        if credentials.is_some() {
            self.check_service(&realm).await?;
        }
        let scopes = self.purpose.scopes(&self.repository, scope);
        let request = TokenRequest { realm, service, scopes: &scopes, credentials };
        let (url, call, authorization) = request.build();
        let token = request.read(wire.send(url, &call, authorization).await?).await?;
        let margin = timing::TOKEN_MARGIN.min(token.lifetime / 5);
        let header = token::bearer(token.secret.expose()).ok_or_else(|| Failure::bad_data("odd token".to_owned()))?;
        Ok(Current { header, renew_at: Some(Instant::now() + token.lifetime - margin) })
    }

    /// Checks that the token service belongs to the registry before it gets credentials.
    async fn check_service(&self, realm: &Url) -> Result<(), Failure> {
        let host = realm.host_str().unwrap_or_default();
        if self.source.may_have(&self.registry, host).await {
            return Ok(());
        }
        let Self { registry, .. } = self;
        Err(Failure::refused(format!(
            "{registry} wants the user and password sent to another host, {host}: if that is its token service, \
             add the line \"{registry} {host}\" to {}",
            self.source.token_services_file()
        )))
    }

    /// Checks the address of the token service. It may be anywhere, but a registry on HTTPS cannot move credentials to plain HTTP.
    fn check_realm(&self, realm: &str, wire: &Wire) -> Result<Url, Failure> {
        let shown: String = realm.chars().take(100).filter(|c| !c.is_control()).collect();
        let refused = |why: &str| Failure::refused(format!("{}: token service {shown:?} {why}", self.registry));
        let url = Url::parse(realm).map_err(|_| refused("is not an address"))?;
        match url.scheme() {
            "https" => {}
            // A host that stands for the registry speaks plain HTTP on this machine only. Its token service may be another one.
            "http" if wire.is_plain() && (!self.source.stands_for_registry() || is_loopback(&url)) => {}
            "http" => return Err(refused("does not use HTTPS")),
            _ => return Err(refused("does not use HTTP")),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("has a password in its URL"));
        }
        Ok(url)
    }
}
