//! [`Shape`]: the sizes and places of a recorded start, without its contents: of the files of an image, of its boot pack, and of what the
//! start touched. It is a text file, so that a simulation needs neither the image nor a registry.
//!
//! | line | fields, separated by tabs |
//! |---|---|
//! | `image` | name, bytes of its layer |
//! | `document` | name, bytes: what is requested before the image can be mounted, in order |
//! | `object` | for each of its chunks: bytes, offset of its piece in the layer, encoded bytes of the piece, bytes to skip in it |
//! | `frame` | encoded bytes, and for each of its parts: number of the object, offset in it, bytes |
//! | `touch` | number of the object, start and end of the range, microseconds that the program worked before it |

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A recorded start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) image: String,
    pub(super) layer_bytes: u64,
    pub(super) documents: Vec<(String, u64)>,
    pub(super) objects: Vec<Vec<ChunkShape>>,
    pub(super) frames: Vec<FrameShape>,
    pub(super) touches: Vec<TouchShape>,
}

/// A chunk of an object. Without encoded bytes it is all zeros, and is never fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkShape {
    pub(super) size: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) skip: u64,
}

/// A frame of the boot pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrameShape {
    pub(super) length: u32,
    /// Object, offset in it, bytes.
    pub(super) parts: Vec<(usize, u64, u32)>,
}

/// A read of the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TouchShape {
    pub(super) object: usize,
    pub(super) range: Range<u64>,
    /// The work of the program since the read before.
    pub(super) think: Duration,
}

impl Shape {
    /// Reads the text.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut shape = Self::default();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            shape.add(line).with_context(|| format!("line {number} of the recorded start"))?;
        }
        Ok(shape)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let (kind, rest) = line.split_once('\t').context("it has one field only")?;
        let fields: Vec<&str> = rest.split('\t').collect();
        match (kind, &fields[..]) {
            ("image", [name, bytes]) => (self.image, self.layer_bytes) = ((*name).to_owned(), number(bytes)?),
            ("document", [name, bytes]) => self.documents.push(((*name).to_owned(), number(bytes)?)),
            ("object", chunks) => self.objects.push(chunks.iter().map(|chunk| chunk_of(chunk)).collect::<Result<_>>()?),
            ("frame", [length, parts @ ..]) => {
                let parts = parts.iter().map(|part| part_of(part)).collect::<Result<_>>()?;
                self.frames.push(FrameShape { length: number(length)?, parts });
            }
            ("touch", [object, start, end, think]) => self.touches.push(TouchShape {
                object: number(object)?,
                range: number(start)?..number(end)?,
                think: Duration::from_micros(number(think)?),
            }),
            _ => bail!("{kind} with {} fields is unknown", fields.len()),
        }
        Ok(())
    }

    /// The text that [`Shape::parse`] reads.
    pub(super) fn text(&self) -> String {
        let mut text = format!("image\t{}\t{}\n", self.image, self.layer_bytes);
        for (name, bytes) in &self.documents {
            text.push_str(&format!("document\t{name}\t{bytes}\n"));
        }
        for chunks in &self.objects {
            text.push_str("object");
            for ChunkShape { size, offset, length, skip } in chunks {
                text.push_str(&format!("\t{size},{offset},{length},{skip}"));
            }
            text.push('\n');
        }
        for FrameShape { length, parts } in &self.frames {
            text.push_str(&format!("frame\t{length}"));
            for (object, offset, bytes) in parts {
                text.push_str(&format!("\t{object},{offset},{bytes}"));
            }
            text.push('\n');
        }
        for TouchShape { object, range, think } in &self.touches {
            text.push_str(&format!("touch\t{object}\t{}\t{}\t{}\n", range.start, range.end, think.as_micros()));
        }
        text
    }

    /// The number of a document, and its bytes.
    pub(super) fn document(&self, name: &str) -> Result<(u32, u64)> {
        let found = (0..).zip(&self.documents).find(|(_, (known, _))| known == name);
        found
            .map(|(number, (_, bytes))| (number, *bytes))
            .with_context(|| format!("the recorded start has no document {name}"))
    }

    /// What it is, in a line.
    pub(super) fn summary(&self) -> String {
        let [layer, pack] = [self.layer_bytes, self.pack_bytes()].map(|bytes| bytes as f64 / 1e6);
        let touched: u64 = self.touches.iter().map(|touch| touch.range.end - touch.range.start).sum();
        format!(
            "{}: a layer of {layer:.1} MB with {} files; the recorded start reads {:.1} MB of them in {} reads; its boot pack has {pack:.2} MB",
            self.image,
            self.objects.len(),
            touched as f64 / 1e6,
            self.touches.len(),
        )
    }

    /// Encoded bytes of the boot pack.
    pub(super) fn pack_bytes(&self) -> u64 {
        self.frames.iter().map(|frame| u64::from(frame.length)).sum()
    }
}

fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(text: &str) -> Result<T> {
    text.parse().with_context(|| format!("{text:?} is no number"))
}

fn chunk_of(text: &str) -> Result<ChunkShape> {
    let fields = text.split(',').map(number).collect::<Result<Vec<u64>>>()?;
    let [size, offset, length, skip] = fields[..] else { bail!("a chunk has four numbers, and {text:?} has not") };
    Ok(ChunkShape { size, offset, length, skip })
}

fn part_of(text: &str) -> Result<(usize, u64, u32)> {
    let fields: Vec<&str> = text.split(',').collect();
    let [object, offset, bytes] = fields[..] else { bail!("a part has three numbers, and {text:?} has not") };
    Ok((number(object)?, number(offset)?, number(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "image\ta/b\t900\ndocument\tmanifest\t600\nobject\t10,0,20,0\t5,20,10,3\nobject\t7,0,0,0\n\
        frame\t12\t0,0,10\ntouch\t0\t0\t10\t250\n";

    #[test]
    fn a_shape_is_read_as_it_is_written() {
        let shape = Shape::parse(TEXT).unwrap();
        assert_eq!(shape.text(), TEXT);
        assert_eq!((shape.pack_bytes(), shape.document("manifest").unwrap()), (12, (0, 600)));
        assert_eq!(shape.touches[0].think, Duration::from_micros(250));
    }

    #[test]
    fn a_line_of_another_form_is_an_error_that_names_it() {
        let error = Shape::parse("image\ta/b\t900\nobject\t1,2,3\n").unwrap_err();
        assert!(format!("{error:#}").contains("line 2"), "{error:#}");
    }
}
