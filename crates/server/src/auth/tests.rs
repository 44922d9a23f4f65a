use super::*;
use http::StatusCode;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn keys(secret: &str) -> TokenKeys {
    TokenKeys::new(&[secret.as_bytes()]).unwrap()
}

fn organisation() -> OrganisationId {
    OrganisationId::new("org_23rb8YdGqMT0qIzpgGwdXfHirMu").unwrap()
}

fn check(keys: &TokenKeys, token: &str, now: Timestamp) -> Result<Arc<Caller>, StatusCode> {
    let verifier = Verifier::new(keys.clone());
    let authorization = format!("Bearer {token}");
    let first = verifier.caller(Some(&authorization), now);
    // What is remembered must say the same as what is verified anew.
    let second = verifier.caller(Some(&authorization), now);
    assert_eq!(first.as_ref().ok(), second.as_ref().ok());
    first.map_err(|refusal| refusal.answer().status)
}

fn forge(keys: &TokenKeys, header: &str, claims: &str) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = hmac::sign(&keys.0[0], signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

const HS256: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

#[test]
fn what_is_minted_is_accepted() {
    let keys = keys("secret");
    let lives = Duration::from_secs(60);
    let token = mint_organisation(&keys, &organisation(), NOW, lives);
    let caller = check(&keys, &token, NOW).unwrap();
    assert_eq!((&caller.organisation, caller.application), (&organisation(), None));

    let application = ApplicationId::new(NOW, [7; 10]);
    let flags = [FeatureFlag::new("beta").unwrap()];
    let organisation = organisation();
    let grant = ApplicationGrant {
        organisation: &organisation,
        application,
        feature_flags: &flags,
        read_only: true,
    };
    let caller = check(&keys, &mint_application(&keys, &grant, NOW, lives), NOW).unwrap();
    assert_eq!(caller.application, Some(application));
    assert_eq!(caller.feature_flags, flags);
    assert!(caller.read_only);
}

#[test]
fn a_token_holds_between_its_times_and_the_tolerance() {
    let keys = keys("secret");
    let token = mint_organisation(&keys, &organisation(), NOW, Duration::from_secs(60));
    let expiry = NOW.after(Duration::from_secs(60));
    let moment = Duration::from_micros(1);
    assert!(check(&keys, &token, expiry.after(CLOCK_TOLERANCE).before(moment)).is_ok());
    assert!(check(&keys, &token, expiry.after(CLOCK_TOLERANCE)).is_err());
    assert!(check(&keys, &token, NOW.before(CLOCK_TOLERANCE)).is_ok());
    assert!(check(&keys, &token, NOW.before(CLOCK_TOLERANCE).before(moment)).is_err());
}

#[test]
fn a_remembered_token_still_expires() {
    let keys = keys("secret");
    let token = mint_organisation(&keys, &organisation(), NOW, Duration::from_secs(60));
    let authorization = format!("Bearer {token}");
    let verifier = Verifier::new(keys);
    assert!(verifier.caller(Some(&authorization), NOW).is_ok());
    let later = NOW.after(Duration::from_secs(3_600));
    assert!(verifier.caller(Some(&authorization), later).is_err());
}

#[test]
fn a_token_without_expiry_is_unlimited() {
    let keys = keys("secret");
    let token = forge(&keys, HS256, r#"{"sub":"org_x"}"#);
    assert!(check(&keys, &token, Timestamp::from_secs(9_000_000_000)).is_ok());
}

#[test]
fn forged_and_malformed_tokens_are_refused() {
    let keys = keys("secret");
    let claims = r#"{"sub":"org_x"}"#;
    let good = forge(&keys, HS256, claims);
    let unsigned = format!(
        "{}.{}.",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#),
        URL_SAFE_NO_PAD.encode(claims)
    );
    let with_padding = format!("{good}=");
    let (signed, _) = good.rsplit_once('.').unwrap();
    for (token, status) in [
        ("", StatusCode::UNAUTHORIZED),
        ("a.b", StatusCode::UNAUTHORIZED),
        ("a.b.c", StatusCode::UNAUTHORIZED),
        ("secret", StatusCode::UNAUTHORIZED),
        (&unsigned, StatusCode::UNAUTHORIZED),
        (&with_padding, StatusCode::UNAUTHORIZED),
        (signed, StatusCode::UNAUTHORIZED),
        (&format!("{signed}."), StatusCode::UNAUTHORIZED),
        (&forge(&keys, r#"{"alg":"HS512"}"#, claims), StatusCode::UNAUTHORIZED),
        (&forge(&keys, r#"{"alg":"HS256","crit":["x"]}"#, claims), StatusCode::UNAUTHORIZED),
        (&forge(&self::keys("other"), HS256, claims), StatusCode::UNAUTHORIZED),
        (&forge(&keys, HS256, "{}"), StatusCode::UNAUTHORIZED),
        (&forge(&keys, HS256, r#"{"sub":"app_x"}"#), StatusCode::BAD_REQUEST),
        (&forge(&keys, HS256, r#"{"sub":"org_x","org":"app_x"}"#), StatusCode::BAD_REQUEST),
        (&forge(&keys, HS256, r#"{"sub":"org_x","org":"org_x"}"#), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(check(&keys, token, NOW).unwrap_err(), status, "{token}");
    }
    let verifier = Verifier::new(keys);
    for authorization in [None, Some("Basic eDp5"), Some(good.as_str())] {
        assert!(verifier.caller(authorization, NOW).is_err());
    }
}

#[test]
fn an_old_key_still_verifies() {
    let both = TokenKeys::new(&[b"new", b"old"]).unwrap();
    let token = forge(&keys("old"), HS256, r#"{"sub":"org_x"}"#);
    assert!(check(&both, &token, NOW).is_ok());
}

#[test]
fn f011_an_empty_key_is_refused() {
    assert!(TokenKeys::new(&[]).is_none());
    assert!(TokenKeys::new(&[b""]).is_none());
    assert!(TokenKeys::new(&[b"good", b""]).is_none());
}
