//! The stores from outside: against a model, and rule by rule.

mod acl;
mod changes;
mod data;
mod directory;
mod durable;
mod fuse;
mod lab;
mod locks;
mod model;
mod names;
mod permissions;
mod procedures;
mod races;
mod runs;
mod slow;
mod space;
mod surroundings;
mod thin;
mod transfers;
mod unprivileged;
mod waiting;
