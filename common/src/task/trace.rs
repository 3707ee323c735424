//! A task's place in a trace, as W3C Trace Context writes it. It travels with the task, so that whoever has the task can go on with its
//! trace: another node, another start of this one, a consumer.

use std::{collections::BTreeMap, fmt};

use xxhash_rust::xxh3::xxh3_64;

use super::envelope::{Envelope, Field};
use crate::wire::amqp::{HEADER_TRACEPARENT, HEADER_TRACESTATE, MessageId};

/// Beyond this a `tracestate` may be cut off by anybody, so a longer one is not taken.
const MAX_TRACESTATE_BYTES: usize = 512;

/// The last bit of the flags: whoever began the trace wants it recorded.
const SAMPLED: u8 = 1;

/// All hops of one task, and whatever happened around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

/// One hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where a trace stands: the hop that the next one hangs below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    flags: u8,
}

impl TraceContext {
    /// One that is recorded.
    pub const fn sampled(trace_id: TraceId, span_id: SpanId) -> Self {
        Self { trace_id, span_id, flags: SAMPLED }
    }

    /// Reads a `traceparent`. What is malformed names no trace, as the standard says; a version of later days is read as far as it is
    /// known.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace_id = hex(parts.next()?, 32)?;
        let span_id = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        if version == 0xff || (version == 0 && parts.next().is_some()) || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(Self {
            trace_id: TraceId(trace_id),
            span_id: SpanId(u64::try_from(span_id).ok()?),
            flags: u8::try_from(flags).ok()?,
        })
    }

    /// The context that a task carries: in its headers, else in those of the message it came as.
    pub fn carried(headers: &BTreeMap<String, String>, envelope: Option<&Envelope>) -> Option<Self> {
        headers.get(HEADER_TRACEPARENT).and_then(|text| Self::parse(text)).or_else(|| {
            let mut fields = envelope?.properties.headers.iter().flatten();
            match fields.find(|(name, _)| name.as_str() == Some(HEADER_TRACEPARENT))? {
                (_, Field::Text(text)) => text.as_str().and_then(Self::parse),
                _ => None,
            }
        })
    }

    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Another hop of the same trace.
    pub const fn at(self, span_id: SpanId) -> Self {
        Self { span_id, ..self }
    }

    /// The hop that hands one attempt over. It follows from the attempt's name, so that whoever hears of the attempt knows it: every copy
    /// of the attempt says the same, and what a consumer of any of them reports finds its place.
    pub fn handing_over(self, message: MessageId) -> Self {
        // Never 0, which names no hop.
        self.at(SpanId(xxh3_64(message.to_string().as_bytes()).max(1)))
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Where whoever calls stands in a trace, in the words it used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub context: TraceContext,
    tracestate: Option<String>,
}

impl Upstream {
    /// `None`: it stands in none.
    pub fn of(traceparent: Option<&str>, tracestate: Option<&str>) -> Option<Self> {
        let context = TraceContext::parse(traceparent?)?;
        let tracestate = tracestate.filter(|text| text.len() <= MAX_TRACESTATE_BYTES).map(ToOwned::to_owned);
        Some(Self { context, tracestate })
    }

    /// Says so in a task's headers, unless those name a trace themselves.
    pub(crate) fn put_into(self, headers: &mut BTreeMap<String, String>) {
        if TraceContext::carried(headers, None).is_some() {
            return;
        }
        headers.insert(HEADER_TRACEPARENT.to_owned(), self.context.to_string());
        match self.tracestate {
            Some(tracestate) => drop(headers.insert(HEADER_TRACESTATE.to_owned(), tracestate)),
            None => drop(headers.remove(HEADER_TRACESTATE)),
        }
    }
}

/// `digits` of lower case, as the standard asks for.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == digits && is_hex).then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests;
