//! For how long something waits or is kept in this process; never for what is stored.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "commits are paced and copies aged in real time")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}
