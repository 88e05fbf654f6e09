//! Values of single arguments, each with the text that it is written in.

use longreach::{Layout, Stages};
use std::fmt;
use std::str::FromStr;

/// `--window LEFT,RIGHT`; `None` is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Keys visible before the diagonal.
    pub left: Option<u64>,
    /// Keys visible after the diagonal.
    pub right: Option<u64>,
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bound = |text: &str| match text.trim() {
            "-1" => Some(None),
            // Bounds end where positions do.
            n => n.parse().ok().filter(|&n: &u64| i64::try_from(n).is_ok()).map(Some),
        };
        text.split_once(',')
            .and_then(|(left, right)| Some(Self { left: bound(left)?, right: bound(right)? }))
            .ok_or_else(|| "expected LEFT,RIGHT, each a whole number or -1 for no bound".to_owned())
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |n: Option<u64>| n.map_or("-1".to_owned(), |n| n.to_string());
        write!(f, "{},{}", bound(self.left), bound(self.right))
    }
}

/// `--layout`: who holds which tokens.
pub fn layout(text: &str) -> Result<Layout, String> {
    text.parse().map_err(|error| match error {
        longreach_plan::Error::Parse { expected, .. } => format!("expected {expected}"),
        other => other.to_string(),
    })
}

/// `--stages`: how many fetched stages.
pub fn stages(text: &str) -> Result<Stages, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Stages::Auto),
        (_, Ok(n)) if n >= 1 => Ok(Stages::Exactly(n)),
        _ => Err("expected auto or a whole number, at least 1 (stage 0, the PE's own rows, is not counted)"
            .to_owned()),
    }
}

/// `--memory`: a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub u64);

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("KiB", 1u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
        let (digits, unit) = units
            .iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), *unit)))
            .unwrap_or((text, 1));
        let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
        bytes.filter(|&n| n > 0).map(Self).ok_or_else(|| {
            "expected a number of bytes above 0, plain or with one of the suffixes KiB, MiB, GiB".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows() {
        let window = |text: &str| text.parse::<Window>();
        assert_eq!(window("-1,0"), Ok(Window { left: None, right: Some(0) }));
        assert_eq!(window("128,-1").unwrap().to_string(), "128,-1");
        for bad in ["-2,0", "0,-2", "1", "1,2,3", ",", "a,b", "1.5,0", "99999999999999999999,0", "--json"] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn layouts() {
        for text in ["zigzag", "contiguous", "striped", "striped:16"] {
            assert_eq!(layout(text).unwrap().to_string(), text);
        }
        for bad in ["", "ring", "striped:0", "striped:-1", "striped:", "Zigzag", "zigzag:2"] {
            assert!(layout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_of_stages() {
        assert_eq!(stages("auto"), Ok(Stages::Auto));
        assert_eq!(stages("3"), Ok(Stages::Exactly(3)));
        for bad in ["0", "-1", "", "many"] {
            assert!(stages(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory() {
        for (text, bytes) in [("4096", 4096), ("64KiB", 65536), ("2 MiB", 2 << 20), ("3GiB", 3 << 30)] {
            assert_eq!(text.parse(), Ok(Memory(bytes)), "{text}");
        }
        for bad in ["0", "-5", "1.5GiB", "10GB", "GiB", "99999999999999999999", "18446744073709551615KiB"] {
            assert!(bad.parse::<Memory>().is_err(), "{bad}");
        }
    }
}
