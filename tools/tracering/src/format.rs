// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fields of an event, as its file `events/SYSTEM/EVENT/format` describes them.

use std::fmt;

use crate::error::{Error, Result};
use crate::sys::Bytes;
use crate::text::{declarations, number, offset_in, Declaration};

const WHAT: &str = "format";
const EVENT: &str = "event";

/// Most fields that are believed; the kernel's own limit for user events is lower.
const MAX_FIELDS: usize = 1024;
/// No event is longer than a sub-buffer.
const MAX_OFFSET: usize = crate::header::MAX_SUBBUF;

/// A format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// The event's name.
    pub name: String,
    /// What `common_type` of its events is.
    pub id: u16,
    /// The fields, in the text's order: first those that all events have.
    pub fields: Vec<Field>,
}

/// A field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type, in C.
    pub declared: String,
    /// Where in the event it is.
    pub offset: usize,
    /// How long it is there; 0 if it goes on to the end of the event.
    pub size: usize,
    /// Where its value is, and of what it is made.
    pub kind: Kind,
}

/// Where the value of a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    Number(Number),
    /// In the field itself: several elements.
    Array(Element),
    /// Elsewhere: the field has its offset in the event and its length (`__data_loc`).
    DataLoc(Element),
    /// Elsewhere: the field has its offset behind the field and its length (`__rel_loc`).
    RelLoc(Element),
    /// In the field: something that no number is.
    Opaque,
}

/// A number of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// Its length: 1, 2, 4 or 8.
    pub size: usize,
    /// Whether it has a sign.
    pub signed: bool,
}

/// Of what an array is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Characters, up to a 0.
    Text,
    /// Numbers.
    Number(Number),
    /// Bits, in words of the kernel.
    Bits,
    /// Bytes that mean something else.
    Byte,
}

/// The value of a field in an event.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A number without a sign.
    Unsigned(u64),
    /// A number with one.
    Signed(i64),
    /// Text: the bytes before the first 0.
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
    /// If it lacks something, or a field is where none can be.
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
        // What follows may have the word "field:" in it.
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

    /// The fields that this event has and others have not.
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

    /// Its value in an event.
    ///
    /// # Errors
    /// If the event ends before, or the field says that its value is where the event has nothing.
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

    /// Its value, if it is a number without a sign, such as `common_type`.
    #[must_use]
    pub fn unsigned(&self, event: Bytes<'_>) -> Option<u64> {
        match self.value(event) {
            Ok(Value::Unsigned(value)) => Some(value),
            _ => None,
        }
    }

    /// Its value, if it is a number that fits: such as `common_pid`.
    #[must_use]
    pub fn signed(&self, event: Bytes<'_>) -> Option<i64> {
        match self.value(event) {
            Ok(Value::Signed(value)) => Some(value),
            Ok(Value::Unsigned(value)) => i64::try_from(value).ok(),
            _ => None,
        }
    }

    /// A copy of its value, if it is text.
    #[must_use]
    pub fn text(&self, event: Bytes<'_>) -> Option<Vec<u8>> {
        match self.value(event) {
            Ok(Value::Text(text)) => Some(text.to_text()),
            _ => None,
        }
    }
}

impl Element {
    /// Of what an array with this declaration is made.
    fn new(declared: &Declaration<'_>, print: &str) -> Self {
        let words = || declared.declared.split([' ', '\t', '[', ']', '*']);
        let name = declared.name();
        // The declaration of a bitmask is that of an array; only how it is printed tells.
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
        // The type ends where the name of the field, which can be the name of a type, begins.
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

    /// All numbers of an array; bytes behind the last whole one are left out.
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
            // What a program wrote must not move the cursor of a terminal.
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
                // The highest first: words of the kernel have this machine's byte order.
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
