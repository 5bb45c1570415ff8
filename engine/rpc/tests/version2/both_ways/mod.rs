//! Calls both ways on connections that speak version 2: the tests of version 1, and what version 2 adds.

#[path = "../../engine/both_ways/ends.rs"]
mod ends;
#[path = "../../engine/both_ways/hostile.rs"]
mod hostile;
#[path = "../../engine/both_ways/rules.rs"]
mod rules;
#[path = "../../engine/both_ways/services.rs"]
mod services;
#[path = "../../engine/both_ways/storm.rs"]
mod storm;
mod together;
mod told;
