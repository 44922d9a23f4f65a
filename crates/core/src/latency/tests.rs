use super::*;
use proptest::prelude::*;

fn sketch(micros: &[u64]) -> Sketch {
    let mut sketch = Sketch::default();
    micros.iter().for_each(|micros| sketch.add(Duration::from_micros(*micros)));
    sketch
}

/// Samples of every order of magnitude.
fn samples(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u64>> {
    let sample = (0..40_u32, any::<u64>()).prop_map(|(bits, raw)| raw & ((1 << bits) - 1));
    prop::collection::vec(sample, count)
}

#[test]
fn nothing_has_no_quantile() {
    let empty = Sketch::default();
    assert!(empty.is_empty());
    assert_eq!(empty.quantile(0.5), None);
    assert_eq!(empty.percentiles(), None);
    assert_eq!(Sketch::from_bytes(&empty.to_bytes()), Some(empty));
}

#[test]
fn small_values_are_exact_and_huge_ones_bounded() {
    for micros in 0..128 {
        assert_eq!(sketch(&[micros]).quantile(0.5), Some(Duration::from_micros(micros)));
    }
    let mut huge = Sketch::default();
    huge.add(Duration::MAX);
    assert!(huge.quantile(1.0) > Some(Duration::from_secs(12 * 86_400)));
    assert!(usize::from(index_of(MICROS_MAX)) + 1 == BUCKETS_MAX);
}

#[test]
fn counts_saturate() {
    let mut bytes = vec![VERSION, 0];
    write_number(&mut bytes, u64::MAX);
    let mut full = Sketch::from_bytes(&bytes).unwrap();
    full.merge(&sketch(&[1, 2, 3]));
    assert_eq!(full.count(), u64::MAX);
    assert_eq!(full.quantile(1.0), Some(Duration::ZERO));
}

#[test]
fn damaged_bytes_are_no_sketch() {
    let good = sketch(&[10, 10, 5_000_000]).to_bytes();
    for len in 1..good.len() {
        let cut = Sketch::from_bytes(&good[..len]);
        assert!(cut.is_none_or(|cut| cut.count() < 3), "cut at {len}");
    }
    for bytes in [
        &[][..],
        &[0],
        &[VERSION + 1, 0, 1],
        // A count of zero, an index beyond the last, a number in a longer form than it needs, one
        // that does not fit, and two counts whose sum does not.
        &[VERSION, 0, 0],
        &[VERSION, 0xFF, 0x7F, 1],
        &[VERSION, 0x80, 0, 1],
        &[VERSION, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2],
        &[VERSION, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 0, 1],
    ] {
        assert_eq!(Sketch::from_bytes(bytes), None, "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn quantiles_are_within_one_percent_of_exact(mut micros in samples(1..400), q in 0.0..=1.0) {
        let sketch = sketch(&micros);
        micros.sort_unstable();
        for q in [q, 0.0, 0.5, 0.95, 0.99, 1.0] {
            let rank = ((q * micros.len() as f64).ceil() as usize).clamp(1, micros.len());
            let exact = micros[rank - 1] as f64;
            let found = sketch.quantile(q).unwrap().as_micros() as f64;
            prop_assert!((found - exact).abs() <= exact * 0.01, "{} for {} at {}", found, exact, q);
        }
    }

    #[test]
    fn merging_is_associative_commutative_and_loses_nothing(
        a in samples(0..60), b in samples(0..60), c in samples(0..60),
    ) {
        let (one, two, three) = (sketch(&a), sketch(&b), sketch(&c));
        let (mut left, mut right) = (one.clone(), two.clone());
        left.merge(&two);
        left.merge(&three);
        right.merge(&three);
        right.merge(&one);
        prop_assert_eq!(&left, &right);
        prop_assert_eq!(left, sketch(&[a, b, c].concat()));
    }

    #[test]
    fn bytes_and_back(micros in samples(0..200)) {
        let sketch = sketch(&micros);
        prop_assert_eq!(Sketch::from_bytes(&sketch.to_bytes()), Some(sketch));
    }

    #[test]
    fn hostile_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Sketch::from_bytes(&bytes);
        bytes.insert(0, VERSION);
        if let Some(sketch) = Sketch::from_bytes(&bytes) {
            prop_assert!(sketch.buckets.len() <= BUCKETS_MAX);
            prop_assert_eq!(sketch.to_bytes(), bytes);
        }
    }
}
