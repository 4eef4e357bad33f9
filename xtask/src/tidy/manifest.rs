//! The dependencies of a package, parsed from its Cargo.toml line by line: the rules need line numbers.

/// The Cargo.toml of a package.
pub(super) struct Manifest {
    pub(super) path: String,
    pub(super) name: String,
    pub(super) dependencies: Vec<Dependency>,
}

/// One dependency.
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) line: usize,
    /// Only for tests and benchmarks.
    pub(super) dev: bool,
}

impl Manifest {
    pub(super) fn new(path: &str, text: &str) -> Option<Self> {
        if path != "Cargo.toml" && !path.ends_with("/Cargo.toml") {
            return None;
        }
        let mut manifest = Self { path: path.to_owned(), name: String::new(), dependencies: Vec::new() };
        let mut section = String::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_end_matches(']').to_owned();
                manifest.header(&section, number + 1);
            } else if let Some((key, value)) = line.split_once('=') {
                manifest.entry(&section, key.trim(), value.trim(), number + 1);
            }
        }
        (!manifest.name.is_empty()).then_some(manifest)
    }

    /// The name of this package's folder in crates/.
    pub(super) fn crate_name(&self) -> Option<&str> {
        let name = self.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        (!name.contains('/')).then_some(name)
    }

    /// `[dependencies.name]` is a dependency too.
    fn header(&mut self, section: &str, line: usize) {
        if let Some((table, name)) = section.rsplit_once('.')
            && let Some(dev) = dependency_table(table)
        {
            self.dependencies.push(Dependency { name: unquote(name), line, dev });
        }
    }

    fn entry(&mut self, section: &str, key: &str, value: &str, line: usize) {
        if section == "package" && key == "name" {
            self.name = unquote(value);
        }
        if let Some(dev) = dependency_table(section) {
            // `name.workspace = true`, `name = { package = "real-name", … }`
            let key = key.split('.').next().unwrap_or(key);
            let renamed = value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
            self.dependencies.push(Dependency { name: unquote(renamed.unwrap_or(key)), line, dev });
        }
    }
}

/// Whether a section lists dependencies, and if so whether they are only for tests.
fn dependency_table(section: &str) -> Option<bool> {
    if section.starts_with("workspace") {
        return None;
    }
    // `target.'cfg(…)'.dependencies` ends the same way.
    match section.rsplit('.').next() {
        Some("dependencies" | "build-dependencies") => Some(false),
        Some("dev-dependencies") => Some(true),
        _ => None,
    }
}

fn unquote(text: &str) -> String {
    text.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_dependency_is_read() {
        let text = r#"
[package]
name = "tarpon-x"
[dependencies]
a = "1"
b.workspace = true
c = { package = "real-c", version = "1" }
[target.'cfg(unix)'.dependencies]
d = "1"
[dependencies.e]
version = "1"
[dev-dependencies]
f = "1"
"#;
        let manifest = Manifest::new("crates/x/Cargo.toml", text).unwrap();
        let found: Vec<_> = manifest.dependencies.iter().map(|d| (d.name.as_str(), d.line, d.dev)).collect();
        let (normal, dev) = (false, true);
        assert_eq!(
            found,
            [
                ("a", 5, normal),
                ("b", 6, normal),
                ("real-c", 7, normal),
                ("d", 9, normal),
                ("e", 10, normal),
                ("f", 13, dev)
            ]
        );
        assert_eq!(manifest.crate_name(), Some("x"));
    }

    #[test]
    fn a_workspace_is_no_package() {
        assert!(Manifest::new("Cargo.toml", "[workspace.dependencies]\na = \"1\"\n").is_none());
    }
}
