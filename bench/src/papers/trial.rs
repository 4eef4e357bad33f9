//! The lines of experiments that only this benchmark has.

use anyhow::Result;
use serde_json::{Value, json};

use crate::runs::Log;

/// One run of one system in one case of an experiment.
pub(super) struct Trial<'a> {
    pub(super) experiment: &'a str,
    pub(super) case: &'a str,
    pub(super) system: &'a str,
    pub(super) number: u32,
}

impl Trial<'_> {
    /// Adds its result to the file, and prints it. A failed run is also a result, and no reason to lose the others.
    pub(super) fn log(&self, log: &mut Log, line: Result<Value>) -> Result<()> {
        let mut line = line.unwrap_or_else(|error| json!({"error": format!("{error:#}")}));
        line["experiment"] = self.experiment.into();
        line["case"] = self.case.into();
        line["system"] = self.system.into();
        line["number"] = self.number.into();
        let what = format!("{}, {}, {}, run {}", self.experiment, self.case, self.system, self.number);
        match line["error"].as_str() {
            Some(error) => println!("{what} failed: {error}"),
            None => println!("{what}: {:.2} s", line["seconds"].as_f64().unwrap_or_default()),
        }
        log.add(&line)
    }
}
