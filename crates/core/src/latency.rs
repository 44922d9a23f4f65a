//! Latency sketches: mergeable, within 1 % of exact. One per window of time; who asks for more than
//! a window merges them.
//!
//! A sketch counts samples in buckets whose width grows with their value: every power of two is
//! cut into 64 equal parts, as in an HDR histogram. The middle of a bucket is therefore off by at
//! most 1/128 (0.8 %) of any value in it. All arithmetic is on integers, so that every process and
//! platform puts a sample into the same bucket, and merging is plain addition. The libraries of
//! this kind work with floating-point logarithms or store more than the counts.
//!
//! **Invariant:** the buckets are sorted by index and hold no zero count, so that equal contents
//! are equal sketches and equal bytes.

use std::time::Duration;

const SUB_BUCKET_BITS: u32 = 6;
const SUB_BUCKETS: u64 = 1 << SUB_BUCKET_BITS;
/// Longer samples count as this long: 2^40 microseconds are 12.7 days.
const MICROS_MAX: u64 = (1 << 40) - 1;
const BUCKETS_MAX: usize = (index_of(MICROS_MAX) + 1) as usize;
const VERSION: u8 = 1;

/// A sketch of durations. Merging is associative and commutative.
///
/// It takes 16 bytes for each bucket in use, at most 36 KiB; an endpoint's hour has about a
/// hundred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch {
    buckets: Vec<(u16, u64)>,
    count: u64,
}

/// How many samples there were, and what half, 95 % and 99 % of them stayed within.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    pub count: u64,
    pub p50: Duration,
    pub p95: Duration,
    pub p99: Duration,
}

impl Sketch {
    pub fn add(&mut self, sample: Duration) {
        let micros = u64::try_from(sample.as_micros()).unwrap_or(MICROS_MAX).min(MICROS_MAX);
        self.add_to(index_of(micros), 1);
    }

    pub fn merge(&mut self, other: &Self) {
        // Hours of one endpoint have nearly the same buckets, so the search goes on from the last
        // place, and hardly ever far.
        let mut place = 0;
        for (index, count) in &other.buckets {
            while self.buckets.get(place).is_some_and(|(own, _)| own < index) {
                place += 1;
            }
            self.add_at(place, *index, *count);
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The sample of nearest rank, `ceil(q * count)`, within 1 %. `None` without samples; `q`
    /// outside `[0, 1]` counts as the nearer end.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        // The cast saturates, and takes what is not a number for zero.
        let rank = (q * self.count as f64).ceil() as u64;
        let mut left = rank.clamp(1, self.count.max(1));
        let bucket = self.buckets.iter().find(|(_, count)| {
            let found = left <= *count;
            left = left.saturating_sub(*count);
            found
        });
        bucket.or(self.buckets.last()).map(|(index, _)| middle_of(*index))
    }

    /// `None` without samples.
    pub fn percentiles(&self) -> Option<Percentiles> {
        Some(Percentiles {
            count: self.count,
            p50: self.quantile(0.50)?,
            p95: self.quantile(0.95)?,
            p99: self.quantile(0.99)?,
        })
    }

    /// A compact, versioned form for the store: a version, then for each bucket the distance of
    /// its index from that of the one before and its count, as LEB128 numbers.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + 3 * self.buckets.len());
        bytes.push(VERSION);
        let mut next = 0;
        for (index, count) in &self.buckets {
            write_number(&mut bytes, u64::from(index - next));
            write_number(&mut bytes, *count);
            next = index + 1;
        }
        bytes
    }

    /// `None` for bytes that are no sketch (another version, damage); never panics.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let mut sketch = Self::default();
        let mut next = 0_u64;
        while !rest.is_empty() {
            let index = read_number(&mut rest)?.checked_add(next)?;
            let count = read_number(&mut rest)?;
            if index >= BUCKETS_MAX as u64 || count == 0 {
                return None;
            }
            sketch.buckets.push((u16::try_from(index).ok()?, count));
            sketch.count = sketch.count.checked_add(count)?;
            next = index + 1;
        }
        Some(sketch)
    }

    fn add_to(&mut self, index: u16, count: u64) {
        let place = self.buckets.partition_point(|(own, _)| *own < index);
        self.add_at(place, index, count);
    }

    /// `place` is that of the first bucket whose index is not lower.
    fn add_at(&mut self, place: usize, index: u16, count: u64) {
        // Saturating, though no one lives to see it: the total must stay the sum of the buckets.
        let count = count.min(u64::MAX - self.count);
        if count == 0 {
            return;
        }
        self.count += count;
        match self.buckets.get_mut(place) {
            Some((own, sum)) if *own == index => *sum += count,
            _ => self.buckets.insert(place, (index, count)),
        }
    }
}

/// Values below 128 have a bucket each; above, 64 buckets share an octave.
const fn index_of(micros: u64) -> u16 {
    let octave = (micros | (SUB_BUCKETS * 2 - 1)).ilog2() - SUB_BUCKET_BITS;
    (octave as u64 * SUB_BUCKETS + (micros >> octave)) as u16
}

fn middle_of(index: u16) -> Duration {
    let index = u64::from(index);
    let octave = (index / SUB_BUCKETS).saturating_sub(1);
    let lowest = (index - octave * SUB_BUCKETS) << octave;
    Duration::from_micros(lowest + ((1 << octave) >> 1))
}

fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Only the shortest form of a number is one, so that a sketch has one form only.
fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7F);
        if bits << (7 * place) >> (7 * place) != bits {
            return None;
        }
        number |= bits << (7 * place);
        if byte & 0x80 == 0 {
            return (place == 0 || *byte != 0).then_some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests;
