//! Points in time as text: RFC 3339 with microseconds out, and what clients send in.

use posthaste_core::time::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// A point in time as it stands in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub Timestamp);

const MICROS_A_DAY: i64 = 86_400_000_000;
/// The first and last microsecond with a four-digit year.
const FIRST: i64 = -62_167_219_200_000_000;
const LAST: i64 = 253_402_300_799_999_999;

impl fmt::Display for Time {
    /// `2026-01-02T03:04:05.678901Z`; times without a four-digit year become the nearest with one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros().clamp(FIRST, LAST);
        let (year, month, day) = civil(micros.div_euclid(MICROS_A_DAY));
        let rest = micros.rem_euclid(MICROS_A_DAY);
        let (seconds, micros) = (rest / 1_000_000, rest % 1_000_000);
        let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

impl Time {
    /// Reads RFC 3339, and leniently what looks like it: a blank for the `T`, ` UTC` or nothing for
    /// the offset, a date alone, any number of fraction digits (more than six are cut), and an
    /// offset whose `+` a query string turned into a blank.
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = Rest(text.trim());
        let year = rest.number(4)?;
        rest.skip(b'-')?;
        let month = rest.number(2)?;
        rest.skip(b'-')?;
        let day = rest.number(2)?;
        if !(1..=12).contains(&month) || day < 1 || day > days_of(year, month) {
            return None;
        }
        let midnight = days(year, month, day).checked_mul(MICROS_A_DAY)?;
        if rest.0.is_empty() {
            return Some(Self(Timestamp::from_micros(midnight)));
        }
        rest.one_of(b"Tt ")?;
        let hour = rest.number(2)?;
        rest.skip(b':')?;
        let minute = rest.number(2)?;
        let second = if rest.skip(b':').is_some() { rest.number(2)? } else { 0 };
        let fraction = if rest.skip(b'.').is_some() { rest.fraction()? } else { 0 };
        // A leap second is the second after 59, as everywhere in Unix time.
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let offset = rest.offset()?;
        let seconds = hour * 3_600 + minute * 60 + second - offset * 60;
        Some(Self(Timestamp::from_micros(midnight + seconds * 1_000_000 + fraction)))
    }
}

/// What is left to read.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (head, tail) = self.0.split_at_checked(digits)?;
        if !head.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        self.0 = tail;
        head.parse().ok()
    }

    fn skip(&mut self, byte: u8) -> Option<()> {
        self.one_of(&[byte]).map(|_| ())
    }

    fn one_of(&mut self, bytes: &[u8]) -> Option<u8> {
        let first = *self.0.as_bytes().first()?;
        if !bytes.contains(&first) {
            return None;
        }
        self.0 = &self.0[1..];
        Some(first)
    }

    /// Microseconds.
    fn fraction(&mut self) -> Option<i64> {
        let digits = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (head, tail) = self.0.split_at(digits);
        self.0 = tail;
        let six = head.get(..6).unwrap_or(head);
        let scale = 10_i64.pow(u32::try_from(6 - six.len()).ok()?);
        six.parse::<i64>().ok().map(|value| value * scale)
    }

    /// Minutes east of UTC.
    fn offset(&mut self) -> Option<i64> {
        let rest = self.0.trim_start();
        if rest.is_empty() || ["z", "utc", "gmt"].contains(&rest.to_ascii_lowercase().as_str()) {
            return Some(0);
        }
        let east = match self.one_of(b"+- ")? {
            b'-' => -1,
            _ => 1,
        };
        let hours = self.number(2)?;
        let _ = self.skip(b':');
        let minutes = if self.0.is_empty() { 0 } else { self.number(2)? };
        let valid = self.0.is_empty() && hours <= 23 && minutes <= 59;
        valid.then_some(east * (hours * 60 + minutes))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom("must be a date and time as in RFC 3339"))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar; years begin in March here,
/// so that the leap day comes last (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of `days`.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_of(year: i64, month: i64) -> i64 {
    let next = if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) };
    next - days(year, month, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (FIRST, "0000-01-01T00:00:00.000000Z"),
            (LAST, "9999-12-31T23:59:59.999999Z"),
        ] {
            let time = Time(Timestamp::from_micros(micros));
            assert_eq!(time.to_string(), text);
            assert_eq!(Time::parse(text), Some(time), "{text}");
        }
        assert_eq!(Time(Timestamp::MAX).to_string(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(Time(Timestamp::MIN).to_string(), "0000-01-01T00:00:00.000000Z");
    }

    #[test]
    fn every_day_of_eight_centuries_comes_back() {
        for day in -146_097..146_097 {
            let (year, month, day_of_month) = civil(day);
            assert_eq!(days(year, month, day_of_month), day);
            assert!(day_of_month <= days_of(year, month));
        }
    }

    #[test]
    fn lenient_spellings() {
        let whole = Time(Timestamp::from_millis(1_704_067_200_123));
        for text in [
            "2024-01-01T00:00:00.123Z",
            "2024-01-01 00:00:00.123 UTC",
            "2024-01-01t00:00:00.123z",
            "2024-01-01T00:00:00.1230009+00:00",
            "2024-01-01T02:00:00.123+02:00",
            "2024-01-01T02:00:00.123+0200",
            "2024-01-01T02:00:00.123 02:00",
            "2023-12-31T19:00:00.123-05",
            " 2024-01-01T00:00:00.123 ",
        ] {
            assert_eq!(Time::parse(text), Some(whole), "{text}");
        }
        let midnight = Some(Time(Timestamp::from_secs(1_704_067_200)));
        assert_eq!(Time::parse("2024-01-01"), midnight);
        assert_eq!(Time::parse("2024-01-01T00:00Z"), midnight);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "now",
            "2024",
            "2024-13-01",
            "2024-02-30",
            "2023-02-29",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00+25:00",
            "2024-01-01T00:00:00Zx",
            "2024-01-01T00:00:00+00:00:00",
            "1704067200",
            "2024-1-1",
            "２０２４-01-01",
            "é",
        ] {
            assert_eq!(Time::parse(text), None, "{text}");
        }
    }
}
