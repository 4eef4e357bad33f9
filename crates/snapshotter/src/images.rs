//! [`Images`]: the engine functions that the snapshotter needs, and their implementation.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tarpon_engine::{
    Access, Admission, Backfill, Credentials, Engine, ErrorKind, ImageRequest, IndexChoice, LayerLimits, ModeChoice,
    MountRequest, Prepared, Progress, Pull,
};
use tarpon_oci::{Digest, IndexRepo, Platform, Reference, Source};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::labels::PulledLayer;
use crate::pull_credentials::PullCredentials;
use crate::record::LazyLayers;

/// Images that are fetched at the same time: each may be streamed, which takes memory.
const FETCHED_AT_ONCE: usize = 4;

/// Images that are prepared at the same time without a turn, because they need not be streamed: each merges the trees of its layers.
const LAZY_AT_ONCE: usize = 16;

/// A name in no scope of a policy: a domain that does not exist. The default of the policy applies to it.
const IN_NO_SCOPE: &str = "image.invalid/unknown";

/// A result with a one-line error.
pub(crate) type Outcome<T> = Result<T, String>;

/// The chain IDs of an image's layers, lowest first, or the reason why there are none.
pub(crate) type ChainIds = Outcome<Arc<[Digest]>>;

/// Images whose layers can be mounted.
pub(crate) trait Images: Send + Sync + 'static {
    /// Prepares the image for mounting.
    fn prepare(&self, layer: PulledLayer) -> BoxFuture<'static, ChainIds>;

    /// Whether the policy lets containerd unpack the image of this name, which checks no signatures; else the reason. Decides for all layers
    /// that are not mounted, for whatever reason.
    fn may_unpack(&self, image: &str) -> BoxFuture<'static, Outcome<()>>;

    /// Mounts layers at `place`, unless they are mounted there already.
    fn mount(&self, layers: LazyLayers, place: PathBuf) -> BoxFuture<'static, Outcome<()>>;

    /// Unmounts `place`, if anything is mounted there.
    fn unmount(&self, place: PathBuf) -> BoxFuture<'static, Outcome<()>>;

    /// Digest of the config of an image, which is pinned, if it was prepared.
    fn config(&self, image: &Reference) -> BoxFuture<'static, Option<Digest>>;

    /// Makes the mount at `place`, if there is one, use the credentials with which its image was pulled last.
    fn renew(&self, image: &Reference, place: PathBuf) -> BoxFuture<'static, Outcome<()>>;

    /// No snapshot has layers of this image any more.
    fn forget(&self, image: &str);
}

/// How to handle images with layers whose files cannot be fetched one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainImages {
    /// Stream them into the store once, and mount them like all others.
    Stream,
    /// Let containerd pull and unpack them.
    Unpack,
}

/// How images are accessed and mounted.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Index that may replace missing tables of contents of layers.
    pub index: IndexChoice,
    /// Where indexes may be, besides the repositories of images.
    pub index_repos: Vec<IndexRepo>,
    /// The boot pack to use.
    pub profile: Option<String>,
    /// Credentials and certificates.
    pub access: Access,
    /// How images are mounted.
    pub mode: ModeChoice,
    /// Whether the rest of a mounted image is fetched in the background.
    pub backfill: Backfill,
    /// How to handle images that cannot be read in parts.
    pub plain: PlainImages,
    /// Whether each image is fetched whole and verified when it is pulled.
    pub whole: bool,
}

/// [`Images`] of an engine.
#[derive(Clone)]
pub(crate) struct EngineImages {
    engine: Engine,
    options: Arc<ImageOptions>,
    credentials: Arc<PullCredentials>,
    turns: Arc<Semaphore>,
    lazy_turns: Arc<Semaphore>,
}

/// Why an image cannot be mounted.
struct Unusable {
    why: String,
    /// The registry refuses the credentials. Some registries hide what the user may not read.
    is_refused: bool,
}

impl From<String> for Unusable {
    fn from(why: String) -> Self {
        Self { why, is_refused: false }
    }
}

impl From<tarpon_engine::Error> for Unusable {
    fn from(error: tarpon_engine::Error) -> Self {
        let is_refused = matches!(error.kind, ErrorKind::Denied | ErrorKind::NotFound);
        Self { why: error.to_string(), is_refused }
    }
}

impl EngineImages {
    pub(crate) fn new(engine: Engine, options: ImageOptions, credentials: Arc<PullCredentials>) -> Self {
        let [turns, lazy_turns] = [FETCHED_AT_ONCE, LAZY_AT_ONCE].map(|places| Arc::new(Semaphore::new(places)));
        Self { engine, options: Arc::new(options), credentials, turns, lazy_turns }
    }

    /// Access with these credentials, or else those of the options.
    fn access(&self, credentials: Option<&Credentials>) -> Access {
        let usual = self.options.access.clone();
        match credentials.map(Credentials::pair) {
            Some((user, password)) => {
                Access { creds: Some(format!("{user}:{password}")), creds_of_image: true, ..usual }
            }
            None => usual,
        }
    }

    fn request(&self, text: &str, access: Access) -> Outcome<ImageRequest> {
        let source: Source = text.parse().map_err(|error| format!("{text:?} is no image: {error}"))?;
        let ImageOptions { index, index_repos, profile, .. } = (*self.options).clone();
        let (text, platform, pull) = (text.to_owned(), Platform::host(), Pull::Missing);
        Ok(ImageRequest { pull, index, index_repos, profile, access, ..ImageRequest::new(text, source, platform) })
    }

    /// Prepares the image, in a turn if something must be fetched. A caller that waits for a turn holds no other.
    async fn prepare_in_turn(&self, request: &ImageRequest, manifest: Digest) -> Result<Prepared, Unusable> {
        if self.is_in_store(manifest).await {
            return Ok(self.engine.prepare(request, &Logged(&request.text)).await?);
        }
        let _turn = match self.turns.try_acquire() {
            Ok(turn) => turn,
            // Those that have the turns may stream for minutes. An image that need not be streamed does not wait for them.
            Err(_) => match self.prepare_lazily(request).await? {
                Some(prepared) => return Ok(prepared),
                None => self.next_turn().await?,
            },
        };
        Ok(self.engine.prepare(request, &Logged(&request.text)).await?)
    }

    /// Prepares the image without streaming a layer. `None`: a layer must be streamed, or the image is refused for another reason.
    async fn prepare_lazily(&self, request: &ImageRequest) -> Result<Option<Prepared>, Unusable> {
        let _turn = self.lazy_turns.acquire().await.map_err(|error| error.to_string())?;
        let limits = LayerLimits { may_stream: false, ..request.limits };
        let lazy = ImageRequest { limits, ..request.clone() };
        match self.engine.prepare(&lazy, &Logged(&request.text)).await {
            Ok(prepared) => Ok(Some(prepared)),
            Err(error) if error.kind == ErrorKind::Refused => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn next_turn(&self) -> Result<SemaphorePermit<'_>, Unusable> {
        self.turns.acquire().await.map_err(|error| error.to_string().into())
    }

    async fn is_in_store(&self, manifest: Digest) -> bool {
        let engine = self.engine.clone();
        let look = move || matches!(engine.store().image(&manifest), Ok(Some(_)));
        tokio::task::spawn_blocking(look).await.unwrap_or(false)
    }

    async fn prepare(&self, request: &ImageRequest, manifest: Digest) -> Result<Prepared, Unusable> {
        let prepared = self.prepare_in_turn(request, manifest).await?;
        if *prepared.manifest() == manifest {
            Ok(prepared)
        } else {
            Err(format!("{} is an index of images", request.text).into())
        }
    }

    /// Whether containerd must unpack the image because some layer cannot be read in parts.
    async fn is_left_alone(&self, request: &ImageRequest) -> Result<bool, Unusable> {
        if self.options.plain == PlainImages::Stream {
            return Ok(false);
        }
        let found = self.engine.inspect(request).await?;
        Ok(!found.in_store && found.layers.iter().any(|layer| !layer.lazy))
    }

    async fn chain(&self, layer: &PulledLayer, access: Access) -> Result<Arc<[Digest]>, Unusable> {
        let request = self.request(&layer.image.to_string(), access)?;
        if self.is_left_alone(&request).await? {
            return Err("a layer has no table of contents, and such images are to be unpacked".to_owned().into());
        }
        let prepared = self.prepare(&request, layer.manifest).await?;
        let prepared = self.verified(&request, prepared).await?;
        Ok(Arc::from(self.engine.chain_ids(&prepared)?))
    }

    /// As [`EngineImages::chain`], with the credentials of the pull. Of concurrent pulls, some may have wrong ones.
    async fn chain_of_pull(&self, layer: &PulledLayer) -> Result<Arc<[Digest]>, Unusable> {
        let mut all = self.credentials.of_pulls(&layer.name, &layer.image).into_iter();
        let mut credentials = all.next();
        loop {
            let found = self.chain(layer, self.access(credentials.as_ref())).await;
            match (&found, all.next()) {
                (Err(Unusable { is_refused: true, .. }), Some(other)) => credentials = Some(other),
                _ => return found,
            }
        }
    }

    /// Fetches the whole image if the options require it and it is not verified: when it is pulled, or after an eviction.
    async fn verified(&self, request: &ImageRequest, prepared: Prepared) -> Result<Prepared, Unusable> {
        if !self.options.whole || prepared.is_verified() {
            return Ok(prepared);
        }
        let _turn = self.next_turn().await?;
        let record = self.engine.pull(request, &Logged(&request.text)).await?.record;
        let prepared = Prepared { record, ..prepared };
        if prepared.is_verified() {
            Ok(prepared)
        } else {
            Err("it was brought whole, and not all of it could be verified".to_owned().into())
        }
    }

    async fn mount(&self, layers: LazyLayers, place: PathBuf) -> Result<(), Unusable> {
        let image = layers.image.parse().map_err(|error| format!("{:?} is no image: {error}", layers.image))?;
        let credentials = self.credentials.of_image(&image);
        let request = self.request(&layers.image, self.access(credentials.as_ref()))?;
        let prepared = self.prepare(&request, layers.manifest).await?;
        let prepared = self.verified(&request, prepared).await?;
        let whole = self.engine.chain_ids(&prepared)?.len() == layers.count;
        let prepared = if whole {
            prepared
        } else {
            let logged = Logged(&layers.image);
            self.engine.lowest_layers(&request, &prepared, layers.count, &logged).await?
        };
        let mount = MountRequest {
            mode: self.options.mode,
            // Restrictions come from the mount above.
            suid: true,
            dev: true,
            // Also for some of the layers: we wrote the documents of that partial image, and the backfill fetches only layers of the image.
            backfill: self.options.backfill,
            ..MountRequest::for_image(&prepared, place.clone())
        };
        let client = self.engine.client();
        let mounted = blocking(move || client.ensure_mounted(mount)).await?;
        for fallback in &mounted.fallbacks {
            tracing::warn!(image = layers.image, "{fallback}");
        }
        // It may have been mounted before, with other credentials or, after a crash of the server, without.
        Ok(self.renew(&image, place).await?)
    }
}

impl Images for EngineImages {
    fn prepare(&self, layer: PulledLayer) -> BoxFuture<'static, ChainIds> {
        let this = self.clone();
        async move { this.chain_of_pull(&layer).await.map_err(|unusable| unusable.why) }.boxed()
    }

    fn may_unpack(&self, image: &str) -> BoxFuture<'static, Outcome<()>> {
        let (image, access) = (image.to_owned(), self.access(None));
        blocking_outcome(move || check_needs_no_signature(&image, &access)).boxed()
    }

    fn mount(&self, layers: LazyLayers, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        let this = self.clone();
        async move { Self::mount(&this, layers, place).await.map_err(|unusable| unusable.why) }.boxed()
    }

    fn unmount(&self, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        let client = self.engine.client();
        blocking(move || client.release(&place)).boxed()
    }

    fn config(&self, image: &Reference) -> BoxFuture<'static, Option<Digest>> {
        let (engine, manifest) = (self.engine.clone(), image.digest().copied());
        let read = move || Some(*engine.store().image_config(&manifest?).ok()??.digest());
        tokio::task::spawn_blocking(read).map(|read| read.ok().flatten()).boxed()
    }

    fn renew(&self, image: &Reference, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        let Some(credentials) = self.credentials.of_image(image) else { return async { Ok(()) }.boxed() };
        let (client, access) = (self.engine.client(), self.access(Some(&credentials)));
        blocking(move || match client.renew_credentials(&place, access) {
            // Nothing is mounted there.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            renewed => renewed.map(drop),
        })
        .boxed()
    }

    fn forget(&self, image: &str) {
        if let Ok(image) = image.parse() {
            self.credentials.forget(&image);
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> tarpon_engine::Result<T> + Send + 'static) -> Outcome<T> {
    blocking_outcome(move || work().map_err(|error| error.to_string())).await
}

async fn blocking_outcome<T: Send + 'static>(work: impl FnOnce() -> Outcome<T> + Send + 'static) -> Outcome<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

/// Fails if the policy refuses the image, or demands signatures of it.
fn check_needs_no_signature(image: &str, access: &Access) -> Outcome<()> {
    let source = Source::Registry(for_policy(image)?);
    let admission = Admission::of(&source, access).map_err(|error| error.to_string())?;
    match admission.demands().need_signatures() {
        true => Err("the policy demands signatures of it, which containerd does not check".to_owned()),
        false => Ok(()),
    }
}

/// The name to look up in a policy. A digest that is not understood belongs to its repository, and another name to no scope.
fn for_policy(image: &str) -> Outcome<Reference> {
    let repository = || image.split_once('@')?.0.parse().ok().map(|name: Reference| name.pinned(Digest::of(b"")));
    let named = image.parse().ok().or_else(repository);
    named.map_or_else(|| IN_NO_SCOPE.parse().map_err(|error| format!("{IN_NO_SCOPE}: {error}")), Ok)
}

/// Writes the progress of an image to the log.
struct Logged<'a>(&'a str);

impl Progress for Logged<'_> {
    fn note(&self, line: &str) {
        tracing::warn!(image = self.0, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use tarpon_engine::registry::Contents;
    use tarpon_engine::{EngineOptions, PolicyChoice};
    use tarpon_oci::Compression;
    use tarpon_testkit::fixture::Fixture;
    use tarpon_testkit::layers::{Dialect, EstargzOptions, Image, ImageBuilder, Item, Layer, estargz, tar};
    use tarpon_testkit::registry::{Auth, PASSWORD, USER};

    use super::*;
    use crate::pull_credentials::name_of;

    /// A public key of ECDSA P-256, as PEM in base64.
    const KEY: &str = "LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KTUZrd0V3WUhLb1pJemowQ0FRWUlLb1pJemowREFRY0RRZ0FFS0YwRWx0cXNpOURncDJQeTNPcGE1eFJERzhILwp5QmpvQ0hpTEVOaXI0cTVLUnE1Tk9Ed1BwQXIvVnMwZEl4NXgrNVFhSjcyOUF5cHd2K2VvVGJQcHl3PT0KLS0tLS1FTkQgUFVCTElDIEtFWS0tLS0tCg==";

    fn image(content: &str) -> Image {
        ImageBuilder::new().layer(estargz(&[Item::file("file", content)], EstargzOptions::default())).build()
    }

    fn options() -> ImageOptions {
        let (index, access) = (IndexChoice::default(), Access::default());
        let (mode, backfill) = (ModeChoice::Auto, Backfill::Off);
        ImageOptions {
            index,
            index_repos: Vec::new(),
            profile: None,
            access,
            mode,
            backfill,
            plain: PlainImages::Stream,
            whole: false,
        }
    }

    fn layer(fixture: &Fixture, name: &str, image: &Image) -> PulledLayer {
        let (name, manifest): (Reference, _) = (fixture.name(name).parse().unwrap(), image.digest());
        let pinned = name.pinned(manifest);
        PulledLayer { chain_id: Digest::of(b"any"), name: name_of(name), image: pinned, manifest }
    }

    fn engine(fixture: &Fixture) -> Engine {
        let (server_command, worker_command) = (Vec::new(), Vec::new());
        Engine::open(EngineOptions { store: fixture.path("store"), server_command, worker_command }).unwrap()
    }

    #[tokio::test]
    async fn only_an_image_that_is_fetched_and_may_be_streamed_waits_for_its_turn() {
        let plain = |content: &str| {
            let tar = tar(&[Item::file("file", content)], Dialect::Pax);
            Image::of([Layer::plain(&tar, Compression::Gzip)])
        };
        let (stored, lazy, streamed, mut contents) = (plain("1"), image("2"), plain("3"), Contents::new());
        for (image, name) in [(&stored, "stored"), (&lazy, "lazy"), (&streamed, "streamed")] {
            image.add_to(&mut contents, name, "v1");
        }
        let fixture = Fixture::with_registry(contents, Auth::Anonymous).await;
        let mut options = options();
        options.access.tls_verify = Some(false);
        let images = EngineImages::new(engine(&fixture), options, Arc::default());
        let stored = layer(&fixture, "stored:v1", &stored);
        Images::prepare(&images, stored.clone()).await.unwrap();
        // No caller gets a turn any more, and those that would wait for one fail.
        images.turns.close();
        Images::prepare(&images, stored).await.expect("it is in the store");
        Images::prepare(&images, layer(&fixture, "lazy:v1", &lazy)).await.expect("it has a table of contents");
        let streamed = layer(&fixture, "streamed:v1", &streamed);
        let why = Images::prepare(&images, streamed.clone()).await.unwrap_err();
        assert!(why.contains("closed"), "{why}");
        let layers = LazyLayers { image: streamed.image.to_string(), manifest: streamed.manifest, count: 1 };
        let why = Images::mount(&images, layers, fixture.directory("place")).await.unwrap_err();
        assert!(why.contains("closed"), "a mount may stream it, too: {why}");
    }

    #[test]
    fn containerd_may_unpack_what_the_policy_accepts_without_signatures() {
        let folder = tempfile::tempdir().unwrap();
        let policy = |default: &str| {
            let file = folder.path().join(default);
            let text = format!(
                r#"{{"default": [{{"type": "{default}"}}], "transports": {{"docker": {{
                    "r.test/refused": [{{"type": "reject"}}],
                    "r.test/signed": [{{"type": "sigstoreSigned", "keyData": "{KEY}", "signedIdentity": {{"type": "matchRepository"}}}}],
                    "r.test/accepted": [{{"type": "insecureAcceptAnything"}}]
                }}}}}}"#
            );
            std::fs::write(&file, text).unwrap();
            Access { policy: PolicyChoice::File(file), ..Access::default() }
        };
        let (accepting, rejecting) = (policy("insecureAcceptAnything"), policy("reject"));
        let pinned = format!("@{}", Digest::of(b"manifest"));
        let unknown = format!("@sha512:{}", "0".repeat(128));
        for end in [":v1", &pinned, &unknown, &format!(":v1{unknown}")] {
            let check = |name: &str, access| check_needs_no_signature(&format!("r.test/{name}{end}"), access);
            check("accepted", &rejecting).unwrap();
            check("other", &accepting).unwrap();
            assert!(check("other", &rejecting).unwrap_err().contains("reject"), "{end}");
            assert!(check("refused", &accepting).unwrap_err().contains("reject"), "{end}");
            assert!(check("signed", &accepting).unwrap_err().contains("demands signatures"), "{end}");
        }
        check_needs_no_signature("no image", &accepting).expect("the default applies");
        check_needs_no_signature("no image", &rejecting).expect_err("the default applies");
    }

    #[tokio::test]
    async fn an_image_is_prepared_with_the_credentials_of_its_pulls_whichever_of_them_are_right() {
        let (one, other, mut contents) = (image("1"), image("2"), Contents::new());
        one.add_to(&mut contents, "team/one", "v1");
        other.add_to(&mut contents, "team/other", "v1");
        let fixture = Fixture::with_registry(contents, Auth::Basic).await;
        let credentials = Arc::new(PullCredentials::default());
        let images = EngineImages::new(engine(&fixture), options(), credentials.clone());
        let (one, other) = (layer(&fixture, "team/one:v1", &one), layer(&fixture, "team/other:v1", &other));
        let (right, wrong) = (Credentials::from_pair(USER, PASSWORD), Credentials::from_pair(USER, "guessed"));

        let prepare = |layer: PulledLayer| Images::prepare(&images, layer);

        prepare(one.clone()).await.expect_err("without credentials");
        let _pull = credentials.begin(one.name.clone(), right.clone());
        let _later = credentials.begin(one.name.clone(), wrong.clone());
        assert_eq!(prepare(one.clone()).await.unwrap().len(), 1);
        assert!(images.config(&one.image).await.is_some());

        prepare(other.clone()).await.expect_err("with the credentials of another image");
        let _guess = credentials.begin(other.name.clone(), wrong);
        let why = prepare(other.clone()).await.expect_err("with wrong credentials");
        assert!(!why.contains(USER) && !why.contains("guessed"), "{why}");
        let _pull = credentials.begin(other.name.clone(), right);
        prepare(other).await.unwrap();
    }
}
