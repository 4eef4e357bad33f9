//! Limits the number of parallel requests per host, and pauses hosts that refuse.
//!
//! A registry that answers 429 or 503 addresses all requests of its clients and not just that one. So the state of a host is shared
//! by all images of this process: the number of parallel requests grows by one with each full window of good answers, and is halved
//! when the host refuses (additive increase, multiplicative decrease, as in TCP). Until the time in `Retry-After`, no request is
//! sent to it.
//!
//! A host that was slow to answer gets a longer timeout: twice the time of its last answer, or of the last request that timed out.
//! So a host that needs 6 s is not retried again and again after 5 s each.
//!
//! A request counts until the head of its answer has arrived. Its body may pause for as long as its reader likes (a pass through a
//! layer, read-ahead that gives way), and must not block other requests, perhaps those that it waits for. For the same reason a
//! request whose body is still being produced is not counted: its bytes may come from the same host.
//!
//! It is also remembered whether a host lists referrers, which saves its clients a request (`referrers.rs`).

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_blob::Fault;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use url::Url;

use super::answers::host;
use super::call::{Call, Payload};
use super::retry::{Failure, Retry, retry_after, spread};
use crate::timing;
use crate::transport::Response;

/// Parallel requests to a host without state: half of the connections that are kept open to it.
const FIRST: u32 = 16;
/// Most parallel requests, however many good answers arrived: a single client is no load test.
const MOST: u32 = 64;
/// Number of hosts above which those without a recent refusal are forgotten. Redirects can name any number.
const HOSTS: usize = 256;

/// All hosts that requests were sent to.
#[derive(Default)]
pub(crate) struct Hosts(Mutex<HashMap<String, Arc<Pace>>>);

/// The limits of one host.
pub(super) struct Pace {
    state: Mutex<State>,
    /// Whether its last answer about referrers was a list.
    lists_referrers: AtomicBool,
    /// Notified when there may be room.
    changed: Notify,
}

struct State {
    most: u32,
    under_way: u32,
    /// Good answers of this window.
    good: u32,
    /// Grows when the number was halved: answers to requests sent before that carry no new information.
    epoch: u64,
    closed_until: Option<Instant>,
    /// Time of the last refusal.
    refused: Option<Instant>,
    /// How long the host may be silent.
    time_limit: Duration,
}

/// A place among the requests under way, until the head of the answer has arrived.
pub(super) struct Slot {
    pace: Arc<Pace>,
    epoch: u64,
    counted: bool,
    /// Whether the time to the answer measures the host.
    measures: bool,
    began: Instant,
    /// How long the host may be silent.
    time_limit: Duration,
}

impl Hosts {
    /// The hosts of all images of this process.
    pub(crate) fn of_this_process() -> Arc<Self> {
        static HOSTS: LazyLock<Arc<Hosts>> = LazyLock::new(Arc::default);
        HOSTS.clone()
    }

    /// Waits until `call` may be sent to the host of `url`. The caller sets the deadline. A pause longer than the time of any
    /// request fails at once.
    pub(super) async fn enter(&self, url: &Url, call: &Call) -> Result<Slot, Failure> {
        self.of(&host(url)).enter(call, &host(url)).await
    }

    /// Whether the host of `url` is known to list referrers.
    pub(super) fn lists_referrers(&self, url: &Url) -> bool {
        self.of(&host(url)).lists_referrers.load(Relaxed)
    }

    /// Remembers whether the host of `url` lists referrers.
    pub(super) fn note_referrers(&self, url: &Url, are_listed: bool) {
        self.of(&host(url)).lists_referrers.store(are_listed, Relaxed);
    }

    fn of(&self, host: &str) -> Arc<Pace> {
        let mut hosts = self.0.lock();
        if let Some(pace) = hosts.get(host) {
            return pace.clone();
        }
        if hosts.len() >= HOSTS {
            make_room(&mut hosts);
        }
        hosts.entry(host.to_owned()).or_default().clone()
    }
}

/// Forgets hosts without a recent refusal, and if there are none, the one with the oldest refusal. Hosts in use stay.
fn make_room(hosts: &mut HashMap<String, Arc<Pace>>) {
    hosts.retain(|_, pace| Arc::strong_count(pace) > 1 || pace.is_informative());
    if hosts.len() < HOSTS {
        return;
    }
    let idle = hosts.iter().filter(|(_, pace)| Arc::strong_count(pace) == 1);
    let oldest = idle.min_by_key(|(_, pace)| pace.state.lock().refused).map(|(host, _)| host.clone());
    oldest.map(|host| hosts.remove(&host));
}

impl Default for Pace {
    fn default() -> Self {
        let time_limit = timing::FIRST_BYTE;
        let state =
            State { most: FIRST, under_way: 0, good: 0, epoch: 0, closed_until: None, refused: None, time_limit };
        Self { state: Mutex::new(state), lists_referrers: AtomicBool::new(false), changed: Notify::new() }
    }
}

impl Pace {
    async fn enter(self: Arc<Self>, call: &Call, host: &str) -> Result<Slot, Failure> {
        let measures = !matches!(call.payload, Payload::Feed(_));
        // A probe may be silent for long, and the next one must not wait for its place.
        let counted = measures && !call.is_probe;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // No notification is missed from here on.
            changed.as_mut().enable();
            match self.try_enter(counted) {
                Ok((epoch, time_limit)) => {
                    let (pace, began) = (self.clone(), Instant::now());
                    return Ok(Slot { pace, epoch, counted, measures, began, time_limit });
                }
                Err(None) => changed.await,
                Err(Some(until)) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left >= timing::REQUEST {
                        let message = format!("{}: {host} requested a pause", call.shown);
                        return Err(Failure::new(Fault::Unavailable, Retry::AfterOwn(left), message));
                    }
                    sleep_until(until).await;
                }
            }
        }
    }

    /// The epoch of the request and how long the host may be silent. If the host is closed: the time until which it is.
    fn try_enter(&self, counted: bool) -> Result<(u64, Duration), Option<Instant>> {
        let mut state = self.state.lock();
        if let Some(until) = state.closed_until {
            if Instant::now() < until {
                return Err(Some(until));
            }
            state.closed_until = None;
        }
        if counted {
            if state.under_way >= state.most {
                return Err(None);
            }
            state.under_way += 1;
        }
        Ok((state.epoch, state.time_limit))
    }

    /// Whether its state matters: it refused recently. Pauses are no longer than that.
    fn is_informative(&self) -> bool {
        let longest = timing::HOST_PAUSE_LONGEST + timing::RETRY_AFTER_SPREAD;
        self.state.lock().refused.is_some_and(|refused| refused.elapsed() < longest)
    }
}

impl State {
    /// Grows the window by one if it was full and used: many answers in sequence are no evidence for as many in parallel.
    fn succeeded(&mut self) {
        if self.under_way.saturating_mul(2) < self.most {
            return;
        }
        self.good += 1;
        if self.good >= self.most {
            (self.most, self.good) = ((self.most + 1).min(MOST), 0);
        }
    }

    fn refused(&mut self, epoch: u64, pause: Option<Duration>) {
        self.refused = Some(Instant::now());
        if epoch == self.epoch {
            (self.most, self.good, self.epoch) = ((self.most / 2).max(1), 0, self.epoch + 1);
        }
        if let Some(pause) = pause {
            let (now, pause) = (Instant::now(), pause.min(timing::HOST_PAUSE_LONGEST));
            // Spread once for all requests that are refused together: the longest of many random times would be nearly the same on all hosts.
            if self.closed_until.is_none_or(|until| until < now + pause) {
                self.closed_until = Some(now + spread(pause));
            }
        }
    }
}

impl Slot {
    /// How long the host may be silent after `call`.
    pub(super) fn time_limit(&self, call: &Call) -> Duration {
        call.time_limit.max(self.time_limit)
    }

    /// Records that the host was silent for longer than that.
    pub(super) fn was_silent(self) {
        let mut state = self.pace.state.lock();
        state.time_limit = state.time_limit.max((self.time_limit * 2).min(timing::FIRST_BYTE_LONGEST));
    }

    /// Records the head of the answer.
    pub(super) fn answered(self, response: &Response) {
        let mut state = self.pace.state.lock();
        // A body that takes its time is no measure of the host.
        if self.measures {
            state.time_limit = (self.began.elapsed() * 2).clamp(timing::FIRST_BYTE, timing::FIRST_BYTE_LONGEST);
        }
        match response.status.as_u16() {
            429 | 503 => state.refused(self.epoch, retry_after(&response.headers)),
            _ => state.succeeded(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.counted {
            self.pace.state.lock().under_way -= 1;
        }
        self.pace.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn answer(status: u16, pause: Option<&str>) -> Response {
        let mut headers = HeaderMap::new();
        headers.extend(pause.map(|pause| (http::header::RETRY_AFTER, pause.parse().unwrap())));
        let status = StatusCode::from_u16(status).unwrap();
        Response { status, headers, body: futures::stream::empty().boxed() }
    }

    struct Host(Arc<Hosts>, Url);

    impl Host {
        fn new() -> Self {
            Self(Arc::default(), "https://registry.test/v2/".parse().unwrap())
        }

        fn enter(&self) -> Option<Slot> {
            self.0.enter(&self.1, &Call::get("x")).now_or_never()?.ok()
        }

        /// Takes all places that are available at once.
        fn all(&self) -> Vec<Slot> {
            std::iter::from_fn(|| self.enter()).collect()
        }

        fn finish(places: Vec<Slot>, status: u16) {
            places.into_iter().for_each(|place| place.answered(&answer(status, None)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_window_of_good_answers_adds_one_request_if_the_window_was_used() {
        let host = Host::new();
        for _ in 0..100 {
            Host::finish(vec![host.enter().unwrap()], 200);
        }
        assert_eq!(host.all().len(), 16);
        // Half of a window counts, as long as half of it is in use.
        for places in [16, 16] {
            let all = host.all();
            assert_eq!(all.len(), places);
            Host::finish(all, 206);
        }
        assert_eq!(host.all().len(), 17);
    }

    #[tokio::test(start_paused = true)]
    async fn one_crowd_that_is_refused_halves_once_and_one_request_is_always_let_in() {
        let host = Host::new();
        for left in [8, 4, 2, 1, 1, 1] {
            Host::finish(host.all(), 503);
            assert_eq!(host.all().len(), left);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_until_the_pause_is_over() {
        let host = Host::new();
        let began = Instant::now();
        host.enter().unwrap().answered(&answer(429, Some("7")));
        assert!(host.enter().is_none());
        let call = Call::get("x");
        let waiting = (0..20).map(|_| async {
            let place = host.0.enter(&host.1, &call).await;
            let (earliest, latest) = (Duration::from_secs(7), Duration::from_millis(8_750));
            assert!(place.is_ok_and(|_place| (earliest..latest).contains(&began.elapsed())));
        });
        futures::future::join_all(waiting).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_longer_than_any_request_fails_at_once_with_its_reason() {
        let host = Host::new();
        host.enter().unwrap().answered(&answer(429, Some("86400")));
        let failed = host.0.enter(&host.1, &Call::get("x")).now_or_never().unwrap();
        let failure = failed.err().unwrap();
        let longest = timing::HOST_PAUSE_LONGEST + timing::RETRY_AFTER_SPREAD;
        let Retry::AfterOwn(left) = failure.retry else { panic!("{failure:?}") };
        assert!((timing::HOST_PAUSE_LONGEST..longest).contains(&left), "{left:?}");
        assert!(failure.error.to_string().contains("registry.test requested a pause"), "{}", failure.error);
        tokio::time::advance(longest).await;
        assert!(host.enter().is_some(), "what was meant for one user does not last for ever for all");
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_slot_goes_to_the_next_request() {
        let host = Host::new();
        let mut places = host.all();
        let call = Call::get("x");
        let waiting = host.0.enter(&host.1, &call);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(places.pop());
        assert!(waiting.now_or_never().is_some_and(|place| place.is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_slow_gets_more_time_until_it_answers_fast() {
        let host = Host::new();
        let time_limit = || host.enter().unwrap().time_limit(&Call::get("x"));
        let slow = Duration::from_secs(6);
        assert_eq!(time_limit(), timing::FIRST_BYTE);
        // Of many requests that timed out together, one counts.
        for expected in [2, 4, 4] {
            host.all().into_iter().for_each(Slot::was_silent);
            assert_eq!(time_limit(), timing::FIRST_BYTE * expected);
        }
        let place = host.enter().unwrap();
        tokio::time::advance(slow).await;
        place.answered(&answer(206, None));
        assert_eq!(time_limit(), slow * 2);
        host.enter().unwrap().answered(&answer(206, None));
        assert_eq!(time_limit(), timing::FIRST_BYTE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_probe_does_not_count_as_a_request() {
        let host = Host::new();
        Host::finish(host.all(), 503);
        let probing = Call::get("x").probing();
        let probes: Vec<_> = (0..10).map(|_| host.0.enter(&host.1, &probing).now_or_never().unwrap()).collect();
        assert_eq!((probes.len(), host.all().len()), (10, 8));
    }

    #[tokio::test(start_paused = true)]
    async fn refusing_hosts_are_remembered_among_many_hosts() {
        let host = Host::new();
        Host::finish(host.all(), 429);
        for number in 0..1_000 {
            let url: Url = format!("https://host{number}.test/").parse().unwrap();
            assert!(host.0.enter(&url, &Call::get("x")).await.is_ok());
        }
        assert!(host.0.0.lock().len() <= HOSTS + 1);
        assert_eq!(host.all().len(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_that_refuse_are_forgotten_after_a_while_and_the_oldest_when_there_are_too_many() {
        let hosts: Arc<Hosts> = Arc::default();
        let of = |number: usize| Host(hosts.clone(), format!("https://host{number}.test/").parse().unwrap());
        for number in 0..3 * HOSTS {
            of(number).enter().unwrap().answered(&answer(503, None));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(hosts.0.lock().len(), HOSTS);
        assert_eq!(of(3 * HOSTS - 1).all().len(), 8, "the latest is remembered");
        assert_eq!(of(0).all().len(), 16);
        tokio::time::advance(timing::HOST_PAUSE_LONGEST + timing::RETRY_AFTER_SPREAD).await;
        drop(of(3 * HOSTS).enter());
        assert_eq!(hosts.0.lock().len(), 1);
    }
}
