//! How far one exchange came and how long its parts took. The courier measures with a monotonic
//! clock of its own; what is decided or stored gets its time as an argument.

use super::wire::Meter;
use posthaste_core::outcome::{Answer, Failure, FailureKind, Outcome, Phase, Timing};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The courier's clock: for durations only, so it may be monotonic.
#[expect(clippy::disallowed_methods, reason = "the one place that measures")]
pub(super) fn now() -> Instant {
    Instant::now()
}

pub(super) struct Trace {
    started: Instant,
    phase: Phase,
    phase_started: Instant,
    timing: Timing,
    remote: Option<IpAddr>,
    meter: Option<Arc<Meter>>,
}

impl Trace {
    pub fn start() -> Self {
        let now = now();
        Self {
            started: now,
            phase: Phase::Resolve,
            phase_started: now,
            timing: Timing::default(),
            remote: None,
            meter: None,
        }
    }

    /// Begins a phase and books the time of the one before.
    pub fn enter(&mut self, phase: Phase) {
        let now = now();
        let spent = Some(now - self.phase_started);
        match self.phase {
            Phase::Resolve if phase == Phase::Connect => self.timing.dns = spent,
            Phase::Connect => self.timing.connect = spent,
            Phase::Tls => self.timing.tls = spent,
            Phase::Send if phase == Phase::Body => self.timing.first_byte = spent,
            _ => {}
        }
        self.phase = phase;
        self.phase_started = now;
    }

    pub fn connected_to(&mut self, remote: IpAddr) {
        self.remote = Some(remote);
    }

    /// The request is on its way; the meter tells whether all of it has left.
    pub fn send_over(&mut self, remote: IpAddr, meter: &Arc<Meter>) {
        self.remote = Some(remote);
        self.meter = Some(Arc::clone(meter));
        self.enter(Phase::Send);
    }

    /// Sending has no end that can be seen from here, so it is told from waiting only when asked.
    pub fn phase(&self) -> Phase {
        match (self.phase, &self.meter) {
            (Phase::Send, Some(meter)) if !meter.is_write_blocked() => Phase::Headers,
            (phase, _) => phase,
        }
    }

    pub fn failure(&self, kind: FailureKind, detail: impl Into<String>) -> Failure {
        Failure { kind, phase: self.phase(), detail: detail.into() }
    }

    pub fn timed_out(&self, timeout: Duration) -> Failure {
        let waited_for = match self.phase() {
            Phase::Resolve => "the name server",
            Phase::Connect => "the connection",
            Phase::Tls => "the TLS handshake",
            Phase::Send => "the receiver to take the request",
            Phase::Headers => "the answer",
            Phase::Body => "the end of the answer",
        };
        let millis = timeout.as_millis();
        self.failure(FailureKind::Timeout, format!("waited for {waited_for} until {millis} ms"))
    }

    pub fn finish(mut self, answer: Answer) -> Outcome {
        self.timing.total = self.started.elapsed();
        Outcome { answer, timing: self.timing, remote: self.remote }
    }
}
