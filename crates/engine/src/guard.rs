//! Decides which addresses we may send to, so that nobody can aim us at an internal service.
//!
//! **Invariant:** whoever connects gets the addresses from [`Guard::addresses`] and connects to
//! those only. There is no second lookup, so an answer that changes in between changes nothing.
//! **Invariant:** a literal address takes the same road as a resolved one.

use crate::resolver::{Resolve, ResolveError};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The name under which operators open their own networks.
pub const SETTING: &str = "POSTHASTE_ALLOWED_NETWORKS";

/// Resolves names and lets through what may be sent to.
pub struct Guard {
    allowed: Allowed,
    resolver: Arc<dyn Resolve>,
}

/// Where an endpoint lives: a name to resolve, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// ASCII, lower case, without a trailing dot.
    Name(Arc<str>),
    Address(IpAddr),
}

/// Why there is no address to send to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Unresolved(#[from] ResolveError),
    #[error("{0}")]
    Blocked(Blocked),
}

/// An address that we may not send to, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {nature}; add it to {SETTING} to allow it")]
pub struct Blocked {
    pub address: IpAddr,
    pub nature: &'static str,
}

/// Networks, addresses and names that the operator opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    everything: bool,
    networks: Vec<Network>,
    names: Vec<String>,
}

/// An entry of the list that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{entry}` in {SETTING} is neither an address (192.168.3.7), a network (192.168.3.0/24, \
     fd00:1::/64), a host name (build.internal.example) nor `*`"
)]
pub struct AllowedError {
    pub entry: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    base: IpAddr,
    prefix: u8,
}

impl Guard {
    pub fn new(allowed: Allowed, resolver: Arc<dyn Resolve>) -> Self {
        Self { allowed, resolver }
    }

    pub fn allowed(&self) -> &Allowed {
        &self.allowed
    }

    /// The addresses of `host` that we may connect to; never empty. Of a mixed answer the blocked
    /// addresses are left out.
    pub async fn addresses(&self, host: &Host) -> Result<Vec<IpAddr>, Refusal> {
        let name = match host {
            Host::Address(address) => {
                self.vet(*address).map_err(Refusal::Blocked)?;
                return Ok(vec![*address]);
            }
            Host::Name(name) => name,
        };
        let mut addresses = self.resolver.resolve(name).await?;
        let Some(first) = addresses.first().copied() else {
            return Err(Refusal::Unresolved(ResolveError::NoAddress));
        };
        if !self.allowed.has_name(name) {
            addresses.retain(|address| self.vet(*address).is_ok());
        }
        if addresses.is_empty() {
            let nature = nature_of(first).unwrap_or("not a public address");
            return Err(Refusal::Blocked(Blocked { address: first, nature }));
        }
        Ok(addresses)
    }

    fn vet(&self, address: IpAddr) -> Result<(), Blocked> {
        match nature_of(address) {
            Some(nature) if !self.allowed.has_address(address) => Err(Blocked { address, nature }),
            _ => Ok(()),
        }
    }
}

impl Allowed {
    /// Reads a comma-separated list; blanks and empty entries mean nothing.
    pub fn parse(text: &str) -> Result<Self, AllowedError> {
        let mut allowed = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            allowed.add(entry)?;
        }
        Ok(allowed)
    }

    /// The same list with this machine's own loopback addresses, for development.
    #[must_use]
    pub fn with_loopback(mut self) -> Self {
        self.networks.push(Network { base: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 });
        self.networks.push(Network { base: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 });
        self
    }

    fn add(&mut self, entry: &str) -> Result<(), AllowedError> {
        if entry == "*" {
            self.everything = true;
        } else if let Some(network) = Network::parse(entry) {
            self.networks.push(network);
        } else if is_name(entry) {
            self.names.push(entry.trim_end_matches('.').to_ascii_lowercase());
        } else {
            return Err(AllowedError { entry: entry.to_owned() });
        }
        Ok(())
    }

    fn has_name(&self, name: &str) -> bool {
        self.everything || self.names.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let plain = plain(address);
        self.everything
            || self
                .networks
                .iter()
                .any(|network| network.contains(address) || network.contains(plain))
    }
}

impl fmt::Display for Allowed {
    /// The list as it was understood, for the line at start-up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries: Vec<String> = self.networks.iter().map(Network::to_string).collect();
        entries.extend(self.names.iter().cloned());
        if self.everything {
            entries.insert(0, "*".to_owned());
        }
        if entries.is_empty() { f.write_str("(none)") } else { f.write_str(&entries.join(", ")) }
    }
}

impl Network {
    /// Reads `10.0.0.0/8`, `10.1.2.3`, `fd00::/8`, `[fd00::]/8` or `[fd00::1]`.
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let base: IpAddr = match bare {
            Some(bare) => IpAddr::V6(bare.parse().ok()?),
            None => address.parse().ok()?,
        };
        let longest = if base.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok()?
            }
            Some(_) => return None,
            None => longest,
        };
        (prefix <= longest).then_some(Self { base, prefix })
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => in_v4(address, base, u32::from(self.prefix)),
            (IpAddr::V6(base), IpAddr::V6(address)) => in_v6(address, base, u32::from(self.prefix)),
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// Whether `entry` can be a host name. What ends in a number is a mistyped address (the URL
/// standard's "ends in a number" rule), never a name.
fn is_name(entry: &str) -> bool {
    let name = entry.trim_end_matches('.');
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253
        && name.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// An IPv6 address that stands for an IPv4 one, as that; others as they are.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The IPv4 address that `::ffff:a.b.c.d` (RFC 4291) and `64:ff9b::a.b.c.d` (RFC 6052) reach.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    const NAT64: Ipv6Addr = Ipv6Addr::new(0x64, 0xFF9B, 0, 0, 0, 0, 0, 0);
    if in_v6(address, NAT64, 96) {
        let [.., a, b, c, d] = address.octets();
        return Some(Ipv4Addr::new(a, b, c, d));
    }
    address.to_ipv4_mapped()
}

/// What an address that nobody on the internet can own is; `None` for a public one.
fn nature_of(address: IpAddr) -> Option<&'static str> {
    match plain(address) {
        IpAddr::V4(v4) => nature_of_v4(v4),
        IpAddr::V6(v6) => nature_of_v6(v6),
    }
}

/// The IANA IPv4 special-purpose registry; the first network that fits names the address.
const SPECIAL_V4: [(Ipv4Addr, u32, &str); 16] = [
    (Ipv4Addr::new(127, 0, 0, 0), 8, "a loopback address"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private address"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private address"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private address"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "a link-local address"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "an address of a carrier's network"),
    (Ipv4Addr::new(0, 0, 0, 0), 8, "an address of this network"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "an address for protocols"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "an address of a tunnel"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "an address for benchmarks"),
    (Ipv4Addr::new(255, 255, 255, 255), 32, "the broadcast address"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast address"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "a reserved address"),
];

fn nature_of_v4(address: Ipv4Addr) -> Option<&'static str> {
    SPECIAL_V4
        .iter()
        .find(|(base, prefix, _)| in_v4(address, *base, *prefix))
        .map(|(_, _, nature)| *nature)
}

/// The IANA IPv6 special-purpose registry. What it does not name must lie in 2000::/3, the only
/// block that is handed out to the internet.
const SPECIAL_V6: [(Ipv6Addr, u32, &str); 13] = [
    (Ipv6Addr::LOCALHOST, 128, "a loopback address"),
    (Ipv6Addr::UNSPECIFIED, 128, "the unspecified address"),
    (Ipv6Addr::new(0xFC00, 0, 0, 0, 0, 0, 0, 0), 7, "a private address"),
    (Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 0), 10, "a link-local address"),
    (Ipv6Addr::new(0xFEC0, 0, 0, 0, 0, 0, 0, 0), 10, "a site-local address"),
    (Ipv6Addr::new(0xFF00, 0, 0, 0, 0, 0, 0, 0), 8, "a multicast address"),
    (Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 0), 32, "an address for documentation"),
    (Ipv6Addr::new(0x3FFF, 0, 0, 0, 0, 0, 0, 0), 20, "an address for documentation"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, "an address of a tunnel (Teredo)"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "an address for protocols"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "an address of a tunnel (6to4)"),
    (Ipv6Addr::new(0x64, 0xFF9B, 1, 0, 0, 0, 0, 0), 48, "an address of a translator"),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, "an address that discards"),
];

fn nature_of_v6(address: Ipv6Addr) -> Option<&'static str> {
    const GLOBAL: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);
    SPECIAL_V6
        .iter()
        .find(|(base, prefix, _)| in_v6(address, *base, *prefix))
        .map(|(_, _, nature)| *nature)
        .or_else(|| (!in_v6(address, GLOBAL, 3)).then_some("a reserved address"))
}

fn in_v4(address: Ipv4Addr, base: Ipv4Addr, prefix: u32) -> bool {
    let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
    address.to_bits() & mask == base.to_bits() & mask
}

fn in_v6(address: Ipv6Addr, base: Ipv6Addr, prefix: u32) -> bool {
    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
    address.to_bits() & mask == base.to_bits() & mask
}
