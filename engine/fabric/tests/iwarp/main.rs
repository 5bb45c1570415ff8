//! The iWARP provider against peers that are not it: hostile ones, and ones with habits. The other end is a plain TCP
//! socket of the test, so that every octet is the test's own. Time is the test's as well: nothing waits for a clock.

mod habits;
mod hostile;
mod idle;
mod in_place;
mod rules;
mod server;
mod setup;
mod sleep;
mod soak;
mod strangers;
mod whole;
