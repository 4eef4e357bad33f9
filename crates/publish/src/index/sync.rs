//! Indexes for a list of images: those that have none get one.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, stream};
use parking_lot::Mutex;
use serde::Serialize;
use tarpon_images::index::artifact::prediction;
use tarpon_images::index::find::{SignedBy, boots, signed_by};
use tarpon_images::index::places::shown;
use tarpon_images::progress::Silent;
use tarpon_images::{Access, DEFAULT_PROFILE, ImageRequest, Images, access, admission};
use tarpon_layer::toc::Claim;
use tarpon_oci::{Artifact, Digest, Source};
use tarpon_policy::SigningKey;
use tarpon_registry::{Repository, ResolvedImage};

use super::make::{Upload, destination, find_predicted_index, make_plain_index};
use super::newest::newest;
use crate::{Error, ErrorKind, Result, ResultExt as _};

/// Images indexed at the same time: each streams three layers, which keeps two processors busy. More only help over slow links.
pub const MAX_SYNC_JOBS: usize = 16;

/// Longest list of images in bytes: ten thousand names.
pub const SYNC_LIST_BYTES: u64 = 1 << 20;

/// A line of a list of images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncEntry {
    /// An image.
    Image(String),
    /// The tags of a repository that match a pattern.
    Tags {
        /// The repository.
        repository: String,
        /// The pattern, with `*` and `?`.
        pattern: String,
    },
}

impl SyncEntry {
    /// Reads a list: one image on each line; what follows a `#` is a comment.
    ///
    /// # Errors
    /// The first line that names no image, as one line.
    pub fn list(text: &str) -> std::result::Result<Vec<Self>, String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let entries = lines.enumerate().filter(|(_, line)| !line.is_empty());
        entries.map(|(at, line)| Self::of(line).map_err(|why| format!("line {}: {why}", at + 1))).collect()
    }

    fn of(line: &str) -> std::result::Result<Self, String> {
        let start = line.rfind('/').map_or(0, |slash| slash + 1);
        let colon = line[start..].find(':').map(|colon| start + colon);
        if let Some((repository, pattern)) = colon.map(|colon| (&line[..colon], &line[colon + 1..]))
            && pattern.contains(['*', '?'])
        {
            let source: Source = repository.parse().map_err(|error: tarpon_oci::InvalidSource| error.to_string())?;
            if !matches!(source, Source::Registry(_)) {
                return Err(format!("{repository} is no repository of a registry: its tags cannot be listed"));
            }
            return Ok(Self::Tags { repository: repository.to_owned(), pattern: pattern.to_owned() });
        }
        let source: Source = line.parse().map_err(|error: tarpon_oci::InvalidSource| error.to_string())?;
        match source {
            Source::Registry(_) => Ok(Self::Image(line.to_owned())),
            _ => Err(format!("{line} is not in a registry")),
        }
    }

    /// The names of its images.
    ///
    /// # Errors
    /// The registry does not list its tags, or none matches.
    pub async fn images(&self, access: &Access) -> Result<Vec<String>> {
        let (repository, pattern) = match self {
            Self::Image(name) => return Ok(vec![access.registries.full_name(name)?]),
            Self::Tags { repository, pattern } => (&access.registries.full_name(repository)?, pattern),
        };
        let step = "list the tags";
        let opened = access::open(repository, access).await?;
        let tags = opened.tags().await.map_err(|error| access::registry(step, error))?;
        let found: Vec<String> = tags
            .iter()
            .filter(|tag| matches(pattern.as_bytes(), tag.as_bytes()))
            .map(|tag| format!("{repository}:{tag}"))
            .collect();
        if found.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, step, format!("no tag of {repository} matches {pattern}")));
        }
        Ok(found)
    }
}

impl std::fmt::Display for SyncEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Image(name) => f.write_str(name),
            Self::Tags { repository, pattern } => write!(f, "{repository}:{pattern}"),
        }
    }
}

/// Whether the text matches the pattern: `*` stands for any bytes, `?` for one. Linear in the product of their lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place, mut star) = (0, 0, None);
    while place < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[place] => (at, place) = (at + 1, place + 1),
            _ => match star {
                // The last star takes one byte more.
                Some((back, taken)) => {
                    star = Some((back, taken + 1));
                    (at, place) = (back + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The outcome for an image.
#[derive(Debug, Clone, Serialize)]
pub struct Synced {
    /// The image, as it is in the list.
    pub image: String,
    /// Digest of its manifest.
    pub manifest_digest: Option<Digest>,
    /// What was done.
    #[serde(flatten)]
    pub state: SyncState,
}

/// What was done for an image.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum SyncState {
    /// It has an index now.
    Indexed {
        /// Digest of the index.
        index_digest: Digest,
        /// Bytes of the index.
        index_size: u64,
        /// The repository that has it.
        place: String,
    },
    /// It had one.
    Known {
        /// Digest of the index.
        index_digest: Digest,
    },
    /// All of its layers have tables of contents, and nothing is predicted of its start.
    Unneeded,
    /// It has none, for this reason.
    Failed {
        /// The reason, one line.
        error: String,
    },
}

/// Images whose indexes are made, one after another for equal manifests, and one at a time for a layout, of which only one program may change
/// the list.
#[derive(Default)]
struct ImageLocks {
    manifests: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
    layout: tokio::sync::Mutex<()>,
}

/// How images of a list are indexed.
#[derive(Debug, Clone, Copy)]
pub struct SyncOptions<'a> {
    /// Images indexed at the same time, up to [`MAX_SYNC_JOBS`].
    pub jobs: usize,
    /// Whether indexes get packs of predicted starts.
    pub predict: bool,
    /// Signs the indexes.
    pub key: Option<&'a SigningKey>,
}

/// Makes and publishes an index for each image that has none where it would be published, or has one without a predicted or recorded start,
/// where starts are predicted. What was done before an interruption is not done again. `done` is called for each image.
pub async fn sync_indexes(
    images: &Images,
    requests: Vec<ImageRequest>,
    options: SyncOptions<'_>,
    done: &(dyn Fn(&Synced) + Sync),
) -> Vec<Synced> {
    let locks = ImageLocks::default();
    let one = |(number, request): (usize, ImageRequest)| {
        let locks = &locks;
        async move {
            let mut synced = Synced { image: request.text.clone(), manifest_digest: None, state: SyncState::Unneeded };
            synced.state = match sync_one(images, &request, options, locks, &mut synced.manifest_digest).await {
                Ok(state) => state,
                Err(error) => SyncState::Failed { error: error.to_string() },
            };
            done(&synced);
            (number, synced)
        }
        .boxed()
    };
    // Collected: otherwise the compiler rejects the returned future as not `Send`.
    let all: Vec<_> = requests.into_iter().enumerate().map(one).collect();
    let mut all: Vec<(usize, Synced)> =
        stream::iter(all).buffer_unordered(options.jobs.clamp(1, MAX_SYNC_JOBS)).collect().await;
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, synced)| synced).collect()
}

async fn sync_one(
    images: &Images,
    request: &ImageRequest,
    options: SyncOptions<'_>,
    locks: &ImageLocks,
    manifest: &mut Option<Digest>,
) -> Result<SyncState> {
    let (place, access_to_place) = destination(request)?;
    let own = access::open(&request.text, &request.access).await?;
    let image = admission::resolve(&own, &request.access, &request.platform).await?;
    *manifest = Some(*image.manifest.digest());
    if !options.predict && !needs_index(&image)? {
        return Ok(SyncState::Unneeded);
    }
    // Two names of one image are common.
    let turn = locks.manifests.lock().entry(*image.manifest.digest()).or_default().clone();
    let _turn = turn.lock().await;
    let repository = access::open_later(&place.to_string(), &access_to_place)?;
    if let Some((index_digest, has_start)) = known(&repository, image.manifest.digest()).await?
        && (has_start || !options.predict)
        && is_signed(options.key, &repository, &index_digest).await?
    {
        return Ok(SyncState::Known { index_digest });
    }
    let made = match options.predict {
        true => find_predicted_index(images, request, &place, &Silent).boxed().await?,
        false => Some(make_plain_index(images, request, &place, &Silent).boxed().await?),
    };
    let Some(made) = made else { return Ok(SyncState::Unneeded) };
    let _alone = match place {
        Source::Registry(_) => None,
        _ => Some(locks.layout.lock().await),
    };
    let upload = Upload::contents(&made, &place, &request.access).boxed().await?;
    // What was made here is signed, and nothing that was found.
    upload.finish(options.key).await?;
    let place = shown(&place.to_string()).to_owned();
    Ok(SyncState::Indexed { index_digest: made.index_digest, index_size: made.index_size, place })
}

/// Whether a layer has no table of contents of its own.
fn needs_index(image: &ResolvedImage) -> Result<bool> {
    for layer in &image.manifest.layers {
        let claim = Claim::of(&layer.media_type, &layer.annotations, layer.size);
        if claim.context(ErrorKind::Refused, "read the manifest")? == Claim::Plain {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The newest readable index of the image among those that a mount looks at, and whether the start of the image was predicted or recorded for it.
async fn known(repository: &Repository, image: &Digest) -> Result<Option<(Digest, bool)>> {
    let newest = newest(repository, image).await.map_err(|error| access::registry("look for an index", error))?;
    Ok(newest.index.map(|(digest, artifact)| (digest, has_start(&artifact))))
}

fn has_start(artifact: &Artifact) -> bool {
    prediction(artifact).is_some_and(|version| version >= tarpon_prediction::VERSION)
        || boots(artifact).any(|(profile, _)| profile == DEFAULT_PROFILE)
}

/// Whether the key, if there is one, signed the index. Without the signature its origin is not known.
async fn is_signed(key: Option<&SigningKey>, repository: &Repository, index: &Digest) -> Result<bool> {
    let step = "check the signature of the index";
    let Some(key) = key else { return Ok(true) };
    let public = key.public_key().context(ErrorKind::Other, step)?;
    let signed = signed_by(&[public], repository, index).await;
    Ok(matches!(signed.map_err(|why| Error::new(ErrorKind::Other, step, why))?, SignedBy::Key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_images_patterns_and_comments() {
        let text = "# ours\n\nredis:7\n  quay.io/a/b:1.*  # every patch\nlocalhost:5000/x\n";
        let tags = SyncEntry::Tags { repository: "quay.io/a/b".to_owned(), pattern: "1.*".to_owned() };
        let images = ["redis:7", "localhost:5000/x"].map(|name| SyncEntry::Image(name.to_owned()));
        let [redis, local] = images;
        assert_eq!(SyncEntry::list(text), Ok(vec![redis, tags, local]));
        for (text, line) in [("redis\n-bad", "line 2: "), ("oci:/a", "line 1: "), ("oci:/a:*", "line 1: ")] {
            assert!(SyncEntry::list(text).unwrap_err().starts_with(line), "{text}");
        }
    }

    #[test]
    fn a_pattern_matches_whole_tags() {
        for (pattern, text, expected) in [
            ("7.*", "7.2", true),
            ("7.*", "17.2", false),
            ("7.*", "7", false),
            ("*", "latest", true),
            ("7.?-al*", "7.2-alpine", true),
            ("7.?", "7.10", false),
            ("*a*b*", "xaxbx", true),
            ("*a*b", "xaxbx", false),
            ("**", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
