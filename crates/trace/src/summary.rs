//! A trace file by file, and in numbers.

use std::collections::HashMap;
use std::time::Duration;

use tarpon_oci::Digest;

use crate::model::{Origin, Trace};

/// All that a trace says of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TouchedFile {
    /// The object.
    pub object: Digest,
    /// How large it is.
    pub size: u64,
    /// How many bytes of it were touched.
    pub touched: u64,
    /// When it was touched first.
    pub at: Duration,
    /// A layer that has it.
    pub layer: Option<Digest>,
    /// A path that it has.
    pub path: Option<String>,
    /// Where its bytes came from, each origin once.
    pub from: Vec<Origin>,
    /// How long readers waited for it, in all.
    pub stall: Duration,
    /// The places of its touches in the trace.
    pub touches: Vec<usize>,
}

/// A trace in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects that were touched.
    pub files: usize,
    /// Bytes that were touched.
    pub touched: u64,
    /// Bytes of the objects that were touched.
    pub size: u64,
    /// How long readers waited, in all.
    pub stall: Duration,
    /// How often a reader waited.
    pub stalls: usize,
}

impl Trace {
    /// What was touched, object by object, in the order of first touch.
    pub fn files(&self) -> Vec<TouchedFile> {
        let (mut places, mut files) = (HashMap::new(), Vec::<TouchedFile>::new());
        for (number, touch) in self.touches.iter().enumerate() {
            let place = *places.entry(touch.object).or_insert_with(|| {
                files.push(TouchedFile {
                    object: touch.object,
                    size: touch.size,
                    touched: 0,
                    at: touch.at,
                    layer: None,
                    path: None,
                    from: Vec::new(),
                    stall: Duration::ZERO,
                    touches: Vec::new(),
                });
                files.len() - 1
            });
            let file = &mut files[place];
            file.touched += touch.range.end - touch.range.start;
            file.stall += touch.stall;
            file.layer = file.layer.or(touch.layer);
            file.path = file.path.take().or_else(|| touch.path.clone());
            file.touches.push(number);
            if let Some(from) = touch.from.filter(|from| !file.from.contains(from)) {
                file.from.push(from);
            }
        }
        files
    }

    /// The sums.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for file in self.files() {
            totals.files += 1;
            totals.touched += file.touched;
            totals.size += file.size;
            totals.stall += file.stall;
        }
        totals.stalls = self.touches.iter().filter(|touch| !touch.stall.is_zero()).count();
        totals
    }
}
