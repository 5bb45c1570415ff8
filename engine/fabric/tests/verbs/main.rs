//! The verbs provider on libraries of nothing: what it asks of them, and what it makes of whatever they do.

#[path = "../fake/mod.rs"]
mod fake;

mod faults;
mod in_place;
mod path;
mod receives;
mod setup;
mod side;
mod survey;
