//! What every back-end must do, as cases that a back-end's tests run.
//!
//! `conformance_tests!` makes a test of each case. A case gets a `Ground` and may not ask which
//! back-end it stands on. Time is virtual: it passes when a case says so.

// The suite is test code in a library: what it meets and did not expect must stop it.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

pub mod catalog;
pub mod claim;
pub mod health;
pub mod history;
pub mod outbox;
pub mod races;
pub mod replay;
pub mod resend;
pub mod status;
pub mod upkeep;
mod world;

pub use world::World;

use crate::Store;
use async_trait::async_trait;
use std::sync::Arc;

/// One place for data, empty at first.
#[async_trait]
pub trait Ground: Send + Sync {
    /// Opens the data as another process would.
    async fn open(&self) -> Arc<dyn Store>;

    /// Opens the data with a handle whose commits can be made to fail.
    async fn open_faulty(&self) -> (Arc<dyn Store>, Arc<dyn Faults>);
}

/// Makes commits fail.
pub trait Faults: Send + Sync {
    /// The next `count` commits fail, as on a full disk.
    fn fail_commits(&self, count: u32);
}

/// A test for each case: `conformance_tests!(MyGround::new())`.
#[macro_export]
macro_rules! conformance_tests {
    ($ground:expr) => {
        $crate::conformance_tests! { @group $ground; outbox:
            accepted_is_claimed, accept_without_deliveries, leased_from_the_start,
            held_from_the_start, old_routes_are_refused, no_application, event_id_is_taken_once,
            event_id_of_another_application, f048_same_key_same_message,
            f048_same_key_other_request, f048_same_key_at_once, idempotency_key_expires,
            same_event_id_at_once, f005_bytes_stay_as_they_are, f032_nul_bytes,
            f101_largest_payload, delivered_is_done, retry_waits_for_its_time,
            dead_letter_has_its_cause, f070_late_record_changes_nothing,
            f038_any_answer_is_kept, too_many_records, message_comes_back_whole,
        }
        $crate::conformance_tests! { @group $ground; claim:
            claims_count_attempts, longest_waiting_lane_first, lane_gives_its_share,
            claim_is_bounded, full_lanes_are_passed_over, full_lane_with_some_room,
            next_due_is_told, classes_share_a_lane, endpoint_as_it_is_now,
            fan_out_shares_the_message, attempts_run_out, payload_gone, given_up_makes_room,
            give_back_uncounts, late_give_back_is_ignored, silent_worker_that_claims_again,
        }
        $crate::conformance_tests! { @group $ground; health:
            f067_rate_limit_holds, f067_rate_limit_holds_over_processes, application_rate_limit,
            waiting_for_a_token_costs_no_attempt, open_breaker_is_passed_over,
            open_breaker_costs_new_messages_nothing, one_probe_of_all_processes, probe_that_fails,
            late_probe_of_an_earlier_outage, probe_that_succeeds_drains, ramp_holds_over_processes,
            ramp_ends_when_nothing_waits, early_probe_leaves_the_plan,
            unused_probe_frees_its_place, lost_probe_frees_its_place,
            quiet_when_asked, gone_disables, failing_disables, failing_warns,
            sick_lane_leaves_others_alone, health_survives_a_restart,
        }
        $crate::conformance_tests! { @group $ground; resend:
            f061_resend_of_a_waiting_one_succeeds, f061_resend_of_a_waiting_one_fails,
            resend_in_flight, resend_to_a_disabled_endpoint, resend_of_a_delivered_one_that_fails,
            resend_of_a_dead_letter, resend_of_a_held_one, resend_of_one_never_routed,
            resend_of_nothing, resend_without_payload, resend_twice,
        }
        $crate::conformance_tests! { @group $ground; catalog:
            application_comes_back, application_uid_is_unique, application_update_is_checked,
            organisations_are_apart, applications_in_pages, endpoint_comes_back, f042_long_urls,
            endpoint_uid_is_unique, endpoint_update_is_checked, endpoint_without_application,
            endpoints_in_pages, deleted_endpoint_is_gone, routes_follow_every_change,
            routes_of_nothing, routes_changed_by_another_process, update_leaves_health_alone,
            event_type_lives_and_returns, event_types_are_filtered, event_types_in_pages,
            missing_event_type, request_is_done_once, request_is_taken_over, request_is_dropped,
        }
        $crate::conformance_tests! { @group $ground; history:
            message_by_id_and_event_id, messages_are_filtered, messages_in_pages,
            attempts_of_a_message, attempts_of_an_endpoint, attempts_are_filtered,
            attempt_comes_back_whole, messages_of_an_endpoint, deliveries_of_a_message,
            dead_letters_are_listed, dead_letters_in_pages,
        }
        $crate::conformance_tests! { @group $ground; status:
            windows_are_merged, status_tells_how_it_stands, failures_count_when_given_up,
            delivery_times, notices_newest_first,
        }
        $crate::conformance_tests! { @group $ground; upkeep:
            f069_leases_of_a_silent_worker, live_worker_keeps_its_leases, expired_lease,
            f058_due_after_recovery, f070_recovery_after_a_record, retired_worker,
            f066_nothing_while_disabled, hold_in_steps, enabling_finishes_the_hold,
            in_flight_while_disabled, f073_deleted_endpoint, in_flight_while_deleted,
            deleted_application, payloads_expire, history_is_forgotten, everything_is_forgotten,
            requests_expire, sketches_expire,
            everything_survives_a_restart, closed_store,
        }
        $crate::conformance_tests! { @group $ground; replay:
            dead_letters_are_replayed_once, window_of_a_replay, paced_replay,
            replay_goes_on_after_a_restart, replay_of_a_deleted_endpoint,
            replay_of_a_disabled_endpoint_waits, attempts_are_numbered_on,
            late_record_of_an_earlier_life, replayed_ones_go_last, replay_of_no_state,
            replay_without_payload,
        }
        $crate::conformance_tests! { @group $ground; races:
            f096_many_at_once, f096_two_processes, nothing_is_claimed_twice,
            failed_commit_promises_nothing, conflict_stays_its_callers_own,
            record_against_recovery, what_ends_never_vanishes, f096_everything_at_once,
        }
    };
    (@group $ground:expr; $group:ident: $($case:ident),+ $(,)?) => {
        mod $group {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let ground = $ground;
                $crate::conformance::$group::$case(&ground).await;
            })+
        }
    };
}
