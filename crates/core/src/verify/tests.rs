use super::*;
use crate::id::MessageId;
use crate::sign::SecretRing;
use proptest::prelude::*;

const BODY: &[u8] = br#"{"b": 1, "a": "caf\u00e9"}"#;
const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn hmac(byte: u8) -> Secret {
    Secret::generate_hmac([byte; 32])
}

fn ed25519(byte: u8) -> Secret {
    Secret::generate_ed25519([byte; 32]).unwrap()
}

fn headers<'a>(timestamp: &'a str, signature: &'a str) -> SignedHeaders<'a> {
    SignedHeaders { id: "msg_1", timestamp, signature }
}

fn signed(secret: &Secret, secs: i64) -> String {
    SecretRing::new(secret.clone()).sign_content("msg_1", secs, BODY)
}

fn key_of(result: Result<Verified<'_>, Rejection>) -> Result<usize, Rejection> {
    result.map(|verified| verified.key)
}

#[test]
fn what_a_ring_signs_each_of_its_receivers_can_verify() {
    let overlap = Duration::from_secs(60);
    let ring = SecretRing::new(hmac(1));
    let ring = ring.rotate(ed25519(2), NOW, overlap).unwrap();
    let ring = ring.rotate(hmac(3), NOW, overlap).unwrap();
    let id = MessageId::from_bytes([7; 16]);
    let (text, signature) = (id.to_string(), ring.sign(id, NOW, BODY));
    let secs = NOW.as_secs().to_string();
    let headers = SignedHeaders { id: &text, timestamp: &secs, signature: &signature };
    for secret in [hmac(1), ed25519(2), hmac(3)] {
        let verifier = Verifier::new([secret.verification_key()]).unwrap();
        let verified = verifier.verify_headers(headers, BODY, NOW);
        assert_eq!(verified, Ok(Verified { id: &text, signed_at: NOW, key: 0 }));
    }
    for secret in [hmac(4), ed25519(4)] {
        let rejected = Verifier::from(&secret).verify_headers(headers, BODY, NOW);
        assert_eq!(rejected, Err(Rejection::Mismatch));
    }
}

#[test]
fn f015_any_of_several_keys_matches_and_is_told() {
    let verifier = Verifier::new([hmac(1).expose(), ed25519(2).verification_key()]).unwrap();
    let verify = |secret| {
        let signature = signed(&secret, NOW.as_secs());
        key_of(verifier.verify_headers(headers("1700000000", &signature), BODY, NOW))
    };
    assert_eq!(verify(hmac(1)), Ok(0));
    assert_eq!(verify(ed25519(2)), Ok(1));
    assert_eq!(verify(hmac(3)), Err(Rejection::Mismatch));
}

#[test]
fn f018_edges_of_the_tolerance() {
    let verifier = Verifier::from(&hmac(1));
    let verify = |secs: i64| {
        let (text, signature) = (secs.to_string(), signed(&hmac(1), secs));
        key_of(verifier.verify_headers(headers(&text, &signature), BODY, NOW))
    };
    let now = NOW.as_secs();
    for skew in [-300, -299, 0, 299, 300] {
        assert_eq!(verify(now + skew), Ok(0), "{skew}");
    }
    assert_eq!(verify(now - 301), Err(Rejection::TooOld { skew_secs: 301 }));
    assert_eq!(verify(now + 301), Err(Rejection::TooNew { skew_secs: 301 }));
    let skew_secs = now.abs_diff(1_000_000_000);
    assert_eq!(verify(1_000_000_000), Err(Rejection::TooOld { skew_secs }));
}

#[test]
fn f014_a_malformed_timestamp_is_rejected() {
    let verifier = Verifier::from(&hmac(1));
    for text in ["abc", "-1", "+1700000000", "1700000000.0", " 1700000000", "99999999999999999999"]
    {
        let signature = signed(&hmac(1), NOW.as_secs());
        let rejected = verifier.verify_headers(headers(text, &signature), BODY, NOW);
        assert_eq!(rejected, Err(Rejection::Timestamp), "{text:?}");
    }
}

#[test]
fn anything_changed_is_a_mismatch() {
    let verifier = Verifier::from(&hmac(1));
    let signature = signed(&hmac(1), NOW.as_secs());
    let good = headers("1700000000", &signature);
    assert_eq!(key_of(verifier.verify_headers(good, BODY, NOW)), Ok(0));
    let other_id = SignedHeaders { id: "msg_2", ..good };
    let other_time = headers("1700000001", &signature);
    let cut = headers("1700000000", &signature[..signature.len() - 1]);
    for (headers, body) in [(other_id, BODY), (other_time, BODY), (cut, BODY), (good, b"{}")] {
        let rejected = verifier.verify_headers(headers, body, NOW);
        assert_eq!(rejected, Err(Rejection::Mismatch));
    }
}

#[test]
fn only_known_kinds_of_signatures_count() {
    let verifier = Verifier::from(&hmac(1));
    let bare = signed(&hmac(1), NOW.as_secs()).replace("v1,", "");
    for signature in [bare.as_str(), "v2,abc", " ", "v1", ",", "V1,abc"] {
        let rejected = verifier.verify_headers(headers("1700000000", signature), BODY, NOW);
        assert_eq!(rejected, Err(Rejection::NoSignature), "{signature}");
    }
    let amid = format!("v2,abc v1,AAAA  {}", signed(&hmac(1), NOW.as_secs()));
    assert_eq!(key_of(verifier.verify_headers(headers("1700000000", &amid), BODY, NOW)), Ok(0));
}

#[test]
fn both_families_of_header_names_are_found_and_never_mixed() {
    let verifier = Verifier::from(&hmac(1));
    let signature = signed(&hmac(1), NOW.as_secs());
    let with = |family: &'static str, leave_out: &'static str| {
        let signature = signature.as_str();
        let find = move |name: &str| match name.strip_prefix(family)? {
            part if part == leave_out => None,
            "id" => Some("msg_1"),
            "timestamp" => Some("1700000000"),
            "signature" => Some(signature),
            _ => None,
        };
        key_of(verifier.verify(find, BODY, NOW))
    };
    assert_eq!(with("webhook-", ""), Ok(0));
    assert_eq!(with("svix-", ""), Ok(0));
    assert_eq!(with("other-", ""), Err(Rejection::Missing("webhook-id")));
    assert_eq!(with("svix-", "timestamp"), Err(Rejection::Missing("svix-timestamp")));
    assert_eq!(with("webhook-", "signature"), Err(Rejection::Missing("webhook-signature")));
}

#[test]
fn f011_a_verifier_without_a_key_cannot_be_made() {
    assert!(Verifier::new([""; 0]).is_err());
    assert!(Verifier::new([""]).is_err());
    assert!(Verifier::new(["whpk_AAAA"]).is_err());
    assert!(Verifier::new([hmac(1).expose(), " ".to_owned()]).is_err());
}

proptest! {
    #[test]
    fn hostile_headers_never_panic_and_never_pass(
        id in ".{0,20}", timestamp in "([0-9]{0,20}|.{0,10})",
        signature in "(v1,|v1a,)?[A-Za-z0-9+/=]{0,90}( v1a?,.{0,20})?",
        body in prop::collection::vec(any::<u8>(), 0..50), now: i64,
    ) {
        let verifier = Verifier::new([hmac(1).expose(), ed25519(2).expose()]).unwrap();
        let headers = SignedHeaders { id: &id, timestamp: &timestamp, signature: &signature };
        let now = Timestamp::from_micros(now);
        prop_assert!(verifier.verify_headers(headers, &body, now).is_err());
        let near = timestamp.parse().map(Timestamp::from_secs).unwrap_or(now);
        prop_assert!(verifier.verify_headers(headers, &body, near).is_err());
    }
}
