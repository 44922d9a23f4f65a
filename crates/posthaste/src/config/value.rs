//! Reads and writes the texts of single values. An error says what would be right.

use std::time::Duration;

pub type Parsed<T> = Result<T, String>;

const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A number and a unit, such as `15s`, `500ms`, `1.5s`, `5m`, `2h` or `5d`; `0` needs no unit.
pub fn duration(text: &str) -> Parsed<Duration> {
    let wrong = || "use a number with a unit, such as 500ms, 15s, 5m, 2h or 5d".to_owned();
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(unit_at);
    let plain = |c: char| c.is_ascii_digit() || c == '.';
    let (_, unit_ms) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    if number.is_empty() || !number.chars().all(plain) {
        return Err(wrong());
    }
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit_ms as f64 / 1_000.0;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// The shortest text that `duration` reads back.
pub fn show_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (unit, unit_ms) = UNITS
        .into_iter()
        .find(|(_, unit_ms)| ms >= *unit_ms && ms % unit_ms == 0)
        .unwrap_or(("ms", 1));
    format!("{}{unit}", ms / unit_ms)
}

/// A duration from `min` to `max`.
pub fn duration_within(text: &str, min: Duration, max: Duration) -> Parsed<Duration> {
    let value = duration(text)?;
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(format!("use {} to {}", show_duration(min), show_duration(max)))
}

/// A comma-separated list; blanks around an item mean nothing, and nothing at all is an empty list.
pub fn list<T>(text: &str, item: impl Fn(&str) -> Parsed<T>) -> Parsed<Vec<T>> {
    items(text)?.into_iter().map(item).collect()
}

/// The items of such a list. An empty one among them was probably meant to be something.
pub fn items(text: &str) -> Parsed<Vec<&str>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let items: Vec<_> = text.split(',').map(str::trim).collect();
    match items.iter().position(|item| item.is_empty()) {
        Some(index) => Err(format!("item {} of the list is empty; remove a comma", index + 1)),
        None => Ok(items),
    }
}

pub fn number(text: &str, min: u64, max: u64) -> Parsed<u64> {
    let value = text.trim().parse::<u64>().ok().filter(|value| (min..=max).contains(value));
    value.ok_or_else(|| format!("use a whole number from {min} to {max}"))
}

pub fn fraction(text: &str) -> Parsed<f64> {
    let value = text.trim().parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "use a number from 0 to 1, such as 0.2".to_owned())
}

/// An HTTP status that an answer may end with.
pub fn status(text: &str) -> Parsed<u16> {
    let value = text.trim().parse::<u16>().ok().filter(|value| (300..=599).contains(value));
    value.ok_or_else(|| "use statuses from 300 to 599, such as 400,422".to_owned())
}

pub fn boolean(text: &str) -> Parsed<bool> {
    match text.trim() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("use true or false".to_owned()),
    }
}

/// One of a few words.
pub fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Parsed<T> {
    let text = text.trim();
    let found = choices.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!("use {}", or(&names))
    })
}

/// A size in bytes, such as `64MiB`, `512KiB` or `1000000`.
pub fn bytes(text: &str, min: u64, max: u64) -> Parsed<u64> {
    let text = text.trim();
    let wrong = || format!("use a size from {} to {}", show_bytes(min), show_bytes(max));
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(wrong()),
    };
    let value = digits.parse::<u64>().ok().and_then(|value| value.checked_mul(1 << shift));
    value.filter(|value| (min..=max).contains(value)).ok_or_else(wrong)
}

pub fn show_bytes(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// `a, b or c`.
pub fn or(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms) in [
            ("500ms", 500),
            ("15s", 15_000),
            ("1.5s", 1_500),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("5d", 432_000_000),
            ("0", 0),
            (" 7s ", 7_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "15", "s", "-1s", "1 s", "1w", "1e9s", "NaNs", "infs", "1.2.3s", "1S"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["500ms", "15s", "90s", "5m", "2h", "5d", "1500ms", "0ms"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn a_number_too_large_for_a_duration_is_refused() {
        assert!(duration(&format!("{}d", "9".repeat(40))).is_err());
    }

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(bytes("64MiB", 1, u64::MAX), Ok(64 << 20));
        assert_eq!(bytes("10", 1, 100), Ok(10));
        assert!(bytes("10MB", 1, u64::MAX).is_err());
        assert!(bytes("", 1, 100).is_err());
        assert!(bytes("99999999999999999999GiB", 1, u64::MAX).is_err());
        assert_eq!(show_bytes(64 << 20), "64MiB");
        assert_eq!(show_bytes(1_000), "1000");
    }

    #[test]
    fn lists_ignore_blanks_and_keep_order() {
        let seconds = [1, 2].map(Duration::from_secs);
        assert_eq!(list(" 1s ,2s ", duration).unwrap(), seconds);
        assert_eq!(list(" ", duration), Ok(vec![]));
        for (text, item) in [("1s,,2s", 2), ("1s,", 2), (",1s", 1), (",", 1)] {
            assert!(list(text, duration).unwrap_err().contains(&format!("item {item} ")), "{text}");
        }
        assert!(list("1s,x", duration).is_err());
    }
}
