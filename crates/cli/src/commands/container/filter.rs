//! `--filter` of `tarpon ps`.

use std::str::FromStr;

use tarpon_engine::{ContainerStatus, Lifecycle};

const STATES: [&str; 5] = ["starting", "running", "exited", "lost", "unreadable"];

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    /// A part of the name.
    Name(String),
    Status(String),
    /// The image, with or without registry and tag.
    Image(String),
    Exited(u8),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
        match key {
            "name" => Ok(Self::Name(value.to_owned())),
            "status" if STATES.contains(&value) => Ok(Self::Status(value.to_owned())),
            "status" => Err(format!("unknown status {value:?}: expected {}", STATES.join(", "))),
            "ancestor" | "image" => Ok(Self::Image(value.to_owned())),
            "exited" => value.parse().map(Self::Exited).map_err(|_| format!("{value:?} is not an exit code")),
            _ => Err(format!("unknown filter {key:?}: expected name, status, ancestor or exited")),
        }
    }
}

impl Filter {
    fn key(&self) -> u8 {
        match self {
            Self::Name(_) => 0,
            Self::Status(_) => 1,
            Self::Image(_) => 2,
            Self::Exited(_) => 3,
        }
    }

    /// Whether it may match a container that has ended.
    pub(crate) fn is_of_ended(&self) -> bool {
        matches!(self, Self::Status(_) | Self::Exited(_))
    }

    fn is_true_of(&self, container: &ContainerStatus) -> bool {
        match self {
            Self::Name(part) => container.name.as_str().contains(part.as_str()),
            Self::Status(name) => container.standing.name() == name,
            Self::Image(wanted) => container.record.as_ref().is_ok_and(|record| is_image(&record.image, wanted)),
            Self::Exited(code) => container.standing == Lifecycle::Exited(Some(*code)),
        }
    }
}

/// Whether a container matches: conditions of one kind are alternatives, as with Podman.
pub(crate) fn is_wanted(container: &ContainerStatus, filters: &[Filter]) -> bool {
    let of_kind = |key: u8| filters.iter().filter(move |filter| filter.key() == key);
    filters.iter().all(|one| of_kind(one.key()).any(|filter| filter.is_true_of(container)))
}

/// Whether `wanted` is the image's name, possibly without registry, folders and tag.
fn is_image(image: &str, wanted: &str) -> bool {
    let begins = |name: &str| name.strip_suffix(wanted).is_some_and(|front| front.is_empty() || front.ends_with('/'));
    let untagged = image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(name, _)| name);
    !wanted.is_empty() && (begins(image) || begins(untagged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_known_key_and_its_value() {
        assert_eq!("exited=3".parse(), Ok(Filter::Exited(3)));
        assert_eq!("ancestor=app:v1".parse(), Ok(Filter::Image("app:v1".into())));
        for (text, why) in [
            ("web", "KEY=VALUE"),
            ("label=x", "unknown filter \"label\""),
            ("status=dead", "unknown status \"dead\""),
            ("exited=many", "not an exit code"),
        ] {
            let error = text.parse::<Filter>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn conditions_of_one_kind_are_alternatives_and_kinds_add_up() {
        let container = |name: &str, standing| ContainerStatus {
            name: name.parse().unwrap(),
            record: Err("nothing".to_owned()),
            standing,
            source_lost: false,
        };
        let web = container("web", Lifecycle::Exited(Some(3)));
        let wanted =
            |texts: &[&str]| is_wanted(&web, &texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
        assert!(wanted(&[]) && wanted(&["name=we"]) && wanted(&["name=db", "name=web"]));
        assert!(wanted(&["status=running", "status=exited", "exited=3"]));
        assert!(!wanted(&["name=web", "status=running"]) && !wanted(&["exited=0"]) && !wanted(&["ancestor=app"]));
    }

    #[test]
    fn an_image_matches_without_registry_and_tag() {
        let image = "localhost:5000/team/app:v1";
        for name in ["app", "app:v1", "team/app", "localhost:5000/team/app", image] {
            assert!(is_image(image, name), "{name}");
        }
        for name in ["", "pp", "app:v2", "app:", "v1", "localhost:5000"] {
            assert!(!is_image(image, name), "{name}");
        }
    }
}
