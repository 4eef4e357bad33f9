//! `WWW-Authenticate` (RFC 9110 §11.6.1): which kind of credentials a registry wants.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// Most bytes of a header that are parsed.
const HEADER_BYTES: usize = 8 << 10;
/// Parameters of one challenge.
const PARAMETERS: usize = 32;

/// The challenge that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// User and password in every request.
    Basic,
    /// A token from a token service.
    Bearer {
        /// Address of the token service.
        realm: String,
        /// The name of the registry at the token service.
        service: Option<String>,
        /// The required scope.
        scope: Option<String>,
    },
}

impl Challenge {
    /// The best challenge in `headers`: a token before a password. `None` if none is supported.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let offers = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let offers: Vec<Self> = offers.flat_map(Self::parse).collect();
        offers.iter().find(|offer| matches!(offer, Self::Bearer { .. })).or_else(|| offers.first()).cloned()
    }

    /// The supported challenges of one header value.
    pub fn parse(text: &str) -> Vec<Self> {
        let mut scanner = Scanner { rest: text.get(..HEADER_BYTES.min(text.len())).unwrap_or_default() };
        let mut found = Vec::new();
        while let Some((scheme, parameters)) = scanner.challenge() {
            if scheme.eq_ignore_ascii_case("basic") {
                found.push(Self::Basic);
            } else if scheme.eq_ignore_ascii_case("bearer") {
                let get = |name: &str| {
                    parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
                };
                if let Some(realm) = get("realm") {
                    found.push(Self::Bearer { realm, service: get("service"), scope: get("scope") });
                }
            }
        }
        found
    }
}

/// Reads `SCHEME key=value, key="value", SCHEME …`. It always terminates: each step takes at least one byte or ends.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn challenge(&mut self) -> Option<(&'a str, Vec<(&'a str, String)>)> {
        self.skip_separators();
        let scheme = self.token()?;
        let mut parameters = Vec::new();
        while let Some(parameter) = self.parameter() {
            if parameters.len() < PARAMETERS {
                parameters.push(parameter);
            }
        }
        Some((scheme, parameters))
    }

    /// `key=value`; `None`, with nothing taken, if a new challenge (or the end) follows.
    fn parameter(&mut self) -> Option<(&'a str, String)> {
        let start = self.rest;
        self.skip_separators();
        let parameter = self.token().and_then(|key| {
            self.rest = self.rest.trim_start().strip_prefix('=')?.trim_start();
            Some((key, self.value()?))
        });
        if parameter.is_none() {
            self.rest = start;
        }
        parameter
    }

    fn value(&mut self) -> Option<String> {
        let Some(quoted) = self.rest.strip_prefix('"') else {
            return self.token().map(str::to_owned);
        };
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = &quoted[at + 1..];
                    return Some(value);
                }
                '\\' => value.push(characters.next()?.1),
                other => value.push(other),
            }
        }
        None
    }

    fn token(&mut self) -> Option<&'a str> {
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/:?".contains(c);
        let end = self.rest.find(|c| !is_token(c)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }

    fn skip_separators(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', ',']);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer { realm: realm.into(), service: service.map(Into::into), scope: scope.map(Into::into) }
    }

    #[test]
    fn the_challenge_of_docker_hub_is_understood() {
        let text = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let expected =
            bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:a/b:pull,push"));
        assert_eq!(Challenge::parse(text), [expected]);
    }

    #[test]
    fn a_token_is_preferred_among_several_challenges() {
        let mut headers = HeaderMap::new();
        headers
            .append(WWW_AUTHENTICATE, r#"Basic realm="x", charset="UTF-8", Bearer realm="https://t""#.parse().unwrap());
        assert_eq!(Challenge::from_headers(&headers), Some(bearer("https://t", None, None)));
        headers.clear();
        headers.append(WWW_AUTHENTICATE, "Negotiate".parse().unwrap());
        headers.append(WWW_AUTHENTICATE, "BASIC realm=x".parse().unwrap());
        assert_eq!(Challenge::from_headers(&headers), Some(Challenge::Basic));
    }

    #[test]
    fn escapes_and_unfinished_quotes_are_bounded() {
        assert_eq!(Challenge::parse(r#"Bearer realm="a\"b""#), [bearer("a\"b", None, None)]);
        assert_eq!(Challenge::parse(r#"Bearer realm="a"#), []);
        assert_eq!(Challenge::parse("Bearer"), []);
    }

    proptest! {
        #[test]
        fn any_text_is_read_to_its_end(text in "[ -~]{0,200}") {
            Challenge::parse(&text);
        }
    }
}
