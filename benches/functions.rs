//! All cases of this package, timed: `cargo bench -p tarpon-benches --bench functions [-- NAME]`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tarpon_benches::CASES;

fn all(criterion: &mut Criterion) {
    for case in CASES {
        let mut runs = None;
        criterion.bench_function(case.name, |bencher| {
            // Built only if this case was selected.
            let runs = runs.get_or_insert_with(case.make);
            bencher.iter_batched(&*runs, |run| black_box(run()), BatchSize::PerIteration);
        });
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
