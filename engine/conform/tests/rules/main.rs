//! The rules of the checks are complete against the numbers of `engine/spec`, and the table of all rules is fresh.

mod coverage;
mod rules_table;
