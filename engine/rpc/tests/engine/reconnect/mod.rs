//! Connections of clients that are made anew when they end: what their Calls see of it, which is nothing but time.

mod alive;
mod calls;
mod death;
mod held;
