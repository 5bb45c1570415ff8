//! The rules of RPC-over-RDMA version 1 and of what goes with it, one file for each subject.
//!
//! A test that keeps a rule names it in a comment at its start, by number (`// 8166-3.3.1-c`). `rules.rs` checks
//! that each rule listed for this crate in `tests/rules.txt` is named by a test.

mod support;

mod arbitrary;
mod both_ways;
mod call_forms;
mod call_order;
mod cancellation;
mod chunk_echo;
mod credits;
mod directions;
mod disconnect;
mod duplex;
mod errors;
mod exposed_states;
mod exposing;
mod fencing;
mod groups;
mod pair;
mod parameters;
mod placement;
mod pulling_states;
mod read_lists;
mod reply_forms;
mod responder_states;
mod rules;
mod second;
mod second_rules;
mod sending;
mod states;
mod version2;
mod walk;
mod write_chunks;
