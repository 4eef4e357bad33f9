//! Text that never reaches a log.

use std::fmt;

use zeroize::Zeroizing;

/// A password or token. `Debug` hides it, there is no `Display`, and its memory is zeroed when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text itself, only for use in a request.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The user that marks an identity token, in the files and helpers of Docker.
const TOKEN_USER: &str = "<token>";

/// Credentials for a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// User and password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A refresh token for the token service.
    IdentityToken(Secret),
}

impl Credentials {
    /// Parses `USER[:PASSWORD]`, as given to `--creds`.
    pub fn parse(text: &str) -> Option<Self> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        (!user.is_empty()).then(|| Self::from_pair(user, password))
    }

    /// A pair as stored by Docker, where the user `<token>` stands for an identity token.
    pub fn from_pair(user: &str, password: &str) -> Self {
        match user {
            TOKEN_USER => Self::IdentityToken(Secret::new(password)),
            user => Self::Basic { user: user.to_owned(), password: Secret::new(password) },
        }
    }

    /// The pair that [`Credentials::from_pair`] makes these credentials from, for another process that sends the requests.
    pub fn pair(&self) -> (&str, &str) {
        match self {
            Self::Basic { user, password } => (user, password.expose()),
            Self::IdentityToken(token) => (TOKEN_USER, token.expose()),
        }
    }
}
