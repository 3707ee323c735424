//! Screens the broker's bytes before the AMQP client parses them.
//!
//! The client's parser recurses into nested headers without a limit. It also gives up a whole connection over one
//! short string that is not UTF-8. The screen walks the same bytes without recursion and replaces what the client
//! could not parse. The message then arrives with empty properties, and a note beside it holds the original ones. The
//! screen also knows the size of a body before the body comes, and can leave it out.
//!
//! It reads frames in pieces of any size, and does no I/O.

mod properties;

use std::collections::HashMap;

/// The deepest nesting of tables and arrays. It is twice that of a delayed message; the client needs some 2 KiB of
/// stack for each level.
pub(crate) const MAX_NESTING: usize = 32;
/// The most values in the headers of one message. In memory a value is many times as large as on the wire.
pub(crate) const MAX_VALUES: usize = 10_000;
/// The largest header or method frame: the size that a broker negotiates by default. RabbitMQ adds headers of its own
/// to a dead-lettered message, so it may send more than it negotiated. The client would end the connection over that.
pub const MAX_FRAME_BYTES: usize = (128 << 10) - 8;
/// The largest body: the largest payload in the widest format (base64 within JSON) is smaller.
pub(crate) const MAX_BODY_BYTES: u64 = 2 << 20;
/// The most bytes of the properties that are kept for a person to look at. In base64 they fit into one frame.
pub(crate) const KEPT_BYTES: usize = 64 << 10;

/// The memory of a message besides its bytes.
const MESSAGE_BYTES: usize = 1 << 10;
/// The memory of one header value, in all the forms in which it is kept.
const VALUE_BYTES: usize = 160;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const FRAME_END: u8 = 0xCE;
/// The head of a frame: type, channel, size.
const HEAD_BYTES: usize = 7;
/// The head of a content header: class, weight, size of the body.
const CONTENT_BYTES: usize = 12;

/// Why the client does not receive a message unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub reason: String,
    pub kind: TroubleKind,
    /// The original properties, up to [`KEPT_BYTES`]; empty where the client receives them.
    pub properties: Vec<u8>,
    /// The original routing key. Set when the names are not UTF-8, so that the client sees other characters.
    pub routing_key: Option<Vec<u8>>,
    /// Part of the message is kept neither here nor by the client.
    pub is_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// The client cannot parse the message.
    Unreadable,
    /// The body is larger than any that Duetime takes.
    TooLarge,
}

/// A message that begins to arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub channel: u16,
    /// `None` for a message that the broker returns to its publisher.
    pub delivery_tag: Option<u64>,
    /// The estimated memory of the message.
    pub weight: usize,
    pub trouble: Option<Trouble>,
}

/// The state of one connection.
#[derive(Debug, Default)]
pub struct Screen {
    state: State,
    /// The head of a frame, and the gathered part of its payload.
    frame: Vec<u8>,
    /// The announcement in the last method of each channel.
    announced: HashMap<u16, Announced>,
    /// How many bytes of a channel's body are still to be left out.
    leaving_out: HashMap<u16, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Head,
    /// Gathers `keep` bytes, then skips `then_skip` bytes.
    Gather { keep: usize, then_skip: usize },
    /// Passes so many bytes on unchanged.
    Pass(usize),
    /// Leaves so many bytes out.
    Skip(usize),
    /// The bytes are no frames that the screen knows: everything passes unchanged.
    Raw,
}

#[derive(Debug, Default)]
struct Announced {
    delivery_tag: Option<u64>,
    /// The fault in the names, and the original routing key.
    trouble: Option<(&'static str, Vec<u8>)>,
}

impl Screen {
    /// Screens bytes from the connection, and adds the bytes for the client to `out`. `take` receives each message
    /// that begins, and returns whether its body is wanted now.
    pub fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>, mut take: impl FnMut(Arrival) -> bool) {
        while !input.is_empty() {
            match &mut self.state {
                State::Raw => return out.extend_from_slice(input),
                State::Head => {
                    let missing = HEAD_BYTES - self.frame.len();
                    let (head, rest) = input.split_at(missing.min(input.len()));
                    self.frame.extend_from_slice(head);
                    input = rest;
                    // The first byte alone shows whether this is a frame.
                    if self.frame.len() == HEAD_BYTES || !matches!(self.frame[0], METHOD | HEADER | BODY | HEARTBEAT) {
                        self.begin(out);
                    }
                }
                State::Gather { keep, then_skip } => {
                    let (part, rest) = input.split_at((*keep).min(input.len()));
                    self.frame.extend_from_slice(part);
                    *keep -= part.len();
                    input = rest;
                    if *keep == 0 {
                        let then_skip = *then_skip;
                        self.end_of_frame(then_skip, out, &mut take);
                    }
                }
                State::Pass(left) | State::Skip(left) => {
                    let (part, rest) = input.split_at((*left).min(input.len()));
                    *left -= part.len();
                    let is_over = *left == 0;
                    if matches!(self.state, State::Pass(_)) {
                        out.extend_from_slice(part);
                    }
                    if is_over {
                        self.state = State::Head;
                    }
                    input = rest;
                }
            }
        }
    }

    /// Decides what to do with a frame whose head is complete.
    fn begin(&mut self, out: &mut Vec<u8>) {
        let Some((kind, channel, size)) = head(&self.frame) else {
            out.append(&mut self.frame);
            self.state = State::Raw;
            return;
        };
        let with_end = size.saturating_add(1);
        self.state = match kind {
            METHOD if size <= MAX_FRAME_BYTES => State::Gather { keep: with_end, then_skip: 0 },
            HEADER if size > MAX_FRAME_BYTES => {
                State::Gather { keep: MAX_FRAME_BYTES, then_skip: with_end - MAX_FRAME_BYTES }
            }
            HEADER => State::Gather { keep: with_end, then_skip: 0 },
            BODY if self.leaves_out(channel, size) => {
                self.frame.clear();
                State::Skip(with_end)
            }
            _ => {
                out.append(&mut self.frame);
                State::Pass(with_end)
            }
        };
    }

    fn leaves_out(&mut self, channel: u16, size: usize) -> bool {
        let Some(left) = self.leaving_out.get_mut(&channel) else { return false };
        *left = left.saturating_sub(size as u64);
        if *left == 0 {
            self.leaving_out.remove(&channel);
        }
        true
    }

    fn end_of_frame(&mut self, then_skip: usize, out: &mut Vec<u8>, take: &mut impl FnMut(Arrival) -> bool) {
        let mut frame = std::mem::take(&mut self.frame);
        self.state = if then_skip > 0 { State::Skip(then_skip) } else { State::Head };
        let Some((kind, channel, size)) = head(&frame) else { return };
        if kind == METHOD {
            // A channel sends nothing else before a body is complete, so an earlier body is over.
            self.leaving_out.remove(&channel);
            self.announced.remove(&channel);
            let announced = names(&mut frame[HEAD_BYTES..HEAD_BYTES + size]);
            if let Some(announced) = announced {
                self.announced.insert(channel, announced);
            }
            out.append(&mut frame);
        } else if size < CONTENT_BYTES {
            // Too short for the client's own framing. The client rightly gives the connection up.
            out.append(&mut frame);
        } else {
            self.content(channel, size, &frame[HEAD_BYTES..], out, take);
        }
        frame.clear();
        // Keeps the memory for the next frame.
        self.frame = frame;
    }

    /// Handles the header of a message: class, weight, size of the body, properties.
    fn content(
        &mut self,
        channel: u16,
        size: usize,
        payload: &[u8],
        out: &mut Vec<u8>,
        take: &mut impl FnMut(Arrival) -> bool,
    ) {
        let announced = self.announced.remove(&channel).unwrap_or_default();
        let properties = &payload[CONTENT_BYTES..size.min(payload.len())];
        let body = u64::from_be_bytes(payload[4..CONTENT_BYTES].try_into().expect("eight bytes"));
        let (values, trouble) = judge(size, properties, body, announced.trouble);
        let is_readable = trouble.as_ref().is_none_or(|trouble| trouble.kind == TroubleKind::TooLarge);
        let body_bytes = usize::try_from(body).unwrap_or(usize::MAX);
        let is_too_large = body > MAX_BODY_BYTES;
        let weight = MESSAGE_BYTES
            .saturating_add(if is_too_large { 0 } else { body_bytes })
            .saturating_add(3 * size.min(MAX_FRAME_BYTES))
            .saturating_add(values * VALUE_BYTES);
        let delivery_tag = announced.delivery_tag;
        let has_room = take(Arrival { channel, delivery_tag, weight, trouble });
        let is_wanted = has_room && !is_too_large;
        if !is_wanted && body > 0 {
            self.leaving_out.insert(channel, body);
        }
        // A message without room comes again; until then its headers would take memory that nothing counts.
        let properties = if is_readable && has_room { properties } else { &[0, 0] };
        let size = u32::try_from(CONTENT_BYTES + properties.len()).expect("below the largest frame");
        out.push(HEADER);
        out.extend_from_slice(&channel.to_be_bytes());
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&payload[..4]);
        out.extend_from_slice(&if is_wanted { body } else { 0 }.to_be_bytes());
        out.extend_from_slice(properties);
        out.push(FRAME_END);
    }
}

/// The number of header values, and the reason why the client cannot receive the message unchanged, if any.
fn judge(
    size: usize,
    properties: &[u8],
    body: u64,
    names: Option<(&'static str, Vec<u8>)>,
) -> (usize, Option<Trouble>) {
    let checked = if size > MAX_FRAME_BYTES {
        Err(format!("its properties take {size} bytes, more than {MAX_FRAME_BYTES}"))
    } else {
        properties::check(properties)
    };
    let is_too_large = body > MAX_BODY_BYTES;
    let (reason, routing_key) = match (&checked, names) {
        (Err(reason), names) => (reason.clone(), names.map(|(_, routing_key)| routing_key)),
        (Ok(_), Some((reason, routing_key))) => (reason.to_owned(), Some(routing_key)),
        (Ok(values), None) if is_too_large => {
            let reason = format!("its body has {body} bytes, more than {MAX_BODY_BYTES}");
            let kind = TroubleKind::TooLarge;
            return (*values, Some(Trouble { reason, kind, properties: Vec::new(), routing_key: None, is_cut: true }));
        }
        (Ok(values), None) => return (*values, None),
    };
    let kept = &properties[..properties.len().min(KEPT_BYTES)];
    let trouble = Trouble {
        reason,
        kind: TroubleKind::Unreadable,
        properties: kept.to_vec(),
        routing_key,
        is_cut: is_too_large || CONTENT_BYTES + kept.len() < size,
    };
    (0, Some(trouble))
}

/// The type, channel and size of a frame; `None` when the bytes are no frame.
fn head(frame: &[u8]) -> Option<(u8, u16, usize)> {
    let [kind @ (METHOD | HEADER | BODY | HEARTBEAT), c0, c1, s0, s1, s2, s3, ..] = *frame else { return None };
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    Some((kind, u16::from_be_bytes([c0, c1]), usize::try_from(size).unwrap_or(usize::MAX)))
}

/// The class and method of frames with text from outside, and the place of that text.
const TEXTS: [((u16, u16), &[Part]); 6] = [
    ((10, 50), &[Part::Skip(2), Part::Text]),
    ((10, 60), &[Part::Text]),
    ((20, 40), &[Part::Skip(2), Part::Text]),
    (RETURN, &[Part::Skip(2), Part::Text, Part::Text, Part::Text]),
    (DELIVER, &[Part::Text, Part::Tag, Part::Skip(1), Part::Text, Part::Text]),
    (GET_OK, &[Part::Tag, Part::Skip(1), Part::Text, Part::Text]),
];
const RETURN: (u16, u16) = (60, 50);
const DELIVER: (u16, u16) = (60, 60);
const GET_OK: (u16, u16) = (60, 71);

enum Part {
    Skip(usize),
    Tag,
    Text,
}

/// Replaces text that is not UTF-8 in a method, in place. Returns the announcement if the method announces a message.
fn names(method: &mut [u8]) -> Option<Announced> {
    let [c0, c1, m0, m1, arguments @ ..] = method else { return None };
    let id = (u16::from_be_bytes([*c0, *c1]), u16::from_be_bytes([*m0, *m1]));
    let (_, parts) = TEXTS.iter().find(|(of, _)| *of == id)?;
    let mut announced = Announced::default();
    let mut rest: &mut [u8] = arguments;
    for part in *parts {
        let len = match part {
            Part::Skip(bytes) => *bytes,
            Part::Tag => 8,
            Part::Text => 1 + usize::from(*rest.first()?),
        };
        let (field, after) = std::mem::take(&mut rest).split_at_mut_checked(len)?;
        match part {
            Part::Skip(_) => {}
            Part::Tag => announced.delivery_tag = Some(u64::from_be_bytes(field.try_into().ok()?)),
            Part::Text => {
                let text = &mut field[1..];
                // The routing key is the last text of the method, so its bytes are the ones that stay.
                announced.trouble = match announced.trouble {
                    _ if std::str::from_utf8(text).is_err() => {
                        let as_it_came = text.to_vec();
                        make_utf8(text);
                        Some(("its routing key or exchange is not UTF-8", as_it_came))
                    }
                    Some((reason, _)) => Some((reason, text.to_vec())),
                    None => None,
                };
            }
        }
        rest = after;
    }
    matches!(id, RETURN | DELIVER | GET_OK).then_some(announced)
}

/// Replaces each byte that is not part of valid UTF-8 with a question mark.
fn make_utf8(mut text: &mut [u8]) {
    while let Err(error) = std::str::from_utf8(text) {
        let bad = text.len() - error.valid_up_to();
        let len = error.error_len().unwrap_or(bad);
        text = &mut text[error.valid_up_to()..];
        text[..len].fill(b'?');
    }
}

#[cfg(test)]
mod tests;
