//! Whole Calls between engines, over a simulated fabric: each rule that only both ends together can keep.

mod answers;
mod deferred;
mod endings;
mod forms;
mod handover;
mod life;
mod observed;
mod panics;
mod recorded;
