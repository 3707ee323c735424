//! Checks whether the client can parse the properties of a message. It walks the same grammar with a stack of its
//! own.

use super::{MAX_NESTING, MAX_VALUES};

/// The fourteen properties in their order; the highest bit of the flags is the first one.
const PROPERTIES: [(&str, Kind); 14] = [
    ("content_type", Kind::Text),
    ("content_encoding", Kind::Text),
    ("headers", Kind::Table),
    ("delivery_mode", Kind::Bytes(1)),
    ("priority", Kind::Bytes(1)),
    ("correlation_id", Kind::Text),
    ("reply_to", Kind::Text),
    ("expiration", Kind::Text),
    ("message_id", Kind::Text),
    ("timestamp", Kind::Bytes(8)),
    ("type", Kind::Text),
    ("user_id", Kind::Text),
    ("app_id", Kind::Text),
    ("cluster_id", Kind::Text),
];

#[derive(Clone, Copy)]
enum Kind {
    /// A text whose length is one byte.
    Text,
    Table,
    Bytes(usize),
}

/// The number of header values, or the reason why the client cannot parse them.
pub(super) fn check(properties: &[u8]) -> Result<usize, String> {
    let mut reader = Reader { bytes: properties, at: 0 };
    let flags = u16::from_be_bytes(reader.take(2, properties.len()).and_then(|b| b.try_into().ok()).ok_or(SHORT)?);
    let mut values = 0;
    for (place, (name, kind)) in PROPERTIES.iter().enumerate() {
        if flags & (0x8000 >> place) == 0 {
            continue;
        }
        let checked = match kind {
            Kind::Text => reader.text(properties.len()),
            Kind::Bytes(count) => reader.take(*count, properties.len()).map(|_| ()).ok_or_else(|| SHORT.to_owned()),
            Kind::Table => reader.table().map(|count| values = count),
        };
        checked.map_err(|reason| format!("`{name}` cannot be read: {reason}"))?;
    }
    if reader.at == properties.len() { Ok(values) } else { Err("its properties are followed by other data".into()) }
}

const SHORT: &str = "it ends too early";

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A table or an array during the walk.
struct Level {
    end: usize,
    is_table: bool,
}

impl<'a> Reader<'a> {
    /// The next bytes, if they end before `end`.
    fn take(&mut self, count: usize, end: usize) -> Option<&'a [u8]> {
        let to = self.at.checked_add(count).filter(|to| *to <= end)?;
        let taken = &self.bytes[self.at..to];
        self.at = to;
        Some(taken)
    }

    fn text(&mut self, end: usize) -> Result<(), String> {
        let len = self.take(1, end).ok_or(SHORT)?[0];
        let text = self.take(usize::from(len), end).ok_or(SHORT)?;
        std::str::from_utf8(text).map(|_| ()).map_err(|_| "a short text is not UTF-8".to_owned())
    }

    fn length(&mut self, end: usize) -> Result<usize, String> {
        let len = self.take(4, end).and_then(|len| len.try_into().ok()).map(u32::from_be_bytes);
        Ok(usize::try_from(len.ok_or(SHORT)?).unwrap_or(usize::MAX))
    }

    /// Enters a table or an array that ends before `end`.
    fn enter(&mut self, end: usize, is_table: bool) -> Result<Level, String> {
        let len = self.length(end)?;
        let end = self.at.checked_add(len).filter(|to| *to <= end).ok_or(SHORT)?;
        Ok(Level { end, is_table })
    }

    fn table(&mut self) -> Result<usize, String> {
        let mut levels = vec![self.enter(self.bytes.len(), true)?];
        let mut values = 0;
        while let Some(Level { end, is_table }) = levels.last() {
            if self.at == *end {
                levels.pop();
                continue;
            }
            values += 1;
            if values > MAX_VALUES {
                return Err(format!("it holds more than {MAX_VALUES} values"));
            }
            let end = *end;
            if *is_table {
                self.text(end)?;
            }
            if let Some(level) = self.value(end)? {
                if levels.len() == MAX_NESTING {
                    return Err(format!("it is nested more than {MAX_NESTING} levels deep"));
                }
                levels.push(level);
            }
        }
        Ok(values)
    }

    /// Reads one value; `Some` when it is a table or an array to walk.
    fn value(&mut self, end: usize) -> Result<Option<Level>, String> {
        let kind = self.take(1, end).ok_or(SHORT)?[0];
        let count = match kind {
            b'V' => 0,
            b't' | b'b' | b'B' => 1,
            b's' | b'U' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'L' | b'l' | b'd' | b'T' => 8,
            b'S' | b'x' => self.length(end)?,
            b'A' => return self.enter(end, false).map(Some),
            b'F' => return self.enter(end, true).map(Some),
            other => return Err(format!("unknown type of value {:?}", char::from(other))),
        };
        self.take(count, end).map(|_| None).ok_or_else(|| SHORT.to_owned())
    }
}
