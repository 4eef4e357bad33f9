//! A trace by file, and its totals.

use std::collections::HashMap;
use std::time::Duration;

use tarpon_oci::Digest;

use crate::model::{Origin, Trace};

/// The touches of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TouchedFile {
    /// The object.
    pub object: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The number of touched bytes.
    pub touched: u64,
    /// Time of the first touch.
    pub at: Duration,
    /// A layer that contains it.
    pub layer: Option<Digest>,
    /// One of its paths.
    pub path: Option<String>,
    /// The origins of its bytes, each once.
    pub from: Vec<Origin>,
    /// Sum of the readers' waits for it.
    pub stall: Duration,
    /// Indexes of its touches in the trace.
    pub touches: Vec<usize>,
}

/// Totals of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Touched objects.
    pub files: usize,
    /// Touched bytes.
    pub touched: u64,
    /// Total size of the touched objects in bytes.
    pub size: u64,
    /// Sum of all waits.
    pub stall: Duration,
    /// Number of waits.
    pub stalls: usize,
}

impl Trace {
    /// The touches by object, in the order of first touch.
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

    /// The totals.
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
