//! Looks names up. The guard is the only caller: whoever needs an address asks it.

use async_trait::async_trait;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use std::net::IpAddr;
use std::time::Duration;

/// A source of addresses for names.
#[async_trait]
pub trait Resolve: Send + Sync {
    /// Every address of `host`, which is an ASCII name without brackets, port or trailing dot.
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError>;
}

/// Why a name has no address for now. All of them pass: none is a reason to give a delivery up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("the name does not exist")]
    NoSuchName,
    #[error("the name has no address")]
    NoAddress,
    #[error("the name server did not answer in time")]
    Timeout,
    #[error("the name server failed")]
    ServerFailed,
    #[error("there is no name server to ask")]
    NoNameServer,
}

/// Asks the hosts file and the name servers of the machine, and keeps answers for their TTL.
pub struct SystemResolver {
    resolver: TokioResolver,
}

/// Longest time that "there is no such name" is believed: names appear when people add them.
const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(5);
/// Longest time that an answer is believed, whatever its TTL says.
const POSITIVE_TTL_MAX: Duration = Duration::from_secs(300);
/// Answers kept.
const CACHED_ANSWERS_MAX: u64 = 4_096;
/// One query to one name server; the exchange's timeout bounds the whole.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);

impl SystemResolver {
    /// Reads the machine's configuration. Without one (a bare container) only the hosts file is
    /// left, and every other name is `NoNameServer`.
    pub fn new() -> Result<Self, ResolveError> {
        let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|_unreadable| {
            let provider = TokioRuntimeProvider::default();
            TokioResolver::builder_with_config(ResolverConfig::default(), provider)
        });
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.timeout = options.timeout.min(QUERY_TIMEOUT);
        options.cache_size = CACHED_ANSWERS_MAX;
        options.positive_max_ttl = Some(POSITIVE_TTL_MAX);
        options.negative_max_ttl = Some(NEGATIVE_TTL_MAX);
        let resolver = builder.build().map_err(|_refused| ResolveError::NoNameServer)?;
        Ok(Self { resolver })
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let answer = self.resolver.lookup_ip(host).await.map_err(|error| reason(&error))?;
        let addresses: Vec<IpAddr> = answer.iter().collect();
        if addresses.is_empty() { Err(ResolveError::NoAddress) } else { Ok(addresses) }
    }
}

fn reason(error: &NetError) -> ResolveError {
    match error {
        NetError::Timeout => ResolveError::Timeout,
        NetError::NoConnections => ResolveError::NoNameServer,
        error if error.is_nx_domain() => ResolveError::NoSuchName,
        error if error.is_no_records_found() => ResolveError::NoAddress,
        _ => ResolveError::ServerFailed,
    }
}
