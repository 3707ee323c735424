//! An AMQP client that writes its frames by hand, to send what no library would.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lapin::uri::AMQPUri;
use rand::{RngExt, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const FRAME_END: u8 = 0xCE;
/// The broker's default limit of a frame.
const FRAME_MAX: usize = 128 << 10;
/// The largest properties that fit into one frame.
pub const PROPERTIES_MAX: usize = FRAME_MAX - 8 - 12;
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// One connection with one channel in confirm mode.
#[derive(Debug)]
pub struct RawAmqp {
    uri: AMQPUri,
    stream: TcpStream,
}

/// The outcome of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Confirmed,
    /// The broker refused it, with this reason.
    Refused(String),
}

impl RawAmqp {
    pub async fn connect(url: &str) -> Result<Self> {
        let uri: AMQPUri = url.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        let stream = TcpStream::connect((uri.authority.host.as_str(), uri.authority.port)).await?;
        let mut this = Self { uri, stream };
        tokio::time::timeout(ANSWER_WITHIN, this.shake_hands()).await.context("the broker is silent")??;
        Ok(this)
    }

    async fn shake_hands(&mut self) -> Result<()> {
        self.stream.write_all(b"AMQP\0\0\x09\x01").await?;
        self.expect((10, 10)).await?;
        let user = &self.uri.authority.userinfo;
        let login = format!("\0{}\0{}", user.username, user.password);
        let start_ok = [&[0; 4][..], &short(b"PLAIN"), &long(login.as_bytes()), &short(b"en_US")].concat();
        self.method(0, (10, 11), &start_ok).await?;
        let tune = self.expect((10, 30)).await?;
        // No heartbeats: this connection never rests for long.
        self.method(0, (10, 31), &[&tune[..6], &[0, 0]].concat()).await?;
        let vhost = short(self.uri.vhost.as_bytes());
        self.method(0, (10, 40), &[&vhost[..], &[0, 0]].concat()).await?;
        self.expect((10, 41)).await?;
        self.method(1, (20, 10), &[0]).await?;
        self.expect((20, 11)).await?;
        self.method(1, (85, 10), &[0]).await?;
        self.expect((85, 11)).await.map(|_| ())
    }

    /// Publishes and waits for the confirm. After a refusal the connection is a new one.
    pub async fn publish(
        &mut self,
        exchange: &str,
        routing_key: &[u8],
        properties: &[u8],
        body: &[u8],
    ) -> Result<Sent> {
        let sending = self.send(exchange, routing_key, properties, body);
        let sent = tokio::time::timeout(ANSWER_WITHIN, sending).await.context("the broker is silent")?;
        match sent {
            Ok(Sent::Confirmed) => Ok(Sent::Confirmed),
            Ok(refused) => {
                *self = Self::connect(&self.uri.to_string()).await?;
                Ok(refused)
            }
            Err(error) => {
                *self = Self::connect(&self.uri.to_string()).await?;
                Ok(Sent::Refused(error.to_string()))
            }
        }
    }

    async fn send(&mut self, exchange: &str, routing_key: &[u8], properties: &[u8], body: &[u8]) -> Result<Sent> {
        let publish = [&[0, 0][..], &short(exchange.as_bytes()), &short(routing_key), &[0]].concat();
        self.method(1, (60, 40), &publish).await?;
        let header = [&[0, 60, 0, 0][..], &(body.len() as u64).to_be_bytes(), properties].concat();
        self.frame(HEADER, 1, &header).await?;
        for part in body.chunks(FRAME_MAX - 8) {
            self.frame(BODY, 1, part).await?;
        }
        let (id, arguments) = self.next().await?;
        match id {
            (60, 80) => Ok(Sent::Confirmed),
            (60, 120) => Ok(Sent::Refused("nacked".to_owned())),
            (10, 50) | (20, 40) => {
                let text = arguments.get(3..).unwrap_or_default();
                Ok(Sent::Refused(String::from_utf8_lossy(text).into_owned()))
            }
            other => bail!("unexpected method {other:?}"),
        }
    }

    async fn method(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) -> Result<()> {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        self.frame(METHOD, channel, &payload).await
    }

    async fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) -> Result<()> {
        let size = u32::try_from(payload.len())?.to_be_bytes();
        let frame = [&[kind], &channel.to_be_bytes()[..], &size, payload, &[FRAME_END]].concat();
        Ok(self.stream.write_all(&frame).await?)
    }

    async fn expect(&mut self, wanted: (u16, u16)) -> Result<Vec<u8>> {
        let (id, arguments) = self.next().await?;
        ensure!(
            id == wanted,
            "the broker sent {id:?} instead of {wanted:?}: {:?}",
            String::from_utf8_lossy(&arguments)
        );
        Ok(arguments)
    }

    /// Reads the next method of any kind.
    async fn next(&mut self) -> Result<((u16, u16), Vec<u8>)> {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).await?;
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            let mut payload = vec![0; usize::try_from(size)? + 1];
            self.stream.read_exact(&mut payload).await?;
            if head[0] == METHOD {
                let id = (u16::from_be_bytes([payload[0], payload[1]]), u16::from_be_bytes([payload[2], payload[3]]));
                payload.truncate(payload.len() - 1);
                return Ok((id, payload.split_off(4)));
            }
        }
    }
}

pub fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("a short text")], text].concat()
}

pub fn long(text: &[u8]) -> Vec<u8> {
    [&u32::try_from(text.len()).expect("below 4 GiB").to_be_bytes(), text].concat()
}

/// Properties with nothing but headers; `entries` are the encoded entries of the table.
pub fn headers(entries: &[u8]) -> Vec<u8> {
    [&[0x20, 0][..], &long(entries)].concat()
}

/// Properties with nothing but a message id.
pub fn message_id(id: &[u8]) -> Vec<u8> {
    [&[0, 0x80][..], &short(id)].concat()
}

/// One entry of a table: a text.
pub fn text(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&short(name)[..], b"S", &long(value)].concat()
}

/// One entry of a table: arrays nested to this many levels.
pub fn nested(name: &[u8], levels: usize) -> Vec<u8> {
    let mut entry = short(name);
    for level in (0..levels).rev() {
        entry.push(b'A');
        entry.extend_from_slice(&u32::try_from(level * 5 + 1).expect("below 4 GiB").to_be_bytes());
    }
    entry.push(b'V');
    entry
}

/// The deepest nesting that one frame has room for, beside this many bytes.
pub fn deepest(beside: usize) -> usize {
    (PROPERTIES_MAX - 16 - beside) / 5
}

/// Properties of every kind, a few with a text that is not UTF-8 or a type that does not exist. With the chance of
/// `turned`, one byte of them is altered.
pub fn random_properties(dice: &mut StdRng, turned: f64) -> Vec<u8> {
    let flags: u16 = if dice.random_bool(0.5) { 0x2000 } else { dice.random::<u16>() & 0x3f7c };
    let mut properties = flags.to_be_bytes().to_vec();
    for place in 0..14 {
        if flags & (0x8000 >> place) != 0 {
            match place {
                2 => properties.extend(long(&table(dice, 0))),
                3 | 4 => properties.push(dice.random()),
                9 => properties.extend(dice.random::<u64>().to_be_bytes()),
                _ => properties.extend(short(if dice.random_bool(0.02) { b"\xff" } else { b"text" })),
            }
        }
    }
    if dice.random_bool(turned) {
        let at = dice.random_range(0..properties.len());
        properties[at] = dice.random();
    }
    properties
}

/// Values of a table: mostly valid, sometimes not.
fn table(dice: &mut StdRng, depth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..dice.random_range(0..4) {
        let name: &[u8] = [&b"a"[..], b"", "é".as_bytes(), b"\xe9"][dice.random_range(0..100) % 21 % 4];
        bytes.extend(short(name));
        value(dice, depth, &mut bytes);
    }
    bytes
}

fn value(dice: &mut StdRng, depth: usize, bytes: &mut Vec<u8>) {
    let kind = b"tbBsUuIifLldTDSxVAF?"[dice.random_range(0..60) % 20];
    bytes.push(kind);
    let count = match kind {
        b't' | b'b' | b'B' => 1,
        b's' | b'U' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'L' | b'l' | b'd' | b'T' => 8,
        b'S' | b'x' => return bytes.extend(long(b"\xfftext")),
        b'F' if depth < 5 => return bytes.extend(long(&table(dice, depth + 1))),
        b'A' if depth < 5 => {
            let mut inner = Vec::new();
            value(dice, depth + 1, &mut inner);
            return bytes.extend(long(&inner));
        }
        _ => 0,
    };
    bytes.extend(std::iter::repeat_with(|| dice.random::<u8>()).take(count));
}
