//! [`plot`]: a trace as a self-contained SVG, legible on white and on black.
//!
//! The horizontal axis is time. Each row is a file, in the order of first touch. A mark shows the arrival of bytes, and the bar before it
//! the reader's wait. The curve above the rows shows the total of the bytes that had arrived.

mod page;
mod rows;
mod scale;
mod svg;

use std::fmt::Write;

use page::{CURVE, HEAD, LEFT, Page, WIDTH};
use scale::{size, ticks, time, time_ticks};
use svg::Svg;

use crate::model::{Origin, Trace};
use crate::summary::Totals;

const STYLE: &str = include_str!("style.css");
/// Characters of the title that fit on the page.
const TITLE_CHARS: usize = 90;
/// Maximum number of lines across the curve.
const SIZE_TICKS: u64 = 4;
/// Maximum number of lines along the time axis.
const TIME_TICKS: u64 = 10;

/// Draws `trace`. Deterministic.
pub fn plot(trace: &Trace) -> String {
    let (files, totals) = (trace.files(), trace.totals());
    let page = Page::of(trace, &files);
    let mut svg = Svg::new(WIDTH, page.height, STYLE);
    head(&mut svg, trace, &totals);
    time_axis(&mut svg, trace, &page);
    curve(&mut svg, trace, &page, totals.touched);
    rows::draw(&mut svg, trace, &files, &page);
    ready(&mut svg, trace, &page);
    svg.finish()
}

fn head(svg: &mut Svg, trace: &Trace, totals: &Totals) {
    let header = &trace.header;
    svg.text("title ink", [24, 32], &shortened(&header.image, TITLE_CHARS));
    let mut about = format!("profile {}", header.profile);
    if !header.command.is_empty() {
        write!(about, " · {}", header.command.join(" ")).expect("a String takes it");
    }
    svg.text("dim", [24, 52], &shortened(&about, TITLE_CHARS * 3 / 2));
    svg.text("ink", [24, 74], &numbers(trace, totals));
    let mut x = 24;
    for from in [Some(Origin::Demand), Some(Origin::Prefetch), Some(Origin::Local), None] {
        let is_there = trace.touches.iter().any(|touch| touch.from == from);
        if is_there {
            svg.rect(rows::class(from), [x, 88], [10, 10]);
            svg.text("dim", [x + 16, 97], meaning(from));
            x += 30 + 7 * meaning(from).len() as u64;
        }
    }
    if !totals.stall.is_zero() {
        svg.rect("demand wait", [x, 90], [24, 6]);
        svg.text("dim", [x + 30, 97], "a reader waits");
    }
}

fn meaning(from: Option<Origin>) -> &'static str {
    match from {
        Some(Origin::Demand) => "fetched when read",
        Some(Origin::Prefetch) => "fetched ahead",
        Some(Origin::Local) => "was here",
        None => "touched",
    }
}

/// The line with the totals.
fn numbers(trace: &Trace, totals: &Totals) -> String {
    let files = if totals.files == 1 { "file" } else { "files" };
    let mut line = format!("{} {files} · {} touched of {}", totals.files, size(totals.touched), size(totals.size));
    if totals.stalls > 0 {
        let times = if totals.stalls == 1 { "read" } else { "reads" };
        write!(line, " · waited {} in {} {times}", time(totals.stall), totals.stalls).expect("a String takes it");
    }
    if let Some(ready) = trace.header.ready {
        write!(line, " · ready after {}", time(ready)).expect("a String takes it");
    }
    if trace.header.truncated {
        line.push_str(" · the trace is not complete");
    }
    line
}

fn time_axis(svg: &mut Svg, trace: &Trace, page: &Page) {
    let bottom = page.bottom();
    for tick in time_ticks(page.end, TIME_TICKS) {
        let x = page.x(tick);
        svg.line("grid", [x, CURVE.0], [x, bottom + 4]);
        svg.text("dim middle", [x, bottom + 18], &time(tick));
    }
    if trace.touches.is_empty() {
        svg.text("dim middle", [page.x(page.end / 2), CURVE.0 + CURVE.1 / 2], "nothing was touched");
    }
}

/// The bytes that had arrived by each time, as a step curve.
fn curve(svg: &mut Svg, trace: &Trace, page: &Page, all: u64) {
    let (top, height) = CURVE;
    let y = |bytes: u64| top + height - page::share(bytes, all.max(1), height);
    for tick in ticks(all, SIZE_TICKS) {
        svg.line("grid", [LEFT, y(tick)], [page.right(), y(tick)]);
        svg.text("dim", [page.right() + 6, y(tick) + 4], &size(tick));
    }
    svg.text("dim end", [LEFT - 16, top + 12], "bytes touched, in all");
    let mut arrived: Vec<_> = trace.touches.iter().map(|t| (t.at + t.stall, t.range.end - t.range.start)).collect();
    arrived.sort_unstable();
    let (mut path, mut sum, mut last) = (format!("M{LEFT} {}", y(0)), 0, (LEFT, y(0)));
    for (at, bytes) in arrived {
        sum += bytes;
        let next = (page.x(at), y(sum));
        if next.0 != last.0 {
            write!(path, "H{}", next.0).expect("a String takes it");
        }
        if next.1 != last.1 {
            write!(path, "V{}", next.1).expect("a String takes it");
        }
        last = next;
    }
    svg.path("area", &format!("{path}H{}V{}Z", page.right(), y(0)));
    svg.path("curve", &format!("{path}H{}", page.right()));
}

fn ready(svg: &mut Svg, trace: &Trace, page: &Page) {
    let Some(at) = trace.header.ready else { return };
    let x = page.x(at);
    svg.line("ready", [x, HEAD - 6], [x, page.bottom()]);
    let text = format!("ready {}", time(at));
    // Beside the line, where there is room.
    let class = if x + 100 > page.right() { "readytext end" } else { "readytext" };
    svg.text(class, [if class.ends_with("end") { x - 5 } else { x + 5 }, HEAD + 2], &text);
}

/// The first `most` characters.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}
