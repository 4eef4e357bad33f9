//! The messages of `runtime.v1.ImageService` that are read, with the field numbers of Kubernetes. Other fields are skipped.

use prost::Message;
use zeroize::Zeroize;

/// Prefix of the path of each method.
pub(crate) const SERVICE: &str = "/runtime.v1.ImageService/";

/// For `PullImage`.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    pub(crate) auth: Option<AuthConfig>,
}

/// The image to pull.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

/// Credentials. Their memory is zeroed when they are dropped.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthConfig {
    #[prost(string, tag = "1")]
    pub(crate) username: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
    /// Base64 of `USER:PASSWORD`.
    #[prost(string, tag = "3")]
    pub(crate) auth: String,
    #[prost(string, tag = "4")]
    pub(crate) server_address: String,
    #[prost(string, tag = "5")]
    pub(crate) identity_token: String,
    #[prost(string, tag = "6")]
    pub(crate) registry_token: String,
}

/// The answer of `PullImage`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullImageResponse {
    /// The digest of the image's config.
    #[prost(string, tag = "1")]
    pub(crate) image_ref: String,
}

impl Drop for AuthConfig {
    fn drop(&mut self) {
        for text in
            [&mut self.username, &mut self.password, &mut self.auth, &mut self.identity_token, &mut self.registry_token]
        {
            text.zeroize();
        }
    }
}

impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthConfig(***)")
    }
}

impl std::fmt::Debug for PullImageRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PullImageRequest").field("image", &self.image).field("auth", &self.auth).finish()
    }
}
