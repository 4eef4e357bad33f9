//! [`Preparations`]: within a process, requests for the same image join the one under way and share its outcome.

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::Result;
use crate::image::{ImageRequest, Prepared};

/// Preparations under way in this process.
#[derive(Debug, Default)]
pub(crate) struct Preparations(Mutex<Vec<Flight>>);

type Outcome = Option<Result<Prepared>>;

#[derive(Debug)]
struct Flight {
    request: ImageRequest,
    outcome: watch::Receiver<Outcome>,
}

/// The caller that does the work. If it is dropped before the end, another one takes over.
struct Leader<'f> {
    flights: &'f Preparations,
    request: &'f ImageRequest,
    outcome: watch::Sender<Outcome>,
}

impl Preparations {
    /// The outcome of `work`, or of the same work under way already.
    pub(crate) async fn join(
        &self,
        request: &ImageRequest,
        work: impl Future<Output = Result<Prepared>>,
    ) -> Result<Prepared> {
        loop {
            let mut under_way = match self.begin(request) {
                Ok(leader) => {
                    let outcome = work.await;
                    leader.outcome.send_replace(Some(outcome.clone()));
                    return outcome;
                }
                Err(under_way) => under_way,
            };
            // An error means that the leader was cancelled and left no outcome.
            let landed = under_way.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
            if let Some(outcome) = landed {
                return outcome;
            }
        }
    }

    /// `Err`: another caller is the leader.
    fn begin<'f>(&'f self, request: &'f ImageRequest) -> std::result::Result<Leader<'f>, watch::Receiver<Outcome>> {
        let mut flights = self.0.lock();
        if let Some(flight) = flights.iter().find(|flight| flight.request == *request) {
            return Err(flight.outcome.clone());
        }
        let (sender, receiver) = watch::channel(None);
        flights.push(Flight { request: request.clone(), outcome: receiver });
        Ok(Leader { flights: self, request, outcome: sender })
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        // Later callers find it in the store, or try again.
        self.flights.0.lock().retain(|flight| flight.request != *self.request);
    }
}
