use super::*;
use proptest::prelude::*;

pub(crate) const FIRST: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const SECOND: &str = "whsec_ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
const BODY: &[u8] = br#"{"z":1,"a":2,"m":{"y":1.0,"b":9007199254740993}}"#;
const SIGNED_SECS: i64 = 1_700_000_000;

fn secret(text: &str) -> Secret {
    Secret::parse(text).unwrap()
}

fn sign(secret: &Secret) -> String {
    SecretRing::new(secret.clone()).sign_content("msg_0001", SIGNED_SECS, BODY)
}

fn refusal(text: &str) -> String {
    Secret::parse(text).unwrap_err().to_string()
}

#[test]
fn f008_the_key_is_the_decoded_bytes() {
    assert_eq!(sign(&secret(FIRST)), "v1,erIDpRNWrkjlzumr6IPOlIyr4p+QfcH4iG6OzM/aRJI=");
}

#[test]
fn the_published_vector_of_the_svix_libraries() {
    let ring = SecretRing::new(secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    let body = br#"{"test": 2432232314}"#;
    let header = ring.sign_content("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
    assert_eq!(header, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

#[test]
fn f009_every_spelling_of_a_secret_is_the_same_key() {
    for text in [
        "whsec_++++////++++////++++////++++////++++////AQI=",
        "++++////++++////++++////++++////++++////AQI=",
        "whsec_----____----____----____----____----____AQI=",
        "----____----____----____----____----____AQI=",
        "whsec_++++////++++////++++////++++////++++////AQI",
        "----____----____----____----____----____AQI",
    ] {
        let signature = "v1,jK++1yWlcOTetYjpE2qQssJCNDsU68zV2HvBAb1DzNU=";
        assert_eq!(sign(&secret(text)), signature, "{text}");
        let exposed = secret(text).expose();
        assert_eq!(exposed, "whsec_++++////++++////++++////++++////++++////AQI=");
    }
    for text in ["whsec_+_+_////++++////++++////++++////++++////AQI=", "field-case-secret!"] {
        assert!(refusal(text).contains("base64"), "{text}");
    }
}

#[test]
fn f010_a_signature_prefix_is_named_in_the_refusal() {
    assert!(refusal(&format!("v1,{FIRST}")).contains("must not carry `v1,`"));
    assert!(refusal("v1a,whsk_AAAA").contains("must not carry `v1a,`"));
    assert!(refusal("whpk_AAAA").contains("public key"));
}

#[test]
fn f011_an_empty_secret_is_refused() {
    for text in ["", " ", "\n\t ", "whsec_", "whsec_====", "whsk_"] {
        assert!(Secret::parse(text).is_err(), "{text:?}");
    }
    assert!(refusal(" \n").contains("empty"));
}

#[test]
fn f012_white_space_around_a_secret_is_trimmed() {
    assert_eq!(secret(&format!("  {FIRST}\r\n")), secret(FIRST));
    assert!(Secret::parse(&FIRST.replace("AAEC", "AA EC")).is_err(), "within it, it is not");
}

#[test]
fn the_length_of_a_key_is_bounded() {
    for (bytes, fits) in [(23, false), (24, true), (75, true), (76, false)] {
        let text = encode(HMAC_PREFIX, &vec![7; bytes]);
        assert_eq!(Secret::parse(&text).is_ok(), fits, "{bytes}");
    }
    assert!(refusal("whsec_AAAA").contains("24 to 75 bytes, not 3"));
}

#[test]
fn f016_a_second_rotation_keeps_the_second_secret_for_the_whole_window() {
    let day = Duration::from_secs(86_400);
    let start = Timestamp::from_secs(SIGNED_SECS).before(2 * day);
    let ring = SecretRing::new(secret(FIRST)).rotate(secret(SECOND), start, day).unwrap();
    let third = Secret::generate_hmac([9; 32]);
    let again = start.after(2 * day);
    let ring = ring.rotate(third.clone(), again, day).unwrap();

    let second_part = "v1,ltbajIDB4No7bi0Fbib8Tr6DBPe727ZKjShlmRg+05s=";
    let header = ring.sign_content("msg_0001", SIGNED_SECS, BODY);
    assert_eq!(header, format!("{} {second_part}", sign(&third)));

    let id = MessageId::from_bytes([1; 16]);
    let parts = |at| ring.sign(id, at, BODY).split(' ').count();
    assert_eq!(parts(again.after(day).before(Duration::from_micros(1))), 2);
    assert_eq!(parts(again.after(day)), 1);
}

#[test]
fn f017_a_rotation_without_overlap_ends_the_old_secret_at_once() {
    let now = Timestamp::from_secs(SIGNED_SECS);
    let ring = SecretRing::new(secret(FIRST)).rotate(secret(SECOND), now, Duration::ZERO).unwrap();
    assert_eq!(ring.sign_content("msg_0001", SIGNED_SECS, BODY), sign(&secret(SECOND)));
}

#[test]
fn only_so_many_old_secrets_are_valid_at_once() {
    let now = Timestamp::from_secs(1_000);
    let overlap = Duration::from_secs(3_600);
    let mut ring = SecretRing::new(Secret::generate_hmac([0; 32]));
    for n in 1..=10 {
        let later = now.after(Duration::from_secs(n.into()));
        ring = ring.rotate(Secret::generate_hmac([n; 32]), later, overlap).unwrap();
    }
    let last = Secret::generate_hmac([99; 32]);
    let next_expiry_at = now.after(Duration::from_secs(3_601));
    let error = ring.rotate(last.clone(), next_expiry_at.before(overlap / 2), overlap);
    assert_eq!(error, Err(RotateError { next_expiry_at }));
    let ring = ring.rotate(last, next_expiry_at, overlap).unwrap();
    assert_eq!(ring.old.len(), OLD_SECRETS_MAX);
}

#[test]
fn a_secret_that_comes_back_signs_once() {
    let now = Timestamp::from_secs(SIGNED_SECS);
    let overlap = Duration::from_secs(3_600);
    let ring = SecretRing::new(secret(FIRST)).rotate(secret(SECOND), now, overlap).unwrap();
    let ring = ring.rotate(secret(FIRST), now, overlap).unwrap();
    assert_eq!((&ring.current, ring.old.len()), (&secret(FIRST), 1));
    let ring = ring.rotate(secret(FIRST), now, overlap).unwrap();
    assert_eq!((&ring.current, ring.old.len()), (&secret(FIRST), 1));
}

/// RFC 8032 section 7.1, test 1.
#[test]
fn an_ed25519_secret_is_its_seed_and_public_key() {
    let seed = [
        0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c,
        0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae,
        0x7f, 0x60,
    ];
    let secret = Secret::generate_ed25519(seed).unwrap();
    let public = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    assert_eq!(secret.verification_key(), public);
    assert!(secret.expose().starts_with("whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2D"));
    assert_eq!(Secret::parse(&secret.expose()), Ok(secret.clone()));
    assert!(secret.is_ed25519());
    assert!(sign(&secret).starts_with("v1a,"));

    let mut wrong = seed.to_vec();
    wrong.extend([0; 32]);
    assert!(refusal(&encode(ED25519_PREFIX, &wrong)).contains("does not belong"));
}

#[test]
fn debug_shows_no_secret() {
    let ring = SecretRing::new(secret(FIRST));
    assert_eq!(format!("{ring:?}"), "SecretRing { current: Secret(hmac), old: [] }");
}

proptest! {
    #[test]
    fn text_and_back(random: [u8; 32]) {
        for secret in [Secret::generate_hmac(random), Secret::generate_ed25519(random).unwrap()] {
            prop_assert_eq!(Secret::parse(&secret.expose()), Ok(secret));
        }
    }

    #[test]
    fn hostile_text_never_panics_and_is_never_repeated(
        text in "(whsec_|whsk_|whpk_|v1,)?([A-Za-z0-9+/_=-]{0,120}|.{0,40})",
    ) {
        if let Err(SecretError(why)) = Secret::parse(&text) {
            prop_assert!(text.len() < 12 || !why.contains(&text));
        }
    }
}
