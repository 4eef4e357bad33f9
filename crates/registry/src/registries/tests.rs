use std::path::Path;

use super::file::Contents;
use super::{Registries, RegistriesError, RegistriesPaths};

fn of(files: &[&str]) -> Registries {
    let mut all = Registries::default();
    for text in files {
        all.update(Contents::parse(text).unwrap(), Path::new("test.conf"));
    }
    all
}

/// The names at the endpoints of an image, with `!` behind an insecure one.
fn endpoints(config: &str, image: &str) -> Vec<String> {
    let found = of(&[config]).endpoints(&image.parse().unwrap()).unwrap();
    found.iter().map(|found| format!("{}{}", found.reference, if found.insecure { "!" } else { "" })).collect()
}

fn refusal(config: &str) -> String {
    Contents::parse(config).unwrap_err()
}

const MIRRORED: &str = r#"
[[registry]]
prefix = "docker.io"
location = "docker.io"
[[registry.mirror]]
location = "mirror.example:5000/hub/"
insecure = true
[[registry.mirror]]
location = "digests.example"
pull-from-mirror = "digest-only"
[[registry.mirror]]
location = "tags.example"
pull-from-mirror = "tag-only"
"#;

const DIGEST: &str = "@sha256:0123456789012345678901234567890123456789012345678901234567890123";

#[test]
fn mirrors_come_before_the_registry() {
    let expected =
        ["mirror.example:5000/hub/library/redis:7!", "tags.example/library/redis:7", "docker.io/library/redis:7"];
    assert_eq!(endpoints(MIRRORED, "redis:7"), expected);
    assert_eq!(endpoints(MIRRORED, "quay.io/team/app"), ["quay.io/team/app:latest"]);
}

#[test]
fn a_mirror_may_be_for_tags_or_for_digests_only() {
    let pinned = endpoints(MIRRORED, &format!("redis{DIGEST}"));
    assert_eq!(pinned[1], format!("digests.example/library/redis{DIGEST}"));
    assert_eq!(pinned.len(), 3);
    let by_digest =
        "[[registry]]\nlocation=\"a.example\"\nmirror-by-digest-only=true\n[[registry.mirror]]\nlocation=\"m.example\"";
    assert_eq!(endpoints(by_digest, "a.example/x:1"), ["a.example/x:1"]);
    assert_eq!(endpoints(by_digest, &format!("a.example/x:1{DIGEST}")).len(), 2);
}

#[test]
fn a_location_replaces_the_prefix() {
    let config = "[[registry]]\nprefix=\"a.example/old\"\nlocation=\"b.example/new/team\"";
    assert_eq!(endpoints(config, "a.example/old/app:1"), ["b.example/new/team/app:1"]);
    assert_eq!(endpoints(config, "a.example/older/app:1"), ["a.example/older/app:1"]);
    let image = "[[registry]]\nprefix=\"a.example/app\"\nlocation=\"b.example/other\"";
    assert_eq!(endpoints(image, "a.example/app:1"), ["b.example/other:1"]);
    let tag = "[[registry]]\nprefix=\"a.example/app:1\"\nlocation=\"b.example/app:2\"";
    assert_eq!(endpoints(tag, "a.example/app:1"), ["a.example/app:1"], "a prefix is one of names without tags");
}

#[test]
fn a_prefix_with_an_asterisk_matches_the_hosts_of_a_domain() {
    let config = "[[registry]]\nprefix=\"*.a.example\"\nlocation=\"b.example\"";
    assert_eq!(endpoints(config, "x.y.a.example/app:1"), ["b.example/app:1"]);
    assert_eq!(endpoints(config, "a.example/app:1"), ["a.example/app:1"]);
    assert_eq!(endpoints(config, "c.example/x.a.example/app:1"), ["c.example/x.a.example/app:1"]);
    let insecure = "[[registry]]\nprefix=\"*.a.example\"\ninsecure=true";
    assert_eq!(endpoints(insecure, "x.a.example/app:1"), ["x.a.example/app:1!"]);
}

#[test]
fn the_longest_prefix_counts() {
    let config = r#"
        [[registry]]
        location = "a.example"
        insecure = true
        [[registry]]
        location = "a.example/team"
        blocked = true
        [[registry]]
        location = "a.example/team/app"
    "#;
    assert_eq!(endpoints(config, "a.example/other:1"), ["a.example/other:1!"]);
    assert_eq!(endpoints(config, "a.example/team/app:1"), ["a.example/team/app:1"]);
    let refused = of(&[config]).endpoints(&"a.example/team/secret".parse().unwrap()).unwrap_err();
    assert_eq!(refused.to_string(), "test.conf blocks a.example/team");
}

#[test]
fn a_mirror_or_location_that_is_blocked_by_itself_is_not_asked() {
    let config = r#"
        [[registry]]
        location = "a.example"
        [[registry.mirror]]
        location = "b.example/x"
        [[registry]]
        prefix = "c.example"
        location = "b.example"
        [[registry]]
        location = "b.example/x"
        blocked = true
    "#;
    assert_eq!(endpoints(config, "a.example/app:1"), ["a.example/app:1"]);
    let all = of(&[config]);
    assert!(all.endpoints(&"c.example/x/app".parse().unwrap()).is_err());
    assert!(all.endpoints(&"c.example/y".parse().unwrap()).is_ok());
    // Podman looks only at the entry of the location, and pulls it; its manual states that it does not.
    let moved = "[[registry]]\nprefix=\"a.example\"\nlocation=\"b.example\"\nblocked=true";
    assert!(of(&[moved]).endpoints(&"a.example/app".parse().unwrap()).is_err());
}

#[test]
fn a_location_that_is_no_name_is_an_error() {
    let config = "[[registry]]\nprefix=\"a.example\"\nlocation=\"b.example/UPPER\"";
    let refused = of(&[config]).endpoints(&"a.example/app".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("the location b.example/UPPER leads to \"b.example/UPPER/app:latest\""), "{refused}");
    let hostless = "[[registry]]\nlocation=\"a.example\"\n[[registry.mirror]]\nlocation=\"mirror/hub\"";
    let refused = of(&[hostless]).endpoints(&"a.example/app".parse().unwrap()).unwrap_err().to_string();
    assert!(
        refused.ends_with("\"mirror/hub/app:latest\": it begins with no registry"),
        "not an image of Docker Hub: {refused}"
    );
}

#[test]
fn later_files_replace_registries_with_the_same_prefix_and_whole_lists() {
    let first = r#"
        unqualified-search-registries = ["a.example"]
        [[registry]]
        location = "a.example"
        blocked = true
        [aliases]
        "app" = "a.example/app"
        "tool" = "a.example/tool"
    "#;
    let second = r#"
        [[registry]]
        location = "a.example"
        [aliases]
        "app" = ""
        "tool" = "b.example/tool"
    "#;
    let all = of(&[first, second]);
    assert_eq!(all.endpoints(&"a.example/x".parse().unwrap()).unwrap().len(), 1);
    assert_eq!(all.full_names("app:1").unwrap(), ["a.example/app:1"], "by the search registry");
    assert_eq!(all.full_names("tool").unwrap(), ["b.example/tool"]);
    let third = of(&[first, second, "unqualified-search-registries = []"]);
    assert_eq!(third.full_names("app").unwrap(), ["app"], "which is at Docker Hub");
}

#[test]
fn short_names_are_completed() {
    let config = r#"
        unqualified-search-registries = ["a.example", "docker.io"]
        [aliases]
        "redis" = "docker.io/library/redis"
        "team/app" = "b.example:5000/team/app"
    "#;
    let all = of(&[config]);
    assert_eq!(all.full_names("redis:7").unwrap(), ["docker.io/library/redis:7"]);
    assert_eq!(all.full_names(&format!("team/app{DIGEST}")).unwrap(), [format!("b.example:5000/team/app{DIGEST}")]);
    assert_eq!(all.full_names("other/app:1").unwrap(), ["a.example/other/app:1", "docker.io/other/app:1"]);
    for full in ["a.example/app", "localhost/app", "host:5000/app"] {
        assert_eq!(all.full_names(full).unwrap(), [full]);
    }
    let enforcing = of(&[config, "short-name-mode = \"enforcing\""]);
    assert!(matches!(enforcing.full_names("app"), Err(RegistriesError::Ambiguous { .. })));
    assert!(enforcing.full_names("redis").is_ok());
    assert_eq!(of(&[]).full_names("redis").unwrap(), ["redis"]);
}

#[test]
fn version_1_of_the_format_is_understood_alone() {
    let config = r#"
        [registries.search]
        registries = ["a.example"]
        [registries.insecure]
        registries = ["b.example"]
        [registries.block]
        registries = ["c.example"]
    "#;
    let all = of(&[config]);
    assert_eq!(all.full_names("app").unwrap(), ["a.example/app"]);
    assert_eq!(endpoints(config, "b.example/app"), ["b.example/app:latest!"]);
    assert!(all.endpoints(&"c.example/app".parse().unwrap()).is_err());
    assert!(refusal(&format!("{config}\n[[registry]]\nlocation=\"d.example\"")).contains("mixes"));
}

#[test]
fn an_invalid_file_is_an_error_with_a_reason() {
    for (config, why) in [
        ("[[registry]]\ninsecure=true", "neither a prefix nor a location"),
        ("[[registry]]\nprefix=\"a.example\"", "no location"),
        ("[[registry]]\nprefix=\"*.a.example/x\"\nlocation=\"b\"", "not of the form *.example.com"),
        ("[[registry]]\nlocation=\"https://a.example\"", "is not HOST[:PORT][/PATH]"),
        (
            "[[registry]]\nlocation=\"a.example\"\n[[registry.mirror]]\ninsecure=true",
            "a mirror of a.example has no location",
        ),
        (
            "[[registry]]\nlocation=\"a.example\"\nmirror-by-digest-only=true\n[[registry.mirror]]\nlocation=\"b\"\npull-from-mirror=\"all\"",
            "both",
        ),
        (
            "[[registry]]\nlocation=\"a.example\"\n[[registry]]\nprefix=\"b.example\"\nlocation=\"a.example\"\nblocked=true",
            "two different values of blocked",
        ),
        ("unqualified-search-registries=[\"a.example/path\"]", "is not HOST[:PORT]"),
        ("short-name-mode=\"strict\"", "strict"),
        ("[aliases]\n\"a.example/x\" = \"b.example/x\"", "is not a short name"),
        ("[aliases]\n\"x:1\" = \"b.example/x\"", "is not a short name"),
        ("[aliases]\n\"x\" = \"y\"", "is not a full name"),
        ("[aliases]\n\"x\" = \"b.example/x:1\"", "is not a full name"),
        ("[[registry]]\nlocation=1", "invalid type"),
        ("a = ", "value"),
    ] {
        assert!(refusal(config).contains(why), "{config}: {}", refusal(config));
    }
    assert!(Contents::parse("some-future-key = 1").is_ok(), "as in Podman");
}

#[test]
fn files_are_read_in_their_order_and_a_named_one_must_exist() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.conf");
    assert!(matches!(Registries::load(&RegistriesPaths::only(missing)), Err(RegistriesError::Read { .. })));
    let file = folder.path().join("registries.conf");
    std::fs::write(&file, "[[registry]]\nlocation=\"a.example\"\nblocked=true").unwrap();
    let all = Registries::load(&RegistriesPaths::only(file.clone())).unwrap();
    let refused = all.endpoints(&"a.example/app".parse().unwrap()).unwrap_err().to_string();
    assert_eq!(refused, format!("{} blocks a.example", file.display()));
    std::fs::write(&file, "[[registry]]").unwrap();
    let invalid = Registries::load(&RegistriesPaths::only(file.clone())).unwrap_err().to_string();
    assert!(invalid.starts_with(&file.display().to_string()), "{invalid}");
    assert!(Registries::load(&RegistriesPaths::none()).unwrap().full_names("app").is_ok());
}
