//! Client and server together, over the simulated fabric.

mod acl;
mod durable;
mod fragmented;
mod hostile;
mod locks;
mod pair;
mod procedures;
mod transfers;
mod weather;
