//! The mounts that are returned to containerd.

use std::path::Path;

use crate::messages::Mount;
use crate::record::Kind;
use crate::records::Snapshot;

/// Exists if overlayfs supports the option `index`.
const INDEX: &str = "/sys/module/overlay/parameters/index";

/// Options that all overlays have.
pub(crate) fn usual_options() -> Vec<String> {
    // With an index overlayfs rejects an upper directory that was used with other lower mounts, as after layers were mounted again.
    Path::new(INDEX).exists().then(|| "index=off".to_owned()).into_iter().collect()
}

/// The mount of `snapshot` on `stack`, uppermost first.
pub(crate) fn mounts(snapshot: &Snapshot, stack: &[Snapshot], usual: &[String]) -> Vec<Mount> {
    let is_view = snapshot.record.kind == Kind::View;
    vec![match stack {
        [] => bind(&snapshot.fs(), if is_view { "ro" } else { "rw" }),
        [only] if is_view => bind(&only.fs(), "ro"),
        _ => {
            let mut options = usual.to_vec();
            if !is_view {
                options.push(format!("workdir={}", snapshot.work().display()));
                options.push(format!("upperdir={}", snapshot.fs().display()));
            }
            let lower: Vec<String> = stack.iter().map(|layer| layer.fs().display().to_string()).collect();
            options.push(format!("lowerdir={}", lower.join(":")));
            mount("overlay", "overlay", options)
        }
    }]
}

fn bind(source: &Path, access: &str) -> Mount {
    mount("bind", &source.display().to_string(), vec![access.to_owned(), "rbind".to_owned()])
}

fn mount(kind: &str, source: &str, options: Vec<String>) -> Mount {
    Mount { r#type: kind.to_owned(), source: source.to_owned(), target: String::new(), options }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Labels, Record};

    fn snapshot(number: u8, kind: Kind) -> Snapshot {
        let record = Record::new("any", "", kind, Labels::new());
        Snapshot { folder: format!("/s/{number}").into(), record }
    }

    fn shown(kind: Kind, stack: u8) -> (String, String, String) {
        let stack: Vec<_> = (0..stack).map(|number| snapshot(number, Kind::Committed)).collect();
        let shown = mounts(&snapshot(9, kind), &stack, &["index=off".to_owned()]);
        let [Mount { r#type, source, target, options }] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!(target, "");
        (r#type.clone(), source.clone(), options.join(","))
    }

    #[test]
    fn one_layer_is_bound_and_several_are_overlaid() {
        let expected = |kind: &str, source: &str, options: &str| (kind.into(), source.into(), options.into());
        assert_eq!(shown(Kind::Active, 0), expected("bind", "/s/9/fs", "rw,rbind"));
        assert_eq!(shown(Kind::View, 0), expected("bind", "/s/9/fs", "ro,rbind"));
        assert_eq!(shown(Kind::View, 1), expected("bind", "/s/0/fs", "ro,rbind"));
        let options = "index=off,workdir=/s/9/work,upperdir=/s/9/fs,lowerdir=/s/0/fs";
        assert_eq!(shown(Kind::Active, 1), expected("overlay", "overlay", options));
        assert_eq!(shown(Kind::View, 2), expected("overlay", "overlay", "index=off,lowerdir=/s/0/fs:/s/1/fs"));
    }
}
