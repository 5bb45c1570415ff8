//! The conformance suite: what every provider must do, checked on every provider.
//!
//! A case is a function of a [`bench::Bench`]; its first line says what it shows. The table below makes each of
//! them a test of each provider. On `sim` a case runs for several seeds, on a calm fabric and on one that
//! takes every liberty that it has.

mod at_once;
mod bench;
mod capacity;
mod devices;
mod exposures;
#[path = "../fake/mod.rs"]
mod fake;
mod faults;
mod foreign;
mod handover;
mod in_place;
mod iwarp;
mod messages;
mod scattered;
mod setup;
mod shared_memory;
mod side;
mod simulated;
mod storm;
mod teardown;
mod transfers;

/// Makes a test of each case for each provider.
macro_rules! conformance {
    ($($subject:ident { $($case:ident)* })*) => {
        mod on_sim {
            $(mod $subject { $(
                #[test]
                fn $case() {
                    crate::simulated::run(stringify!($case), crate::$subject::$case);
                }
            )* })*
        }
        mod on_iwarp {
            $(mod $subject { $(
                #[test]
                fn $case() {
                    crate::iwarp::run(stringify!($case), crate::$subject::$case);
                }
            )* })*
        }
        mod on_shm {
            $(mod $subject { $(
                #[test]
                fn $case() {
                    crate::shared_memory::run(stringify!($case), crate::$subject::$case);
                }
            )* })*
        }
        mod on_verbs {
            $(mod $subject { $(
                #[test]
                fn $case() {
                    crate::devices::run(stringify!($case), crate::$subject::$case);
                }
            )* })*
        }
    };
}

conformance! {
    messages {
        sends_arrive_in_order
        receives_match_in_posting_order
        both_directions_at_once
        message_longer_than_the_receive
        zero_length_message
        largest_message
        unsignaled_sends
        doorbell
        poll_respects_its_bounds
        many_queue_pairs
    }
    scattered {
        a_long_message_goes_on_in_the_targets
        a_head_is_as_long_as_its_user_says
        a_message_that_exposes_goes_on_in_the_targets
        targets_of_the_last_message_outlast_the_peer
        a_message_longer_than_all_buffers
        a_gathered_message_is_one_message
        scattered_receives_are_checked
        targets_of_a_connection_that_ends
    }
    in_place {
        a_taken_message_needs_no_receive
        a_message_that_is_left_is_not_overtaken
        messages_are_built_in_place
        messages_that_expose_are_built_in_place
        what_is_not_plain_is_not_shown
        whole_messages_are_answered_with_memory
        an_answer_invalidates_what_is_exposed
        what_was_read_in_vain_can_be_fenced
    }
    at_once {
        reads_at_once
    }
    transfers {
        writes_land_before_the_send_behind_them
        a_write_touches_nothing_else
        a_read_gathers_its_parts
        read_parts_are_bounded
        zero_length_transfers
        completions_come_in_posting_order
        unsignaled_writes
        write_bounds
        read_bounds
        wrong_access
        unknown_handle
        handle_of_another_queue_pair
        own_handle
        requests_around_a_refused_one
    }
    foreign {
        memory_that_the_program_has
    }
    exposures {
        a_fence_gives_the_memory_back
        a_fenced_handle_is_dead
        handles_are_not_reused
        a_fence_against_writes_under_way
        a_fence_against_a_read_under_way
        send_with_invalidate
        send_with_invalidate_of_readable_memory
        invalidating_what_is_not_exposed
        invalidating_twice
        invalidating_what_was_fenced_meanwhile
        exposures_are_limited
        exposing_unregistered_memory
    }
    capacity {
        sends_beyond_capacity
        receives_beyond_capacity
        unregistered_buffers
        admission
        stale_queue_pair
        posts_before_established
    }
    setup {
        private_data_flows_both_ways
        too_much_private_data
        rejected_with_a_reason
        no_listener
        never_answered
        bad_addresses
        several_listeners
        peers_are_named
        connect_to_oneself
    }
    handover {
        adopted_messages
        adopted_transfers
        adopted_exposures
        adopted_answers
        the_asker_goes_before_the_answer
        the_asker_goes_after_adoption
        an_adopted_connection_ends
        the_asker_goes_between
        dropped_between
        unknown_requests
        a_full_adopter
    }
    teardown {
        before_the_answer
        after_prepare
        after_accept
        idle
        both_sides_at_once
        with_posted_receives
        with_sends_under_way
        with_exposures
        with_reads_under_way
        with_writes_under_way
        with_everything_under_way
        the_other_side_dies
        over_and_over
    }
}
