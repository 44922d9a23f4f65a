//! Where the courier goes and where it does not: names, addresses, the guard.

use crate::common::*;
use posthaste_core::endpoint::EndpointUrl;
use posthaste_core::outcome::{FailureKind, OutcomeClass, Phase};
use posthaste_engine::courier::{Courier, CourierSettings, Errand};
use posthaste_engine::guard::{Allowed, Guard, Host, Refusal};
use posthaste_engine::resolver::{Resolve, ResolveError, SystemResolver};
use posthaste_testkit::{BlackHole, Receiver, Reply, Step};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

fn strict(resolver: Arc<dyn Resolve>) -> Courier {
    courier_with(CourierSettings::default(), "", resolver)
}

fn open(resolver: Arc<dyn Resolve>) -> Courier {
    courier_with(CourierSettings::default(), "*", resolver)
}

async fn judge(allowed: &str, address: &str) -> Result<Vec<IpAddr>, Refusal> {
    let guard = Guard::new(Allowed::parse(allowed).unwrap(), ScriptedResolver::new(Vec::new()));
    guard.addresses(&Host::Address(address.parse().unwrap())).await
}

#[tokio::test]
async fn f040_a_dead_address_does_not_keep_a_living_one_waiting() {
    let receiver = Receiver::always(Reply::ok()).await;
    let port = receiver.port();
    let hole: IpAddr = Ipv4Addr::new(127, 0, 0, 40).into();
    let swallows = BlackHole::start(hole, port).await.unwrap();
    assert_eq!(swallows.address().port(), port);
    let cases = [
        ("IPv6 refuses", vec!["::1", "127.0.0.1"]),
        ("IPv6 is unroutable", vec!["fe80::1", "127.0.0.1"]),
        ("the first A is silent", vec!["127.0.0.40", "127.0.0.1"]),
        ("the first A refuses", vec!["127.0.0.41", "127.0.0.1"]),
        ("all of it", vec!["127.0.0.40", "::1", "127.0.0.41", "fe80::1", "127.0.0.1"]),
    ];
    for (name, addresses) in cases {
        let courier = open(ScriptedResolver::to(&addresses));
        let outcome = post(&courier, &format!("http://hooks.test:{port}/"), name).await;
        assert_success(&outcome);
        assert_eq!(outcome.remote, Some("127.0.0.1".parse().unwrap()), "{name}");
        // The field's own bound, with head starts of 250 ms in mind.
        assert!(outcome.timing.total < Duration::from_secs(2), "{name}");
    }
    assert_eq!(receiver.requests().len(), 5);
}

#[tokio::test]
async fn f040_a_silent_ipv6_address_does_not_keep_ipv4_waiting() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        // No IPv6 on this machine: then it is the unroutable case above.
        return;
    }
    let receiver = Receiver::always(Reply::ok()).await;
    let port = receiver.port();
    let _swallows = BlackHole::start(Ipv6Addr::LOCALHOST.into(), port).await.unwrap();
    let courier = open(ScriptedResolver::to(&["127.0.0.1", "::1"]));
    let outcome = post(&courier, &format!("http://hooks.test:{port}/"), "x").await;
    assert_success(&outcome);
    assert_eq!(outcome.remote, Some("127.0.0.1".parse().unwrap()));
}

#[tokio::test]
async fn nobody_listening_is_a_connect_failure() {
    let courier = open(ScriptedResolver::to(&["127.0.0.1", "127.0.0.2"]));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for host in ["127.0.0.1", "hooks.test"] {
        let outcome = post(&courier, &format!("http://{host}:{port}/"), "x").await;
        let failure = failure(&outcome);
        assert_eq!((failure.kind, failure.phase), (FailureKind::Connect, Phase::Connect));
        assert_eq!(failure.detail, "the receiver refused the connection");
    }
    let hole = BlackHole::start(Ipv4Addr::new(127, 0, 0, 42).into(), 0).await.unwrap();
    let target = target(&format!("http://{}/", hole.address()));
    let hurried = Errand { timeout: Duration::from_millis(300), ..errand(&target, "x") };
    let outcome = courier.send(&hurried).await;
    let failure = failure(&outcome);
    assert_eq!((failure.kind, failure.phase), (FailureKind::Timeout, Phase::Connect));
}

#[tokio::test]
async fn f049_a_bracketed_internal_address_is_refused_whatever_stands_around_it() {
    let courier = strict(ScriptedResolver::new(Vec::new()));
    let urls = [
        "https://[fd12:3456:789a::1]/h",
        "https://[fd12:3456:789a::1]:8443/h",
        "https://[fe80::1]/h",
        "https://[::1]:443/",
        "https://user:pw@[::1]/",
    ];
    for url in urls {
        let outcome = post(&courier, url, "x").await;
        assert_eq!(outcome.class(), OutcomeClass::Failure(FailureKind::Blocked), "{url}");
        assert_eq!(outcome.remote, None);
    }
    // A zone makes it no URL at all.
    assert!(EndpointUrl::parse("https://[fe80::1%25eth0]/h").is_err());
    assert_eq!(judge("", "2606:4700::6810:1").await.unwrap(), ips(&["2606:4700::6810:1"]));
}

#[tokio::test]
async fn f050_an_answer_that_changes_after_the_check_changes_nothing() {
    let inside = Receiver::always(Reply::ok().then(Step::Close)).await;
    let url = format!("http://rebound.test:{}/", inside.port());
    // The first answer is a host that we may send to: it stands for the public address.
    let outside =
        Receiver::builder().on("127.0.0.50".parse().unwrap(), inside.port()).start(|request| {
            if request.number % 2 == 0 { Reply::ok().then(Step::Close) } else { Reply::ok() }
        });
    let outside = outside.await;
    let mut answers = vec![Ok(ips(&["127.0.0.50"]))];
    answers.extend(vec![Ok(ips(&["127.0.0.1"])); 9]);
    let resolver = ScriptedResolver::new(answers);
    let courier = courier_with(CourierSettings::default(), "127.0.0.50", resolver.clone());
    let mut blocked = 0;
    for _ in 0..10 {
        match post(&courier, &url, "x").await.class() {
            OutcomeClass::Success => {}
            OutcomeClass::Failure(FailureKind::Blocked) => blocked += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(inside.connections(), 0);
    assert_eq!(outside.requests().len() + blocked, 10);
    assert!(blocked >= 8 && !outside.requests().is_empty());
    assert_eq!(resolver.asked().len(), 1 + blocked, "one lookup per connection");
    let host = outside.requests()[0].header("host").unwrap();
    assert_eq!(host, format!("rebound.test:{}", inside.port()));
}

#[tokio::test]
async fn of_a_mixed_answer_the_blocked_addresses_are_left_out() {
    let receiver = Receiver::builder().on("127.0.0.51".parse().unwrap(), 0);
    let receiver = receiver.start(|_| Reply::ok()).await;
    let inside = Receiver::builder()
        .on("127.0.0.1".parse().unwrap(), receiver.port())
        .start(|_| Reply::ok());
    let inside = inside.await;
    let resolver = ScriptedResolver::to(&["127.0.0.1", "::1", "127.0.0.51", "10.0.0.1"]);
    let courier = courier_with(CourierSettings::default(), "127.0.0.51", resolver);
    let outcome = post(&courier, &format!("http://mixed.test:{}/", receiver.port()), "x").await;
    assert_success(&outcome);
    assert_eq!((receiver.connections(), inside.connections()), (1, 0));
}

#[tokio::test]
async fn f051_a_literal_address_takes_the_same_road() {
    let inside = Receiver::always(Reply::ok()).await;
    let courier = strict(ScriptedResolver::new(Vec::new()));
    let port = inside.port();
    let urls = [
        "http://169.254.169.254/latest/".to_owned(),
        inside.url("/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        format!("http://0:{port}/"),
    ];
    for url in urls {
        let outcome = post(&courier, &url, "x").await;
        let failure = failure(&outcome);
        assert_eq!((failure.kind, failure.phase), (FailureKind::Blocked, Phase::Resolve), "{url}");
    }
    assert_eq!(inside.connections(), 0);
}

#[tokio::test]
async fn f051_a_redirect_to_a_literal_address_is_not_followed() {
    let inside = Receiver::always(Reply::ok()).await;
    let to_inside = [("location", inside.url("/"))];
    let to_inside: Vec<_> = to_inside.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let outside = Receiver::always(Reply::with_headers(307, &to_inside)).await;
    let outcome = post(&courier(), &outside.url("/"), "x").await;
    assert_eq!(outcome.class(), OutcomeClass::Status(307));
    assert_eq!(inside.connections(), 0);
}

#[tokio::test]
async fn every_address_that_nobody_on_the_internet_owns_is_blocked() {
    let blocked = "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.255 \
        169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.1.1 \
        198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 \
        255.255.255.255 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 \
        ::ffff:0:127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1 100::1 2001::1 \
        2001:0:7f00:1:: 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:a00:1::1 \
        3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 febf::1 fec0::1 ff02::1";
    for address in blocked.split_whitespace() {
        let Err(Refusal::Blocked(refusal)) = judge("", address).await else {
            panic!("{address} went through");
        };
        let text = refusal.to_string();
        assert!(text.starts_with(&format!("{} is ", refusal.address)), "{text}");
        assert!(text.contains("POSTHASTE_ALLOWED_NETWORKS"), "{text}");
        assert!(judge("*", address).await.is_ok());
    }
    let public = "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.0.0.1 128.0.0.1 \
        169.253.1.1 172.15.255.255 172.32.0.0 192.0.1.1 192.167.1.1 192.169.0.0 198.17.1.1 \
        198.20.0.0 203.0.112.1 223.255.255.255 2001:4860:4860::8888 2606:4700::1111 2a00::1 \
        ::ffff:8.8.8.8 64:ff9b::8.8.8.8";
    for address in public.split_whitespace() {
        assert!(judge("", address).await.is_ok(), "{address} was blocked");
    }
}

#[tokio::test]
async fn f054_operators_can_allow_their_own_network() {
    let list = " 192.168.3.0/24 , build.internal.test,  [fd00:1::]/64 ,, 10.9.8.7";
    let allowed = Allowed::parse(list).unwrap();
    let shown = allowed.to_string();
    assert_eq!(shown, "192.168.3.0/24, fd00:1::/64, 10.9.8.7/32, build.internal.test");
    for inside in ["192.168.3.0", "192.168.3.255", "fd00:1::ffff", "10.9.8.7", "::ffff:10.9.8.7"] {
        assert!(judge(list, inside).await.is_ok(), "{inside}");
    }
    for outside in ["192.168.2.255", "192.168.4.0", "fd00:1:0:1::1", "10.9.8.8", "127.0.0.1"] {
        let refusal = judge(list, outside).await.unwrap_err().to_string();
        assert!(refusal.contains(outside), "{refusal}");
        assert!(refusal.contains("POSTHASTE_ALLOWED_NETWORKS"), "{refusal}");
    }
    let guard = Guard::new(allowed, ScriptedResolver::to(&["10.0.0.1"]));
    let name = |name: &str| Host::Name(name.into());
    assert_eq!(guard.addresses(&name("build.internal.test")).await, Ok(ips(&["10.0.0.1"])));
    assert!(guard.addresses(&name("other.internal.test")).await.is_err());
    assert!(guard.addresses(&name("sub.build.internal.test")).await.is_err());

    let malformed = [
        "192.168.3.300/24",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0/8",
        "fd00::/129",
        "[10.0.0.1]",
        "a b",
        "http://x",
        "host:80",
        "-x.test",
        "192.168.3.300",
        "10.0.0.0/+8",
        "*.test",
    ];
    for entry in malformed {
        let error = Allowed::parse(&format!("10.0.0.0/8, {entry}")).unwrap_err().to_string();
        assert!(error.contains(&format!("`{entry}`")), "{error}");
        assert!(error.contains("POSTHASTE_ALLOWED_NETWORKS"), "{error}");
    }
    assert_eq!(Allowed::parse(" , ").unwrap(), Allowed::default());
    assert_eq!(Allowed::parse("BUILD.Internal.test.").unwrap().to_string(), "build.internal.test");
}

#[tokio::test]
async fn f054_loopback_can_be_opened_for_development() {
    let guard = Guard::new(
        Allowed::parse("10.0.0.0/8").unwrap().with_loopback(),
        ScriptedResolver::to(&["127.0.0.1", "::1"]),
    );
    let localhost = guard.addresses(&Host::Name("localhost".into())).await;
    assert_eq!(localhost, Ok(ips(&["127.0.0.1", "::1"])));
}

#[tokio::test]
async fn f055_user_info_becomes_a_header_and_is_shown_nowhere() {
    let receiver = Receiver::always(Reply::status(500)).await;
    let url = receiver.url("/x?token=abc").replace("http://", "http://user:p%40ss@");
    let target = target(&url);
    let courier = courier();
    courier.send(&errand(&target, "1")).await;
    let mut configured = errand(&target, "2");
    configured.headers.insert("authorization", "Bearer own".parse().unwrap());
    courier.send(&configured).await;
    let requests = receiver.requests();
    // RFC 7617: base64 of `user:p@ss`.
    assert_eq!(requests[0].header("authorization").as_deref(), Some("Basic dXNlcjpwQHNz"));
    assert_eq!(requests[1].header("authorization").as_deref(), Some("Bearer own"));
    for request in &requests {
        assert_eq!(request.path(), "/x?token=abc");
        assert_eq!(request.header("host"), Some(receiver.address().to_string()));
        assert!(!request.head_text().contains("p%40ss"));
    }
    let shown = format!("{target:?}");
    for secret in ["user", "ss@", "token", "abc", "/x"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn f055_no_failure_shows_the_url_or_a_secret() {
    let receiver = Receiver::in_order([
        Reply::reset(),
        Reply::garbage(),
        Reply::many_headers(10_000, 10),
        Reply::hang(),
    ])
    .await;
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let secret = |authority: String| format!("http://user:p%40ss@{authority}/x?token=abc");
    let own = receiver.address().to_string();
    let urls = [
        secret(own.clone()),
        secret(own.clone()),
        secret(own.clone()),
        secret(own.clone()),
        secret(closed.to_string()),
        secret("10.0.0.1".to_owned()),
        secret("nowhere.test".to_owned()),
        secret(own).replace("http:", "https:"),
    ];
    for url in urls {
        let target = target(&url);
        let timeout = Duration::from_millis(500);
        let outcome = courier().send(&Errand { timeout, ..errand(&target, "x") }).await;
        let detail = &failure(&outcome).detail;
        for secret in ["user", "p@ss", "p%40ss", "token", "abc", "/x", "SSH"] {
            assert!(!detail.contains(secret), "{detail}");
        }
    }
}

#[tokio::test]
async fn f059_a_name_that_does_not_resolve_is_a_dns_failure() {
    let receiver = Receiver::always(Reply::ok()).await;
    let resolver = ScriptedResolver::new(vec![
        Err(ResolveError::ServerFailed),
        Err(ResolveError::Timeout),
        Err(ResolveError::NoSuchName),
        Ok(ips(&["127.0.0.1"])),
    ]);
    let courier = open(resolver);
    let url = format!("http://hooks.test:{}/", receiver.port());
    for _ in 0..3 {
        let outcome = post(&courier, &url, "x").await;
        assert_eq!(outcome.class(), OutcomeClass::Failure(FailureKind::Dns));
        assert_eq!(failure(&outcome).phase, Phase::Resolve);
    }
    assert_success(&post(&courier, &url, "x").await);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn the_machine_knows_itself() {
    let addresses = SystemResolver::new().unwrap().resolve("localhost").await.unwrap();
    assert!(addresses.iter().all(IpAddr::is_loopback) && !addresses.is_empty());
}
