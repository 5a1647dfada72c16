// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fields of an event, which its file `events/SYSTEM/EVENT/format` describes.

use std::fmt;

use crate::error::{Error, Result};
use crate::sys::Bytes;
use crate::text::{declarations, number, offset_in, Declaration};

const WHAT: &str = "format";
const EVENT: &str = "event";

/// Maximum number of fields that is accepted. The kernel's own limit for user events is lower.
const MAX_FIELDS: usize = 1024;
/// Maximum offset in an event: no event is longer than a sub-buffer.
const MAX_OFFSET: usize = crate::header::MAX_SUBBUF;

/// The format of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// The event's name.
    pub name: String,
    /// The event's number: the value of `common_type`.
    pub id: u16,
    /// The fields, in the order of the text: the common fields come first.
    pub fields: Vec<Field>,
}

/// A field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name of the field.
    pub name: String,
    /// Declaration of the field, in C.
    pub declared: String,
    /// Offset of the field in the event.
    pub offset: usize,
    /// Length of the field in the event; 0 if it extends to the end of the event.
    pub size: usize,
    /// Location and type of the value.
    pub kind: Kind,
}

/// Location and type of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    Number(Number),
    /// An array in the field itself.
    Array(Element),
    /// An array elsewhere in the event. The field has its length and its offset from the beginning of the event (`__data_loc`).
    DataLoc(Element),
    /// An array elsewhere in the event. The field has its length and its offset from the end of the field (`__rel_loc`).
    RelLoc(Element),
    /// A value in the field itself that is not a number.
    Opaque,
}

/// A number of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// Length in bytes: 1, 2, 4 or 8.
    pub size: usize,
    /// Whether the number is signed.
    pub signed: bool,
}

/// Type of the elements of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Characters, up to the first NUL.
    Text,
    /// Numbers.
    Number(Number),
    /// Bits, in words of the kernel.
    Bits,
    /// Bytes of another type.
    Byte,
}

/// The value of a field in an event.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// Text. It ends at the first NUL.
    Text(Bytes<'a>),
    /// Numbers.
    Numbers(Number, Bytes<'a>),
    /// Bits.
    Bits(Bytes<'a>),
    /// Bytes.
    Bytes(Bytes<'a>),
}

impl Format {
    /// Reads the text of a format.
    ///
    /// # Errors
    /// If a line is missing, or the offset or size of a field is not valid.
    pub fn parse(text: &str) -> Result<Self> {
        let line = |name: &'static str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            let value = value.map(str::trim).filter(|value| !value.is_empty());
            value.ok_or_else(|| Error::malformed(WHAT, text.len(), format!("no {name}")))
        };
        let name = line("name:")?.to_owned();
        let id = line("ID:")?;
        let id = number(id)
            .and_then(|id| u16::try_from(id).ok())
            .ok_or_else(|| {
                Error::malformed(
                    WHAT,
                    offset_in(text, id),
                    format!("ID: {id} is no number of an event"),
                )
            })?;
        // The text after `print fmt:` may contain the word `field:`.
        let (head, print) = text.split_once("\nprint fmt:").unwrap_or((text, ""));
        let declared = declarations(WHAT, head)?;
        if declared.len() > MAX_FIELDS {
            let why = format!("{} fields, more than {MAX_FIELDS}", declared.len());
            return Err(Error::malformed(WHAT, 0, why));
        }
        let fields: Result<Vec<_>> = declared
            .iter()
            .map(|field| Field::new(field, print))
            .collect();
        Ok(Self {
            name,
            id,
            fields: fields?,
        })
    }

    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The fields that are not common to all events.
    pub fn own(&self) -> impl Iterator<Item = &Field> {
        self.fields
            .iter()
            .filter(|field| !field.name.starts_with("common_"))
    }
}

impl Field {
    fn new(declared: &Declaration<'_>, print: &str) -> Result<Self> {
        let bad = |why| Error::malformed(WHAT, declared.at, why);
        let &Declaration { offset, size, .. } = declared;
        if offset + size > MAX_OFFSET {
            return Err(bad(format!("{size} bytes at {offset} are in no event")));
        }
        let text = declared.declared;
        let name = declared.name();
        let element = Element::new(declared, print);
        let kind = if text.starts_with("__data_loc ") || text.starts_with("__rel_loc ") {
            if size != 4 {
                return Err(bad(format!("a location of {size} bytes, not 4")));
            }
            if text.starts_with("__data_loc ") {
                Kind::DataLoc(element)
            } else {
                Kind::RelLoc(element)
            }
        } else if text.ends_with(']') || size == 0 {
            if let Element::Number(number) = element {
                if size % number.size != 0 {
                    let why = format!("{size} bytes of elements of {}", number.size);
                    return Err(bad(why));
                }
            }
            Kind::Array(element)
        } else {
            Number::new(size, declared.signed).map_or(Kind::Opaque, Kind::Number)
        };
        Ok(Self {
            name: name.to_owned(),
            declared: text.to_owned(),
            offset,
            size,
            kind,
        })
    }

    /// The value of the field in an event.
    ///
    /// # Errors
    /// If the event ends before the end of the field, or before the end of the location that the field contains.
    pub fn value<'a>(&self, event: Bytes<'a>) -> Result<Value<'a>> {
        let bad = |at, why: String| Error::malformed(EVENT, at, format!("{}: {why}", self.name));
        let end = if self.size == 0 {
            event.len().max(self.offset)
        } else {
            self.offset + self.size
        };
        let place = event.get(self.offset..end);
        let place =
            place.ok_or_else(|| bad(self.offset, format!("the event ends at {}", event.len())))?;
        match self.kind {
            Kind::Number(number) => {
                let value = number.read(place, 0);
                value.ok_or_else(|| bad(self.offset, "it is no number".to_owned()))
            }
            Kind::Opaque => Ok(Value::Bytes(place)),
            Kind::Array(element) => Ok(element.value(place)),
            Kind::DataLoc(element) | Kind::RelLoc(element) => {
                let word = place.u32(0).unwrap_or_default().to_be_bytes();
                let len = usize::from(u16::from_be_bytes([word[0], word[1]]));
                let offset = usize::from(u16::from_be_bytes([word[2], word[3]]));
                let base = if matches!(self.kind, Kind::RelLoc(_)) {
                    end
                } else {
                    0
                };
                let at = base + offset;
                let value = event.get(at..at + len);
                Ok(element.value(value.ok_or_else(|| {
                    bad(
                        self.offset,
                        format!("{len} bytes at {at} of an event of {}", event.len()),
                    )
                })?))
            }
        }
    }

    /// The value of the field if it is an unsigned number, such as `common_type`.
    #[must_use]
    pub fn unsigned(&self, event: Bytes<'_>) -> Option<u64> {
        match self.value(event) {
            Ok(Value::Unsigned(value)) => Some(value),
            _ => None,
        }
    }

    /// The value of the field if it is a number that fits into an `i64`, such as `common_pid`.
    #[must_use]
    pub fn signed(&self, event: Bytes<'_>) -> Option<i64> {
        match self.value(event) {
            Ok(Value::Signed(value)) => Some(value),
            Ok(Value::Unsigned(value)) => i64::try_from(value).ok(),
            _ => None,
        }
    }

    /// A copy of the value of the field if it is text.
    #[must_use]
    pub fn text(&self, event: Bytes<'_>) -> Option<Vec<u8>> {
        match self.value(event) {
            Ok(Value::Text(text)) => Some(text.to_text()),
            _ => None,
        }
    }
}

impl Element {
    /// The element type of an array with this declaration.
    fn new(declared: &Declaration<'_>, print: &str) -> Self {
        let words = || declared.declared.split([' ', '\t', '[', ']', '*']);
        let name = declared.name();
        // A bitmask is declared like an array of numbers. Only its print format shows that it is a bitmask.
        let bitmask = [
            "__get_bitmask",
            "__get_rel_bitmask",
            "__get_cpumask",
            "__get_rel_cpumask",
        ]
        .iter()
        .any(|get| print.contains(&format!("{get}({name})")));
        if bitmask || words().any(|word| word == "cpumask_t") {
            return Self::Bits;
        }
        if declared.declared.contains('*') {
            return Self::Number(Number {
                size: 8,
                signed: false,
            });
        }
        // Cut off the name of the field, which can be the name of a type.
        let kind = declared
            .declared
            .rsplit_once(' ')
            .map_or("", |(kind, _)| kind);
        let kind: Vec<_> = kind
            .split([' ', '\t', '[', ']'])
            .filter(|word| !matches!(*word, "" | "__data_loc" | "__rel_loc" | "const"))
            .collect();
        let size = match &*kind {
            ["char"] => return Self::Text,
            ["unsigned" | "signed", "char"]
            | ["u8" | "s8" | "__u8" | "__s8" | "uint8_t" | "int8_t" | "bool"] => 1,
            ["short", ..]
            | ["unsigned", "short", ..]
            | ["u16" | "s16" | "__u16" | "__s16" | "uint16_t" | "int16_t"] => 2,
            ["int"] | ["unsigned" | "signed", "int"] | ["unsigned"] => 4,
            ["u32" | "s32" | "__u32" | "__s32" | "uint32_t" | "int32_t" | "pid_t"] => 4,
            ["long", "long", ..] | ["unsigned", "long", "long", ..] => 8,
            ["u64" | "s64" | "__u64" | "__s64" | "uint64_t" | "int64_t"] => 8,
            ["long", ..] | ["unsigned", "long", ..] => 8,
            _ => return Self::Byte,
        };
        Self::Number(Number {
            size,
            signed: declared.signed,
        })
    }

    fn value(self, bytes: Bytes<'_>) -> Value<'_> {
        match self {
            Self::Text => Value::Text(bytes),
            Self::Number(number) => Value::Numbers(number, bytes),
            Self::Bits => Value::Bits(bytes),
            Self::Byte => Value::Bytes(bytes),
        }
    }
}

impl Number {
    fn new(size: usize, signed: bool) -> Option<Self> {
        [1, 2, 4, 8]
            .contains(&size)
            .then_some(Self { size, signed })
    }

    /// The number at `at`.
    fn read(self, bytes: Bytes<'_>, at: usize) -> Option<Value<'_>> {
        let value = match self.size {
            1 => bytes.u8(at).map(u64::from),
            2 => bytes.u16(at).map(u64::from),
            4 => bytes.u32(at).map(u64::from),
            _ => bytes.u64(at),
        }?;
        if !self.signed {
            return Some(Value::Unsigned(value));
        }
        let unused = u32::try_from(64 - 8 * self.size).ok()?;
        Some(Value::Signed(
            i64::from_ne_bytes(value.to_ne_bytes()) << unused >> unused,
        ))
    }

    /// All numbers of an array. Bytes after the last whole number are skipped.
    pub fn all(self, bytes: Bytes<'_>) -> impl Iterator<Item = Value<'_>> {
        let ats = (0..bytes.len()).step_by(self.size);
        ats.filter_map(move |at| self.read(bytes, at))
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Signed(value) => write!(f, "{value}"),
            // Text from a program is escaped, so that it cannot control the terminal.
            Self::Text(text) => write!(f, "\"{}\"", text.to_text().escape_ascii()),
            Self::Numbers(number, bytes) => {
                f.write_str("{")?;
                for (n, value) in number.all(*bytes).enumerate() {
                    write!(f, "{}{value}", if n == 0 { "" } else { "," })?;
                }
                f.write_str("}")
            }
            Self::Bits(bytes) => {
                f.write_str("0x")?;
                let all = bytes.to_vec();
                // The highest byte first. The kernel's words have this machine's byte order.
                let highest: Vec<_> = if cfg!(target_endian = "little") {
                    all.iter().rev().collect()
                } else {
                    all.chunks(8).rev().flatten().collect()
                };
                highest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Bytes(bytes) => {
                let all = bytes.to_vec();
                all.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
