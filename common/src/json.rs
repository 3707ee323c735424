//! How values are read from JSON: objects only as objects, whole numbers in any spelling, `null` apart from absent.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

/// For `deserialize_with`: reads a struct from an object only. Serde would also read its fields from an array, in
/// their order.
pub(crate) fn only_object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_map(ObjectVisitor(PhantomData))
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(de::value::MapAccessDeserializer::new(map))
    }
}

/// A struct inside a request that is read from an object only: see [`only_object`].
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        only_object(deserializer).map(Self)
    }
}

/// For `deserialize_with`: like [`only_object`], with `null` read as absent.
pub(crate) fn object_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(read)| read).unwrap_or_default())
}

/// For `deserialize_with`: reads a text, or `null`. Half of a surrogate pair becomes U+FFFD: a program that cuts a text
/// in the middle of a pair writes it.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(text)| text))
}

struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As bytes, because a text with half a pair would be an error.
        deserializer.deserialize_bytes(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_bytes<E: de::Error>(self, text: &[u8]) -> Result<String, E> {
        // Each of the three bytes of a half is replaced by itself.
        Ok(String::from_utf8_lossy(text).replace("\u{fffd}\u{fffd}\u{fffd}", "\u{fffd}"))
    }
}

/// For `deserialize_with`: distinguishes `null` from absent.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// For `deserialize_with`: reads a whole number, absent or `null`. JSON has one kind of number, and some languages
/// write `72` as `72.0`, so both are read.
pub(crate) fn whole<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    Ok(Option::<Whole<T>>::deserialize(deserializer)?.map(|Whole(number)| number))
}

/// Like [`whole`], but `null` is refused.
pub(crate) fn whole_present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    Whole::deserialize(deserializer).map(|Whole(number)| Some(number))
}

/// Like [`whole`], for a list of numbers.
pub(crate) fn wholes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u32>>, D::Error> {
    let numbers = Option::<Vec<Whole<u32>>>::deserialize(deserializer)?;
    Ok(numbers.map(|numbers| numbers.into_iter().map(|Whole(number)| number).collect()))
}

/// For `deserialize_with`: reads `null` as absent.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A list of which the first `MOST` elements are kept and the others only counted: a body may have millions.
#[derive(Debug)]
pub struct AtMost<T, const MOST: usize> {
    pub first: Vec<T>,
    pub count: usize,
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for AtMost<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(AtMostVisitor(PhantomData))
    }
}

struct AtMostVisitor<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for AtMostVisitor<T, MOST> {
    type Value = AtMost<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<AtMost<T, MOST>, A::Error> {
        let mut first = Vec::new();
        while first.len() < MOST {
            let Some(element) = list.next_element()? else {
                return Ok(AtMost { count: first.len(), first });
            };
            first.push(element);
        }
        let mut count = MOST;
        while list.next_element::<de::IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(AtMost { first, count })
    }
}

/// A number without a fraction, in any spelling. A number that does not fit into `T` is refused while it is read,
/// because a later error would not know the field.
pub(crate) struct Whole<T>(pub(crate) T);

/// The largest bound below which a float holds every whole number exactly.
const LAST_EXACT: f64 = 9_007_199_254_740_992.0;

impl<'de, T: TryFrom<i64>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor(PhantomData))
    }
}

struct WholeVisitor<T>(PhantomData<T>);

impl<T: TryFrom<i64>> Visitor<'_> for WholeVisitor<T> {
    type Value = Whole<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Whole<T>, E> {
        T::try_from(number).map(Whole).map_err(|_| E::custom(format!("{number} is out of range")))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Whole<T>, E> {
        let fits = i64::try_from(number).map_err(|_| E::custom(format!("{number} is out of range")))?;
        self.visit_i64(fits)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole<T>, E> {
        if number.fract() != 0.0 || number.abs() > LAST_EXACT {
            return Err(E::custom(format!("{number} is not a whole number, or out of range")));
        }
        self.visit_i64(number as i64)
    }
}
