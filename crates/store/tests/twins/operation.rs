//! What may happen to a store. Things are named by small numbers, taken modulo what there is, so
//! that every sequence makes sense and every part of one does too.

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub enum Operation {
    /// Time passes: an index into `SPANS_MS`.
    Pass(u8),
    CreateApplication {
        uid: Option<u8>,
        rate: Option<u16>,
    },
    UpdateApplication {
        application: u8,
        uid: Option<u8>,
        rate: Option<u16>,
        stale: bool,
    },
    DeleteApplication(u8),
    CreateEndpoint {
        application: u8,
        uid: Option<u8>,
        rate: Option<u16>,
        disabled: bool,
    },
    UpdateEndpoint {
        endpoint: u8,
        uid: Option<u8>,
        rate: Option<u16>,
        stale: bool,
    },
    /// Disables an endpoint that is enabled, enables one that is not.
    Toggle(u8),
    DeleteEndpoint(u8),
    EventType {
        name: u8,
        change: Change,
        flag: Option<u8>,
    },
    Accept(Accept),
    /// Of a request with a key: begin, finish, drop.
    Request {
        step: u8,
        key: u8,
        request: u8,
    },
    Claim {
        worker: u8,
        deliveries_max: u8,
        lane_max: u8,
        full: Option<(u8, u8)>,
    },
    /// Each of the oldest leases that are out with what its attempt brought; `again`: the leases
    /// stay, as if a worker recorded twice.
    Record {
        attempts: Vec<u8>,
        again: bool,
        sketch: Option<u8>,
    },
    GiveBack(u8),
    Resend {
        endpoint: u8,
        message: u8,
    },
    Heartbeat(u8),
    Recover {
        silent: bool,
    },
    Retire(u8),
    Steps,
    Replay {
        endpoint: u8,
        dead: bool,
        held: bool,
        rate: Option<u8>,
        again: bool,
    },
    Prune,
    Read(Read),
}

#[derive(Clone, Debug)]
pub enum Change {
    Create,
    Archive,
    Delete,
}

#[derive(Clone, Debug)]
pub struct Accept {
    pub application: u8,
    pub event_id: Option<u8>,
    pub key: Option<(u8, u8)>,
    /// Leased to this worker from the start.
    pub lease: Option<u8>,
    pub old_routes: bool,
    /// The payload is kept for an hour only.
    pub short: bool,
    pub channel: bool,
}

/// One look at a list.
#[derive(Clone, Debug)]
pub struct Read {
    pub list: u8,
    pub application: u8,
    pub endpoint: u8,
    pub message: u8,
    pub limit: u32,
    pub filter: u8,
}

pub const SPANS_MS: [u64; 9] =
    [10, 300, 1_000, 6_000, 40_000, 700_000, 4_000_000, 90_000_000, 500_000_000];

/// Up to 60 of them, and first what most others need.
pub fn sequence() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..60).prop_map(|operations| {
        let mut all = vec![
            Operation::CreateApplication { uid: None, rate: None },
            Operation::CreateEndpoint { application: 0, uid: None, rate: None, disabled: false },
        ];
        all.extend(operations);
        all
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let rate = || prop::option::weighted(0.3, 1..40_u16);
    let uid = || prop::option::weighted(0.5, 0..3_u8);
    let some = any::<u8>;
    let rarely = || prop::bool::weighted(0.15);
    prop_oneof![
        4 => (0..SPANS_MS.len() as u8).prop_map(Operation::Pass),
        1 => (uid(), rate()).prop_map(|(uid, rate)| Operation::CreateApplication { uid, rate }),
        1 => (some(), uid(), rate(), rarely()).prop_map(|(application, uid, rate, stale)| {
            Operation::UpdateApplication { application, uid, rate, stale }
        }),
        1 => prop::bool::weighted(0.3).prop_flat_map(move |really| {
            some().prop_map(move |which| match really {
                true => Operation::DeleteApplication(which),
                false => Operation::Steps,
            })
        }),
        3 => (some(), uid(), rate(), rarely()).prop_map(|(application, uid, rate, disabled)| {
            Operation::CreateEndpoint { application, uid, rate, disabled }
        }),
        1 => (some(), uid(), rate(), rarely()).prop_map(|(endpoint, uid, rate, stale)| {
            Operation::UpdateEndpoint { endpoint, uid, rate, stale }
        }),
        2 => some().prop_map(Operation::Toggle),
        1 => some().prop_map(Operation::DeleteEndpoint),
        1 => (0..3_u8, change(), prop::option::of(0..2_u8))
            .prop_map(|(name, change, flag)| Operation::EventType { name, change, flag }),
        10 => accept().prop_map(Operation::Accept),
        1 => (0..3_u8, 0..3_u8, 0..2_u8)
            .prop_map(|(step, key, request)| Operation::Request { step, key, request }),
        9 => (0..3_u8, 1..12_u8, 1..6_u8, prop::option::weighted(0.2, (some(), 0..3_u8)))
            .prop_map(|(worker, deliveries_max, lane_max, full)| Operation::Claim {
                worker,
                deliveries_max,
                lane_max,
                full,
            }),
        9 => (prop::collection::vec(some(), 1..6), rarely(), prop::option::of(some()))
            .prop_map(|(attempts, again, sketch)| Operation::Record { attempts, again, sketch }),
        1 => (1..4_u8).prop_map(Operation::GiveBack),
        2 => (some(), some())
            .prop_map(|(endpoint, message)| Operation::Resend { endpoint, message }),
        2 => (0..3_u8).prop_map(Operation::Heartbeat),
        2 => any::<bool>().prop_map(|silent| Operation::Recover { silent }),
        1 => (0..3_u8).prop_map(Operation::Retire),
        2 => Just(Operation::Steps),
        3 => (some(), any::<bool>(), any::<bool>(), prop::option::of(1..5_u8), rarely())
            .prop_map(|(endpoint, dead, held, rate, again)| Operation::Replay {
                endpoint,
                dead,
                held,
                rate,
                again,
            }),
        1 => Just(Operation::Prune),
        4 => read().prop_map(Operation::Read),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![3 => Just(Change::Create), 1 => Just(Change::Archive), 1 => Just(Change::Delete)]
}

fn accept() -> impl Strategy<Value = Accept> {
    (
        any::<u8>(),
        prop::option::weighted(0.3, 0..4_u8),
        prop::option::weighted(0.2, (0..4_u8, 0..2_u8)),
        prop::option::weighted(0.3, 0..3_u8),
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.3),
        any::<bool>(),
    )
        .prop_map(|(application, event_id, key, lease, old_routes, short, channel)| Accept {
            application,
            event_id,
            key,
            lease,
            old_routes,
            short,
            channel,
        })
}

fn read() -> impl Strategy<Value = Read> {
    (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>(), 1..5_u32, any::<u8>()).prop_map(
        |(list, application, endpoint, message, limit, filter)| Read {
            list,
            application,
            endpoint,
            message,
            limit,
            filter,
        },
    )
}
