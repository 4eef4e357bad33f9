//! The rows: one for each file.

use std::collections::HashMap;
use std::fmt::Write;

use tarpon_oci::Digest;

use super::page::{DRAWN_FILES, LEFT, Page};
use super::scale::{size, time};
use super::svg::Svg;
use crate::model::{Origin, Trace};
use crate::summary::TouchedFile;

/// Number of layer colours. Further layers share one more.
const COLOURS: [&str; 8] = ["l0", "l1", "l2", "l3", "l4", "l5", "l6", "l7"];
/// Characters of a path that fit beside the rows.
const NAME_CHARS: usize = 44;
/// The height of a name.
const NAME: u64 = 13;
/// Width of the mark of a touch.
const MARK: u64 = 3;

/// Draws the rows, their names, and the key to the colours of the layers.
pub(super) fn draw(svg: &mut Svg, trace: &Trace, files: &[TouchedFile], page: &Page) {
    let (layers, named) = (Layers::of(files), named(files, page));
    for (number, (file, place)) in files.iter().zip(&page.rows).enumerate() {
        let name = named[number].then(|| name(file));
        svg.group("row", &about(file), |svg| {
            row(svg, page, *place, name.as_deref(), layers.class(file));
            marks(svg, trace, file, page, *place);
        });
    }
    layers.draw(svg, page);
    if files.len() > DRAWN_FILES {
        let text = format!("and {} files more", files.len() - DRAWN_FILES);
        svg.text("dim end", [LEFT - 16, page.bottom() + 18], &text);
    }
}

/// The CSS class of an origin.
pub(super) fn class(from: Option<Origin>) -> &'static str {
    from.map_or("unknown", Origin::name)
}

/// A row without its marks.
fn row(svg: &mut Svg, page: &Page, (top, height): (u64, u64), name: Option<&str>, layer: &str) {
    svg.rect("hit", [0, top], [page.right(), height]);
    svg.rect(layer, [LEFT - 10, top], [5, if height > 6 { height - 1 } else { height }]);
    if let Some(name) = name {
        svg.text("name dim end", [LEFT - 16, top + height.div_ceil(2) + 4], name);
    }
}

/// Bars of waits, and marks of arrivals. Of marks at the same position one is drawn.
fn marks(svg: &mut Svg, trace: &Trace, file: &TouchedFile, page: &Page, (top, height): (u64, u64)) {
    let (inset, mut drawn) = (if height > 6 { 2 } else { 0 }, HashMap::new());
    // Rows may be very low, and waits must be visible.
    let height = (height - 2 * inset).max(2);
    for touch in file.touches.iter().map(|&number| &trace.touches[number]) {
        let (asked, arrived) = (page.x(touch.at), page.x(touch.at + touch.stall));
        if drawn.insert(touch.from, (asked, arrived)) == Some((asked, arrived)) {
            continue;
        }
        let class = class(touch.from);
        if arrived > asked {
            svg.rect(&format!("{class} wait"), [asked, top + inset], [arrived - asked, height]);
        }
        svg.rect(class, [arrived, top + inset], [MARK, height]);
    }
}

/// The files that are labelled: all if there is room, otherwise those with the longest waits.
fn named(files: &[TouchedFile], page: &Page) -> Vec<bool> {
    let mut order: Vec<usize> = (0..page.rows.len()).collect();
    order.sort_by_key(|&number| (std::cmp::Reverse((files[number].stall, files[number].touched)), number));
    let mut named = vec![false; files.len()];
    let mut taken = std::collections::BTreeSet::new();
    for number in order {
        let (top, height) = page.rows[number];
        let middle = top + height / 2;
        if taken.range(middle.saturating_sub(NAME) + 1..middle + NAME).next().is_none() {
            taken.insert(middle);
            named[number] = true;
        }
    }
    named
}

/// The end of the path, which identifies it better than its beginning.
fn name(file: &TouchedFile) -> String {
    let Some(path) = &file.path else { return short(&file.object) };
    match path.char_indices().rev().nth(NAME_CHARS - 1) {
        Some((at, _)) if at > 0 => {
            let rest: String = path[at..].chars().skip(1).collect();
            format!("…{rest}")
        }
        _ => path.clone(),
    }
}

/// The tooltip of a row.
fn about(file: &TouchedFile) -> String {
    let mut about = file.path.clone().unwrap_or_else(|| file.object.to_string());
    let (touched, whole) = (size(file.touched), size(file.size));
    write!(about, "\n{touched} touched of {whole}\nfirst after {}", time(file.at)).expect("a String takes it");
    if !file.from.is_empty() {
        let from: Vec<&str> = file.from.iter().map(|from| from.name()).collect();
        write!(about, "\nfrom {}", from.join(", ")).expect("a String takes it");
    }
    if !file.stall.is_zero() {
        write!(about, "\nwaited {}", time(file.stall)).expect("a String takes it");
    }
    about
}

fn short(digest: &Digest) -> String {
    format!("sha256:{}", &digest.hex()[..12])
}

/// The layers of a trace, in the order of first touch, each with its number of files.
struct Layers(Vec<(Digest, usize)>);

impl Layers {
    fn of(files: &[TouchedFile]) -> Self {
        let (mut places, mut layers) = (HashMap::new(), Vec::new());
        for layer in files.iter().filter_map(|file| file.layer) {
            let place = *places.entry(layer).or_insert_with(|| {
                layers.push((layer, 0));
                layers.len() - 1
            });
            layers[place].1 += 1;
        }
        Self(layers)
    }

    fn class(&self, file: &TouchedFile) -> &'static str {
        let mut coloured = self.0.iter().zip(COLOURS);
        coloured.find(|((layer, _), _)| Some(*layer) == file.layer).map_or("other", |(_, class)| class)
    }

    fn draw(&self, svg: &mut Svg, page: &Page) {
        if self.0.is_empty() {
            return;
        }
        let y = page.bottom() + 46;
        svg.text("dim", [24, y], "layers");
        let mut x = 74;
        for ((layer, files), class) in self.0.iter().zip(COLOURS) {
            let text = format!("{} ({files})", &layer.hex()[..8]);
            svg.rect(class, [x, y - 9], [10, 10]);
            svg.text("dim", [x + 15, y], &text);
            x += 32 + 13 * text.len() as u64 / 2;
        }
        if self.0.len() > COLOURS.len() {
            svg.text("dim", [x, y], &format!("and {} more", self.0.len() - COLOURS.len()));
        }
    }
}
