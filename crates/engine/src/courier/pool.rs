//! Open connections between exchanges, per origin.
//!
//! **Invariant:** everything in here was connected to an address that the guard let through, and
//! is counted: idle HTTP/1.1 connections per origin and in total.

use super::http1::Http1;
use super::http2::Http2;
use super::target::Origin;
use super::trace::now;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a host that asked for HTTP/1.1 gets nothing else.
const HTTP1_ONLY_FOR: Duration = Duration::from_secs(3_600);
/// Hosts of which it is remembered what they speak.
const REMEMBERED_MAX: usize = 4_096;

/// Whoever holds it makes the connection that the others wait for.
pub(super) type Turn = Arc<tokio::sync::Mutex<()>>;

pub(super) struct Pool {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub idle_per_host_max: usize,
    pub idle_max: usize,
    pub idle_for: Duration,
}

/// A connection that is in use.
pub(super) enum Lent {
    Http1(Box<Http1>),
    Http2(Http2),
}

#[derive(Default)]
struct State {
    origins: HashMap<Arc<Origin>, Connections>,
    /// Idle HTTP/1.1 connections of all origins.
    idle: usize,
    http1_only: HashMap<Arc<Origin>, Instant>,
    /// Hosts that spoke HTTP/2 last time.
    http2: HashMap<Arc<Origin>, Turn>,
    is_reaped: bool,
}

#[derive(Default)]
struct Connections {
    /// The one used last is at the end and is used next.
    idle: Vec<Idle>,
    shared: Option<Shared>,
}

struct Idle {
    connection: Box<Http1>,
    since: Instant,
}

struct Shared {
    connection: Http2,
    used_at: Instant,
}

impl Pool {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, state: Mutex::default() }
    }

    /// A connection that is open as far as we can tell.
    pub fn take(&self, origin: &Arc<Origin>) -> Option<Lent> {
        loop {
            let mut connection = {
                let mut state = self.state();
                let connections = state.origins.get_mut(origin)?;
                if let Some(shared) = &mut connections.shared {
                    if shared.connection.is_open() {
                        shared.used_at = now();
                        return Some(Lent::Http2(shared.connection.clone()));
                    }
                    connections.shared = None;
                }
                let idle = connections.idle.pop()?;
                state.idle -= 1;
                idle.connection
            };
            if connection.is_idle() {
                connection.is_reused = true;
                return Some(Lent::Http1(connection));
            }
        }
    }

    /// Takes a connection back after a complete exchange; closes it when there is no room.
    pub fn put_back(self: &Arc<Self>, origin: &Arc<Origin>, mut connection: Box<Http1>) {
        if !connection.is_idle() {
            return;
        }
        let mut state = self.state();
        if state.idle >= self.bounds.idle_max {
            return;
        }
        let connections = state.connections(origin);
        if connections.idle.len() >= self.bounds.idle_per_host_max {
            return;
        }
        connections.idle.push(Idle { connection, since: now() });
        state.idle += 1;
        self.reap_from_now_on(&mut state);
    }

    /// Lets others use an HTTP/2 connection too.
    pub fn share(self: &Arc<Self>, origin: &Arc<Origin>, connection: &Http2) {
        let mut connection = connection.clone();
        connection.is_reused = true;
        let mut state = self.state();
        if !state.http2.contains_key(origin) {
            if state.http2.len() >= REMEMBERED_MAX {
                // Only costs those who ask next a connection that they could have shared.
                state.http2.clear();
            }
            state.http2.insert(Arc::clone(origin), Turn::default());
        }
        let connections = state.connections(origin);
        if connections.shared.as_ref().is_none_or(|shared| !shared.connection.is_open()) {
            connections.shared = Some(Shared { connection, used_at: now() });
            self.reap_from_now_on(&mut state);
        }
    }

    /// What to wait for before connecting to a host that speaks HTTP/2, so that a burst makes one
    /// connection and not one for each request.
    pub fn turn(&self, origin: &Arc<Origin>) -> Option<Turn> {
        self.state().http2.get(origin).cloned()
    }

    /// Connecting failed, so nobody has to wait for his turn to find out the same.
    pub fn end_turns(&self, origin: &Arc<Origin>) {
        self.state().http2.remove(origin);
    }

    /// Lets go of what would fail as `dead` did: a shared connection itself, or the idle ones
    /// beside it, which are older.
    pub fn forget(&self, origin: &Arc<Origin>, dead: &Lent) {
        let mut closing = Vec::new();
        let mut state = self.state();
        let Some(connections) = state.origins.get_mut(origin) else { return };
        match dead {
            Lent::Http1(_) => closing.append(&mut connections.idle),
            Lent::Http2(dead) => {
                connections.shared.take_if(|shared| shared.connection.is_same(dead));
            }
        }
        state.idle -= closing.len();
        drop(state);
        // Closing sockets takes time that nobody should wait for with the lock.
        drop(closing);
    }

    pub fn remember_http1_only(&self, origin: &Arc<Origin>) {
        let mut state = self.state();
        state.origins.remove(origin).inspect(|old| state.idle -= old.idle.len());
        state.http2.remove(origin);
        let now = now();
        if state.http1_only.len() >= REMEMBERED_MAX {
            state.http1_only.retain(|_, until| *until > now);
        }
        if state.http1_only.len() < REMEMBERED_MAX {
            state.http1_only.insert(Arc::clone(origin), now + HTTP1_ONLY_FOR);
        }
    }

    pub fn is_http1_only(&self, origin: &Arc<Origin>) -> bool {
        self.state().http1_only.get(origin).is_some_and(|until| *until > now())
    }

    /// Starts the task that closes old connections, unless it runs. It ends with the last one.
    fn reap_from_now_on(self: &Arc<Self>, state: &mut State) {
        if state.is_reaped {
            return;
        }
        state.is_reaped = true;
        let pool = Arc::downgrade(self);
        let every = (self.bounds.idle_for / 4).max(Duration::from_millis(100));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(pool) = pool.upgrade() else { return };
                if !pool.reap() {
                    return;
                }
            }
        });
    }

    /// Closes what was idle for too long or was closed by the receiver; false if none is left.
    fn reap(&self) -> bool {
        let mut closing = Vec::new();
        let mut state = self.state();
        let now = now();
        let is_old = |since: Instant| now.duration_since(since) >= self.bounds.idle_for;
        state.origins.retain(|_, connections| {
            let old = connections
                .idle
                .extract_if(.., |idle| is_old(idle.since) || !idle.connection.is_idle());
            closing.extend(old);
            connections
                .shared
                .take_if(|shared| is_old(shared.used_at) || !shared.connection.is_open());
            !connections.idle.is_empty() || connections.shared.is_some()
        });
        state.idle -= closing.len();
        state.is_reaped = !state.origins.is_empty();
        let is_reaped = state.is_reaped;
        drop(state);
        is_reaped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn connections(&mut self, origin: &Arc<Origin>) -> &mut Connections {
        self.origins.entry(Arc::clone(origin)).or_default()
    }
}
