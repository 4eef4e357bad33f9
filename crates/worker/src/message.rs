//! What a worker and its user send to each other. The user treats each message of a worker as hostile.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;

use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tarpon_blob::{Fault, SourceError};
use tarpon_images::access::Settled;
use tarpon_images::index::places::IndexPlace;
use tarpon_images::preparer::Task;
use tarpon_images::tiers;
use tarpon_images::{Access, LayerLimits, LayerPlan, RegistriesChoice};
use tarpon_oci::{Blob, Digest, InvalidReference, limits};
use tarpon_policy::Demands;
use tarpon_registry::{Address, Endpoint, EndpointAccount, EndpointCounts, Stats};
use tarpon_tier::{TierLocation, TierOptions};
use zeroize::Zeroizing;

/// Version of the messages: after an update a program may start a worker of another version.
pub(crate) const VERSION: u32 = 7;

/// Longest encoded message: a setup names a few dozen paths, an error is one line, and an image has at most 512 layers.
pub(crate) const MESSAGE_BYTES: usize = 128 << 10;

/// Longest encoded job or event: a job may have a lock of 4 MiB, and an event a manifest and a config of 4 MiB each.
pub(crate) const JOB_BYTES: usize = 9 << 20;

/// Most fallbacks of an image: a few for each of its layers.
const FALLBACKS: usize = 2_000;

/// Most endpoints in a report: an image has a few mirrors. Of more, the last ones are reported, among them the registry.
pub(crate) const REPORTED: usize = 32;

/// The first message to a worker: how it confines itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) version: u32,
    /// Files and folders that it may read.
    pub(crate) read: Vec<PathBuf>,
    /// Whether it reads files of other users there, if it runs as root.
    pub(crate) reads_for_others: bool,
    /// Whether it becomes a user that owns no file, if it runs as root.
    pub(crate) as_own_user: bool,
    /// Folders in which it may write.
    pub(crate) write: Vec<PathBuf>,
    /// Whether it may connect to hosts.
    pub(crate) connects: bool,
    /// Most bytes of memory that it may write to.
    pub(crate) memory: u64,
    /// The tier of all images that it reads.
    pub(crate) tier: Option<TierName>,
}

/// A tier, with the credentials for it. A worker gets them once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TierName {
    pub(crate) location: TierLocation,
    pub(crate) options: TierOptions,
}

/// What the descriptor that comes with a control message is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Control {
    /// The worker asks its user, and shows that it is alive: [`Question`] and [`Answer`].
    Questions,
    /// Requests for blobs: [`BlobRequest`], and the frames of [`crate::frames`].
    Blobs,
    /// Chunks to be decoded ([`crate::chunk_call`]).
    Chunks,
    /// A whole layer to be decoded ([`crate::layer_call`]).
    Layer,
    /// An image to be prepared: [`Job`] and [`Event`].
    Job,
    /// A step of the completion of an image: [`Step`] and [`StepDone`].
    Step,
    /// The worker requests blobs from its user, with the messages of [`Control::Blobs`] in the other direction.
    Source,
    /// No descriptor: the image with this number is not read any more.
    Forget(u64),
    /// No descriptor: this image will be read. The worker connects to its registry.
    GetReady(ImageName),
}

/// An image, as its user names it. Credentials are looked up by the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageName {
    /// Different for each opened image of a user.
    pub(crate) number: u64,
    pub(crate) text: String,
    /// The hosts that serve it, in the order in which they are asked. None for a layout or an archive.
    pub(crate) endpoints: Vec<EndpointName>,
    pub(crate) cert_dir: Option<PathBuf>,
    /// The tier that has some of its layers: that of the worker's setup.
    pub(crate) tier: Option<TierLocation>,
}

/// A host that serves an image, and the image's name there ([`Endpoint`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndpointName {
    reference: String,
    insecure: bool,
    resolves: bool,
    address: Option<Address>,
}

impl EndpointName {
    fn endpoint(&self) -> Result<Endpoint, InvalidReference> {
        let Self { reference, insecure, resolves, address } = self.clone();
        Ok(Endpoint { reference: reference.parse()?, insecure, resolves, address })
    }
}

impl ImageName {
    /// The name of an image whose source and hosts are known.
    pub(crate) fn of(number: u64, text: &str, settled: &Settled, access: &Access) -> Self {
        let name = |endpoint: &Endpoint| EndpointName {
            reference: endpoint.reference.to_string(),
            insecure: endpoint.insecure,
            resolves: endpoint.resolves,
            address: endpoint.address.clone(),
        };
        let endpoints = settled.endpoints.iter().map(name).collect();
        let tier = tiers::location_for(&settled.source, access).cloned();
        Self { number, text: text.to_owned(), endpoints, cert_dir: access.cert_dir.clone(), tier }
    }

    /// The hosts that are asked: the tier, and that of each endpoint.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let host = |name: &EndpointName| name.endpoint().map_or_else(|_| name.reference.clone(), |at| at.host());
        self.tier.iter().map(ToString::to_string).chain(self.endpoints.iter().map(host)).collect()
    }

    /// How the worker accesses it.
    pub(crate) fn access(&self) -> Result<Access, InvalidReference> {
        let endpoints = self.endpoints.iter().map(EndpointName::endpoint).collect::<Result<_, _>>()?;
        Ok(Access {
            registries: RegistriesChoice::Settled(endpoints),
            cert_dir: self.cert_dir.clone(),
            ..Access::default()
        })
    }
}

/// A request on a channel for blobs. The response is frames: a head, bytes with totals before some of them, an end; or an error
/// instead of any of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BlobRequest {
    pub(crate) image: ImageName,
    pub(crate) blob: Blob,
    pub(crate) range: Range<u64>,
    /// One attempt, for one byte ([`tarpon_blob::BlobSource::probe`]).
    pub(crate) probe: bool,
    /// Bytes of the blob were wrong before ([`tarpon_blob::BlobSource::distrust`]).
    pub(crate) distrusted: bool,
}

/// At the head of a response, before some of its bytes, and at its end: what was transferred for the image since the worker opened it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) ignores_ranges: bool,
    /// Those endpoints that were asked for anything.
    #[serde(deserialize_with = "at_most::<REPORTED, _, _>")]
    pub(crate) endpoints: Vec<EndpointTotals>,
}

/// What was counted for an endpoint since the worker opened the image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EndpointTotals {
    /// Its place in the name of the image.
    pub(crate) number: u32,
    pub(crate) counts: EndpointCounts,
    /// How long it is still not asked.
    pub(crate) rest_millis: Option<u64>,
    pub(crate) last_failure: Option<String>,
}

/// A failed request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Failure {
    fault: Fault,
    message: String,
    pub(crate) totals: Totals,
}

/// An image to be prepared. The responses are events, of which [`Event::Done`], [`Event::Documents`] or [`Event::Failed`] is the last.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) work: Work,
    /// The folder of the store.
    pub(crate) store: PathBuf,
    pub(crate) image: ImageName,
    pub(crate) source: String,
    pub(crate) platform: String,
    pub(crate) platform_named: bool,
    pub(crate) index: IndexName,
    /// Where indexes of the image are in index repositories. Credentials for the first have the number after that of the image.
    #[serde(deserialize_with = "at_most::<{ limits::INDEX_REPOS }, _, _>")]
    pub(crate) places: Vec<PlaceName>,
    pub(crate) profile: Option<String>,
    pub(crate) starts: bool,
    /// What the user's policy demands of the image.
    pub(crate) demands: Demands,
    /// What may be fetched of its layers.
    pub(crate) limits: LayerLimits,
}

/// Where indexes of an image are in an index repository, and the name of that repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlaceName {
    pub(crate) place: IndexPlace,
    /// Or why it cannot be opened.
    pub(crate) name: Result<ImageName, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    Task(Task),
    /// The documents of the image, nothing in the store.
    Documents,
}

/// An [`IndexChoice`](tarpon_images::IndexChoice).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IndexName {
    None,
    Unset,
    Pinned(Digest),
    /// The lock, in its file's form.
    Locked(Vec<u8>),
    Registry,
    /// With the keys in the job's demands.
    Signed,
}

/// What happens while an image is prepared ([`tarpon_images::Progress`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Event {
    Resolved {
        manifest: Digest,
        #[serde(deserialize_with = "at_most::<{ limits::LAYERS }, _, _>")]
        layers: Vec<LayerPlan>,
    },
    Received {
        layer: u32,
        bytes: u64,
    },
    LayerDone {
        layer: u32,
    },
    Note(String),
    /// The place of the boot pack: a blob of the image's repository, or of the index repository with this number.
    Pack {
        blob: Blob,
        place: Option<u32>,
    },
    Done {
        manifest: Digest,
        #[serde(deserialize_with = "at_most::<FALLBACKS, _, _>")]
        fallbacks: Vec<String>,
        requests: u64,
        bytes: u64,
    },
    Documents {
        digest: Digest,
        manifest: Vec<u8>,
        config: Vec<u8>,
        index_digest: Option<Digest>,
    },
    Failed(Vec<u8>),
    /// The image was requested and may have a boot pack.
    PackExpected,
}

/// A step of the completion of an image ([`tarpon_images::prepare::complete::Completing`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The folder of the store.
    pub(crate) store: PathBuf,
    /// The part of the store that belongs to a tenant.
    pub(crate) tenant: Option<Digest>,
    pub(crate) manifest: Digest,
    pub(crate) action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    Open,
    NoteLie(Digest),
    Layer(u32),
    Install,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StepDone {
    Opened { layers: Vec<Digest>, by_index: Vec<Digest>, was_seen: bool },
    Done(bool),
    Lie(String),
    Refused(String),
    NoRoom,
    Failed(Vec<u8>),
}

/// What a worker asks its user.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Nothing: the worker is confined in this way.
    Confined { how: String, limits_paths: bool },
    /// Nothing: the worker is alive.
    Alive,
    /// The credentials for an image at the endpoint with this number.
    Credentials { id: u64, image: u64, endpoint: u32 },
    /// Whether the credentials for an image at an endpoint may be sent to a host.
    MayHave { id: u64, image: u64, endpoint: u32, host: String },
}

/// The answer to the question with the same number. Not `Debug`: it contains passwords.
#[derive(Serialize, Deserialize)]
pub(crate) enum Answer {
    /// User and password.
    Credentials {
        id: u64,
        pair: Option<(Zeroizing<String>, Zeroizing<String>)>,
    },
    MayHave {
        id: u64,
        may: bool,
    },
}

/// Longest message of an error that is shown.
const SHOWN_BYTES: usize = 2 << 10;

impl Failure {
    pub(crate) fn of(error: &SourceError, totals: Totals) -> Self {
        Self { fault: error.fault, message: error.to_string(), totals }
    }

    /// The error, as one line.
    pub(crate) fn into_error(self) -> SourceError {
        SourceError::new(self.fault, one_line(&self.message))
    }
}

impl EndpointTotals {
    fn of(number: u32, account: EndpointAccount) -> Self {
        let EndpointAccount { host: _, counts, rest, last_failure } = account;
        let rest_millis = rest.map(|rest| u64::try_from(rest.as_millis()).unwrap_or(u64::MAX));
        Self { number, counts, rest_millis, last_failure }
    }
}

impl Totals {
    pub(crate) fn of(stats: Stats, ignores_ranges: bool, accounts: Vec<EndpointAccount>) -> Self {
        let asked = (0_u32..).zip(accounts).filter(|(_, account)| !account.counts.is_zero());
        let mut endpoints: Vec<_> = asked.map(|(number, account)| EndpointTotals::of(number, account)).collect();
        endpoints.drain(..endpoints.len().saturating_sub(REPORTED));
        Self { requests: stats.requests, bytes: stats.bytes, ignores_ranges, endpoints }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { requests: self.requests, bytes: self.bytes }
    }
}

/// A text of a worker that is fit for a log and a terminal.
pub(crate) fn one_line(text: &str) -> String {
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= SHOWN_BYTES).last().unwrap_or(0);
    let shown = if text.len() <= SHOWN_BYTES { text } else { &text[..end] };
    shown.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Encodes a message. It only fails for one that is too long.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, String> {
    encode_up_to(MESSAGE_BYTES, message)
}

/// As [`encode`], for a message of at most `limit` bytes.
pub(crate) fn encode_up_to(limit: usize, message: &impl Serialize) -> Result<Vec<u8>, String> {
    let bytes = postcard::to_allocvec(message).map_err(|error| error.to_string())?;
    if bytes.len() > limit {
        return Err(format!("a message of {} bytes is too long for a worker", bytes.len()));
    }
    Ok(bytes)
}

/// A list of at most `N` items. Of a longer one no more is decoded: in memory an item may take many times its bytes.
fn at_most<'de, const N: usize, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct Items<T, const N: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Items<T, N> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {N} items")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = from.next_element()? {
                if items.len() == N {
                    return Err(A::Error::custom("a list that is too long"));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    from.deserialize_seq(Items::<T, N>(PhantomData))
}

/// Decodes a message of at most [`MESSAGE_BYTES`]. Allocates in proportion to its length, whatever it claims.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err("a message with bytes behind its end".into()),
        Err(error) => Err(format!("not a message: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use tarpon_registry::Header;

    use super::*;

    #[test]
    fn an_error_of_a_worker_is_shown_as_one_short_line() {
        let error = SourceError::new(Fault::Denied, format!("a\nb\x1b[31m{}", "ü".repeat(5_000)));
        let shown = Failure::of(&error, Totals::default()).into_error();
        assert_eq!(shown.fault, Fault::Denied);
        let text = shown.to_string();
        assert!(text.starts_with("a b [31mü") && text.len() <= SHOWN_BYTES, "{} bytes", text.len());
    }

    #[test]
    fn a_message_that_claims_more_than_it_has_is_an_error() {
        let mut bytes = encode(&Control::Forget(7)).unwrap();
        assert_eq!(decode::<Control>(&bytes), Ok(Control::Forget(7)));
        bytes.push(0);
        assert!(decode::<Control>(&bytes).is_err());
        assert!(decode::<Vec<String>>(&[0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
        assert!(decode::<Setup>(&[]).is_err());
    }

    #[test]
    fn a_request_for_an_image_with_as_many_hosts_as_there_may_be_fits_into_a_message() {
        let name = |host: String| format!("{host}{}:1", "/a".repeat((255 - host.len()) / 2)).parse().unwrap();
        let address = || Address {
            authorities: vec![format!("/{}", "c".repeat(1_023)).into()],
            headers: vec![Header::new("x", "v".repeat((4 << 10) - 1))],
            ..Address::at(format!("https://{}.example:50000/v2", "h".repeat(100)))
        };
        let endpoint =
            |at| Endpoint { address: Some(address()), ..Endpoint::of(name(format!("e{at}.example")), false) };
        let mirror = |at| Endpoint::of(name(format!("m{at}.example")), false);
        let hosts = (0..16).map(endpoint).chain((0..65).map(mirror)).collect();
        let access = Access { registries: RegistriesChoice::Settled(hosts), ..Access::default() };
        let settled = tarpon_images::access::settle("m64.example/a", &access).unwrap();
        let image = ImageName::of(u64::MAX, &"n".repeat(300), &settled, &access);
        let blob = Blob { digest: Digest::of(b"b"), size: u64::MAX };
        let request = BlobRequest { image, blob, range: 0..u64::MAX, probe: true, distrusted: true };
        let encoded = encode(&request).unwrap();
        let decoded = decode::<BlobRequest>(&encoded).unwrap();
        assert_eq!(decoded.image, request.image);
        assert!(!format!("{decoded:?}").contains("vvv"), "values of headers are not shown");
    }
}
