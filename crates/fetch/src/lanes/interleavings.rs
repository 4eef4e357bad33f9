//! Requests that wait for each other in many interleavings: what ends a wait also wakes the request that waits.

use tarpon_testkit::interleaving::{block_on, explore, point, thread};

use super::*;

struct World {
    lanes: Arc<Lanes>,
    image: Budget,
}

fn world() -> Arc<World> {
    let config = Config { ahead_bytes: 4096, trace_bytes: 4096, host_bytes: 4096, ..Config::default() };
    Arc::new(World { lanes: Arc::new(Lanes::new(&config)), image: Budget::new(1 << 20) })
}

impl World {
    fn request(&self, lane: Lane) -> Arc<Priority> {
        Arc::new(Priority::new(&self.lanes, lane))
    }
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_reader_that_joins_a_paused_request_wakes_it() {
    explore(|| {
        let world = world();
        let (demand, early) = (world.request(Lane::Demand), world.request(Lane::Ahead));
        let raised = early.clone();
        let pausing = spawn(&world, move |world| {
            assert!(block_on(world.lanes.give_way(Lane::Ahead, &early)).is_none());
            assert!(early.is_awaited() && world.lanes.has_demand());
        });
        let joining = spawn(&world, move |_| {
            point();
            raised.raise();
        });
        join([pausing, joining]);
        drop(demand);
        assert!(!world.lanes.has_demand());
    });
}

#[test]
fn a_request_whose_bytes_arrived_wakes_all_that_waited_for_demand_to_end() {
    explore(|| {
        let world = world();
        let demands = [world.request(Lane::Demand), world.request(Lane::Demand)];
        let pausing = spawn(&world, |world| {
            let early = world.request(Lane::Trace);
            assert!(block_on(world.lanes.give_way(Lane::Trace, &early)).is_none());
            assert!(!early.is_awaited());
        });
        let waiting = spawn(&world, |world| {
            block_on(world.lanes.no_demand());
            assert!(!world.lanes.has_demand());
        });
        let arriving = demands.clone().map(|demand| {
            spawn(&world, move |_| {
                point();
                demand.lower();
            })
        });
        join(arriving.into_iter().chain([pausing, waiting]));
        // They are still on the wire, so it is not quiet yet.
        let quiet = spawn(&world, |world| block_on(world.lanes.quiet()));
        let ending = demands.map(|demand| {
            spawn(&world, move |_| {
                point();
                demand.settle();
            })
        });
        join(ending.into_iter().chain([quiet]));
    });
}

#[test]
fn room_that_is_given_back_wakes_the_next_reader() {
    explore(|| {
        let world = world();
        let readers = [(); 3].map(|()| {
            spawn(&world, |world| {
                let room = block_on(world.lanes.admit_demand(&world.image, 4096));
                point();
                assert!(room.is_some());
            })
        });
        join(readers);
    });
}

#[test]
fn a_reader_that_joins_a_request_without_room_gets_it_the_room_of_demand() {
    for lane in [Lane::Trace, Lane::Whole] {
        explore(move || {
            let world = world();
            let (other, early) = (world.request(lane), world.request(lane));
            let all = block_on(world.lanes.admit(&world.image, lane, &other, 4096));
            assert!(all.is_some());
            let raised = early.clone();
            let waiting = spawn(&world, move |world| {
                assert!(block_on(world.lanes.admit(&world.image, lane, &early, 4096)).is_some());
                assert!(early.is_awaited(), "there was no other room");
            });
            let joining = spawn(&world, move |_| {
                point();
                raised.raise();
            });
            join([waiting, joining]);
        });
    }
}
