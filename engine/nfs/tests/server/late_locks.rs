//! The tests of locks once more, over a store that answers no question at once and takes no locks on its files.

#[path = "hostile.rs"]
mod hostile;
#[path = "locks.rs"]
mod locks;
#[path = "pair.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod pair;
#[path = "../../../stores/tests/store/slow.rs"]
mod slow;

const IS_CARRIED: bool = false;

const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

const STORES: pair::Stores = (slow::wrap_without_locks, slow::unwrap);
