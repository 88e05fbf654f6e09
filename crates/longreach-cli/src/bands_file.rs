//! `--bands FILE.json`: any mask, as bands in global positions.

use crate::error::Error;
use crate::read::{self, unreadable};
use longreach_plan::{Band, Edge};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

/// Largest file that is read: a band takes about a hundred bytes, so this is millions of bands.
const MOST_BYTES: u64 = 1 << 28;

/// A value that is written as an object. Serde reads structs from arrays of their fields too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OfObject(PhantomData))
    }
}

struct OfObject<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OfObject<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BandsFile {
    bands: Vec<Object<BandEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BandEntry {
    q: [i64; 2],
    lo: Edge,
    hi: Edge,
}

/// The bands of the file, for queries `0..q_len`.
///
/// Fails when the file cannot be read, is no list of bands, or speaks of queries that there are not.
pub fn bands(path: &Path, q_len: usize) -> Result<Vec<Band>, Error> {
    let bad = |why: String| Error::bad("--bands", path.display().to_string(), why);
    let mut text = String::new();
    let file = read::open("--bands", path)?;
    file.take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| unreadable("--bands", path, &error))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(bad(format!("is larger than {MOST_BYTES} bytes")));
    }
    parse(&text, q_len).map_err(bad)
}

fn parse(text: &str, q_len: usize) -> Result<Vec<Band>, String> {
    let Object(file): Object<BandsFile> = serde_json::from_str(text).map_err(|error| {
        format!(
            "is not a list of bands: {error}; expected \
             {{\"bands\":[{{\"q\":[a,b],\"lo\":{{\"fixed\":n}},\"hi\":{{\"diagonal\":n}}}}]}}"
        )
    })?;
    let band = |(number, Object(entry)): (usize, Object<BandEntry>)| {
        let [start, end] = entry.q;
        let inside = usize::try_from(end).is_ok_and(|end| end <= q_len);
        if start < 0 || start > end || !inside {
            return Err(format!(
                "band {number} has q [{start}, {end}), expected a part of the queries [0, {q_len})"
            ));
        }
        Ok(Band { q: start..end, lo: entry.lo, hi: entry.hi })
    };
    file.bands.into_iter().enumerate().map(band).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_fixed_or_diagonal() {
        let text = r#"{"bands":[{"q":[0,4],"lo":{"fixed":-2},"hi":{"diagonal":1}},
                      {"q":[4,4],"lo":{"diagonal":-3},"hi":{"fixed":9}}]}"#;
        let bands = parse(text, 4).unwrap();
        assert_eq!(bands[0], Band { q: 0..4, lo: Edge::Fixed(-2), hi: Edge::Diagonal(1) });
        assert_eq!(bands[1], Band { q: 4..4, lo: Edge::Diagonal(-3), hi: Edge::Fixed(9) });
        assert_eq!(parse(r#"{"bands":[]}"#, 0).unwrap(), []);
    }

    #[test]
    fn what_is_no_band_is_refused() {
        let edges = r#""lo":{"fixed":0},"hi":{"diagonal":1}"#;
        for (q, part) in [
            ("[0,5]", "band 0 has q [0, 5), expected a part of the queries [0, 4)"),
            ("[-1,2]", "band 0 has q [-1, 2)"),
            ("[3,2]", "band 0 has q [3, 2)"),
            ("[0]", "is not a list of bands"),
            ("[0,1,2]", "is not a list of bands"),
            ("[0,1.5]", "is not a list of bands"),
            ("[0,99999999999999999999]", "is not a list of bands"),
        ] {
            let error = parse(&format!(r#"{{"bands":[{{"q":{q},{edges}}}]}}"#), 4).unwrap_err();
            assert!(error.contains(part), "{q}: {error}");
        }
        for text in [
            "",
            "[]",
            "{}",
            r#"{"bands":[{"q":[0,1],"lo":{"fixed":0}}]}"#,
            r#"{"bands":[{"q":[0,1],"lo":{"middle":0},"hi":{"fixed":1}}]}"#,
            r#"{"bands":[{"q":[0,1],"lo":{"fixed":0,"diagonal":1},"hi":{"fixed":1}}]}"#,
            r#"{"bands":[],"mask":"causal"}"#,
            r#"{"bands":[]} trailing"#,
            r#"{"bands":[],"bands":[]}"#,
            // Arrays in place of objects, at each level.
            "[[]]",
            r#"[[{"q":[0,4],"lo":{"fixed":0},"hi":{"fixed":1}}]]"#,
            r#"{"bands":[[[0,4],{"fixed":0},{"fixed":1}]]}"#,
            r#"{"bands":[{"q":[0,4],"lo":["fixed",0],"hi":{"fixed":1}}]}"#,
            r#"{"bands":[{"q":[0,4],"lo":[0],"hi":{"fixed":1}}]}"#,
            r#"{"bands":[{"q":[0,4],"lo":{"fixed":[0]},"hi":{"fixed":1}}]}"#,
            // Objects in place of arrays.
            r#"{"bands":{}}"#,
            r#"{"bands":[{"q":{"0":0,"1":4},"lo":{"fixed":0},"hi":{"fixed":1}}]}"#,
        ] {
            assert!(parse(text, 4).unwrap_err().starts_with("is not a list of bands"), "{text}");
        }
    }
}
