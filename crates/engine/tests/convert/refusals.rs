//! A refused conversion leaves nothing visible.

use std::sync::Arc;

use serde_json::json;
use tarpon_engine::oci::{Compression, Digest};
use tarpon_engine::{ConvertRequest, ErrorKind, LayerFormat, LayerPlan, Progress, convert};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::bombs::bombs;
use tarpon_testkit::layers::{Dialect, EstargzOptions, Image, ImageBuilder, Item, Layer, estargz, gzip, tar};
use tarpon_testkit::registry::Fault;
use tarpon_testkit::server::TestServer;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::checks::{FORMATS, changed, files_of_layout, image, is_absent, layout, request, run, with_wrong_diff_id};

/// Converts `image`, which must fail, and returns the message. Nothing is left but blobs that nothing names.
async fn refused(image: &Image, kind: ErrorKind, change: impl Fn(&mut ConvertRequest)) -> String {
    let fixture = Fixture::with_image(image).await;
    let mut messages = Vec::new();
    for to in [layout(&fixture, "v1"), fixture.name("converted:v1")] {
        let mut request = request(&fixture, &to, LayerFormat::Estargz);
        change(&mut request);
        let error = run(&request).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(is_absent(&to).await, "{to} is there after {error}");
        messages.push(error.to_string());
    }
    assert!(files_of_layout(&fixture).iter().all(|name| name == "blobs"), "{:?}", files_of_layout(&fixture));
    assert_eq!(fixture.registry().model().open_uploads(), 0, "an upload was not given up");
    messages.remove(0)
}

/// A layer whose blob has another name.
fn with_wrong_digest(compression: Compression) -> (Layer, Layer) {
    let content = vec![7; 100_000];
    let good = Layer::plain(&tar(&[Item::file("file", &content)], Dialect::Pax), compression);
    let mut other = content;
    other[70_000] = 8;
    let bad = Layer::plain(&tar(&[Item::file("file", &other)], Dialect::Pax), compression);
    (good, bad)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_with_a_wrong_diff_id_is_no_image_afterwards() {
    for format in FORMATS {
        let message = refused(&with_wrong_diff_id(), ErrorKind::Refused, |request| request.format = format).await;
        assert!(message.contains("diffID: digest mismatch"), "{message}");
    }
    let prioritised = |request: &mut ConvertRequest| request.prioritised = vec![b"file".to_vec()];
    let message = refused(&with_wrong_diff_id(), ErrorKind::Refused, prioritised).await;
    assert!(message.contains("diffID: digest mismatch"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_whose_bytes_are_others_is_no_image_afterwards() {
    let (good, bad) = with_wrong_digest(Compression::None);
    let image = ImageBuilder::new().layer(good.clone()).build();
    let fixture = Fixture::with_image(&image).await;
    // A layout whose blob was replaced by another one of the same length.
    let other = fixture.path("source");
    image.write_layout("v1", &other);
    std::fs::write(other.join("blobs/sha256").join(Digest::of(&good.blob).hex()), bad.blob).unwrap();
    for format in FORMATS {
        let source = format!("oci:{}:v1", other.display());
        let request = ConvertRequest { source, ..request(&fixture, &layout(&fixture, "v1"), format) };
        let error = run(&request).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused);
        assert!(error.to_string().contains("digest mismatch"), "{error}");
        assert!(is_absent(&layout(&fixture, "v1")).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_layer_is_refused_for_what_is_wrong_with_it() {
    let whole = gzip(&tar(&[Item::file("file", vec![9; 300_000])], Dialect::Pax));
    let half = whole[..whole.len() / 2].to_vec();
    let layer = Layer { blob: half, ..Layer::gzip(&[]) };
    refused(&ImageBuilder::new().layer(layer).build(), ErrorKind::Refused, |_| ()).await;
    let no_tar = Layer::plain(b"this is no tar at all", Compression::Gzip);
    refused(&ImageBuilder::new().layer(no_tar).build(), ErrorKind::Refused, |_| ()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_layer_is_refused_by_name() {
    let foreign = changed(&image(), |manifest| {
        manifest["layers"][1]["mediaType"] = json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
    });
    let message = refused(&foreign, ErrorKind::Refused, |_| ()).await;
    assert!(message.contains("layer 2") && message.contains("foreign"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_format_cannot_hold_is_refused_by_name() {
    let image = ImageBuilder::new().layer(Layer::gzip(&[Item::file(b"bad\xffname", "")])).build();
    for format in FORMATS {
        let message = refused(&image, ErrorKind::Refused, |request| request.format = format).await;
        assert!(message.contains("name that is not UTF-8") && message.contains("convert layer 1"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_whose_table_of_contents_would_take_too_much_memory_is_refused_with_the_limit() {
    // A part of a bomb is enough: each of its paths takes half a megabyte.
    let (_, make) = bombs(4).into_iter().find(|(name, _)| *name == "deep paths, gzip").unwrap();
    let image = ImageBuilder::new().layer(make().remove(0)).build();
    let digest = Digest::of(&image.layers[0].blob);
    let message = refused(&image, ErrorKind::Refused, |_| ()).await;
    let limit = "it would take more than 256 MiB of memory and 40 bytes for each byte that was received";
    assert!(message.contains(&format!("convert layer 1 ({digest})")) && message.contains(limit), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_false_table_of_contents_is_refused_unless_forced() {
    let mut layer = estargz(&[Item::file("file", "content")], EstargzOptions::default());
    layer.annotations.values_mut().for_each(|value| *value = Digest::of(b"another").to_string());
    let image = ImageBuilder::new().layer(layer).build();
    let message = refused(&image, ErrorKind::Refused, |_| ()).await;
    assert!(message.contains("read layer 1"), "{message}");
    let fixture = Fixture::with_image(&image).await;
    let forced = ConvertRequest { force: true, ..request(&fixture, &layout(&fixture, "v1"), LayerFormat::Estargz) };
    run(&forced).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_contradict_each_other_are_refused_before_anything_is_asked() {
    let image = image();
    let with = |format, keep_diff_id| {
        move |request: &mut ConvertRequest| {
            *request = ConvertRequest { prioritised: vec![b"a".to_vec()], format, keep_diff_id, ..request.clone() };
        }
    };
    let message = refused(&image, ErrorKind::Other, with(LayerFormat::ZstdChunked, false)).await;
    assert!(message.contains("eStargz only"), "{message}");
    let message = refused(&image, ErrorKind::Other, with(LayerFormat::Estargz, true)).await;
    assert!(message.contains("keep their diffID"), "{message}");
}

/// Stalls downloads of layers, and signals when they stall.
struct Stall {
    server: Arc<TestServer>,
    stalled: Notify,
}

impl Progress for Stall {
    fn resolved(&self, _: &Digest, layers: &[LayerPlan]) {
        self.server.script(layers.iter().map(|_| Fault::StallAfter(100)));
    }

    fn received(&self, _: usize, _: u64) {
        self.stalled.notify_one();
    }
}

#[test]
fn a_conversion_that_is_dropped_leaves_no_tag_and_no_temporary_file() {
    for prioritised in [Vec::new(), vec![b"noise".to_vec()]] {
        let runtime = Runtime::new().unwrap();
        let fixture = runtime.block_on(async {
            let fixture = Fixture::with_image(&image()).await;
            let stall = Arc::new(Stall { server: fixture.registry().clone(), stalled: Notify::new() });
            let request =
                ConvertRequest { prioritised, ..request(&fixture, &layout(&fixture, "v1"), LayerFormat::Estargz) };
            tokio::select! {
                done = convert(&request, stall.clone()) => panic!("it ended: {done:?}"),
                () = stall.stalled.notified() => {}
            }
            assert!(is_absent(&layout(&fixture, "v1")).await);
            fixture
        });
        // Ends when the writing threads have ended.
        drop(runtime);
        assert!(files_of_layout(&fixture).iter().all(|name| name == "blobs"), "{:?}", files_of_layout(&fixture));
    }
}
