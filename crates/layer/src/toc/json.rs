//! Parses the JSON of a TOC entry by entry: only the current entry is in memory.
//!
//! Go's decoder, which other readers use, ignores the case of keys and uses the last of two. A TOC that relies on either has two
//! readings and is refused.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// One entry in its raw form. Absent fields are `None`.
#[derive(Debug, Default)]
pub(super) struct RawEntry<'a> {
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) kind: Option<Cow<'a, str>>,
    pub(super) link_name: Option<Cow<'a, str>>,
    pub(super) mode: Option<u64>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mod_time: Option<Cow<'a, str>>,
    pub(super) dev_major: Option<u64>,
    pub(super) dev_minor: Option<u64>,
    pub(super) xattrs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) digest: Option<Cow<'a, str>>,
    pub(super) offset: Option<u64>,
    pub(super) end_offset: Option<u64>,
    pub(super) inner_offset: Option<u64>,
    pub(super) chunk_size: Option<u64>,
    pub(super) chunk_offset: Option<u64>,
    pub(super) chunk_digest: Option<Cow<'a, str>>,
    pub(super) chunk_type: Option<Cow<'a, str>>,
}

/// Parses a TOC and passes every entry to `take`. The first error of either ends it.
pub(super) fn parse<'a, E>(
    json: &'a [u8],
    take: &mut dyn FnMut(RawEntry<'a>) -> Result<(), E>,
) -> Result<(), JsonError<E>> {
    let mut failure = None;
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let mut each = |entry| take(entry).map_err(|error| failure = Some(error));
    let parsed = Document(&mut each).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    match (failure, parsed) {
        (Some(error), _) => Err(JsonError::Taker(error)),
        (None, Err(error)) => Err(JsonError::Json(error.to_string())),
        (None, Ok(())) => Ok(()),
    }
}

/// Why parsing ended.
#[derive(Debug)]
pub(super) enum JsonError<E> {
    /// The JSON is not a TOC.
    Json(String),
    /// The error of `take`.
    Taker(E),
}

type Take<'t, 'a> = &'t mut dyn FnMut(RawEntry<'a>) -> Result<(), ()>;

struct Document<'t, 'a>(Take<'t, 'a>);

impl<'de> DeserializeSeed<'de> for Document<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of contents")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let (mut version, mut has_entries) = (None, false);
        while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
            match exact(&key, &["version", "entries"])? {
                Some("version") if version.is_some() => return Err(M::Error::duplicate_field("version")),
                Some("version") => version = Some(map.next_value::<u64>()?),
                Some("entries") if has_entries => return Err(M::Error::duplicate_field("entries")),
                Some("entries") => {
                    has_entries = true;
                    map.next_value_seed(Entries(&mut *self.0))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match (version, has_entries) {
            (Some(1), true) => Ok(()),
            (Some(1), false) => Err(M::Error::missing_field("entries")),
            (Some(version), _) => Err(M::Error::custom(format_args!("unknown version {version}"))),
            (None, _) => Err(M::Error::missing_field("version")),
        }
    }
}

struct Entries<'t, 'a>(Take<'t, 'a>);

impl<'de> DeserializeSeed<'de> for Entries<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    /// The value that Go writes for an empty list.
    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        while let Some(entry) = list.next_element::<RawEntry<'de>>()? {
            (self.0)(entry).map_err(|()| S::Error::custom("refused"))?;
        }
        Ok(())
    }
}

impl<'de> serde::Deserialize<'de> for RawEntry<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntryVisitor)
    }
}

struct EntryVisitor;

/// The keys of an entry. Others that writers add (user names, other times, link counts) do not affect the tree.
const KEYS: [&str; 19] = [
    "name",
    "type",
    "linkName",
    "mode",
    "size",
    "uid",
    "gid",
    "modtime",
    "devMajor",
    "devMinor",
    "xattrs",
    "digest",
    "offset",
    "endOffset",
    "innerOffset",
    "chunkSize",
    "chunkOffset",
    "chunkDigest",
    "chunkType",
];

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = RawEntry<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RawEntry<'de>, M::Error> {
        let mut entry = RawEntry::default();
        let mut has_xattrs = false;
        while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
            let Some(key) = exact(&key, &KEYS)? else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            match key {
                "name" => text(&mut entry.name, key, &mut map)?,
                "type" => text(&mut entry.kind, key, &mut map)?,
                "linkName" => text(&mut entry.link_name, key, &mut map)?,
                "mode" => number(&mut entry.mode, key, &mut map)?,
                "size" => number(&mut entry.size, key, &mut map)?,
                "uid" => number(&mut entry.uid, key, &mut map)?,
                "gid" => number(&mut entry.gid, key, &mut map)?,
                "modtime" => text(&mut entry.mod_time, key, &mut map)?,
                "devMajor" => number(&mut entry.dev_major, key, &mut map)?,
                "devMinor" => number(&mut entry.dev_minor, key, &mut map)?,
                "digest" => text(&mut entry.digest, key, &mut map)?,
                "offset" => number(&mut entry.offset, key, &mut map)?,
                "endOffset" => number(&mut entry.end_offset, key, &mut map)?,
                "innerOffset" => number(&mut entry.inner_offset, key, &mut map)?,
                "chunkSize" => number(&mut entry.chunk_size, key, &mut map)?,
                "chunkOffset" => number(&mut entry.chunk_offset, key, &mut map)?,
                "chunkDigest" => text(&mut entry.chunk_digest, key, &mut map)?,
                "chunkType" => text(&mut entry.chunk_type, key, &mut map)?,
                _ if has_xattrs => return Err(M::Error::duplicate_field("xattrs")),
                _ => {
                    has_xattrs = true;
                    entry.xattrs = map.next_value::<Option<Xattrs<'de>>>()?.unwrap_or_default().0;
                }
            }
        }
        Ok(entry)
    }
}

/// The known key that equals `key`. `None` for an unknown one.
fn exact<'k, E: Error>(key: &str, known: &[&'k str]) -> Result<Option<&'k str>, E> {
    match known.iter().find(|known| known.eq_ignore_ascii_case(key)) {
        Some(known) if *known == key => Ok(Some(known)),
        Some(known) => Err(E::custom(format_args!("{key:?} could be meant as {known:?}"))),
        None => Ok(None),
    }
}

fn text<'de, M: MapAccess<'de>>(
    field: &mut Option<Cow<'de, str>>,
    key: &'static str,
    map: &mut M,
) -> Result<(), M::Error> {
    if field.is_some() {
        return Err(M::Error::duplicate_field(key));
    }
    *field = Some(map.next_value::<Text<'de>>()?.0);
    Ok(())
}

fn number<'de, M: MapAccess<'de>>(field: &mut Option<u64>, key: &'static str, map: &mut M) -> Result<(), M::Error> {
    if field.is_some() {
        return Err(M::Error::duplicate_field(key));
    }
    *field = Some(map.next_value::<u64>()?);
    Ok(())
}

/// A string that is borrowed from the input if it has no escapes. Plain `Cow` always copies.
struct Text<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

#[derive(Default)]
struct Xattrs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de> serde::Deserialize<'de> for Xattrs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct XattrsVisitor;
        impl<'de> Visitor<'de> for XattrsVisitor {
            type Value = Xattrs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("xattrs by name")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut xattrs = Vec::new();
                while let Some(Text(name)) = map.next_key()? {
                    let value = map.next_value::<Option<Text<'de>>>()?.map_or(Cow::Borrowed(""), |text| text.0);
                    xattrs.push((name, value));
                }
                Ok(Xattrs(xattrs))
            }
        }
        deserializer.deserialize_map(XattrsVisitor)
    }
}
