//! The phases of a start, from the data of a run.

use serde_json::Value;

use crate::chart::timeline::{Asked, Phase, Timeline};
use crate::start::table::kinds::is_eager;

/// The picture of a run with recorded requests.
pub(super) fn timeline(title: String, run: &Value) -> Option<Timeline> {
    let requests: Vec<Asked> = run["timeline"].as_array()?.iter().filter_map(asked).collect();
    let phases = phases(run, &requests)?;
    let end = phases.last()?.end;
    Some(Timeline { title, phases, requests: requests.into_iter().filter(|request| request.asked <= end).collect() })
}

fn asked(request: &Value) -> Option<Asked> {
    let number = |place: usize| request[place].as_f64();
    let name = request[4].as_str()?.to_owned();
    Some(Asked { name, asked: number(0)?, first: number(1)?, last: number(2)?, bytes: number(3)? })
}

/// The consecutive phases of a start.
fn phases(run: &Value, requests: &[Asked]) -> Option<Vec<Phase>> {
    let ready = run["ready"].as_f64()?;
    let mounted = run["mounted"].as_f64();
    let manifest = requests.iter().find(|request| request.name.contains("manifests/")).map(|request| request.last);
    // Data that arrived before the mount.
    let brought =
        requests.iter().map(|request| request.last).filter(|last| mounted.is_some_and(|mounted| *last <= mounted));
    let is_eager = run["system"].as_str().is_some_and(is_eager);
    let ends = [
        ("resolve", requests.first().map(|first| first.asked)),
        ("manifest", manifest),
        (if is_eager { "pull" } else { "index" }, brought.reduce(f64::max)),
        (if is_eager { "unpack and mount" } else { "mount" }, mounted),
        ("first exec", run["exec"].as_f64()),
        ("ready", Some(ready)),
    ];
    let (mut phases, mut begin) = (Vec::new(), 0.0);
    for (name, end) in ends {
        if let Some(end) = end.filter(|end| *end > begin && *end <= ready) {
            phases.push(Phase { name, begin, end });
            begin = end;
        }
    }
    Some(phases)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn phases_follow_each_other_to_the_end() {
        let run = json!({"system": "tarpon-pack", "mounted": 0.5, "exec": 0.7, "ready": 1.0, "timeline": [
            [0.1, 0.2, 0.2, 10, "manifests/v1"], [0.2, 0.3, 0.4, 10, "blobs/index"], [0.3, 0.4, 0.9, 10, "blobs/pack"],
            [1.5, 1.6, 1.7, 10, "after it was ready"],
        ]});
        let timeline = timeline("t".to_owned(), &run).unwrap();
        let phases: Vec<_> = timeline.phases.iter().map(|phase| (phase.name, phase.end)).collect();
        let wanted =
            [("resolve", 0.1), ("manifest", 0.2), ("index", 0.4), ("mount", 0.5), ("first exec", 0.7), ("ready", 1.0)];
        assert_eq!(phases, wanted);
        assert_eq!(timeline.requests.len(), 3);
    }

    #[test]
    fn a_run_that_failed_has_no_picture() {
        assert!(timeline("t".to_owned(), &json!({"timeline": [], "error": "no"})).is_none());
    }
}
