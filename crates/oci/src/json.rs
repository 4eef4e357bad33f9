//! Checks that JSON has the same meaning for every reader.
//!
//! Other readers of the same manifest match keys case-insensitively (Go) or use the first or the last of equal keys. A document
//! whose meaning depends on that has two readings and is refused before it is interpreted. This pass also bounds every object and
//! array, so that later allocations are bounded by the input.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::limits;

/// Every key that affects the mount.
const KEYS: [&str; 20] = [
    "schemaVersion",
    "mediaType",
    "config",
    "layers",
    "manifests",
    "digest",
    "size",
    "annotations",
    "platform",
    "urls",
    "artifactType",
    "subject",
    "os",
    "architecture",
    "variant",
    "rootfs",
    "diff_ids",
    "type",
    "fsLayers",
    "data",
];

/// Keys whose values are maps of free strings, in which case may be significant.
const FREE_MAPS: [&str; 4] = ["annotations", "Labels", "ExposedPorts", "Volumes"];

/// Keys whose values are objects (those of `layers` and `manifests` are lists of objects). The generated parsers would also accept
/// a list of the fields' values in their order, which no other reader does.
const OBJECTS: [&str; 5] = ["config", "subject", "platform", "annotations", "rootfs"];

/// Checks that `bytes` is one JSON object with one reading.
pub(crate) fn check(bytes: &[u8]) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    Unambiguous { free: false, lists: 0 }.deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Visits a value of any shape. `free`: the keys of this object are data. `lists`: how many lists may enclose objects here.
#[derive(Clone, Copy)]
struct Unambiguous {
    free: bool,
    lists: u8,
}

/// No limit where it does not matter. The parser bounds the depth.
const ANY_LISTS: u8 = u8::MAX;

impl<'de> DeserializeSeed<'de> for Unambiguous {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unambiguous {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some(lists) = self.lists.checked_sub(1) else {
            return Err(A::Error::custom("a list where an object must be"));
        };
        let lists = if self.lists == ANY_LISTS { ANY_LISTS } else { lists };
        let mut count = 0;
        while items.next_element_seed(Self { free: false, lists })?.is_some() {
            count += 1;
            if count > limits::JSON_ITEMS {
                return Err(A::Error::custom(format_args!("a list of more than {} items", limits::JSON_ITEMS)));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(Key(key)) = entries.next_key()? {
            if !self.free
                && let Some(known) = KEYS.iter().find(|known| folds_to(&key, known))
            {
                return Err(A::Error::custom(format_args!("key {key:?} can be taken for {known:?}")));
            }
            let lists = match &*key {
                "layers" | "manifests" if !self.free => 1,
                key if !self.free && OBJECTS.contains(&key) => 0,
                _ => ANY_LISTS,
            };
            entries.next_value_seed(Self { free: FREE_MAPS.contains(&&*key), lists })?;
            if seen.contains(&key) {
                return Err(A::Error::custom(format_args!("key {key:?} appears twice")));
            }
            seen.insert(key);
            if seen.len() > limits::JSON_ITEMS {
                return Err(A::Error::custom(format_args!("an object of more than {} keys", limits::JSON_ITEMS)));
            }
        }
        Ok(())
    }
}

/// Whether `key` is not `known` but equals it for a reader that ignores case. Go also folds U+017F to `s` and
/// U+212A to `k`.
fn folds_to(key: &str, known: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key != known && key.len() <= known.len() * 3 && key.chars().map(fold).eq(known.chars().map(fold))
}

/// A key, borrowed from the input where it holds no escapes.
struct Key<'de>(Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }

            fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_case_only_have_two_readings() {
        assert!(check(br#"{"layers":[],"Layers":[]}"#).is_err());
        assert!(check(br#"{"Manifests":[]}"#).is_err());
        assert!(check("{\"layer\u{17f}\":[]}".as_bytes()).is_err());
        assert!(check(br#"{"layers":[{"Digest":"x"}]}"#).is_err());
    }

    #[test]
    fn free_maps_may_hold_keys_of_any_case() {
        check(br#"{"annotations":{"Size":"1","size":"2"},"config":{"Labels":{"OS":"a","os":"b"}}}"#).unwrap();
    }

    #[test]
    fn equal_keys_are_refused_also_when_one_is_escaped() {
        assert!(check(br#"{"annotations":{"a":"1","a":"2"}}"#).is_err());
        assert!(check(br#"{"layers":[],"l\u0061yers":[]}"#).is_err());
    }

    #[test]
    fn lists_do_not_stand_for_objects() {
        assert!(check(b"[2]").is_err());
        assert!(check(br#"{"config":["application/x"]}"#).is_err());
        assert!(check(br#"{"layers":[["application/x"]]}"#).is_err());
        check(br#"{"layers":[{"urls":["a"]}],"history":[{"x":[[1]]}]}"#).unwrap();
    }

    #[test]
    fn depth_and_counts_are_bounded() {
        assert!(check("[".repeat(100_000).as_bytes()).is_err());
        let many = format!("{{\"x\":[{}0]}}", "0,".repeat(limits::JSON_ITEMS));
        assert!(check(many.as_bytes()).is_err());
        assert!(check(b"{} {}").is_err());
    }

    #[test]
    fn a_list_and_an_object_may_have_as_many_items_as_the_limit() {
        let most = limits::JSON_ITEMS;
        let list = |items: usize| format!("{{\"x\":[{}]}}", vec!["0"; items].join(","));
        let object = |keys: usize| {
            let keys: Vec<String> = (0..keys).map(|key| format!("\"{key}\":true")).collect();
            format!("{{{}}}", keys.join(","))
        };
        check(list(most).as_bytes()).unwrap();
        check(object(most).as_bytes()).unwrap();
        assert!(check(list(most + 1).as_bytes()).is_err());
        assert!(check(object(most + 1).as_bytes()).is_err());
    }
}
