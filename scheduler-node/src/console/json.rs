//! JSON formatted for a person: with line breaks, and every number and text as written.

use std::ops::ControlFlow;

/// The longest part of a payload or a result that a page shows; the API returns the whole.
pub(super) const SHOWN_BYTES: usize = 64 << 10;

/// The text with line breaks and indents, its values untouched: no number passes through a float. The input must be
/// JSON.
pub(super) fn pretty(json: &str) -> String {
    let mut text = Pretty { out: String::with_capacity(json.len() * 2), depth: 0 };
    let mut rest = json.char_indices().peekable();
    while let Some((at, character)) = rest.next() {
        match character {
            '"' => {
                let end = end_of_text(&json[at..]);
                text.out.push_str(&json[at..at + end]);
                while rest.next_if(|(next, _)| *next < at + end).is_some() {}
            }
            '{' | '[' => {
                while rest.next_if(|(_, next)| next.is_ascii_whitespace()).is_some() {}
                text.out.push(character);
                if let Some((_, close)) = rest.next_if(|(_, next)| matches!(next, '}' | ']')) {
                    text.out.push(close);
                } else {
                    text.depth += 1;
                    text.line();
                }
            }
            '}' | ']' => {
                text.depth = text.depth.saturating_sub(1);
                text.line();
                text.out.push(character);
            }
            ',' => {
                text.out.push(',');
                text.line();
            }
            ':' => text.out.push_str(": "),
            blank if blank.is_ascii_whitespace() => {}
            other => text.out.push(other),
        }
    }
    text.out
}

struct Pretty {
    out: String,
    depth: usize,
}

impl Pretty {
    /// The deepest indent: nesting alone must not make a page large.
    const DEEPEST: usize = 32;

    fn line(&mut self) {
        self.out.push('\n');
        for _ in 0..self.depth.min(Self::DEEPEST) {
            self.out.push_str("  ");
        }
    }
}

/// The length in bytes of the JSON string that begins here.
fn end_of_text(json: &str) -> usize {
    let mut escaped = false;
    let end = json.char_indices().skip(1).try_for_each(|(at, character)| {
        if character == '"' && !escaped {
            return ControlFlow::Break(at + 1);
        }
        escaped = character == '\\' && !escaped;
        ControlFlow::Continue(())
    });
    end.break_value().unwrap_or(json.len())
}

/// The part of a text that is shown, and whether it is the whole.
pub(super) fn shown(text: &str) -> (&str, bool) {
    if text.len() <= SHOWN_BYTES {
        return (text, true);
    }
    (&text[..text.floor_char_boundary(SHOWN_BYTES)], false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_stay_as_they_are() {
        let json = r#"{"id":12345678901234567890123,"rate":1.10,"e":1E400,"text":"a\"b,{}[:] \\","list":[],"o":{ },"n":[1, {"a":null}]}"#;
        let expected = "{\n  \"id\": 12345678901234567890123,\n  \"rate\": 1.10,\n  \"e\": 1E400,\n  \"text\": \"a\\\"b,{}[:] \\\\\",\n  \"list\": [],\n  \"o\": {},\n  \"n\": [\n    1,\n    {\n      \"a\": null\n    }\n  ]\n}";
        assert_eq!(pretty(json), expected);
        for plain in ["5", "null", "\"<script>\"", "[]"] {
            assert_eq!(pretty(plain), plain);
        }
    }

    #[test]
    fn what_is_cut_is_cut_between_characters() {
        let long = "ä".repeat(SHOWN_BYTES);
        let (part, whole) = shown(&long);
        assert!(!whole && part.len() <= SHOWN_BYTES && part.chars().all(|character| character == 'ä'));
        assert_eq!(shown("x"), ("x", true));
    }
}
