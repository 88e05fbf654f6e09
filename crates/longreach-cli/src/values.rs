//! Values of single arguments, each with the text that it is written in.

use longreach::{Layout, Stages};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Most compute threads of a PE: the engine takes no more.
pub const MOST_THREADS: usize = 4095;

/// Longest time that can be asked for, some thirty years: clocks can be added to.
pub const MOST_SECONDS: f64 = 1e9;

/// What [`scale`] takes.
pub const SCALES: &str = "a finite number of float32's range: 0, or from 1.4e-45 to 3.4e38 with either sign";

/// A whole number from `least` to `most`.
pub fn whole<T: FromStr + PartialOrd + fmt::Display>(text: &str, least: T, most: T) -> Result<T, String> {
    match text.parse() {
        Ok(n) if (&least..=&most).contains(&&n) => Ok(n),
        _ => Err(format!("expected a whole number from {least} to {most}")),
    }
}

/// A factor of the scores, which float32 can hold.
pub fn scale(text: &str) -> Option<f64> {
    let scale = text.parse::<f64>().ok()?;
    let held = scale as f32;
    (held.is_finite() && (held == 0.0) == (scale == 0.0)).then_some(scale)
}

/// A time from `least` seconds to [`MOST_SECONDS`].
pub fn seconds(text: &str, least: f64) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (least..=MOST_SECONDS).contains(seconds))?;
    Duration::try_from_secs_f64(seconds).ok()
}

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
            .ok_or_else(|| {
                format!("expected LEFT,RIGHT, each a whole number from 0 to {}, or -1 for no bound", i64::MAX)
            })
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
        longreach_plan::Error::Parse { expected, .. } => {
            let most = if text.starts_with("striped:") {
                format!(", at most {}", usize::MAX)
            } else {
                String::new()
            };
            format!("expected {expected}{most}")
        }
        other => other.to_string(),
    })
}

/// `--stages`: how many fetched stages.
pub fn stages(text: &str) -> Result<Stages, String> {
    match text {
        "auto" => Ok(Stages::Auto),
        _ => whole(text, 1, usize::MAX)
            .map(Stages::Exactly)
            .map_err(|error| format!("{error}, or auto (stage 0, the PE's own rows, is not counted)")),
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
            format!(
                "expected a number of bytes from 1 to {}, plain or with one of the suffixes KiB, MiB, GiB",
                u64::MAX
            )
        })
    }
}

/// A rate such as `200GB/s`, in bytes a second; units are powers of 1000.
pub fn bytes_a_second(text: &str) -> Option<f64> {
    let number = text.strip_suffix("B/s")?;
    let units = [('T', 1e12), ('G', 1e9), ('M', 1e6), ('k', 1e3)];
    let with_unit = |&(unit, size): &(char, f64)| Some((number.strip_suffix(unit)?, size));
    let (number, unit) = units.iter().find_map(with_unit).unwrap_or((number, 1.0));
    let rate = number.parse::<f64>().ok()? * unit;
    (rate.is_finite() && rate > 0.0).then_some(rate)
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
    fn factors_are_zero_in_float32_only_where_they_are_zero() {
        for (text, value) in [("0", 0.0), ("-0.0", -0.0), ("1e-45", 1e-45), ("-3.4e38", -3.4e38)] {
            assert_eq!(scale(text), Some(value), "{text}");
        }
        for bad in ["1e-46", "-1e-46", "1e-320", "4e38", "nan", "inf", "-inf", "", "x"] {
            assert_eq!(scale(bad), None, "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(seconds("0", 0.0), Some(Duration::ZERO));
        assert_eq!(seconds("1e-9", 1e-9), Some(Duration::from_nanos(1)));
        assert_eq!(seconds("1e9", 0.0), Some(Duration::from_secs(1_000_000_000)));
        for bad in ["0", "1e-10", "1.1e9", "1e300", "inf", "nan", "-1", ""] {
            assert_eq!(seconds(bad, 1e-9), None, "{bad}");
        }
    }

    #[test]
    fn the_engine_takes_so_many_threads_and_no_more() {
        let options = longreach::Options { threads: MOST_THREADS + 1, ..Default::default() };
        let world = longreach::World::threads(1).unwrap();
        let made = world.run(|pe| longreach::ContextParallel::new(&pe.team()?, &options).map(|_| ()));
        let error = made.unwrap_err().to_string();
        assert!(error.contains(&format!("fewer than {}", MOST_THREADS + 1)), "{error}");
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

    #[test]
    fn rates_have_units() {
        assert_eq!(bytes_a_second("200GB/s"), Some(2e11));
        assert_eq!(bytes_a_second("1.5MB/s"), Some(1.5e6));
        assert_eq!(bytes_a_second("7B/s"), Some(7.0));
        for text in ["", "200", "200GB", "GB/s", "-1GB/s", "0GB/s", "2GGB/s", "infB/s", "1 GB/s x"] {
            assert_eq!(bytes_a_second(text), None, "{text}");
        }
    }
}
