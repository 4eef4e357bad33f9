//! Tokens from a token service (distribution project, "Token Authentication").

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use tarpon_blob::Fault;
use tarpon_oci::limits;
use url::Url;
use zeroize::Zeroizing;

use super::body;
use super::call::{Call, Payload};
use super::retry::{Failure, Retry, retry_after};
use crate::credentials::{Credentials, Secret};
use crate::timing;
use crate::transport::without_query;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// The parameters of a token request.
pub(super) struct TokenRequest<'a> {
    /// The token service, already checked.
    pub(super) realm: Url,
    pub(super) service: Option<&'a str>,
    pub(super) scopes: &'a [String],
    pub(super) credentials: Option<&'a Credentials>,
}

/// A token and its lifetime.
pub(super) struct Token {
    pub(super) secret: Secret,
    pub(super) lifetime: Duration,
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl TokenRequest<'_> {
    /// The address, the request and its credentials: a GET, or the POST of OAuth 2 for an identity token.
    pub(super) fn build(&self) -> (Url, Call, Option<HeaderValue>) {
        let mut url = self.realm.clone();
        if let Some(Credentials::IdentityToken(token)) = self.credentials {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            form.append_pair("grant_type", "refresh_token").append_pair("client_id", "tarpon");
            form.append_pair("scope", &self.scopes.join(" ")).append_pair("refresh_token", token.expose());
            if let Some(service) = self.service {
                form.append_pair("service", service);
            }
            let call = Call::new(Method::POST, url.path()).accepting(&[JSON]).with(CONTENT_TYPE, FORM);
            return (url, Call { payload: Payload::Bytes(Bytes::from(form.finish())), ..call }, None);
        }
        if let Some(service) = self.service {
            url.query_pairs_mut().append_pair("service", service);
        }
        for scope in self.scopes {
            url.query_pairs_mut().append_pair("scope", scope);
        }
        let authorization = match self.credentials {
            Some(Credentials::Basic { user, password }) => Some(basic(user, password)),
            _ => None,
        };
        let call = Call::get(url.path()).accepting(&[JSON]);
        (url, call, authorization)
    }

    /// Parses the answer.
    pub(super) async fn read(&self, response: crate::transport::Response) -> Result<Token, Failure> {
        let status = response.status;
        let asked = format!("token service {}", without_query(&self.realm));
        if status != StatusCode::OK {
            let retry = match status.as_u16() {
                429 | 503 => retry_after(&response.headers).map_or(Retry::Later, Retry::After),
                408 | 500..=599 => Retry::Later,
                _ => Retry::Never,
            };
            let fault = match status.as_u16() {
                400 | 401 | 403 => Fault::Denied,
                429 | 408 | 500..=599 => Fault::Unavailable,
                _ => Fault::Refused,
            };
            return Err(Failure::new(fault, retry, format!("{asked}: {status}")));
        }
        let bytes = body::collect(response, limits::TOKEN_BYTES, &asked).await?;
        // The message of the parser could quote the token.
        let answer: Answer = serde_json::from_slice(&bytes)
            .map_err(|_| Failure::bad_data(format!("{asked}: the response is not a token")))?;
        let secret = answer.token.filter(|token| !token.is_empty()).or(answer.access_token);
        let secret = secret.filter(|token| !token.is_empty() && bearer(token).is_some());
        let secret = secret.ok_or_else(|| Failure::bad_data(format!("{asked}: the response contains no token")))?;
        let lifetime = answer.expires_in.filter(|seconds| *seconds > 0).map_or(timing::TOKEN, Duration::from_secs);
        Ok(Token { secret: Secret::new(secret), lifetime: lifetime.min(timing::TOKEN_LONGEST) })
    }
}

/// The header for a user and password.
pub(super) fn basic(user: &str, password: &Secret) -> HeaderValue {
    let encoded = Zeroizing::new(STANDARD.encode(Zeroizing::new(format!("{user}:{}", password.expose())).as_str()));
    let mut value = HeaderValue::from_str(&Zeroizing::new(format!("Basic {}", encoded.as_str())))
        .expect("base64 has no control characters");
    value.set_sensitive(true);
    value
}

/// The header for a token. `None` if it is no valid header value.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}
