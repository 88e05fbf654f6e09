//! Values of single arguments, each with the text that it is written in.

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
            n => n
                .parse()
                .ok()
                .filter(|&n: &u64| i64::try_from(n).is_ok())
                .map(Some),
        };
        text.split_once(',')
            .and_then(|(left, right)| {
                Some(Self {
                    left: bound(left)?,
                    right: bound(right)?,
                })
            })
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// PE r of P holds chunks r and 2P-1-r of 2P.
    Zigzag,
    /// PE r holds chunk r of P.
    Contiguous,
    /// Blocks of this many tokens go round the PEs.
    Striped(usize),
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "zigzag" => Ok(Self::Zigzag),
            "contiguous" => Ok(Self::Contiguous),
            "striped" => Ok(Self::Striped(1)),
            _ => match text.strip_prefix("striped:").map(str::parse) {
                Some(Ok(block)) if block >= 1 => Ok(Self::Striped(block)),
                Some(_) => {
                    Err("expected striped:BLOCK with BLOCK a whole number, at least 1".to_owned())
                }
                None => Err("expected zigzag, contiguous, striped or striped:BLOCK".to_owned()),
            },
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zigzag => f.write_str("zigzag"),
            Self::Contiguous => f.write_str("contiguous"),
            Self::Striped(1) => f.write_str("striped"),
            Self::Striped(block) => write!(f, "striped:{block}"),
        }
    }
}

/// `--stages`: how many fetched stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// The plan's cost model chooses.
    Auto,
    /// This many, at least 1.
    Fixed(usize),
}

impl FromStr for Stages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(n)) if n >= 1 => Ok(Self::Fixed(n)),
            _ => Err("expected auto or a whole number, at least 1 (stage 0, the PE's own rows, is not counted)"
                .to_owned()),
        }
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
        assert_eq!(
            window("-1,0"),
            Ok(Window {
                left: None,
                right: Some(0)
            })
        );
        assert_eq!(window("128,-1").unwrap().to_string(), "128,-1");
        for bad in [
            "-2,0",
            "0,-2",
            "1",
            "1,2,3",
            ",",
            "a,b",
            "1.5,0",
            "99999999999999999999,0",
            "--json",
        ] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn layouts() {
        for text in ["zigzag", "contiguous", "striped", "striped:16"] {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "ring",
            "striped:0",
            "striped:-1",
            "striped:",
            "Zigzag",
            "zigzag:2",
        ] {
            assert!(bad.parse::<Layout>().is_err(), "{bad}");
        }
    }

    #[test]
    fn stages() {
        assert_eq!("auto".parse(), Ok(Stages::Auto));
        assert_eq!("3".parse(), Ok(Stages::Fixed(3)));
        for bad in ["0", "-1", "", "many"] {
            assert!(bad.parse::<Stages>().is_err(), "{bad}");
        }
    }

    #[test]
    fn memory() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64KiB", 65536),
            ("2 MiB", 2 << 20),
            ("3GiB", 3 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Memory(bytes)), "{text}");
        }
        for bad in [
            "0",
            "-5",
            "1.5GiB",
            "10GB",
            "GiB",
            "99999999999999999999",
            "18446744073709551615KiB",
        ] {
            assert!(bad.parse::<Memory>().is_err(), "{bad}");
        }
    }
}
