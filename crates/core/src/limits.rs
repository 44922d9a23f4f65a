//! Every bound of the product, in one place. A bound that is a setting has its default here.

use std::time::Duration;

/// Largest body of an API request, in bytes. A payload within it is accepted and delivered whole.
pub const REQUEST_BODY_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Largest payload of a message, in bytes; the same on every back-end.
pub const PAYLOAD_BYTES_MAX: usize = 5 * 1024 * 1024;
/// Longest uid, event id, event type name, channel or feature flag, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
pub const MESSAGE_CHANNELS_MAX: usize = 5;
pub const ENDPOINT_CHANNELS_MAX: usize = 10;
pub const ENDPOINT_EVENT_TYPES_MAX: usize = 512;
/// Endpoints of one application that one message may fan out to.
pub const ENDPOINTS_PER_APPLICATION_MAX: usize = 10_000;
/// Longest endpoint URL in its normal form, in bytes.
pub const URL_BYTES_MAX: usize = 8_192;
pub const METADATA_BYTES_MAX: usize = 4_096;
pub const DESCRIPTION_BYTES_MAX: usize = 4_096;
pub const HEADER_VALUE_BYTES_MAX: usize = 4_096;
pub const ENDPOINT_HEADERS_MAX: usize = 64;
pub const SECRET_KEY_BYTES_MIN: usize = 24;
pub const SECRET_KEY_BYTES_MAX: usize = 75;
/// Old secrets of one endpoint that may still be valid beside the current one.
pub const OLD_SECRETS_MAX: usize = 10;
/// Statuses that an endpoint's owner may name as final.
pub const FINAL_STATUSES_MAX: usize = 64;
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;

/// What is kept of an answer's body, in bytes; the rest is cut and marked as cut.
pub const ANSWER_BODY_BYTES_KEPT: usize = 16 * 1024;
/// What is read of an answer's body before the exchange is ended, in bytes.
pub const ANSWER_BODY_BYTES_READ: usize = 64 * 1024;
/// Largest head (status line and headers) of an answer, in bytes. The interim (1xx) answers before
/// it and itself together may have twice as many.
pub const ANSWER_HEAD_BYTES_MAX: usize = 2 * 1024 * 1024;
pub const ANSWER_HEADERS_MAX: usize = 512;
/// Bytes of interim (1xx) answers that are read without counting them ...
pub const INTERIM_BYTES_FREE: u64 = 8 * 1024;
/// ... and how many may follow after that.
pub const INTERIM_ANSWERS_MAX: usize = 16;

pub const PAGE_ITEMS_DEFAULT: u32 = 50;
pub const PAGE_ITEMS_MAX: u32 = 250;
/// Payload bytes of one page of messages; a page ends before the message that would exceed them.
pub const PAGE_PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Work of one transaction of the writer.
pub const COMMIT_OPERATIONS_MAX: usize = 1_024;
/// Records written together.
pub const RECORD_BATCH_MAX: usize = 512;
/// Deliveries claimed together.
pub const CLAIM_BATCH_MAX: usize = 256;

/// Attempts of one delivery, whatever its policy says.
pub const ATTEMPTS_MAX: u32 = 100;
/// Attempts that may be lost with their worker, or otherwise without a record, beyond those that
/// the policy allows. A few, because a worker may be killed for reasons of its own; few, because
/// one that dies of a delivery takes down what it has in hand each time.
pub const ATTEMPTS_LOST_MAX: u32 = 10;
/// Longest wait that any policy, cooldown or `Retry-After` may ask for.
pub const DELAY_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Longest whole-exchange timeout an endpoint may ask for.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);
/// Deliveries in flight to one endpoint.
pub const ENDPOINT_IN_FLIGHT_MAX: u32 = 64;
/// Unbroken failure for so long disables an endpoint.
pub const DISABLE_AFTER: Duration = Duration::from_secs(5 * 24 * 3_600);
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than the exchange's timeout a lease lives.
pub const LEASE_SLACK: Duration = Duration::from_secs(15);
/// A worker says that it lives this often ...
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(3);
/// ... and is taken for dead after this long a silence.
pub const HEARTBEAT_LOST_AFTER: Duration = Duration::from_secs(12);
/// How far a signed timestamp may be from the receiver's clock, either way.
pub const TIMESTAMP_TOLERANCE: Duration = Duration::from_secs(300);
pub const IDEMPOTENCY_KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);
pub const PAYLOAD_KEPT_FOR_DAYS: u16 = 90;
