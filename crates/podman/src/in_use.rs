//! Which layers containers use, according to the kernel's tables of mounts: a container's root is an overlay whose options name the links
//! of its layers.

use std::collections::HashSet;

/// One of `links` that is part of a mount visible to some process. Mounts that this user may not see are not found.
pub(crate) fn mounted(links: &HashSet<String>) -> Option<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let mut seen = HashSet::new();
    // Processes of one mount namespace see the same mounts.
    let tables = processes.filter_map(|process| {
        let namespace = std::fs::read_link(process.path().join("ns/mnt")).ok()?;
        seen.insert(namespace).then(|| std::fs::read(process.path().join("mountinfo")).ok())?
    });
    tables.into_iter().find_map(|table| named(&table, links))
}

/// A link that an overlay in this table of mounts names.
fn named(table: &[u8], links: &HashSet<String>) -> Option<String> {
    let overlays =
        table.split(|byte| *byte == b'\n').filter(|line| line.windows(11).any(|part| part == b" - overlay "));
    let words = overlays.flat_map(|line| line.split(|byte| !byte.is_ascii_uppercase() && !byte.is_ascii_digit()));
    let mut words = words.filter_map(|word| std::str::from_utf8(word).ok());
    words.find(|word| links.contains(*word)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_the_options_of_overlays_alone() {
        let link = "JDDMLLXPFNJ5UKQPRVFMYEFE64".to_owned();
        let links = HashSet::from([link.clone()]);
        let line = |kind: &str, dir: &str| {
            format!(
                "100 99 0:50 / /merged rw - {kind} overlay rw,lowerdir={dir}/overlay/l/{link}:/x/l/OTHER,upperdir=/u\n"
            )
        };
        for (table, found) in [
            (line("overlay", "/s"), Some(link.clone())),
            (line("overlay", "/s").replace("lowerdir=", "lowerdir+="), Some(link.clone())),
            (line("fuse", "/s"), None),
            (line("overlay", "/s").replace(&link, "JDDMLLXPFNJ5UKQPRVFMYEFE65"), None),
            (line("overlay", "/s").replace(&link, &format!("{link}A")), None),
        ] {
            assert_eq!(named(table.as_bytes(), &links), found, "{table}");
        }
    }
}
