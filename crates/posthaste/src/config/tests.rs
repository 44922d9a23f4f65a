use super::keys::KEYS;
use super::*;

fn load(file: Option<&str>, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Outcome {
    let folder = std::env::temp_dir();
    let mut all = Flags::default();
    let path = folder.join(format!("posthaste-config-{:?}.toml", std::thread::current().id()));
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
        all.config = Some(path.clone());
    }
    for (name, text) in flags {
        all.values.push(((*name).to_owned(), (*text).to_owned(), format!("--set {name}")));
    }
    let environment = environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    let config = Layers::read(&all, environment).and_then(Config::from_layers);
    let _ = std::fs::remove_file(path);
    config.map_err(|failure| {
        assert_eq!(failure.code, crate::failure::USAGE);
        failure.line
    })
}

type Outcome = Result<Config, String>;

fn env(environment: &[(&str, &str)]) -> Outcome {
    load(None, environment, &[])
}

#[track_caller]
fn refuses(environment: &[(&str, &str)], parts: &[&str]) {
    let line = env(environment).unwrap_err();
    for part in parts {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
}

#[test]
fn nothing_set_is_the_documented_default() {
    let config = env(&[]).unwrap();
    assert_eq!(config.listen, "127.0.0.1:8071".parse().unwrap());
    assert_eq!(config.database, Database::Sqlite("./posthaste-data/posthaste.db".into()));
    assert_eq!(config.retry, RetryPolicy::default());
    assert_eq!(config.timeout, limits::TIMEOUT_DEFAULT);
    assert_eq!(config.rules, LaneRules::default());
    assert_eq!(config.jwt_secret, None);
    assert!(config.warnings.is_empty());
}

#[test]
fn a_short_key_of_tokens_is_warned_of_and_not_shown() {
    let warnings = |key: &str| env(&[("POSTHASTE_JWT_SECRET", key)]).unwrap().warnings;
    let short = warnings("short-but-not-empty");
    assert!(matches!(&short[..], [one] if one.starts_with("jwt_secret") && !one.contains("but")));
    assert!(warnings(&"k".repeat(32)).is_empty());
}

#[test]
fn every_variable_of_the_contract_is_read() {
    let config = env(&[
        ("POSTHASTE_DATABASE_URL", "sqlite:/data/x.db"),
        ("POSTHASTE_QUEUE_URL", "store"),
        ("POSTHASTE_JWT_SECRET", "a-secret-of-some-length"),
        ("POSTHASTE_ALLOWED_NETWORKS", "127.0.0.0/8, ::1"),
        ("POSTHASTE_RETRY__DELAYS", "1s,2s"),
        ("POSTHASTE_RETRY__JITTER", "0.1"),
        ("POSTHASTE_RETRY__FINAL_STATUSES", "400, 422"),
        ("POSTHASTE_HTTP__TIMEOUT", "2s"),
        ("POSTHASTE_SIGNING__HEADERS", "both"),
        ("POSTHASTE_SIGNING__KIND", "ed25519"),
        ("POSTHASTE_ENDPOINT__HTTPS_ONLY", "true"),
        ("POSTHASTE_ENDPOINT__DISABLE_AFTER", "never"),
        ("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "3"),
        ("POSTHASTE_BREAKER__COOLDOWN", "250ms"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    assert_eq!(config.database, Database::Sqlite("/data/x.db".into()));
    assert_eq!(config.jwt_secret.unwrap().expose(), "a-secret-of-some-length");
    assert_eq!(config.retry, RetryPolicy::Schedule { delays_ms: vec![1_000, 2_000], jitter: 0.1 });
    assert_eq!(config.final_statuses, [400, 422]);
    assert_eq!(config.signing, SigningHeaders::Both);
    assert_eq!(config.secret_kind, SecretKind::Ed25519);
    assert!(config.https_only);
    assert_eq!(config.rules.disable_after, None);
    assert_eq!(config.rules.breaker.failure_threshold, 3);
    assert_eq!(config.rules.breaker.cooldown, Duration::from_millis(250));
}

#[test]
fn no_delays_are_no_retries() {
    let config = env(&[("POSTHASTE_RETRY__DELAYS", "")]).unwrap();
    assert_eq!(config.retry.attempts_max(), 1);
}

#[test]
fn later_layers_override_earlier_ones() {
    let file = "listen = '127.0.0.1:1'\n[http]\ntimeout = '1s'\n[retry]\npreset = 'email'\n\
                final_statuses = [400, 404]\n[worker]\nin_flight_max = 100\n";
    let config = load(
        Some(file),
        &[("POSTHASTE_HTTP__TIMEOUT", "2s"), ("POSTHASTE_RETRY__DELAYS", "1s")],
        &[("http.timeout", "3s")],
    )
    .unwrap();
    assert_eq!(config.listen.port(), 1);
    assert_eq!(config.timeout, Duration::from_secs(3));
    assert_eq!(config.retry.attempts_max(), 2, "the environment's delays beat the file's preset");
    assert_eq!(config.final_statuses, [400, 404]);
    assert_eq!(config.in_flight_max, 100);
}

#[test]
fn a_bad_value_names_key_origin_value_and_remedy() {
    refuses(
        &[("POSTHASTE_HTTP__TIMEOUT", "15")],
        &["http.timeout", "POSTHASTE_HTTP__TIMEOUT", "`15`", "15s"],
    );
    refuses(&[("POSTHASTE_HTTP__TIMEOUT", "61s")], &["100ms to 1m"]);
    refuses(&[("POSTHASTE_RETRY__PRESET", "fast")], &["`fast`", "short, email or day"]);
    refuses(&[("POSTHASTE_LISTEN", "8071")], &["127.0.0.1:8071"]);
    refuses(&[("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "0")], &["from 1 to"]);
    refuses(
        &[
            ("POSTHASTE_WORKER__IN_FLIGHT_MAX", "10"),
            ("POSTHASTE_WORKER__IN_FLIGHT_PER_ENDPOINT_MAX", "11"),
        ],
        &["worker.in_flight_per_endpoint_max", "from 1 to 10", "worker.in_flight_max"],
    );
    for key in ["RETRY__DELAYS", "RETRY__FINAL_STATUSES", "ALLOWED_NETWORKS"] {
        let items = [("RETRY__DELAYS", "1s"), ("RETRY__FINAL_STATUSES", "400")];
        let item = items.iter().find(|(name, _)| *name == key).map_or("10.0.0.0/8", |(_, it)| it);
        let (variable, text) = (format!("POSTHASTE_{key}"), format!("{item},,{item}"));
        let name = key.to_ascii_lowercase().replace("__", ".");
        refuses(&[(&variable, &text)], &[&name, &format!("`{text}`"), "item 2", "empty"]);
    }
    let line = load(Some("[retry]\ndelays = ['1s', '']\n"), &[], &[]).unwrap_err();
    assert!(line.contains("retry.delays") && line.contains("item 2"), "{line}");
    let line = load(Some("public_url = 'http://user:hunter2@hooks.test'"), &[], &[]).unwrap_err();
    assert!(line.contains("public_url") && !line.contains("hunter2"), "{line}");
    refuses(&[("POSTHASTE_SIGNING__HEADERS", "none")], &["webhook, svix or both"]);
    refuses(&[("POSTHASTE_DATABASE_URL", "mysql:x")], &["sqlite:PATH", "postgres://"]);
    refuses(
        &[("POSTHASTE_RETRY__DELAYS", "1s"), ("POSTHASTE_RETRY__PRESET", "day")],
        &["retry.preset", "retry.delays", "keep one"],
    );
    let line = load(Some("[http]\ntimeout = 15\n"), &[], &[]).unwrap_err();
    assert!(line.contains(".toml") && line.contains("`15`"), "{line}");
    let line = load(Some("a = 1\nlisten = \n"), &[], &[]).unwrap_err();
    assert!(line.contains("line 2"), "{line}");
}

#[test]
fn an_unknown_key_names_the_nearest() {
    refuses(&[("POSTHASTE_HTTP__TIME_OUT", "1s")], &["did you mean POSTHASTE_HTTP__TIMEOUT?"]);
    refuses(&[("POSTHASTE_HTTP__PROXY", "http://x")], &["not supported yet in this version"]);
    let line = load(Some("[retry]\nprest = 'day'\n"), &[], &[]).unwrap_err();
    assert!(line.contains("did you mean retry.preset?"), "{line}");
}

#[test]
fn what_kubernetes_sets_is_not_ours() {
    env(&[
        ("POSTHASTE_PORT", "tcp://10.0.0.1:8071"),
        ("POSTHASTE_PORT_8071_TCP_ADDR", "10.0.0.1"),
        ("POSTHASTE_SERVICE_HOST", "10.0.0.1"),
    ])
    .unwrap();
}

#[test]
fn what_is_not_there_yet_says_so_without_its_password() {
    let line = env(&[("POSTHASTE_QUEUE_URL", "redis://:hunter2@q")]).unwrap_err();
    assert!(line.contains("store") && !line.contains("hunter2"), "{line}");
}

#[test]
fn a_password_of_the_database_is_never_shown() {
    let url = "postgres://user:hunter2@db.test:5433/posthaste?sslmode=require";
    let direct = "postgresql://user:hunter2@direct.test/posthaste";
    let set = [("POSTHASTE_DATABASE_URL", url), ("POSTHASTE_DATABASE_DIRECT_URL", direct)];
    let config = env(&set).unwrap();
    assert!(matches!(&config.database, Database::Postgres(found) if found.expose() == url));
    assert_eq!(config.database_direct.as_ref().map(DatabaseUrl::expose), Some(direct));
    let shown = format!("{} {config:?} {}", table(&config, true), config.database);
    assert!(shown.contains("user:********@db.test:5433/posthaste?sslmode=require"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
    load(Some(&table(&config, true)), &[], &[]).unwrap();

    for bad in ["postgres://user:hunter2@db.test:port/x", "postgres:user:hunter2@db.test"] {
        let line = env(&[("POSTHASTE_DATABASE_URL", bad)]).unwrap_err();
        assert!(line.contains("USER:PASSWORD@HOST") && !line.contains("hunter2"), "{line}");
    }
    let line = load(None, &[], &[("database_url", url)]).unwrap_err();
    assert!(line.contains("POSTHASTE_DATABASE_URL") && !line.contains("hunter2"), "{line}");
    load(None, &[], &[("database_url", "postgres://user@db.test/posthaste")]).unwrap();
}

#[test]
fn a_direct_address_without_postgresql_is_warned_of() {
    let config = env(&[("POSTHASTE_DATABASE_DIRECT_URL", "postgres://u@h/d")]).unwrap();
    assert!(config.database_direct.is_none() && config.warnings.len() == 1);
}

#[test]
fn only_who_signs_tokens_or_keeps_a_file_needs_a_folder() {
    let needs = |set: &[(&str, &str)]| {
        let config = env(set).unwrap();
        (config.needs_data_dir(true), config.needs_data_dir(false))
    };
    let key = ("POSTHASTE_JWT_SECRET", "a-secret-of-some-length-for-this-test");
    let server = ("POSTHASTE_DATABASE_URL", "postgres://u@h/d");
    let elsewhere = ("POSTHASTE_DATABASE_URL", "sqlite:/data/x.db");
    assert_eq!(needs(&[]), (true, true));
    assert_eq!(needs(&[key, elsewhere]), (false, false));
    assert_eq!(needs(&[server]), (true, false));
    assert_eq!(needs(&[server, key]), (false, false));
}

#[test]
fn f011_an_empty_secret_is_refused() {
    for text in ["", " ", "\n\t "] {
        refuses(&[("POSTHASTE_JWT_SECRET", text)], &["jwt_secret", "anybody"]);
    }
}

#[test]
fn f012_white_space_around_the_secret_is_named() {
    let line = env(&[("POSTHASTE_JWT_SECRET", "field-case-secret\n")]).unwrap_err();
    assert!(line.contains("white space") && !line.contains("field-case-secret"), "{line}");
}

#[test]
fn f054_the_allow_list_is_read_leniently_and_refused_strictly() {
    let list = " 192.168.3.0/24 , build.internal.test,  [fd00:1::]/64 ";
    let config = env(&[("POSTHASTE_ALLOWED_NETWORKS", list)]).unwrap();
    let shown = config.networks().to_string();
    for part in ["192.168.3.0/24", "fd00:1::/64", "build.internal.test"] {
        assert!(shown.contains(part), "{shown}");
    }
    refuses(&[("POSTHASTE_ALLOWED_NETWORKS", "192.168.3.300/24")], &["192.168.3.300/24"]);
}

/// A lease is made from `limits::TIMEOUT_MAX` and slack; only a longer timeout could outlive it.
#[test]
fn f075_a_timeout_that_outlives_its_lease_is_refused() {
    assert_eq!(env(&[("POSTHASTE_HTTP__TIMEOUT", "60s")]).unwrap().timeout, limits::TIMEOUT_MAX);
    refuses(&[("POSTHASTE_HTTP__TIMEOUT", "61s")], &["http.timeout", "100ms to 1m"]);
}

#[test]
fn what_is_shown_has_every_key_and_reads_back() {
    let secret = "a-secret-of-some-length";
    let set = [("POSTHASTE_JWT_SECRET", secret), ("POSTHASTE_HTTP__TIMEOUT", "2s")];
    let config = env(&set).unwrap();
    let text = table(&config, true);
    assert!(!text.contains(secret) && !format!("{config:?}").contains(secret));
    for key in &KEYS {
        assert!(text.contains(key.name), "{}", key.name);
    }
    assert!(text.contains("# POSTHASTE_HTTP__TIMEOUT"));
    let again = load(Some(&text), &[], &[]).unwrap();
    assert_eq!(again.timeout, Duration::from_secs(2));
    assert_eq!(again.rules, config.rules);
}

#[test]
fn a_secret_on_the_command_line_is_refused() {
    let line = load(None, &[], &[("jwt_secret", "hunter2")]).unwrap_err();
    assert!(line.contains("POSTHASTE_JWT_SECRET") && !line.contains("hunter2"), "{line}");
}

#[test]
fn documentation_names_every_key_and_its_default() {
    let page = include_str!("../../../../docs/configuration.md");
    for key in &KEYS {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", key.name)));
        let row = row.unwrap_or_else(|| panic!("docs/configuration.md lacks `{}`", key.name));
        assert!(
            row.contains(key.about),
            "docs/configuration.md: `{}` should say: {}",
            key.name,
            key.about
        );
        if let Some(default) = key.default.filter(|text| !text.is_empty()) {
            assert!(row.contains(&format!("`{default}`")), "{}: {default}", key.name);
        }
    }
}
