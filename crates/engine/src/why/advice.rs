//! Advice on slow mounts. Each piece of advice contains its figures, and is not given without them.

use tarpon_fetch::{Event, START, WaitSum, WaitedFor};
use tarpon_oci::Source;
use tarpon_store::{LayerRecord, Verification};

use super::explanation::{Advice, Explanation, Topic};
use tarpon_client::protocol::{Backfill, LayerVerification};

/// Waits that are shorter in total need no action: users do not notice them.
const WORTH_MILLIS: u64 = 100;
/// Minimum share of the wait, in percent, for a layer or a reason to be mentioned.
const SHARE: u64 = 20;
/// Share of unread bytes, in percent, from which a boot pack was evidently recorded of another start.
const WASTE: u64 = 50;
/// Unread bytes below this do not matter.
const WASTED_BYTES: u64 = 1 << 20;

/// The advice that the figures call for, the gravest first.
pub(super) fn advice(explained: &Explanation, layers: &[LayerRecord]) -> Vec<Advice> {
    let rules = [
        (Topic::Distrust, distrust(explained)),
        (Topic::Source, source(explained)),
        (Topic::Store, store(explained)),
        (Topic::PackGivenUp, pack_given_up(explained)),
        (Topic::NoPack, no_pack(explained)),
        (Topic::PackWaste, pack_waste(explained)),
        (Topic::WholeLayer, whole_layer(explained)),
        (Topic::NoIndex, no_index(explained, layers)),
        (Topic::NotComplete, not_complete(explained)),
    ];
    rules.into_iter().filter_map(|(about, text)| Some(Advice { about, text: text? })).collect()
}

fn distrust(explained: &Explanation) -> Option<String> {
    let (layer, reason) = explained.events.iter().rev().find_map(|noted| match &noted.event {
        Event::Distrusted { layer, reason } => Some((layer, reason)),
        _ => None,
    })?;
    Some(format!(
        "layer {layer} is not read any more: {reason}. Unmount the image and mount it again, without the index that was wrong"
    ))
}

fn source(explained: &Explanation) -> Option<String> {
    let failures = explained.events.iter().filter_map(|noted| match &noted.event {
        Event::SourceFailed { reason } | Event::SourceRests { reason } => Some((noted.times, reason)),
        _ => None,
    });
    let (mut times, mut last) = (0, None);
    for (count, reason) in failures {
        times += count;
        last = Some(reason);
    }
    let more = match explained.mount.backfill {
        Some(_) => "see that it answers",
        None => "see that it answers, or mount with --backfill idle, so that less depends on it",
    };
    Some(format!("the source failed {}, the last time with: {}. {more}", times_in_words(times), last?))
}

fn store(explained: &Explanation) -> Option<String> {
    let (times, reason) = explained.events.iter().rev().find_map(|noted| match &noted.event {
        Event::StoreRefused { reason } => Some((noted.times, reason)),
        _ => None,
    })?;
    Some(format!(
        "the store took nothing {}, so what was fetched has to be fetched again: {reason}. `tarpon cache gc` or a larger --store-size makes room",
        times_in_words(times)
    ))
}

fn pack_given_up(explained: &Explanation) -> Option<String> {
    let reason = explained.events.iter().rev().find_map(|noted| match &noted.event {
        Event::PackGivenUp { reason } => Some(reason),
        _ => None,
    })?;
    let record = record(explained).map(|command| format!(". {command} makes a new one")).unwrap_or_default();
    Some(format!("the boot pack was given up: {reason}{record}"))
}

/// Waits for bytes of layers, how many and how long.
fn for_layers(explained: &Explanation, of: impl Fn(&WaitSum) -> (u64, u64)) -> (u64, u64) {
    let of_layers =
        explained.waits.iter().filter(|wait| !matches!(wait.waited_for, WaitedFor::Pack | WaitedFor::Local));
    of_layers.map(of).fold((0, 0), |(stalls, millis), more| (stalls + more.0, millis + more.1))
}

fn no_pack(explained: &Explanation) -> Option<String> {
    let (count, millis) = for_layers(explained, |wait| (wait.start_stalls, wait.start_millis));
    if explained.has_pack || millis < WORTH_MILLIS {
        return None;
    }
    Some(format!(
        "{} waited {} in all within {} s of loading the image, which has no boot pack: {} would have these bytes brought before they are asked for",
        reads(count),
        seconds(millis),
        START.as_secs(),
        record(explained)?,
    ))
}

fn pack_waste(explained: &Explanation) -> Option<String> {
    let is_over = explained.events.iter().any(|noted| noted.event == Event::PackEnded);
    let pack = &explained.pack;
    let known = pack.used + pack.unused;
    if !is_over || pack.unused < WASTED_BYTES || share(pack.unused, known) < WASTE {
        return None;
    }
    Some(format!(
        "{} % of what the boot pack brought, as far as that is known, has not been read ({} of {} bytes): it was recorded of another start than this; {} replaces it",
        share(pack.unused, known),
        pack.unused,
        known,
        record(explained)?,
    ))
}

fn whole_layer(explained: &Explanation) -> Option<String> {
    let all: u64 = explained.waits.iter().map(|wait| wait.millis).sum();
    let worst =
        explained.waits.iter().filter(|wait| wait.waited_for == WaitedFor::WholeLayer).max_by_key(|w| w.millis)?;
    if worst.millis < WORTH_MILLIS || share(worst.millis, all) < SHARE {
        return None;
    }
    Some(format!(
        "{} % of the wait ({}) was on layer {}, which can only be decoded from its beginning: `tarpon convert` makes an image of which any part can be read",
        share(worst.millis, all),
        seconds(worst.millis),
        worst.layer?,
    ))
}

fn no_index(explained: &Explanation, layers: &[LayerRecord]) -> Option<String> {
    // An image that was completed in the background was not downloaded before the mount.
    if explained.mount.backfill.is_some() || registry_name(explained).is_none() {
        return None;
    }
    let all = &explained.mount.verification;
    let streamed: Vec<_> = all.iter().filter(|layer| was_streamed(layer)).collect();
    let size = |digest| layers.iter().find(|layer| layer.digest == digest).map_or(0, |layer| layer.size);
    let bytes: u64 = streamed.iter().map(|layer| size(layer.digest)).sum();
    if bytes < WASTED_BYTES {
        return None;
    }
    Some(format!(
        "{} of {} layers, {} % of the image's bytes, do not say what is in them and were downloaded whole before the image could be mounted: `tarpon index --push {}` publishes an index (with --index-repo also of images of others), with which `--index registry` mounts it at once",
        streamed.len(),
        all.len(),
        share(bytes, explained.mount.image_bytes),
        registry_name(explained)?,
    ))
}

fn not_complete(explained: &Explanation) -> Option<String> {
    let later =
        |wait: &WaitSum| (wait.stalls.saturating_sub(wait.start_stalls), wait.millis.saturating_sub(wait.start_millis));
    let (count, millis) = for_layers(explained, later);
    let backfill = explained.mount.backfill.as_ref().is_some_and(|backfill| backfill.how != Backfill::Off);
    if backfill || millis < WORTH_MILLIS {
        return None;
    }
    Some(format!(
        "{} waited {} in all later than {} s after loading the image: with --backfill idle the rest of it is fetched while no reader waits",
        reads(count),
        seconds(millis),
        START.as_secs(),
    ))
}

/// The command that records a start of the image. `None` if it cannot be pushed to.
fn record(explained: &Explanation) -> Option<String> {
    Some(format!("`tarpon record --push {}`", registry_name(explained)?))
}

/// The image, if it is in a registry: nothing can be published beside others.
fn registry_name(explained: &Explanation) -> Option<&str> {
    let source: Source = explained.mount.image.parse().ok()?;
    matches!(source, Source::Registry(_)).then_some(&*explained.mount.image)
}

fn reads(count: u64) -> String {
    if count == 1 { "1 read".to_owned() } else { format!("{count} reads") }
}

fn times_in_words(times: u64) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times") }
}

/// Percent, rounded down.
fn share(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(100).min(100)
}

fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}

/// Whether the layer has no index, and was read whole to make one.
fn was_streamed(layer: &LayerVerification) -> bool {
    layer.format.is_plain() && layer.state == Verification::DiffId
}

#[cfg(test)]
mod tests;
