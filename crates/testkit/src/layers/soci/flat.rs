//! Writes FlatBuffers: any tree of values, even without a valid schema.

/// A value of a field, or of an element of a vector.
#[derive(Debug, Clone)]
pub enum Value {
    /// The field is missing.
    None,
    /// `byte`.
    Byte(u8),
    /// `int`.
    Int(i32),
    /// `uint`.
    Uint(u32),
    /// `long`.
    Long(i64),
    /// A string or a vector of bytes.
    Bytes(Vec<u8>),
    /// A table with these fields.
    Table(Vec<Value>),
    /// A vector of tables or strings.
    List(Vec<Value>),
}

/// The buffer with this root table.
pub(crate) fn flatbuffer(root: &Value) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    let at = write(&mut bytes, root);
    patch(&mut bytes, 0, at);
    bytes
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("a test is small")
}

fn patch(bytes: &mut [u8], at: usize, target: usize) {
    bytes[at..at + 4].copy_from_slice(&number(target - at).to_le_bytes());
}

/// Appends the target of an offset, and returns its position.
fn write(bytes: &mut Vec<u8>, value: &Value) -> usize {
    let at = bytes.len();
    match value {
        Value::Bytes(text) => {
            bytes.extend_from_slice(&number(text.len()).to_le_bytes());
            bytes.extend_from_slice(text);
            bytes.push(0);
            at
        }
        Value::List(values) => {
            bytes.extend_from_slice(&number(values.len()).to_le_bytes());
            bytes.resize(at + 4 + 4 * values.len(), 0);
            for (place, value) in values.iter().enumerate() {
                let target = write(bytes, value);
                patch(bytes, at + 4 + 4 * place, target);
            }
            at
        }
        Value::Table(fields) => table(bytes, fields),
        Value::None | Value::Byte(_) | Value::Int(_) | Value::Uint(_) | Value::Long(_) => at,
    }
}

fn table(bytes: &mut Vec<u8>, fields: &[Value]) -> usize {
    let short = |number: usize| u16::try_from(number).expect("a test is small").to_le_bytes();
    let layout = bytes.len();
    let length = 4 + 2 * fields.len();
    let at = layout + length;
    bytes.resize(at, 0);
    bytes.extend_from_slice(&number(length).to_le_bytes());
    for (place, field) in fields.iter().enumerate() {
        let here = bytes.len() - at;
        match field {
            Value::None => continue,
            Value::Byte(byte) => bytes.push(*byte),
            Value::Int(value) => bytes.extend_from_slice(&value.to_le_bytes()),
            Value::Uint(value) => bytes.extend_from_slice(&value.to_le_bytes()),
            Value::Long(value) => bytes.extend_from_slice(&value.to_le_bytes()),
            Value::Bytes(_) | Value::Table(_) | Value::List(_) => bytes.extend_from_slice(&[0; 4]),
        }
        bytes[layout + 4 + 2 * place..][..2].copy_from_slice(&short(here));
    }
    let size = bytes.len() - at;
    bytes[layout..layout + 2].copy_from_slice(&short(length));
    bytes[layout + 2..layout + 4].copy_from_slice(&short(size));
    for (place, field) in fields.iter().enumerate() {
        if matches!(field, Value::Bytes(_) | Value::Table(_) | Value::List(_)) {
            let here = usize::from(u16::from_le_bytes([bytes[layout + 4 + 2 * place], bytes[layout + 5 + 2 * place]]));
            let target = write(bytes, field);
            patch(bytes, at + here, target);
        }
    }
    at
}
