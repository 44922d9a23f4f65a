//! Dependencies run one way, and third-party crates have owners. The picture is in
//! `docs/ARCHITECTURE.md`; this is the table that decides.

use super::manifest::{Dependency, dependencies, locked_packages, package_name};
use super::{Finding, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// What each of our packages may depend on, tests aside. A package that is not here is refused, so
/// that a new crate finds its place before it finds its users.
const LAYERS: [(&str, &[&str]); 11] = [
    ("posthaste-core", &[]),
    ("posthaste-store", &["posthaste-core"]),
    ("posthaste-queue", &["posthaste-core", "posthaste-store"]),
    ("posthaste-engine", &["posthaste-core", "posthaste-store", "posthaste-queue"]),
    ("posthaste-server", &["posthaste-core", "posthaste-store", "posthaste-queue"]),
    (
        "posthaste",
        &[
            "posthaste-core",
            "posthaste-store",
            "posthaste-queue",
            "posthaste-engine",
            "posthaste-server",
        ],
    ),
    ("posthaste-receiver", &["posthaste-core"]),
    (
        "posthaste-sim",
        &["posthaste-core", "posthaste-store", "posthaste-queue", "posthaste-engine"],
    ),
    // Nobody ships it: it appears in no list here, so it can only be a dev-dependency.
    ("posthaste-testkit", &["posthaste-core", "posthaste-receiver"]),
    // Takes the place of the crate of this name in the tests, so that no TLS library comes in.
    ("hyper-tls", &[]),
    ("xtask", &[]),
];

/// Third-party crates that one of ours owns. A name that ends with `*` stands for all that begin
/// so.
const OWNERS: [(&str, &[&str]); 6] = [
    ("posthaste-store", &["rusqlite", "libsqlite3-sys", "tokio-postgres*", "deadpool-postgres"]),
    ("posthaste-queue", &["redis", "lapin"]),
    (
        "posthaste-engine",
        &["rustls*", "tokio-rustls", "hyper-rustls", "webpki-roots", "hickory-*", "reqwest"],
    ),
    ("posthaste-server", &["axum*", "maud"]),
    // ureq is for commands that ask a running server; deliveries never pass through it.
    ("posthaste", &["clap*", "tracing-subscriber", "rand*", "getrandom", "fastrand", "ureq"]),
    // Nobody: a second TLS stack, or SQL that is not written by hand.
    ("", &["native-tls", "openssl*", "aws-lc-*", "sqlx*", "diesel*"]),
];

/// What another crate may use too: the store speaks TLS to its server.
const SHARED: [(&str, &[&str]); 1] =
    [("posthaste-store", &["rustls", "rustls-native-certs", "tokio-rustls"])];

/// What the crate that decides may not know: waiting, sockets and logs.
const NOT_IN_CORE: [&str; 8] =
    ["tokio*", "async-*", "futures*", "hyper*", "http-body*", "mio", "tracing*", "log"];

/// Crates of which only one feature has an owner.
const CLIENTS: [&str; 2] = ["hyper", "hyper-util"];
const CLIENT_OWNER: &str = "posthaste-engine";

/// What may not come in by a back door either.
const NOT_LOCKED: [&str; 4] = ["native-tls", "openssl-sys", "aws-lc-sys", "aws-lc-fips-sys"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let packages = packages(tree);
    let mut findings = Vec::new();
    for package in &packages {
        match LAYERS.iter().find(|(name, _)| *name == package.name) {
            Some((_, allowed)) => findings.extend(layers(package, allowed, &packages)),
            None => {
                let message = format!("`{}` has no layer yet; give it one in LAYERS", package.name);
                findings.push(Finding::new(package.path, 1, "layers", message));
            }
        }
        findings.extend(owners(package));
    }
    findings.extend(offered_clients(tree));
    findings.extend(locked(tree));
    findings
}

struct Package<'a> {
    path: &'a str,
    name: &'a str,
    dependencies: Vec<Dependency>,
}

fn packages(tree: &Tree) -> Vec<Package<'_>> {
    tree.files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .filter_map(|file| {
            let name = package_name(&file.text)?;
            Some(Package { path: &file.path, name, dependencies: dependencies(&file.text) })
        })
        .collect()
}

fn layers(package: &Package, allowed: &[&str], packages: &[Package]) -> Vec<Finding> {
    let ours = |name: &str| LAYERS.iter().any(|(layer, _)| *layer == name);
    let mut findings = Vec::new();
    for dependency in package.dependencies.iter().filter(|found| ours(&found.name)) {
        let (name, other) = (package.name, &dependency.name);
        let message = if dependency.dev {
            // A package may use itself in its tests, to switch on its own features for them.
            if other == name || !reaches(packages, other, name) {
                continue;
            }
            format!("the tests of `{name}` use `{other}`, which itself depends on `{name}`")
        } else if allowed.contains(&other.as_str()) {
            continue;
        } else {
            format!("`{name}` may not depend on `{other}`")
        };
        findings.push(Finding::new(package.path, dependency.line, "layers", message));
    }
    findings
}

/// Whether `from` depends on `to`, directly or not, tests aside.
fn reaches(packages: &[Package], from: &str, to: &str) -> bool {
    let edges: BTreeMap<&str, Vec<&str>> = packages
        .iter()
        .map(|package| {
            let normal = package.dependencies.iter().filter(|found| !found.dev);
            (package.name, normal.map(|found| found.name.as_str()).collect())
        })
        .collect();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(name) = waiting.pop() {
        if name == to {
            return true;
        }
        if seen.insert(name) {
            waiting.extend(edges.get(name).into_iter().flatten());
        }
    }
    false
}

fn owners(package: &Package) -> Vec<Finding> {
    // Only tests use it, and it has to speak everything that they test.
    if package.name == "posthaste-testkit" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for dependency in package.dependencies.iter().filter(|found| !found.dev) {
        let name = &dependency.name;
        let owner = OWNERS.iter().find(|(_, owned)| owned.iter().any(|own| is(name, own)));
        let message = match owner {
            _ if SHARED.iter().any(|(user, of)| *user == package.name && of.contains(&&**name)) => {
                continue;
            }
            Some(("", _)) => format!("nobody may depend on `{name}`"),
            Some((owner, _)) if *owner != package.name => format!("`{name}` belongs to `{owner}`"),
            _ if package.name == "posthaste-core" && NOT_IN_CORE.iter().any(|no| is(name, no)) => {
                format!("core decides and does not act; it may not know `{name}`")
            }
            _ if package.name != CLIENT_OWNER && offers_client(dependency) => {
                format!("the client of `{name}` belongs to `{CLIENT_OWNER}`")
            }
            _ => continue,
        };
        findings.push(Finding::new(package.path, dependency.line, "owners", message));
    }
    findings
}

fn is(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

fn offers_client(dependency: &Dependency) -> bool {
    CLIENTS.contains(&dependency.name.as_str())
        && ["\"client", "\"full\""].iter().any(|feature| dependency.value.contains(feature))
}

/// A feature that the workspace names is a feature of every member.
fn offered_clients(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.get("Cargo.toml") else {
        return Vec::new();
    };
    dependencies(&file.text)
        .iter()
        .filter(|dependency| offers_client(dependency))
        .map(|dependency| {
            let message = format!("name the client features in {CLIENT_OWNER}, not for all");
            Finding::new(&file.path, dependency.line, "owners", message)
        })
        .collect()
}

fn locked(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.get("Cargo.lock") else {
        return Vec::new();
    };
    locked_packages(&file.text)
        .filter(|(_, name)| NOT_LOCKED.contains(name))
        .map(|(line, name)| {
            let message = format!("`{name}` is in the build; `cargo tree -i {name}` says why");
            Finding::new(&file.path, line, "owners", message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(manifests: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, String)> = manifests
            .iter()
            .map(|(name, rest)| {
                (format!("crates/{name}/Cargo.toml"), format!("[package]\nname=\"{name}\"\n{rest}"))
            })
            .collect();
        let files: Vec<_> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        check(&Tree::of(&files)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_dependency_against_the_layers_is_found() {
        let found = findings(&[
            ("posthaste-core", "[dependencies]\nposthaste-store.workspace = true"),
            ("posthaste-engine", "[dependencies]\nposthaste-server.workspace = true"),
            ("posthaste-server", "[dependencies]\nposthaste-store.workspace = true"),
        ]);
        assert_eq!(
            found,
            [
                "`posthaste-core` may not depend on `posthaste-store`",
                "`posthaste-engine` may not depend on `posthaste-server`",
            ]
        );
    }

    #[test]
    fn the_testkit_is_for_tests() {
        let found = findings(&[
            (
                "posthaste-queue",
                "[dev-dependencies]\nposthaste-testkit.workspace = true\n\
                 posthaste-queue = { path = \".\", features = [\"conformance\"] }",
            ),
            ("posthaste-store", "[dependencies]\nposthaste-testkit.workspace = true"),
        ]);
        assert_eq!(found, ["`posthaste-store` may not depend on `posthaste-testkit`"]);
    }

    #[test]
    fn a_cycle_through_tests_is_found() {
        let found = findings(&[
            ("posthaste-core", "[dev-dependencies]\nposthaste-queue.workspace = true"),
            ("posthaste-store", "[dependencies]\nposthaste-core.workspace = true"),
            ("posthaste-queue", "[dependencies]\nposthaste-store.workspace = true"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found.iter().all(|message| message.contains("use `posthaste-queue`, which")));
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let found = findings(&[("posthaste-extra", "")]);
        assert_eq!(found, ["`posthaste-extra` has no layer yet; give it one in LAYERS"]);
    }

    #[test]
    fn third_party_crates_stay_with_their_owners() {
        let found = findings(&[
            ("posthaste-store", "[dependencies]\nrusqlite=\"0\"\n[dev-dependencies]\nclap=\"4\""),
            ("posthaste-server", "[dependencies]\nrusqlite = \"0\"\nopenssl-sys = \"0\""),
            ("posthaste", "[dependencies]\naxum-extra = \"0\"\nclap = \"4\""),
            ("posthaste-core", "[dependencies]\ntokio = \"1\"\nbytes = \"1\""),
            ("posthaste-testkit", "[dependencies]\nrustls = \"0\""),
        ]);
        assert_eq!(
            found,
            [
                "`rusqlite` belongs to `posthaste-store`",
                "nobody may depend on `openssl-sys`",
                "`axum-extra` belongs to `posthaste-server`",
                "core decides and does not act; it may not know `tokio`",
            ]
        );
    }

    #[test]
    fn only_the_engine_has_an_http_client() {
        let client = "[dependencies]\nhyper = { version = \"1\", features = [\"client\"] }";
        let server = "[dependencies]\nhyper = { version = \"1\", features = [\"server\"] }";
        assert!(findings(&[("posthaste-engine", client)]).is_empty());
        assert!(findings(&[("posthaste-server", server)]).is_empty());
        let found = findings(&[("posthaste-server", client)]);
        assert_eq!(found, ["the client of `hyper` belongs to `posthaste-engine`"]);
        let offered = "[workspace.dependencies]\nhyper = { features = [\"client\"] }";
        assert_eq!(check(&Tree::of(&[("Cargo.toml", offered)])).len(), 1);
    }

    #[test]
    fn a_second_tls_stack_is_found_in_the_lock() {
        let lock = "[[package]]\nname = \"ring\"\n\n[[package]]\nname = \"openssl-sys\"\n";
        let found = check(&Tree::of(&[("Cargo.lock", lock)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [5]);
    }
}
