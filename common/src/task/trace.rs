//! A task's place in a trace, as W3C Trace Context writes it. It is stored with the task, so that another node, a
//! restarted node or a consumer can continue the trace.

use std::{collections::BTreeMap, fmt};

use xxhash_rust::xxh3::xxh3_64;

use super::envelope::{Envelope, Field};
use crate::ids::MessageId;

/// The place in a trace, and the additions of tracing systems: W3C Trace Context.
pub const HEADER_TRACEPARENT: &str = "traceparent";
pub const HEADER_TRACESTATE: &str = "tracestate";

/// The longest `tracestate` that is kept or handed on: the standard lets any system cut off a longer one.
pub const MAX_TRACESTATE_BYTES: usize = 512;

/// The last bit of the flags: the system that began the trace wants it recorded.
const SAMPLED: u8 = 1;

/// The id of a trace: all hops of one task, and the work around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

/// The id of one hop.
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

/// A place in a trace: the hop that is the parent of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    flags: u8,
}

impl TraceContext {
    /// The context of a hop that is recorded.
    pub const fn sampled(trace_id: TraceId, span_id: SpanId) -> Self {
        Self { trace_id, span_id, flags: SAMPLED }
    }

    /// Reads a `traceparent`. A malformed one names no trace, as the standard says; a later version is read as far as
    /// it is known.
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

    /// The context that a task carries: in its own headers, or else in those of its envelope.
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

    /// The context of another hop of the same trace.
    pub const fn at(self, span_id: SpanId) -> Self {
        Self { span_id, ..self }
    }

    /// The hop that hands one attempt over. Its id is a hash of the attempt's message id, so that every process that
    /// knows the attempt also knows the hop. All copies of the attempt have the same hop, and the report of a
    /// consumer of any copy finds its parent.
    pub fn handing_over(self, message: MessageId) -> Self {
        // Never 0, which is not a valid hop.
        self.at(SpanId(xxh3_64(message.to_string().as_bytes()).max(1)))
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// The caller's place in a trace, with the caller's own `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub context: TraceContext,
    tracestate: Option<String>,
}

impl Upstream {
    /// Reads the headers of a request; `None` when the caller is in no trace.
    pub fn of(traceparent: Option<&str>, tracestate: Option<&str>) -> Option<Self> {
        let context = TraceContext::parse(traceparent?)?;
        let tracestate = tracestate.filter(|text| text.len() <= MAX_TRACESTATE_BYTES).map(ToOwned::to_owned);
        Some(Self { context, tracestate })
    }

    /// Writes the context into a task's headers, unless those name a trace themselves.
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

/// Reads exactly `digits` lower-case digits, as the standard asks for.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == digits && is_hex).then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests;
