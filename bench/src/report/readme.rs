//! The two pictures of the README: the time to ready and the bytes until then, over one link, for few systems.

use serde_json::Value;

use super::section::Picture;
use super::starts::{link_words, medians, usual_link};
use crate::chart::axis::Unit;
use crate::chart::bars::Bars;
use crate::runs::{Runs, text};
use crate::start::table::{best_rival, times_as_fast};

const EAGER: &str = "podman";
const PREDICTED: &str = "tarpon-predicted";
const PACK: &str = "tarpon-pack";

pub(super) fn pictures(runs: &Runs) -> Vec<Picture> {
    let Some(link) = usual_link(runs) else { return Vec::new() };
    let words = link_words(&link);
    let what = [
        ("readme-start", "ready", Unit::Seconds, format!("Seconds from nothing local to ready, {words}")),
        ("readme-bytes", "bytes", Unit::Bytes, format!("Bytes over the wire until ready, {words}")),
    ];
    let draw = |(file, field, unit, title): (&str, &str, Unit, String)| {
        let svg = bars(runs, &link, field, unit, title).draw()?;
        Some(Picture { svg, file: Some(file.to_owned()) })
    };
    what.into_iter().filter_map(draw).collect()
}

fn bars(runs: &Runs, link: &str, field: &str, unit: Unit, title: String) -> Bars {
    let mut shown: Vec<String> = [EAGER, "tarpon-index", PREDICTED, PACK].map(str::to_owned).into();
    shown.extend(best_rival(runs, link));
    let mut groups = medians(runs, link, field, |system| shown.iter().any(|shown| shown == system));
    for group in &mut groups {
        // In the order of the legend, not of the runs.
        group.bars.sort_by_key(|bar| shown.iter().position(|system| *system == bar.series));
        let all = group.bars.iter().find(|bar| bar.series == EAGER).map(|bar| bar.value);
        for bar in group.bars.iter_mut().filter(|bar| bar.series == PACK) {
            let note = match unit {
                Unit::Seconds => {
                    times_as_fast(runs, [link, &group.name, PACK]).map(|fast| format!("{fast:.1} × as fast"))
                }
                _ => all.map(|all| format!("{:.0} %", bar.value / all * 100.0)),
            };
            bar.note = note.unwrap_or_default();
        }
    }
    let is_there = |system: &&String| groups.iter().flat_map(|group| &group.bars).any(|bar| bar.series == **system);
    let legend = shown.iter().filter(is_there).map(|system| (system.clone(), name(system))).collect();
    Bars { title, unit, groups, mark: None, legend, caption: caption(runs, link) }
}

/// The name of a system for readers who do not know the benchmark.
fn name(system: &str) -> String {
    match system {
        EAGER => "podman pull + run".to_owned(),
        "tarpon-index" => "tarpon, index".to_owned(),
        PREDICTED => "tarpon, index with a predicted start".to_owned(),
        PACK => "tarpon, index with a recorded start".to_owned(),
        other => ["podman-", "containerd-", "nydus-"]
            .iter()
            .fold(other.to_owned(), |name, engine| name.replacen(engine, &engine.replace('-', ", "), 1)),
    }
}

/// Date, machine and command of the measurement.
fn caption(runs: &Runs, link: &str) -> String {
    let cells = runs.cells(["link", "workload", "system"]);
    let most = cells.iter().filter(|(key, _)| key[0] == link).map(|(_, lines)| lines.len()).max();
    let mut words = vec![format!("medians of {} runs, least to most", most.unwrap_or(0))];
    for header in runs.headers_of(|line| line["link"] == link) {
        // Words that several commands share appear once.
        for word in origin(header) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    words.join(" · ")
}

/// Date, machine and command from a header.
fn origin(header: &Value) -> Vec<String> {
    let machine = &header["machine"];
    let words = [
        header.get("date").map(|_| text(header, "date")),
        machine.get("processor").map(|_| text(machine, "processor")),
        machine.get("cores").map(|_| format!("{} cores", text(machine, "cores"))),
        machine.get("kernel").map(|_| format!("Linux {}", text(machine, "kernel"))),
        header.get("command").map(|_| text(header, "command")),
    ];
    words.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: &str = r#"{"command": "cargo xtask bench start", "date": "2026-01-02", "machine": {"processor": "P", "cores": 2, "kernel": "6.18"}}
{"link": "1gbit,1ms", "workload": "w", "system": "podman", "ready": 4.0, "bytes": 100, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "podman-stargz", "ready": 4.0, "bytes": 30e6, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-pack", "ready": 2.0, "bytes": 9e6, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-warm", "ready": 0.2, "bytes": 0, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "podman", "ready": 9.0, "bytes": 100e6, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "podman-tarpon-pack", "ready": 3.0, "bytes": 9e6, "number": 1}
"#;

    #[test]
    fn the_pictures_show_few_systems_over_the_usual_link_and_say_how_they_were_made() {
        let pictures = pictures(&Runs::parse(RUNS).unwrap());
        let [start, bytes] = &pictures[..] else { panic!("{} pictures", pictures.len()) };
        assert_eq!((start.file.as_deref(), bytes.file.as_deref()), (Some("readme-start"), Some("readme-bytes")));
        let caption = "medians of 1 runs, least to most · 2026-01-02 · P · 2 cores · Linux 6.18 · cargo xtask bench";
        for words in [caption, "100 Mbit/s", "podman pull + run", "podman, stargz", ">9.00 s<", "4.5 × as fast"] {
            assert!(start.svg.contains(words), "{words}: {}", start.svg);
        }
        for words in ["warm", "podman-tarpon", "0.20 s", "tarpon, index<"] {
            assert!(!start.svg.contains(words), "{words}: {}", start.svg);
        }
        assert!(bytes.svg.contains(">100 MB<") && bytes.svg.contains(">9 %<"), "{}", bytes.svg);
    }

    #[test]
    fn a_second_command_is_named_too_and_one_over_another_link_is_not() {
        let header =
            |command: &str| format!("{{\"command\": \"{command}\", \"date\": \"2026-01-02\", \"machine\": {{}}}}\n");
        let line = |link: &str| {
            format!("{{\"link\": \"{link}\", \"workload\": \"w\", \"system\": \"podman\", \"number\": 1}}\n")
        };
        let text = [header("one"), line("l"), header("two"), line("l"), header("three"), line("m")].concat();
        let caption = caption(&Runs::parse(&text).unwrap(), "l");
        assert_eq!(caption, "medians of 2 runs, least to most · 2026-01-02 · one · two");
    }

    #[test]
    fn without_the_usual_link_it_is_the_first_one() {
        let other = RUNS.replace("100mbit,10ms", "25mbit,80ms");
        assert_eq!(usual_link(&Runs::parse(&other).unwrap()).as_deref(), Some("1gbit,1ms"));
        assert!(pictures(&Runs::parse("{\"machine\":{}}\n").unwrap()).is_empty());
    }
}
