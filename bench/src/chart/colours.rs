//! Colours of series, on a light and a dark background; distinguishable also with red-green colour blindness.

/// Known series have the same colour in every picture: systems that pull everything are grey, tarpon is blue to green, others are
/// yellow to red.
const KNOWN: [(&str, &str); 21] = [
    ("podman", "#8c959f"),
    ("containerd", "#b5a694"),
    ("tarpon-streamed", "#9fb3d9"),
    ("tarpon-index", "#56b4e9"),
    ("tarpon-index-fuse", "#7f9ce0"),
    ("tarpon-estargz", "#2aa5b8"),
    ("tarpon-pack", "#1f6fc8"),
    ("tarpon-pack-fuse", "#5560c9"),
    ("tarpon-warm", "#a8cf8e"),
    ("podman-tarpon", "#c3a3e0"),
    ("podman-tarpon-pack", "#8e5bbd"),
    ("containerd-tarpon", "#5cc7b0"),
    ("containerd-tarpon-pack", "#00876c"),
    ("podman-stargz", "#e69f00"),
    ("containerd-stargz", "#f2c14e"),
    ("containerd-soci", "#d55e00"),
    ("overlayfs", "#8c959f"),
    ("runc on overlayfs", "#8c959f"),
    ("tarpon-native", "#1f6fc8"),
    ("tarpon-fuse", "#5cb0e9"),
    ("tarpon run", "#1f6fc8"),
];

/// Colours of other series, in order.
const OTHERS: [&str; 6] = ["#1f6fc8", "#e08214", "#00a37a", "#cc79a7", "#b8860b", "#7a6f9b"];

/// The colour of a series; `place` is its index among those of its picture.
pub(super) fn colour(series: &str, place: usize) -> &'static str {
    let known = KNOWN.iter().find(|(known, _)| *known == series);
    known.map_or(OTHERS[place % OTHERS.len()], |(_, colour)| colour)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_known_series_has_its_colour_wherever_it_stands() {
        assert_eq!(colour("tarpon-pack", 0), colour("tarpon-pack", 5));
        assert_ne!(colour("something", 0), colour("something", 1));
    }

    #[test]
    fn no_two_ways_to_start_have_the_same_colour() {
        let ways: Vec<_> = KNOWN.iter().take_while(|(name, _)| *name != "overlayfs").collect();
        let colours: BTreeSet<_> = ways.iter().map(|(_, colour)| colour).collect();
        assert_eq!(colours.len(), ways.len());
    }
}
