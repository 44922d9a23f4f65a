use super::*;
use proptest::prelude::*;

fn normal(text: &str) -> Result<String, UrlError> {
    EndpointUrl::parse(text).map(|url| url.as_str().to_owned())
}

fn headers(names: &[&str]) -> Result<EndpointHeaders, HeaderError> {
    EndpointHeaders::new(names.iter().map(|name| ((*name).to_owned(), "s".to_owned())).collect())
}

#[test]
fn f041_hosts_are_kept_in_their_ascii_form() {
    for (text, expected) in [
        ("https://ē.nz/hook", "https://xn--hea.nz/hook"),
        ("https://xn--hea.nz/hook", "https://xn--hea.nz/hook"),
        ("https://BÜCHER.example/", "https://xn--bcher-kva.example/"),
        ("https://👻.example/", "https://xn--9q8h.example/"),
        ("https://example。com/", "https://example.com/"),
        ("HTTPS://EXAMPLE.com:443", "https://example.com/"),
    ] {
        assert_eq!(normal(text).as_deref(), Ok(expected), "{text}");
    }
    for text in ["https://℅.example/", "https://a b.example/", "https://xn--a.example/"] {
        assert!(matches!(normal(text), Err(UrlError::Malformed(_))), "{text}");
    }
    assert_eq!(normal("ftp://example.com/"), Err(UrlError::Scheme));
    assert_eq!(normal("mailto:a@example.com"), Err(UrlError::Scheme));
}

#[test]
fn f042_the_length_of_the_normal_form_is_bounded() {
    let url = |bytes: usize| {
        let head = "https://example.com/";
        format!("{head}{}", "a".repeat(bytes - head.len()))
    };
    for bytes in [255, 256, 1_000, 2_048, 8_000, limits::URL_BYTES_MAX] {
        assert_eq!(normal(&url(bytes)), Ok(url(bytes)), "{bytes}");
    }
    assert_eq!(normal(&url(limits::URL_BYTES_MAX + 1)), Err(UrlError::Length));
    // Three bytes of text are nine of the normal form, and a fragment is none.
    let euros = |count: usize| normal(&format!("https://example.com/{}", "€".repeat(count)));
    assert!(euros(900).is_ok_and(|text| text.len() == 20 + 9 * 900));
    assert_eq!(euros(910), Err(UrlError::Length));
    let fragment = format!("https://example.com/#{}", "a".repeat(limits::URL_BYTES_MAX));
    assert_eq!(normal(&fragment).as_deref(), Ok("https://example.com/"));
}

#[test]
fn f049_literal_addresses_keep_their_brackets_and_port() {
    let host_and_port = |text: &str| {
        let url = EndpointUrl::parse(text).unwrap();
        (url.as_url().host_str().unwrap().to_owned(), url.as_url().port_or_known_default())
    };
    let private = ("[fd12:3456:789a::1]".to_owned(), Some(8_443));
    assert_eq!(host_and_port("https://[fd12:3456:789a::1]:8443/h"), private);
    assert_eq!(host_and_port("https://[::1]:443/"), ("[::1]".to_owned(), Some(443)));
    assert_eq!(host_and_port("https://user:pw@[::1]/"), ("[::1]".to_owned(), Some(443)));
    // All the spellings of one address are one address.
    for text in ["http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://0177.0.0.1"] {
        assert_eq!(host_and_port(text), ("127.0.0.1".to_owned(), Some(80)), "{text}");
    }
    assert!(matches!(normal("https://[fe80::1%25eth0]/h"), Err(UrlError::Malformed(_))));
}

#[test]
fn f055_user_info_and_query_values_are_masked() {
    let url = EndpointUrl::parse("https://user:p%40ss@hooks.test/x?token=abc&k2=&SECRET").unwrap();
    assert_eq!(url.masked(), "https://***@hooks.test/x?token=***&k2=&***");
    assert_eq!(format!("{url:?}"), "https://hooks.test/…");
    let url = EndpointUrl::parse("http://:pw@[::1]:8080/services/T000").unwrap();
    assert_eq!(url.masked(), "http://***@[::1]:8080/services/T000");
    assert_eq!(format!("{url:?}"), "http://[::1]:8080/…");
}

#[test]
fn f102_sensitive_headers_are_told_in_any_case() {
    let named = ["Authorization", "x-api-key", "Cookie", "X-Plain"];
    let headers = headers(&named).unwrap();
    assert_eq!(headers.iter().map(|(name, _)| name).collect::<Vec<_>>(), named);
    assert_eq!(format!("{headers:?}"), format!("{named:?}"));
    for name in ["Authorization", "AUTHORIZATION", "authorization", "X-Api-Key", "Cookie"] {
        assert!(EndpointHeaders::is_sensitive(name), "{name}");
    }
    assert!(!EndpointHeaders::is_sensitive("X-Plain"));
}

#[test]
fn f102_reserved_headers_are_refused_in_any_case() {
    for name in ["Host", "content-length", "Webhook-Id", "SVIX-Signature", "User-Agent", "te"] {
        assert_eq!(headers(&[name]), Err(HeaderError::Reserved(name.to_owned())), "{name}");
    }
    assert_eq!(headers(&["X-A", "x-a"]), Err(HeaderError::Twice("x-a".to_owned())));
    assert_eq!(headers(&["a b"]), Err(HeaderError::Name("a b".to_owned())));
    let split = vec![("x-a".to_owned(), "1\r\nhost: evil".to_owned())];
    assert_eq!(EndpointHeaders::new(split), Err(HeaderError::Value("x-a".to_owned())));
}

#[test]
fn a_policy_comes_back_from_json() {
    let json = concat!(
        r#"{"retry":{"kind":"schedule","delaysMs":[1000],"jitter":0.5},"timeoutMs":3000,"#,
        r#""rateLimit":{"count":5,"periodMs":1000,"burst":1},"finalStatuses":[400],"#,
        r#""userAgent":"Acme/1 (x)"}"#,
    );
    let policy: EndpointPolicy = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&policy).unwrap(), json);
    assert_eq!(serde_json::from_str::<EndpointPolicy>("{}").unwrap(), EndpointPolicy::default());
    assert_eq!(serde_json::to_string(&EndpointPolicy::default()).unwrap(), "{}");
}

#[test]
fn a_policy_out_of_bounds_is_refused_with_its_field() {
    for (json, field) in [
        (r#"{"timeoutMs":0}"#, "timeoutMs"),
        (r#"{"timeoutMs":60001}"#, "timeoutMs"),
        (r#"{"finalStatuses":[200]}"#, "finalStatuses"),
        (r#"{"finalStatuses":[600]}"#, "finalStatuses"),
        (r#"{"userAgent":""}"#, "userAgent"),
        (r#"{"userAgent":"a\r\nb"}"#, "userAgent"),
        (r#"{"userAgent":"é"}"#, "userAgent"),
        (r#"{"userAgent":" a"}"#, "userAgent"),
        (r#"{"retry":{"kind":"schedule","delaysMs":[86400001]}}"#, "delaysMs"),
        (r#"{"rateLimit":{"count":0}}"#, "count"),
        (r#"{"timeout":1}"#, "timeout"),
    ] {
        let error = serde_json::from_str::<EndpointPolicy>(json).unwrap_err().to_string();
        assert!(error.contains(field), "{json}: {error}");
    }
    let many = EndpointPolicy { final_statuses: vec![400; 65], ..EndpointPolicy::default() };
    assert_eq!(many.checked(), Err(PolicyError::FinalStatusCount));
}

proptest! {
    #[test]
    fn a_normal_form_is_its_own_normal_form(
        text in "(https?://)?[a-zÀ-ž0-9.:@\\[\\]%]{1,30}(/[ -~]{0,20})?",
    ) {
        if let Ok(url) = EndpointUrl::parse(&text) {
            prop_assert!(url.as_str().is_ascii());
            prop_assert_eq!(EndpointUrl::parse(url.as_str()), Ok(url));
        }
    }

    #[test]
    fn hostile_urls_and_headers_never_panic(text in ".{0,60}", value in ".{0,20}") {
        if let Ok(url) = EndpointUrl::parse(&text) {
            let _ = (url.masked(), format!("{url:?}"));
        }
        let _ = EndpointHeaders::new(vec![(text, value)]);
    }
}
