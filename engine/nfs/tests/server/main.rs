//! Client and server together, over the simulated fabric.

mod hostile;
mod pair;
mod procedures;
mod transfers;
mod weather;
