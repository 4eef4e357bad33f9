//! Text that never reaches a log.

use std::fmt;

/// A password or token. `Debug` hides it and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
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
    pub(crate) fn from_pair(user: &str, password: &str) -> Self {
        match user {
            "<token>" => Self::IdentityToken(Secret::new(password)),
            user => Self::Basic { user: user.to_owned(), password: Secret::new(password) },
        }
    }
}
