//! Readers of one piece in many interleavings: one request at a time, and no reader waits in vain or is affected by another that leaves.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tarpon_blob::{Fault, SourceError};
use tarpon_testkit::interleaving::{block_on, explore, point, rand, thread};
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, Packer, table_of};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::fetcher::{Fetcher, ImageHandle};
use crate::lanes::Lanes;
use crate::pieces::piece_in_layer;

const READERS: usize = 3;

/// One piece, and everything that a flight of it needs.
struct World {
    flights: Arc<Flights>,
    lanes: Arc<Lanes>,
    piece: Piece,
    _image: Arc<ImageHandle>,
    /// Requests whose pieces are not kept.
    requests: AtomicUsize,
}

/// How a request ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Delivered,
    Failed,
    Cancelled,
    /// With its first chunk before the rest, which arrives or fails.
    FirstThenDelivered,
    FirstThenFailed,
}

const CONTENT: &[u8] = b"the bytes of an object";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// An image of one piece.
fn image(runtime: &tokio::runtime::Handle) -> (Arc<ImageHandle>, Piece) {
    let mut packer = Packer::new(Form::Raw);
    packer.object(CONTENT, 4096);
    let layer = packer.finish();
    let fetcher = Fetcher::new(Arc::new(MemoryStore::default()), runtime.clone(), Config::default());
    let source = Arc::new(MemorySource::new([layer.bytes.clone()]));
    let image = fetcher.add_image(table_of(&[&layer]), source, "test:latest");
    let piece = piece_in_layer(&image.image, 0).unwrap();
    (Arc::new(image), piece)
}

fn world((image, piece): &(Arc<ImageHandle>, Piece)) -> Arc<World> {
    let config = Config::default();
    let (flights, lanes) = (Arc::new(Flights::new(&config)), Arc::new(Lanes::new(&config)));
    Arc::new(World { flights, lanes, piece: piece.clone(), _image: image.clone(), requests: AtomicUsize::new(0) })
}

impl World {
    fn plan(&self, pieces: &[Piece], lane: Lane) -> Vec<RequestFlights> {
        self.requests.fetch_add(1, SeqCst);
        let request = Request::new(pieces, &[], Priority::new(&self.lanes, lane), lane);
        let flights = pieces.iter().map(|piece| Flight::new(piece.clone(), lane, &request)).collect();
        vec![RequestFlights { flights, neighbours: Vec::new(), registry: self.flights.clone(), request }]
    }

    /// Joins the flight of the piece, or starts a request that ends like this.
    fn join(self: &Arc<Self>, end: End) -> Ticket {
        let pieces = vec![self.piece.clone()];
        let plan = |new: Vec<Piece>, _| self.plan(&new, Lane::Demand);
        let (tickets, planned) = self.flights.join_or_plan(Instant::now(), pieces, Vec::new(), plan);
        self.start(planned, end);
        tickets.into_iter().next().unwrap()
    }

    fn start(self: &Arc<Self>, planned: Vec<RequestFlights>, end: End) {
        for request in planned {
            // A task that never runs: only its abortion counts.
            request.request.started(tokio::spawn(std::future::pending::<()>()).abort_handle());
            let world = self.clone();
            thread::spawn(move || world.fly(request, end));
        }
    }

    /// The task of a request.
    fn fly(&self, request: RequestFlights, end: End) {
        point();
        let flight = request.flights[0].clone();
        // Ended with its last waiter.
        if request.request.abort.lock().is_none() {
            return;
        }
        if matches!(end, End::FirstThenDelivered | End::FirstThenFailed) {
            let chunk = Verified::check(&self.piece.chunks[0].digest, Bytes::from_static(CONTENT));
            self.flights.deliver_first(&flight, chunk.unwrap());
            point();
        }
        match end {
            End::Delivered | End::FirstThenDelivered => {
                self.flights.deliver(&flight, Outcome::Kept);
                point();
                self.requests.fetch_sub(1, SeqCst);
                self.flights.land(&flight);
            }
            End::Failed | End::FirstThenFailed => {
                self.flights.fail(&flight, SourceError::new(Fault::BadData, "scripted").into())
            }
            End::Cancelled => drop(request),
        }
    }

    fn is_idle(&self) {
        assert_eq!(self.flights.count(), 0);
        assert!(!self.lanes.has_demand());
    }
}

/// Waits for the piece as long as it takes.
fn wait(world: &World, ticket: &Ticket) -> Result<(), PieceError> {
    let limit = Duration::from_secs(28);
    let _piece = &world.piece;
    block_on(ticket.wait(Clock::begin(limit), limit, |_| true)).map(drop)
}

/// Runs in all schedules, inside of a runtime whose clock stands still.
fn explore_with(readers: impl Fn(&Arc<World>) + Send + Sync + Clone + 'static) {
    let runtime = runtime();
    let _context = runtime.enter();
    let image = image(runtime.handle());
    explore(move || readers(&world(&image)));
}

fn spawn(world: &Arc<World>, reader: impl FnOnce(&Arc<World>) + Send + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || reader(&world))
}

#[test]
fn readers_of_a_piece_share_one_request_and_all_get_its_result() {
    explore_with(|world| {
        let read = |world: &Arc<World>| {
            let ticket = world.join(End::Delivered);
            assert!(world.requests.load(SeqCst) <= 1);
            assert!(wait(world, &ticket).is_ok());
        };
        let readers: Vec<_> = (0..READERS).map(|_| spawn(world, read)).collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        drop_tasks(world);
    });
}

#[test]
fn a_reader_that_leaves_ends_the_request_only_if_it_is_the_last() {
    explore_with(|world| {
        let leave = |world: &Arc<World>| {
            let ticket = world.join(End::Delivered);
            point();
            drop(ticket);
        };
        let stay = |world: &Arc<World>| {
            let ticket = world.join(End::Delivered);
            assert!(wait(world, &ticket).is_ok(), "another reader left, and this one was waiting");
        };
        let leavers: Vec<_> = (0..2).map(|_| spawn(world, leave)).collect();
        let stayers: Vec<_> = (0..2).map(|_| spawn(world, stay)).collect();
        leavers.into_iter().chain(stayers).for_each(|reader| reader.join().unwrap());
        drop_tasks(world);
    });
}

#[test]
fn a_request_that_fails_or_is_cancelled_wakes_all_and_the_next_reader_makes_its_own() {
    explore_with(|world| {
        let end = [End::Failed, End::Cancelled][usize::from(rand::Rng::r#gen::<bool>(&mut rand::thread_rng()))];
        let read = move |world: &Arc<World>| {
            let ticket = world.join(end);
            match wait(world, &ticket) {
                Err(PieceError::Source(_)) => assert!(end == End::Failed),
                Err(PieceError::Cancelled) => assert!(end == End::Cancelled),
                _ => panic!("an outcome that no request had"),
            }
        };
        let readers: Vec<_> = (0..READERS).map(|_| spawn(world, read)).collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        drop_tasks(world);
        let again = world.join(End::Delivered);
        assert_eq!(
            wait(world, &again).is_ok(),
            end == End::Cancelled,
            "a failure is remembered, a cancellation is not"
        );
    });
}

#[test]
fn a_reader_gets_the_first_chunk_whatever_becomes_of_the_rest() {
    explore_with(|world| {
        let end = [End::FirstThenDelivered, End::FirstThenFailed]
            [usize::from(rand::Rng::r#gen::<bool>(&mut rand::thread_rng()))];
        let read = move |world: &Arc<World>| match world.join(end) {
            // It came after the request had failed.
            Ticket::Failed(_) => assert!(end == End::FirstThenFailed),
            ticket => assert!(wait(world, &ticket).is_ok()),
        };
        let readers: Vec<_> = (0..READERS).map(|_| spawn(world, read)).collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        drop_tasks(world);
    });
}

#[test]
fn a_request_whose_readers_left_with_the_first_chunk_brings_the_rest() {
    explore_with(|world| {
        let read = |world: &Arc<World>| {
            let ticket = world.join(End::FirstThenDelivered);
            assert!(wait(world, &ticket).is_ok());
        };
        let readers: Vec<_> = (0..READERS).map(|_| spawn(world, read)).collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        drop_tasks(world);
        assert_eq!(world.requests.load(SeqCst), 0, "a request ended without the rest");
    });
}

#[test]
fn a_reader_that_joins_a_prefetch_raises_it_and_leaves_it_running() {
    explore_with(|world| {
        let prefetch = |world: &Arc<World>| {
            let planned = world.flights.plan_missing(vec![world.piece.clone()], |new| world.plan(&new, Lane::Ahead));
            world.start(planned, End::Delivered);
        };
        let leave = |world: &Arc<World>| drop(world.join(End::Delivered));
        let stay = |world: &Arc<World>| {
            let ticket = world.join(End::Delivered);
            if let Ticket::Flying(claim) = &ticket {
                assert!(claim.flight.request.priority.is_awaited());
            }
            assert!(wait(world, &ticket).is_ok());
        };
        let all = [spawn(world, prefetch), spawn(world, leave), spawn(world, stay)];
        all.into_iter().for_each(|thread| thread.join().unwrap());
        drop_tasks(world);
    });
}

/// Lets the requests end, and checks that nothing is left of them.
fn drop_tasks(world: &World) {
    while world.flights.count() > 0 {
        thread::yield_now();
    }
    while world.lanes.has_demand() {
        thread::yield_now();
    }
    world.is_idle();
}
